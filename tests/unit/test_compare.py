"""Two runs compared: errors with their signs, classes, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from run_samples import FLOW_ROW, REQUEST, TRANSFER

from kvfabric.cli import main
from kvfabric.compare import handed_by
from kvfabric.comparison import RunRows, alone_on_their_path, compare, links_of
from kvfabric.records import read_rows
from kvfabric.rows import FlowRow, RequestRow

pytestmark = pytest.mark.unit


def flow(number: int, fct_s: float, **changes: Any) -> FlowRow:
    begins = changes.pop("begins", 10.0 * number)
    return replace(
        FLOW_ROW, flow=number, source=f"h{number}", destination=f"k{number}", path_realised="leaf0>spine0>leaf1", fct_s=fct_s,
        planned_send_emu_s=begins, delivered_emu_s=begins + fct_s, ideal_fct_emu_s=float(number), **changes,
    )  # fmt: skip


def rows(flows: list[FlowRow], ttft_s: tuple[float, ...] = (1.0,), digest: str = "d" * 64) -> RunRows:
    return RunRows(
        name="run", engine="emulation", verdict="VALID", digest=digest, transfers=(TRANSFER,), flows=flows,
        requests=tuple(replace(REQUEST, turn=turn, ttft_s=time_s) for turn, time_s in enumerate(ttft_s)),
    )  # fmt: skip


def near(expected: object) -> object:
    return pytest.approx(expected, rel=1e-12)


def test_errors_are_of_the_second_run_and_bias_keeps_its_sign() -> None:
    a, b = (
        rows([flow(1, 1.1), flow(2, 0.8), flow(3, 3.0)], (1.0, 3.0)),
        rows([flow(1, 1.0), flow(2, 1.0), flow(3, 3.0)], (2.0, 2.0)),
    )
    found = compare(a, b)
    assert (found["flows"], found["turns"]) == (3, 2)
    assert found["fct_error"] == near({"median": 0.1, "p95": 0.19, "bias": -0.1 / 3})
    assert found["ttft_error"] == near({"median": 0.5, "p95": 0.5, "bias": 0.0})
    assert found["aggregate_error"] == near(
        {"mean_fct": 0.1 / 5, "p95_fct": abs(2.81 / 2.8 - 1), "mean_ttft": 0.0, "p95_ttft": 0.9 / 2}
    )
    assert found["aggregate_bias"]["mean_fct"] == near(-0.1 / 5)
    assert found["offered_digest_equal"] is True
    assert {"runs", "paths_equal", "classes", "left_out"} < set(found)


def test_classes_part_flows_by_company_and_by_size() -> None:
    fluid = [flow(1, 1.0), flow(2, 12.0), flow(3, 1.0), flow(4, 1.0, begins=90.0)]  # 2 is still there when 3 begins
    found = compare(rows([replace(row, fct_s=row.fct_s * 1.1) for row in fluid if row.fct_s]), rows(fluid))["classes"]
    assert {name: of["flows"] for name, of in found.items()} == {"alone": 2, "shared": 2, "short": 2, "long": 2}
    assert all(of["bias"] == near(0.1) for of in found.values())


def test_company_is_a_link_in_common_at_the_same_time() -> None:
    assert links_of(flow(1, 1.0)) == [("h1", "leaf0"), ("leaf0", "spine0"), ("spine0", "leaf1"), ("leaf1", "k1")]
    other_way = replace(flow(2, 1.0, begins=10.0), path_realised="leaf0>spine1>leaf1")
    assert alone_on_their_path([flow(1, 1.0), other_way]) == {1, 2}
    assert alone_on_their_path([flow(1, 1.0), replace(other_way, source="h1")]) == set()
    assert alone_on_their_path([flow(1, 1.0), flow(2, 1.0, begins=11.0)]) == {1, 2}  # one ends as the other begins
    long_one, ended, late = flow(1, 50.0), flow(2, 1.0), flow(3, 1.0)
    assert alone_on_their_path([long_one, ended, late]) == set()
    assert alone_on_their_path([flow(1, 1.0), replace(flow(2, 1.0), delivered_emu_s=None)]) == {1}


def test_what_did_not_complete_in_both_is_counted_and_left_out() -> None:
    a, b = rows([flow(1, 1.0), replace(flow(2, 1.0), fct_s=None)]), rows([flow(1, 1.0), flow(2, 1.0), flow(3, 1.0)])
    found = compare(a, b)
    assert (found["flows"], found["left_out"]["flows"]) == (1, [1, 2])
    nothing = compare(rows([]), rows([]))
    assert nothing["fct_error"] == {"median": None, "p95": None, "bias": None}
    assert (nothing["paths_equal"], nothing["aggregate_error"]["p95_fct"]) == (None, None)


def test_paths_and_starts_that_differ_are_told() -> None:
    moved = replace(flow(2, 1.0), path_realised="leaf0>spine1>leaf1")
    found = compare(rows([flow(1, 1.0), moved]), rows([flow(1, 1.0, begins=10.5), flow(2, 1.0)]))
    assert (found["paths_equal"], found["starts_equal"]) == (0.5, 0.5)
    unknown = replace(flow(1, 1.0), path_realised=None)
    assert compare(rows([unknown]), rows([unknown]))["paths_equal"] == 0.0


def simulated(out: Path, *changes: str) -> str:
    options = [
        part for change in ("fabric.kind=leaf-spine", "fabric.ocs=null", "variants=[]", *changes) for part in ("--set", change)
    ]
    assert main(["run", "demo", "--engine", "simulation", "--json", "--out", str(out), *options]) == 0
    return str(out)


def test_the_command_compares_two_runs_and_writes_the_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = simulated(tmp_path / "a"), simulated(tmp_path / "b", "fabric.routing=pinned")
    capsys.readouterr()
    assert main(["compare", one, two, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert json.loads((tmp_path / "a" / "compare.json").read_text()) == document
    assert document["fct_error"]["median"] > 0
    assert document["starts_equal"] == 1.0
    assert main(["compare", one, one, "--out", str(tmp_path / "same.json")]) == 0
    same = json.loads((tmp_path / "same.json").read_text())
    assert (same["fct_error"], same["paths_equal"]) == ({"median": 0.0, "p95": 0.0, "bias": 0.0}, 1.0)
    shown = capsys.readouterr().out
    assert "FCT of flows" in shown
    assert "alone" in shown


def test_runs_of_other_turns_are_refused_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = simulated(tmp_path / "a"), simulated(tmp_path / "b", "seed=2")
    capsys.readouterr()
    assert main(["compare", one, two]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert "were not offered the same turns" in lines[0]
    assert "same scenario, window and seed" in lines[1]
    assert not (tmp_path / "a" / "compare.json").exists()


def test_an_invalid_run_is_marked_and_makes_the_comparison_exit_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = simulated(tmp_path / "a")
    cut = ["--set", "drain=0s", "--set", "fabric.kind=leaf-spine", "--set", "fabric.ocs=null", "--set", "variants=[]"]
    assert main(["run", "demo", "--engine", "simulation", "--out", str(tmp_path / "b"), *cut]) == 1
    capsys.readouterr()
    assert main(["compare", one, str(tmp_path / "b")]) == 1
    assert capsys.readouterr().out.count("(INVALID)") == 3


def test_what_is_no_run_or_cannot_be_written_is_bad_input(tmp_path: Path) -> None:
    one = simulated(tmp_path / "a")
    assert main(["compare", one, str(tmp_path)]) == 2
    assert main(["compare", one, one, "--out", str(tmp_path / "no" / "x.json")]) == 2
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "summary.json").write_text("{}")
    assert main(["compare", one, str(tmp_path / "b")]) == 2


def test_a_run_hands_over_its_paths_and_decodes(tmp_path: Path) -> None:
    handed = handed_by(Path(simulated(tmp_path / "a")))
    assert set(handed.spine_of.values()) == {0, 1}
    decodes = {
        (row.prefill, row.prefill_start_s): [row.decode]
        for row in read_rows(tmp_path / "a", RequestRow)
        if row.prefill is not None
    }
    assert dict(handed.decodes) == decodes
    assert len(decodes) > 5
