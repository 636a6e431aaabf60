"""The simulator's benchmark: its flow sets, and that what it times is right."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import simulator

from flowsim.fluid import FluidFlow, arrivals

pytestmark = pytest.mark.unit


def test_flow_sets_are_repeatable_and_cross_two_racks() -> None:
    flows = simulator.flow_set(128, 300, 1)
    assert flows == simulator.flow_set(128, 300, 1) != simulator.flow_set(128, 300, 2)
    assert all(a.start_s <= b.start_s for a, b in pairwise(flows.flows))
    for flow in flows.flows:
        source, up, down, sink = flow.path
        assert source < 128 <= sink < 256 <= up < down < flows.links
        assert (up - 256) // simulator.UPLINKS == source // simulator.RACK != (sink - 128) // simulator.RACK
        assert (down - 256 - 64) // simulator.UPLINKS == (sink - 128) // simulator.RACK
        assert (up - 256) % simulator.UPLINKS == (down - 256 - 64) % simulator.UPLINKS  # the same spine


def test_what_is_timed_gives_the_readable_networks_times() -> None:
    flows = simulator.flow_set(64, 150, 3)
    reference = arrivals(
        [simulator.RATE_BPS] * flows.links,
        (FluidFlow(number, flow.path, (flow.start_s,), (flow.size,)) for number, flow in enumerate(flows.flows)),
    )
    took_s, fcts, levels = simulator.replay_compiled(flows)
    assert took_s >= 0
    assert levels > 0
    assert fcts.tolist() == pytest.approx([reference[number].fct_s for number in range(150)], rel=1e-9)
    online_s, sending = simulator.replay_online(flows)
    assert online_s > 0
    assert sending > 1


@pytest.mark.parametrize("fabric", simulator.FABRICS)
def test_every_fabric_of_the_long_window_is_a_scenario_of_128_gpus(fabric: str) -> None:
    scenario = simulator.window_scenario(fabric, 330.0)
    assert scenario.cluster_layout().size == 128
    assert (scenario.window, len(scenario.workload.tenants)) == (330.0, 2)
    assert (scenario.fabric.circuits is not None) == fabric.startswith("ocs")
