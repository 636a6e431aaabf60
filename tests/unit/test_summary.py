"""The summary: stable keys, percentiles nothing leaves silently, and a table that says INVALID."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console
from run_samples import FLOW_ROW as FLOW
from run_samples import GOOD

from kvfabric.rows import FlowRow, RequestRow
from kvfabric.summary import RunFacts, render_summary, statistics, summarise
from kvfabric.verdict import Verdict, judge
from workloads.events import StartTransfer, TurnFinished
from workloads.turns import Turn

pytestmark = pytest.mark.unit

FACTS = RunFacts(
    scenario="demo",
    engine="emulation",
    fabric="leaf-spine 2:1",
    offered_digest="abc",
    ended_s=100.0,
    time_scale=10.0,
    wall_s=61.0,
)
VALID = judge(GOOD)
INVALID = Verdict(False, ("the kernel dropped 5 packets",), VALID.fidelity)


def request(turn: int, ttft_s: float, *, exposed_s: float = 0.0, migrated: bool = True, tenant: str = "chat") -> RequestRow:
    """A turn that arrives at its number, is prefilled until ``exposed_s`` before its last byte, and has no queue."""
    end = turn + ttft_s
    return RequestRow.finished(
        TurnFinished(
            Turn(turn, tenant, "s", float(turn), 10, 1, 1, f"t:{turn}"), 0, 0, migrated, 10, 1, float(turn), end - exposed_s,
            end, 1.0, None,
        )
    )  # fmt: skip


def summary(requests: list[RequestRow], flows: list[FlowRow] | None = None, verdict: Verdict = VALID) -> dict[str, Any]:
    found = summarise(FACTS, verdict, requests, flows if flows is not None else [FLOW])
    parsed: dict[str, Any] = json.loads(json.dumps(found, allow_nan=False))
    return parsed


def test_the_keys_are_those_of_the_contract() -> None:
    found = summary([request(0, 1.0)])
    assert list(found) == [
        "scenario", "engine", "fabric", "verdict", "reasons", "requests", "ttft_s", "exposed_s", "fct_s", "slowdown",
        "exposed_share_of_ttft", "hidden_share", "slo_attainment", "circuits", "offered_digest", "fidelity", "wall_s",
    ]  # fmt: skip
    assert list(found["requests"]) == ["offered", "completed", "failed", "unfinished", "migrated"]
    for key in ("ttft_s", "exposed_s", "fct_s", "slowdown"):
        assert list(found[key]) == ["mean", "p50", "p95", "p99"]
    assert list(found["circuits"]) == ["booked", "reconfigurations", "reused", "dark_error_ms"]
    assert list(found["circuits"]["dark_error_ms"]) == ["p50", "p99"]


def test_the_keys_are_there_without_any_turn() -> None:
    full, empty = summary([request(0, 1.0)]), summary([], [])
    assert list(full) == list(empty)
    assert empty["ttft_s"] == {"mean": None, "p50": None, "p95": None, "p99": None}
    assert empty["hidden_share"] is None
    assert empty["slo_attainment"] == {}


def test_figures_of_completed_turns() -> None:
    rows = [request(0, 2.0, exposed_s=1.0), request(1, 6.0), request(2, 4.0, migrated=False)]
    found = summary(rows)
    assert found["ttft_s"]["mean"] == pytest.approx(4.0)
    assert found["ttft_s"]["p50"] == pytest.approx(4.0)
    assert found["exposed_share_of_ttft"] == pytest.approx(1 / 12)
    assert found["hidden_share"] == pytest.approx(0.5)
    assert found["slo_attainment"] == {"all": pytest.approx(2 / 3), "chat": pytest.approx(2 / 3)}
    assert found["requests"] == {"offered": 3, "completed": 3, "failed": 0, "unfinished": 0, "migrated": 2}
    assert found["fct_s"]["mean"] == pytest.approx(FLOW.fct_s)
    assert found["fidelity"]["lower_bounds"] == {"ttft_s": 0, "exposed_s": 0, "fct_s": 0, "slowdown": 0}


def test_a_turn_that_did_not_finish_enters_with_the_time_so_far() -> None:
    turn = Turn(1, "chat", "s", 40.0, 10, 1, 1, "t:1")
    start = StartTransfer(1, 1, 0, 0, 10, 1, "layerwise", 50.0, (70.0,))
    found = summary([request(0, 1.0), RequestRow.unfinished(turn, 1.0, start, "time is up")])
    assert found["ttft_s"]["mean"] == pytest.approx((1 + 60) / 2)
    assert found["exposed_s"]["mean"] == pytest.approx(30 / 2)
    assert found["slo_attainment"]["all"] == pytest.approx(0.5)
    assert found["hidden_share"] == pytest.approx(0.5)
    assert found["fidelity"]["lower_bounds"]["ttft_s"] == 1


def test_a_failed_turn_is_no_fast_one() -> None:
    good = request(0, 1.0)
    failed = RequestRow.finished(
        TurnFinished(Turn(1, "chat", "s", 1.0, 10, 1, 1, "t:1"), 0, 0, True, 10, 1, 1.0, 1.5, 1.01, 1.0, "connection reset")
    )
    found = summary([good, failed])
    assert found["requests"]["failed"] == 1
    assert found["ttft_s"]["mean"] == pytest.approx((1 + 99) / 2)
    assert found["fidelity"]["lower_bounds"]["ttft_s"] == 1


def test_a_flow_that_did_not_finish_enters_with_the_time_so_far() -> None:
    going = replace(
        FLOW, fct_s=None, slowdown=None, delivered_emu_s=None, actual_send_emu_s=900.0, ideal_fct_emu_s=20.0, status="unfinished"
    )
    found = summary([request(0, 1.0)], [going])
    assert found["fct_s"]["mean"] == pytest.approx(10.0)
    assert found["slowdown"]["mean"] == pytest.approx(5.0)
    assert found["fidelity"]["lower_bounds"]["fct_s"] == 1


def test_percentiles_are_numpys_linear_ones() -> None:
    found = statistics([float(value) for value in range(101)])
    assert found == {"mean": 50.0, "p50": 50.0, "p95": 95.0, "p99": 99.0}


def rendered(document: dict[str, Any], width: int = 120) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(render_summary(document))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_verdict_is_the_first_word_and_invalid_marks_every_table() -> None:
    rows = [request(0, 1.0)]
    text = rendered(summary(rows, verdict=INVALID))
    assert text.startswith("INVALID")
    assert "the kernel dropped 5 packets" in text
    titles = [line for line in text.splitlines() if line.startswith(("Turns", "Times", "Shares", "Fidelity"))]
    assert len(titles) == 4
    assert all("(INVALID)" in title for title in titles)
    valid = rendered(summary(rows))
    assert valid.startswith("VALID")
    assert "INVALID" not in valid


def test_columns_line_up() -> None:
    lines = rendered(summary([request(0, 1.0), request(1, 123.0)])).splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("Times"))
    ends = {line.rstrip().__len__() for line in lines[start + 1 : start + 6]}
    assert len(ends) == 1


def test_what_is_empty_says_none() -> None:
    text = rendered(summary([], []))
    for name in ("TTFT", "exposed", "FCT", "slowdown"):
        line = next(line for line in text.splitlines() if line.startswith(name))
        assert line.split().count("none") >= 1


def test_lower_bounds_are_marked_as_such() -> None:
    turn = Turn(1, "chat", "s", 40.0, 10, 1, 1, "t:1")
    text = rendered(summary([RequestRow.unfinished(turn, 1.0, None, "time is up")]))
    assert "≥ 60 s" in text


def test_markup_in_a_tenants_name_is_text() -> None:
    assert "[red]x" in rendered(summary([request(0, 1.0, tenant="[red]x")]))
