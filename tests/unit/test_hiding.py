"""The hiding experiment: what is planned, what is refused, and what is read off the requests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from run_samples import REQUEST

from kvfabric.cli import main
from kvfabric.errors import EXIT_BAD_INPUT, BadInput
from kvfabric.hiding import HidingPlan, base_scenario, exposures, plan_hiding, point, scenario_for, write_prompts
from kvfabric.workload import build_workload

pytestmark = pytest.mark.unit

PLAN = HidingPlan((0.025,), prompts=3, new_tokens=2048, prefill_s=0.16, transfer_s=0.004)


def row(turn: int, exposed_s: float | None) -> object:
    return replace(REQUEST, turn=turn, prefill_start_s=1.0, prefill_end_s=1.16, exposed_s=exposed_s)


def test_the_prompts_come_one_by_one_to_each_instance_and_share_nothing(tmp_path: Path) -> None:
    trace = tmp_path / "prompts.jsonl"
    plan = plan_hiding(base_scenario([]), [0.025], 3, 2048)
    write_prompts(plan, 0.025, 2, trace)
    scenario = scenario_for(plan, [], 0.025, "after", trace)
    turns = build_workload(scenario).offered.turns
    assert [(turn.context, turn.new) for turn in turns] == [(0, 2048)] * 6
    gap_s = plan.prefill_s + 0.025 + plan.transfer_s
    assert turns[2].arrival_s - turns[0].arrival_s > gap_s
    assert turns[1].arrival_s - turns[0].arrival_s < 1e-3
    assert scenario.fabric.circuits is not None
    assert (scenario.fabric.circuits.policy, scenario.fabric.circuits.tau, scenario.fabric.circuits.reuse) == (
        "after",
        0.025,
        False,
    )
    assert plan.transfer_s == pytest.approx(2048 * 80 * 1024 / 45e9)


def test_a_delay_that_no_prefill_hides_is_refused() -> None:
    with pytest.raises(BadInput, match=r"--tau 200 ms is above 0\.8 x the prefill of 2048 tokens, 161\.8 ms"):
        plan_hiding(base_scenario([]), [0.025, 0.2], 3, 2048)


@pytest.mark.parametrize("arguments", [["--tau", "25"], ["--tau", "25ms", "--tau", "25ms"], ["--prompts", "0"], ["--new", "0"]])
def test_bad_input_is_two_lines(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hiding", *arguments]) == EXIT_BAD_INPUT
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_exposures_are_spoken_of_in_tau_without_the_transfer() -> None:
    start = exposures(PLAN, 0.025, "start", [row(0, 0.001), row(1, 0.0), row(2, None)])  # type: ignore[list-item]
    after = exposures(PLAN, 0.025, "after", [row(0, 0.029), row(1, 0.030), row(2, 0.0315)])  # type: ignore[list-item]
    assert [item.exposed_s for item in start] == [0.001, 0.0]
    assert [item.cost for item in after] == [pytest.approx(value) for value in (1.0, 1.04, 1.1)]
    found = point([*start, *after])
    assert (found.prompts, found.start_max_s, found.after_median_s) == ({"start": 2, "after": 3}, 0.001, 0.030)
    assert found.start_share == pytest.approx(0.001 / 0.16)
    assert [found.after_cost, found.after_cost_least, found.after_cost_most] == pytest.approx([1.04, 1.0, 1.1])
    assert found.hidden
    assert found.cost_as_expected


def test_what_is_not_hidden_or_costs_something_else_is_said() -> None:
    late = exposures(PLAN, 0.025, "start", [row(0, 0.0), row(1, 0.0033)])  # type: ignore[list-item]
    cheap = exposures(PLAN, 0.025, "after", [row(0, 0.020)])  # type: ignore[list-item]
    found = point([*late, *cheap])
    assert not found.hidden
    assert not found.cost_as_expected
    with pytest.raises(ValueError, match="both kinds"):
        point(late)
