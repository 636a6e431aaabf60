"""Records: typed rows in Parquet, readable at every instant."""

from __future__ import annotations

import json
import os
import signal
import stat
import time
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from run_samples import FLOW_ROW, LINK, TRANSFER

from kvfabric.errors import BadInput
from kvfabric.records import RecordWriter, read_rows, read_table, schema, write_json, write_manifest
from kvfabric.rows import TABLES, FlowRow, LinkRow, RequestRow, TransferRow
from workloads.events import StartTransfer, TurnFinished
from workloads.turns import Turn

pytestmark = pytest.mark.unit

TURN = Turn(3, "chat", "s1", 1.5, 100, 10, 5, "trace:4")
FINISHED = TurnFinished(TURN, 0, 1, True, 1000, 100, 2.0, 3.0, 3.5, 1.0, None, 2.5)


def test_rows_written_are_the_rows_read(tmp_path: Path) -> None:
    request = RequestRow.finished(FINISHED)
    writer = RecordWriter(tmp_path / "run")
    writer.add(request, TRANSFER, FLOW_ROW, LINK, replace(LINK, time_emu_s=2.0))
    writer.close()
    assert list(read_rows(tmp_path / "run", RequestRow)) == [request]
    assert list(read_rows(tmp_path / "run", TransferRow)) == [TRANSFER]
    assert list(read_rows(tmp_path / "run", FlowRow)) == [FLOW_ROW]
    assert [row.time_emu_s for row in read_rows(tmp_path / "run", LinkRow)] == [1.0, 2.0]
    assert writer.rows == {"requests": 1, "transfers": 1, "flows": 1, "links": 2}


def test_closing_leaves_one_file_a_table_and_no_parts(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path, csv=True)
    writer.add(LINK)
    writer.flush()
    writer.add(LINK)
    writer.close()
    writer.close()
    tables = ("flows", "links", "requests", "transfers")
    assert sorted(os.listdir(tmp_path)) == sorted(f"{table}.{kind}" for table in tables for kind in ("csv", "parquet"))
    assert pa.csv.read_csv(tmp_path / "links.csv").num_rows == 2
    assert pq.read_table(tmp_path / "flows.parquet").schema.equals(schema("flows"))


def test_what_was_flushed_is_readable_before_the_run_is_over(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path)
    for number in range(3):
        writer.add(replace(LINK, sent_bytes=number))
        writer.flush()
    writer.add(replace(LINK, sent_bytes=99))
    assert [row.sent_bytes for row in read_rows(tmp_path, LinkRow)] == [0, 1, 2]
    assert read_table(tmp_path, "flows").num_rows == 0


def test_a_killed_writer_leaves_readable_parts_and_a_manifest_that_says_running(tmp_path: Path) -> None:
    write_ready, ready = os.pipe()
    pid = os.fork()
    if pid == 0:
        writer = RecordWriter(tmp_path / "run")
        write_manifest(tmp_path / "run", {"seed": 1}, "running")
        number = 0
        while True:
            writer.add(replace(LINK, sent_bytes=number))
            writer.flush()
            number += 1
            if number == 3:
                os.write(ready, b"x")
            time.sleep(0.002)
    assert os.read(write_ready, 1) == b"x"
    time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(write_ready)
    os.close(ready)
    sent = [row.sent_bytes for row in read_rows(tmp_path / "run", LinkRow)]
    assert len(sent) >= 3
    assert sent == list(range(len(sent)))
    assert json.loads((tmp_path / "run/manifest.json").read_text())["status"] == "running"


def test_a_directory_that_is_not_empty_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    with pytest.raises(BadInput) as caught:
        RecordWriter(tmp_path)
    assert caught.value.lines() == (f"--out {tmp_path} is not empty", "choose another or remove it")
    assert caught.value.exit_code == 2
    assert os.listdir(tmp_path) == ["mine"]


def test_a_file_in_place_of_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    with pytest.raises(BadInput, match="is a file"):
        RecordWriter(tmp_path / "mine")
    with pytest.raises(BadInput, match="Not a directory"):
        RecordWriter(tmp_path / "mine/below")


def test_memory_is_bounded_by_the_limit(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path, limit=10)
    for _ in range(25):
        writer.add(LINK)
    assert read_table(tmp_path, "links").num_rows == 20


def test_circuits_are_written_only_when_asked_for(tmp_path: Path) -> None:
    RecordWriter(tmp_path / "a").close()
    RecordWriter(tmp_path / "b", tables=TABLES).close()
    assert not (tmp_path / "a/circuits.parquet").exists()
    assert read_table(tmp_path / "b", "circuits").num_rows == 0
    with pytest.raises(FileNotFoundError):
        read_table(tmp_path / "a", "circuits")


@pytest.mark.parametrize("table", TABLES)
def test_units_are_in_the_names(table: str) -> None:
    unitless = {"slowdown", "use"}
    for field in schema(table):
        if pa.types.is_floating(field.type):
            assert field.name.endswith(("_s", "_Bps")) or field.name in unitless


def test_null_is_allowed_only_where_a_row_says_so() -> None:
    columns = schema("flows")
    assert columns.field("rto_count").nullable
    assert columns.field("path_realised").nullable
    assert not columns.field("bytes_emu").nullable


def test_a_failed_turn_has_no_ttft() -> None:
    row = RequestRow.finished(replace(FINISHED, failed="reset"))
    assert (row.status, row.reason, row.ttft_s, row.exposed_s, row.hidden) == ("failed", "reset", None, None, None)
    done = RequestRow.finished(FINISHED)
    assert (done.ttft_s, done.exposed_s, done.hidden) == (2.0, 0.5, False)


def test_an_unfinished_turn_keeps_what_is_known_of_it() -> None:
    queued = RequestRow.unfinished(TURN, 1.0, None, "time is up")
    assert (queued.status, queued.prefill, queued.migrated, queued.turn) == ("unfinished", None, None, 3)
    start = StartTransfer(3, 3, 0, 1, 1000, 100, "layerwise", 2.0, (3.0,))
    started = RequestRow.unfinished(TURN, 1.0, start, "time is up")
    assert (started.prefill, started.migrated, started.prefill_end_s, started.ttft_s) == (0, True, 3.0, None)


def test_json_is_replaced_whole_and_never_holds_nan(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"x": 1})
    with pytest.raises(ValueError, match="JSON"):
        write_json(path, {"x": float("nan")})
    assert json.loads(path.read_text()) == {"x": 1}
    assert os.listdir(tmp_path) == ["a.json"]
    assert stat.S_ISREG(path.stat().st_mode)
