"""Trace readers: what is read, and what is refused, with file, line and field."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from workloads.errors import TraceError
from workloads.inspect import inspect_trace
from workloads.readers import Trace, detect_format, read_trace

pytestmark = pytest.mark.unit

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"


def mooncake_row(timestamp: object, ids: list[int], *, length: int | None = None) -> dict[str, object]:
    return {"timestamp": timestamp, "input_length": length or 512 * len(ids), "output_length": 5, "hash_ids": ids}


def jsonl(path: Path, rows: list[object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def mooncake(tmp_path: Path, *rows: object, spread: bool = True, skip_bad: bool = False) -> Trace:
    return read_trace(jsonl(tmp_path / "t.jsonl", list(rows)), spread=spread, skip_bad=skip_bad)


def weka_request(t: object, length: int, ids: list[int], **more: object) -> dict[str, object]:
    return {"t": t, "type": "n", "in": length, "out": 7, "hash_ids": ids, **more}


def weka_file(path: Path, requests: list[object], name: str = "s1") -> Path:
    path.write_text(json.dumps({"id": name, "block_size": 64, "hash_id_scope": "local", "requests": requests}))
    return path


def error_of(path: Path, **options: object) -> TraceError:
    with pytest.raises(TraceError) as caught:
        read_trace(path, **options)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(str(path))
    return caught.value


# Mooncake


def test_mooncake_prefix_is_the_leading_blocks_seen_before_and_never_the_whole_prompt(tmp_path: Path) -> None:
    trace = mooncake(
        tmp_path, mooncake_row(0, [1, 2]), mooncake_row(1, [1, 2, 3]), mooncake_row(2, [1, 2, 3]), mooncake_row(3, [9, 2, 3])
    )
    assert [(turn.context, turn.new) for turn in trace.turns] == [(0, 1024), (1024, 512), (1535, 1), (0, 1536)]


def test_mooncake_session_follows_the_deepest_shared_block_but_not_the_shared_first_one(tmp_path: Path) -> None:
    first, other, second, third = mooncake(
        tmp_path, mooncake_row(0, [0, 1]), mooncake_row(1, [0, 7]), mooncake_row(2, [0, 1, 2]), mooncake_row(3, [0, 1, 2, 3])
    ).turns
    assert first.session == second.session == third.session != other.session


def test_zero_is_a_timestamp(tmp_path: Path) -> None:
    assert mooncake(tmp_path, mooncake_row(0, [1])).turns[0].time_s == 0.0


def test_rounded_timestamps_are_found_and_spread_up_to_the_next(tmp_path: Path) -> None:
    rows = [mooncake_row(t, [at]) for at, t in enumerate([0, 0, 3000, 3000, 3000, 9000])]
    trace = mooncake(tmp_path, *rows)
    assert trace.quantum_s == 3.0
    assert [turn.time_s for turn in trace.turns] == pytest.approx([0, 1.5, 3, 4, 5, 9])  # not into the idle step at 6 s
    assert [turn.time_s for turn in mooncake(tmp_path, *rows, spread=False).turns] == [0, 0, 3, 3, 3, 9]


def test_equal_timestamps_that_are_not_rounded_stay_together(tmp_path: Path) -> None:
    trace = mooncake(tmp_path, *(mooncake_row(t, [at]) for at, t in enumerate([0, 17, 17, 400, 1900, 1907])))
    assert trace.quantum_s == 0
    assert [turn.time_s for turn in trace.turns] == pytest.approx([0, 0.017, 0.017, 0.4, 1.9, 1.907])


@given(st.lists(st.integers(0, 40), min_size=1, max_size=60))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_spreading_keeps_order_and_moves_no_turn_by_a_step_or_more(tmp_path: Path, steps: list[int]) -> None:
    rows = [mooncake_row(3000 * step, [at]) for at, step in enumerate(sorted(steps))]
    plain, spread = mooncake(tmp_path, *rows, spread=False), mooncake(tmp_path, *rows)
    times = [turn.time_s for turn in spread.turns]
    assert times == sorted(times)
    moves = [after.time_s - before.time_s for before, after in zip(plain.turns, spread.turns, strict=True)]
    assert all(0 <= move < max(spread.quantum_s, 1e-9) for move in moves)


@pytest.mark.parametrize(
    ("change", "field", "says"),
    [
        ({"timestamp": None}, "timestamp", "missing"),
        ({"timestamp": float("nan")}, "timestamp", "finite"),
        ({"timestamp": -1}, "timestamp", "negative"),
        ({"timestamp": "12"}, "timestamp", "not a number"),
        ({"timestamp": True}, "timestamp", "not a number"),
        ({"timestamp": 4}, "timestamp", "before"),
        ({"input_length": None}, "input_length", "missing"),
        ({"input_length": 0}, "input_length", "below 1"),
        ({"input_length": 511.5}, "input_length", "whole"),
        ({"input_length": 10**12}, "input_length", "unit"),
        ({"output_length": -3}, "output_length", "negative"),
        ({"hash_ids": None}, "hash_ids", "missing"),
        ({"hash_ids": "1,2"}, "hash_ids", "not a list"),
        ({"hash_ids": [1.5]}, "hash_ids", "whole number"),
        ({"hash_ids": [1, 2, 3]}, "hash_ids", "cover"),
    ],
)
def test_a_bad_value_names_line_and_field_and_can_be_skipped(
    tmp_path: Path, change: dict[str, object], field: str, says: str
) -> None:
    rows: list[object] = [mooncake_row(5, [1]), {**mooncake_row(6, [2]), **change}, mooncake_row(7, [3])]
    path = jsonl(tmp_path / "t.jsonl", rows)
    error = error_of(path)
    assert (error.line, error.field) == (2, field)
    assert says in error.message
    trace = read_trace(path, skip_bad=True)
    assert (trace.rows, len(trace.turns), len(trace.skipped)) == (3, 2, 1)
    assert trace.skipped[0].line == 2


@pytest.mark.parametrize("content", [b'{"timestamp": 6, "input_le', b"[1, 2]", b"\xff\xfe", b"1" * 5000, b"[" * 100_000])
def test_a_broken_line_is_an_error_with_its_number_and_no_traceback_of_the_parser(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "t.jsonl"
    row = json.dumps(mooncake_row(5, [1])).encode()
    path.write_bytes(row + b"\n\n" + content + b"\n" + row + b"\n")
    assert error_of(path).line == 3
    trace = read_trace(path, skip_bad=True)
    assert (trace.rows, len(trace.turns)) == (3, 2)


@pytest.mark.parametrize(
    ("factor", "unit"), [(1e-3, "seconds"), (1e3, "microseconds"), (1e6, "microseconds")], ids=["s", "us", "ns"]
)
def test_timestamps_in_another_unit_are_found_by_their_rate(tmp_path: Path, factor: float, unit: str) -> None:
    times = [at * 300.0 for at in range(200)]
    jsonl(tmp_path / "good.jsonl", [mooncake_row(t, [at]) for at, t in enumerate(times)])
    assert read_trace(tmp_path / "good.jsonl").rows == 200
    error = error_of(jsonl(tmp_path / "bad.jsonl", [mooncake_row(t * factor, [at]) for at, t in enumerate(times)]))
    assert error.field == "timestamp"
    assert unit in error.message


def test_timestamps_since_1970_are_accepted_in_milliseconds_and_refused_in_seconds(tmp_path: Path) -> None:
    trace = mooncake(tmp_path, mooncake_row(1_700_000_000_000, [1]), mooncake_row(1_700_000_002_500, [2]))
    assert [turn.time_s for turn in trace.turns] == [0.0, 2.5]
    error = error_of(jsonl(tmp_path / "s.jsonl", [mooncake_row(1_700_000_000 + at, [at]) for at in range(3)]))
    assert "seconds since 1970" in error.message


# Azure


def test_azure_rows_have_no_prefix_and_keep_their_seventh_digit(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"{HEADER}\n2023-11-16 23:59:59.9999999,374,44\n2023-11-17 00:00:00.0000001,396,0\n")
    trace = read_trace(path)
    assert [(turn.time_s, turn.context, turn.new, turn.output) for turn in trace.turns] == [
        (0.0, 0, 374, 44),
        (2e-7, 0, 396, 0),
    ]
    assert len({turn.session for turn in trace.turns}) == 2
    assert not trace.session_relative


@pytest.mark.parametrize(
    ("line", "field"),
    [
        (",5,5", "TIMESTAMP"),
        ("17.5,5,5", "TIMESTAMP"),
        ("2023-13-16 18:17:03,5,5", "TIMESTAMP"),
        ("2023-11-16 18:17:00,5,5", "TIMESTAMP"),
        ("2023-11-16 18:17:04,,5", "ContextTokens"),
        ("2023-11-16 18:17:04,0,5", "ContextTokens"),
        ("2023-11-16 18:17:04,4x8,5", "ContextTokens"),
        ("2023-11-16 18:17:04,nan,5", "ContextTokens"),
        ("2023-11-16 18:17:04,5,-1", "GeneratedTokens"),
        ("2023-11-16 18:17:04,5", None),
    ],
)
def test_a_bad_azure_row_names_line_and_column(tmp_path: Path, line: str, field: str | None) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"{HEADER}\n2023-11-16 18:17:03,5,5\n{line}\n2023-11-16 18:17:09,5,5\n")
    error = error_of(path)
    assert (error.line, error.field) == (3, field)
    trace = read_trace(path, skip_bad=True)
    assert (trace.rows, len(trace.turns)) == (3, 2)


def test_an_azure_header_without_a_column_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("TIMESTAMP,ContextTokens\n2023-11-16 18:17:03,5\n")
    assert error_of(path).field == "GeneratedTokens"


# WEKA


def test_weka_prefix_shrinks_at_a_compaction(tmp_path: Path) -> None:
    path = weka_file(
        tmp_path / "s.json",
        [weka_request(0.0, 130, [1, 2, 3]), weka_request(5.0, 200, [1, 2, 4, 5]), weka_request(9.0, 70, [1, 9])],
    )
    trace = read_trace(path)
    assert [(turn.context, turn.new) for turn in trace.turns] == [(0, 130), (128, 72), (64, 6)]
    assert trace.session_relative
    assert trace.turns[1].source == f"{path}#1"


def test_a_weka_subagent_is_a_session_of_its_own_that_starts_without_a_cache(tmp_path: Path) -> None:
    inner = [weka_request(0.0, 128, [1, 2]), weka_request(2.0, 192, [1, 2, 8])]
    agent = {"t": 3.0, "type": "subagent", "agent_id": "agent_001", "requests": inner}
    idle = {"t": 4.0, "type": "subagent", "agent_id": "agent_002", "requests": []}
    path = weka_file(tmp_path / "s.json", [weka_request(0.0, 128, [1, 2]), agent, idle, weka_request(9.0, 192, [1, 2, 3])])
    trace = read_trace(path)
    assert [(turn.session, turn.time_s, turn.context) for turn in trace.turns] == [
        ("s1", 0.0, 0),
        ("s1#agent_001", 0.0, 0),
        ("s1#agent_001", 2.0, 128),
        ("s1", 9.0, 128),
    ]
    assert trace.rows == 4
    assert any("1 subagents made no request" in note for note in trace.notes)
    assert trace.turns[2].source == f"{path}#1.1"


def test_a_weka_directory_is_read_in_order_and_equal_ids_stay_apart(tmp_path: Path) -> None:
    weka_file(tmp_path / "b.json", [weka_request(0.0, 64, [1])])
    weka_file(tmp_path / "a.json", [weka_request(0.0, 65, [1, 2])])
    assert [(turn.session, turn.new) for turn in read_trace(tmp_path).turns] == [("s1", 65), ("s1~2", 64)]


def test_a_bad_weka_step_or_file_is_named_and_can_be_skipped(tmp_path: Path) -> None:
    weka_file(tmp_path / "a.json", [weka_request(4.0, 64, [1]), weka_request(3.0, 64, [1]), weka_request(5.0, 64, [1])])
    (tmp_path / "b.json").write_text('{"id": "x",\n "requests": [')
    with pytest.raises(TraceError) as caught:
        read_trace(tmp_path)
    assert (caught.value.file, caught.value.line, caught.value.field) == (str(tmp_path / "a.json"), "#1", "t")
    trace = read_trace(tmp_path, skip_bad=True)
    assert (trace.rows, len(trace.turns), [error.line for error in trace.skipped]) == (4, 2, ["#1", 2])


def test_weka_times_in_another_unit_are_found_by_api_and_think_time(tmp_path: Path) -> None:
    def session(factor: float) -> Path:
        requests = [weka_request(10.0 * at * factor, 64, [1], api_time=4.0, think_time=6.0 if at else 0.0) for at in range(30)]
        return weka_file(tmp_path / "s.json", list(requests))

    assert read_trace(session(1.0)).rows == 30
    assert "seconds" in error_of(session(1000.0)).message


# TraceLab


def tracelab_row(session: str, index: int, second: int, prefix: int = 100, new: int = 10) -> dict[str, object]:
    stamp = f"2026-06-01T05:40:{second:02}.500Z"
    return {
        "session_id": session,
        "round_index": index,
        "prefix_tokens": prefix,
        "newly_append_tokens": new,
        "output_tokens": 3,
        "timing_events": [{"event_type": "user_message", "timestamp": stamp}],
    }


def test_tracelab_times_count_from_the_session_and_a_session_that_begins_again_is_another(tmp_path: Path) -> None:
    rows: list[object] = [tracelab_row("a", 0, 1), tracelab_row("a", 1, 4, new=0), tracelab_row("a", 0, 2)]
    trace = read_trace(jsonl(tmp_path / "t.jsonl", rows))
    assert [(turn.session, turn.time_s, turn.context, turn.new) for turn in trace.turns] == [
        ("a", 0.0, 100, 10),
        ("a", 3.0, 99, 1),
        ("a~2", 0.0, 100, 10),
    ]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"session_id": None}, "session_id"),
        ({"prefix_tokens": None}, "prefix_tokens"),
        ({"newly_append_tokens": -1}, "newly_append_tokens"),
        ({"prefix_tokens": 0, "newly_append_tokens": 0}, "newly_append_tokens"),
        ({"timing_events": []}, "timing_events"),
        ({"timing_events": [{"timestamp": "2026-06-01T05:40:00Z"}]}, "timing_events"),
        ({"timing_events": [{"timestamp": 12}]}, "timestamp"),
    ],
)
def test_a_bad_tracelab_round_names_its_field(tmp_path: Path, change: dict[str, object], field: str) -> None:
    path = jsonl(tmp_path / "t.jsonl", [tracelab_row("a", 0, 1), {**tracelab_row("a", 1, 4), **change}])
    error = error_of(path)
    assert (error.line, error.field) == (2, field)


# All


def test_an_empty_missing_unknown_or_wholly_bad_trace_is_an_error(tmp_path: Path) -> None:
    assert "no such file" in error_of(tmp_path / "none.jsonl").message
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n  \n")
    assert "empty" in error_of(empty).message
    assert "no rows" in error_of(empty, format="mooncake").message
    only_header = tmp_path / "h.csv"
    only_header.write_text(HEADER + "\n")
    assert "no rows" in error_of(only_header).message
    (tmp_path / "dir").mkdir()
    assert "no *.json files" in error_of(tmp_path / "dir").message
    unknown = tmp_path / "u.txt"
    unknown.write_text("hello\n")
    assert "no format known" in error_of(unknown).message
    assert "no trace format" in error_of(unknown, format="pcap").message
    bad = jsonl(tmp_path / "bad.jsonl", [mooncake_row(-1, [1])])
    assert "all 1 rows are bad" in error_of(bad, skip_bad=True).message


def test_a_format_is_known_by_its_fields_even_behind_a_broken_first_line(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"timestamp": 0, "inp\n' + json.dumps(mooncake_row(1, [1])) + "\n")
    assert detect_format(path) == "mooncake"
    assert error_of(path).line == 1
    assert detect_format(jsonl(tmp_path / "l.jsonl", [tracelab_row("a", 0, 1)])) == "tracelab"
    assert detect_format(weka_file(tmp_path / "w.json", [])) == "weka"
    assert detect_format(tmp_path) == "weka"


values = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 10**20), st.floats(), st.text(max_size=3), st.lists(st.integers(0, 3), max_size=3)
)


@given(st.lists(st.dictionaries(st.sampled_from(["timestamp", "input_length", "output_length", "hash_ids"]), values), max_size=8))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_is_in_the_rows_they_are_all_accounted_for(tmp_path: Path, rows: list[object]) -> None:
    path = jsonl(tmp_path / "t.jsonl", [*rows, mooncake_row(10**17, [1])])
    trace = read_trace(path, format="mooncake", skip_bad=True)
    assert trace.rows == len(rows) + 1 == len(trace.turns) + len(trace.skipped)
    report = inspect_trace(trace)
    assert report.rows == report.turns + len(report.problems)
    json.dumps(report.to_json())


# Published files


@pytest.mark.parametrize(
    ("name", "format", "rows", "sessions", "quantum_s"),
    [
        ("mooncake/conversation_trace.jsonl", "mooncake", 12_031, 7_373, 3.0),
        ("mooncake/synthetic_trace.jsonl", "mooncake", 3_993, 2_245, 0.0),
        ("azure/AzureLLMInferenceTrace_code.csv", "azure", 8_819, 8_819, 0.0),
        ("azure/AzureLLMInferenceTrace_conv.csv", "azure", 19_366, 19_366, 0.0),
        ("tracelab/round_trace.jsonl", "tracelab", 19, 2, 0.0),
        ("weka/sessions", "weka", 1_037, 24, 0.0),
    ],
)
def test_published_traces_are_read_whole(
    shared_data: Path, name: str, format: str, rows: int, sessions: int, quantum_s: float
) -> None:
    report = inspect_trace(read_trace(shared_data / name))
    assert (report.format, report.rows, report.turns, report.sessions) == (format, rows, rows, sessions)
    assert report.quantum_s == quantum_s


def test_weka_prefixes_equal_those_derived_elsewhere(shared_data: Path) -> None:
    with (shared_data / "weka" / "turns_excerpt.csv").open(newline="") as file:
        known = {(row["trace_id"], int(row["step"])): row for row in csv.DictReader(file) if row["agent"] == "main"}
    compared = 0
    for turn in read_trace(shared_data / "weka" / "sessions").turns:
        row = known.get((turn.session, int(turn.source.rpartition("#")[2])))
        if row is not None:
            compared += 1
            assert (turn.context, turn.new, turn.output) == (
                int(row["cached_prefix_tokens"]),
                int(row["new_tokens"]),
                int(row["output_tokens"]),
            )
    assert compared >= 100
