"""The records of a run on the disk: one Parquet table a kind of row, written as the run goes.

While a run lasts, every flush leaves complete Parquet files in ``TABLE.parts/``: what was flushed stays readable when the
process is killed. ``close`` merges them into ``TABLE.parquet``. The rows are those of ``kvfabric.rows``.
"""

from __future__ import annotations

import json
import os
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from kvfabric.errors import BadInput
from kvfabric.rows import TABLE_OF, TABLES, CircuitRow, FlowRow, LinkRow, RequestRow, Row, Status, TransferRow, values

__all__ = [
    "TABLES",
    "TABLE_OF",
    "CircuitRow",
    "FlowRow",
    "LinkRow",
    "ManifestStatus",
    "RecordWriter",
    "RequestRow",
    "Row",
    "Status",
    "TransferRow",
    "prepare_out",
    "read_json",
    "read_rows",
    "read_table",
    "schema",
    "values",
    "write_json",
    "write_manifest",
]

_Row = TypeVar("_Row", RequestRow, TransferRow, FlowRow, LinkRow, CircuitRow)

_ARROW = {int: pa.int64(), float: pa.float64(), str: pa.string(), bool: pa.bool_()}


@cache
def schema(table: str) -> Any:
    """The Arrow schema of a table, from its row's annotations: ``X | None`` is a nullable column."""
    columns = []
    for name, hint in typing.get_type_hints(TABLES[table]).items():
        parts = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        kind = next(part for part in parts if part is not type(None))
        columns.append(pa.field(name, _ARROW[kind], nullable=len(parts) > 1))
    return pa.schema(columns)


def prepare_out(out: Path) -> None:
    """Make a run's directory. Raises BadInput when it is not empty, not a directory, or cannot be made."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        if any(out.iterdir()):
            raise BadInput(f"--out {out} is not empty", "choose another or remove it")
    except FileExistsError:
        raise BadInput(f"--out {out} is a file", "choose a directory that does not exist yet") from None
    except OSError as error:
        raise BadInput(f"--out {out}: {error.strerror}", "choose a directory that can be written") from None


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write a JSON document so that a reader sees the old one or the new one, never half; on the disk on return.

    Raises ValueError for NaN and infinities, which are not JSON.
    """
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    _rename(temporary, path)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON document that ``write_json`` wrote. Raises OSError or ValueError where it did not."""
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return document


ManifestStatus = Literal["running", "finished", "interrupted", "failed"]


def write_manifest(out: Path, manifest: Mapping[str, Any], status: ManifestStatus) -> None:
    """``manifest.json`` with its status first. One that says ``running`` without a process is a run that was killed."""
    write_json(out / "manifest.json", {"status": status, **{key: value for key, value in manifest.items() if key != "status"}})


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _rename(source: Path, target: Path) -> None:
    source.replace(target)
    _sync(target.parent)


class RecordWriter:
    """Writes the tables of one run into ``out``. Holds no open file between calls, so it may cross a fork.

    Raises BadInput for an ``out`` that is not empty, OSError when the disk refuses. Memory is bounded by the rows added
    since the last flush: ``limit`` of a table, after which it flushes of itself.
    """

    def __init__(self, out: Path, *, csv: bool = False, tables: Iterable[str] = ("requests", "transfers", "flows", "links"),
                 limit: int = 20_000) -> None:  # fmt: skip
        prepare_out(out)
        self.out = out
        self.csv = csv
        self.tables = tuple(tables)
        self.rows = dict.fromkeys(self.tables, 0)
        self._limit = limit
        self._pending: dict[str, list[tuple[Any, ...]]] = {table: [] for table in self.tables}
        self._parts: dict[str, list[Path]] = {table: [] for table in self.tables}
        self._closed = False
        for table in self.tables:
            schema(table)
            try:
                self._folder(table).mkdir()
            except FileExistsError:  # another run chose the same directory in this instant
                raise BadInput(f"--out {out} is not empty", "choose another or remove it") from None

    def _folder(self, table: str) -> Path:
        return self.out / f"{table}.parts"

    def add(self, *rows: Row) -> None:
        """Add rows, each to the table of its kind. Raises KeyError for a table this writer was not asked to write."""
        for row in rows:
            self.add_values(TABLE_OF[type(row)], values(row))

    def add_values(self, table: str, row: tuple[Any, ...]) -> None:
        """Add a row as ``values`` gives it."""
        pending = self._pending[table]
        pending.append(row)
        self.rows[table] += 1
        if len(pending) >= self._limit:
            self._flush(table)

    def flush(self) -> None:
        """Leave everything added so far in complete files."""
        for table in self.tables:
            self._flush(table)

    def _flush(self, table: str) -> None:
        pending = self._pending[table]
        if not pending:
            return
        columns = schema(table)
        arrays = [pa.array(column, field.type) for column, field in zip(zip(*pending, strict=True), columns, strict=True)]
        path = self._folder(table) / f"{len(self._parts[table]):06d}.parquet"
        temporary = path.with_suffix(".tmp")
        pq.write_table(pa.Table.from_arrays(arrays, schema=columns), temporary, compression="zstd")
        temporary.replace(path)
        self._parts[table].append(path)
        pending.clear()

    def close(self) -> None:
        """Flush, merge the parts of every table into one file (and CSV), and remove them. A second call does nothing."""
        if self._closed:
            return
        self.flush()
        for table in self.tables:
            if self.csv:
                self._merge(table, f"{table}.csv", pa.csv.CSVWriter)
            self._merge(table, f"{table}.parquet", _parquet_writer)
            for part in self._parts[table]:
                part.unlink()
            self._folder(table).rmdir()
        self._closed = True

    def _merge(self, table: str, name: str, open_writer: Any) -> None:
        temporary = self.out / f".{name}.tmp"
        with open_writer(str(temporary), schema(table)) as target:
            for part in self._parts[table]:  # one at a time: memory stays bounded
                target.write_table(_read(part))
        _sync(temporary)
        _rename(temporary, self.out / name)


def _parquet_writer(path: str, columns: Any) -> Any:
    return pq.ParquetWriter(path, columns, compression="zstd")


def _read(path: Path) -> Any:
    with pq.ParquetFile(path) as file:
        return file.read(use_threads=False)


def read_table(out: Path, table: str) -> Any:
    """A table of a run as a pyarrow.Table, from its parts while the run is not finished (or never was).

    Raises FileNotFoundError when the run has no such table.
    """
    whole = out / f"{table}.parquet"
    if whole.exists():
        return _read(whole)
    folder = out / f"{table}.parts"
    if not folder.is_dir():
        raise FileNotFoundError(f"{out} has no table {table}")
    return pa.concat_tables([schema(table).empty_table(), *(_read(part) for part in sorted(folder.glob("*.parquet")))])


def read_rows(out: Path, kind: type[_Row]) -> Iterator[_Row]:
    """The rows of a kind of a run. Raises FileNotFoundError."""
    table = read_table(out, TABLE_OF[kind])
    columns = [table.column(item.name).to_pylist() for item in fields(kind)]
    return (kind(*row) for row in zip(*columns, strict=True))
