"""The model takes a stimulus as early as its driver hands it in, rounding included."""

from __future__ import annotations

import pytest

from kvfabric.scenario import load_scenario
from kvfabric.workload import build_workload, serving_model
from workloads.events import Arrival

pytestmark = pytest.mark.unit


def test_an_arrival_handed_in_by_the_lookahead_and_a_rounding_early_is_taken() -> None:
    scenario = load_scenario("smoke")
    workload = build_workload(scenario)
    for lookahead_s in (1e-4, 4e-4, 5e-4, 1e-3):
        model = serving_model(scenario, workload, lookahead_s)
        turn = workload.offered.turns[0]
        assert model.handle(Arrival(turn), turn.arrival_s - lookahead_s - 1e-9)
