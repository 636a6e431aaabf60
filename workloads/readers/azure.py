"""Azure LLM inference CSV: ``TIMESTAMP,ContextTokens,GeneratedTokens``.

Source: Azure/AzurePublicDataset (2023). It says nothing about prefixes: context is 0, every token is new, every row is a
session of its own. Times are given since the first row.
"""

from __future__ import annotations

import csv
import datetime
import re
from pathlib import Path

from workloads.errors import TraceError
from workloads.readers._fields import Row
from workloads.readers._trace import Collector, Trace, lines_of
from workloads.turns import TraceTurn

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_STAMP = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)?")
_WHOLE = re.compile(r"[+-]?\d{1,30}")
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)


def read(path: Path, *, skip_bad: bool = False) -> Trace:
    """Read a file. Raises TraceError: a bad row (unless ``skip_bad``), a header without the columns, nothing in the file."""
    into = Collector(str(path), skip_bad=skip_bad)
    columns: list[str] = []
    first_ns = last_ns = 0
    for number, content in lines_of(path):
        if not columns:
            columns = _header(path, number, content)
            continue
        try:
            row = _row(path, number, content, columns)
            at_ns = parse_stamp(row, "TIMESTAMP")
            if into.turns and at_ns < last_ns:
                raise row.error("TIMESTAMP", f"{row.values['TIMESTAMP']} is before the row above; sort the file by time")
            new, output = row.count("ContextTokens", low=1), row.count("GeneratedTokens")
        except TraceError as error:
            into.bad(error)
            continue
        first_ns = first_ns if into.turns else at_ns
        last_ns = at_ns
        into.turns.append(TraceTurn((at_ns - first_ns) / 1e9, f"line{number}", 0, new, output, row.source))
    into.notes.append("the format has no prefix information: context is 0 and every row is its own session")
    return into.trace("azure", session_relative=False)


def parse_stamp(row: Row, field: str) -> int:
    """A date and time as nanoseconds since 1970, kept whole: the files have seven digits after the point. Raises TraceError."""
    text = row.text(field)
    match = _STAMP.fullmatch(text.strip())
    if match is None:
        raise row.error(field, f"is {text[:40]!r}, not a date and time; write it like 2023-11-16 18:17:03.9799600")
    day, clock, fraction, zone = match.groups()
    try:
        stamp = datetime.datetime.fromisoformat(f"{day} {clock}{'+00:00' if zone in (None, 'Z') else zone}")
    except ValueError as error:
        raise row.error(field, f"is {text[:40]!r}, which is no date ({error}); correct it") from error
    whole = stamp - _EPOCH
    return (whole.days * 86_400 + whole.seconds) * 10**9 + int((fraction or "").ljust(9, "0"))


def _header(path: Path, number: int, content: bytes) -> list[str]:
    columns = [name.strip() for name in content.decode("utf-8-sig", "replace").strip().split(",")]
    for name in COLUMNS:
        if name not in columns:
            raise TraceError(str(path), number, name, f"is not in the header; it must be {','.join(COLUMNS)}")
    return columns


def _row(path: Path, number: int, content: bytes, columns: list[str]) -> Row:
    try:
        cells = next(csv.reader([content.decode("utf-8").strip("\r\n")]), [])
    except (UnicodeDecodeError, csv.Error) as error:
        raise TraceError(str(path), number, None, f"is not a line of CSV ({error}); correct or remove it") from error
    if len(cells) != len(columns):
        raise TraceError(
            str(path),
            number,
            None,
            f"has {len(cells)} columns where the header has {len(columns)}; correct or remove it",
        )
    values: dict[str, object] = {}
    for name, cell in zip(columns, cells, strict=True):
        values[name] = cell if name == "TIMESTAMP" else cell_value(cell.strip())
    return Row(str(path), number, values)


def cell_value(cell: str) -> object:
    """A CSV has only text: what reads as a number becomes one, anything else stays and is refused by its type."""
    if _WHOLE.fullmatch(cell):
        return int(cell)
    try:
        return float(cell)
    except ValueError:
        return cell
