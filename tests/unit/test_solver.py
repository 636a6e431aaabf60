"""The compiled fluid network: what the readable one gives, to 1e-9, on any network; max-min at every instant; repeatable."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowsim import levels, solver
from flowsim.fluid import Arrived, FluidFlow, FluidNetwork, HeadArrived
from flowsim.maxmin import max_min_violations
from flowsim.solver import FastNetwork, Report, Rule
from flowsim.soundness import bad_path, bad_schedule
from flowsim.state import HOPS, SENDING, lowest_level, soil
from flowsim.warm import warm

pytestmark = pytest.mark.unit

R = 45e9


def flow(id: int, path: tuple[int, ...], size: float, at_s: float = 0.0) -> FluidFlow:
    return FluidFlow(id, path, (at_s,), (size,))


def filled(capacity: Sequence[float], flows: Sequence[FluidFlow], rule: Rule = "fair") -> FastNetwork:
    network = FastNetwork(capacity, rule=rule, hops=max([1, *(len(one.path) for one in flows)]))
    for one in flows:
        network.add(one.id, range(one.id, one.id + 1), [one.path], one.released_at, one.released_bytes, one.head_bytes)
    return network


def run(network: FastNetwork) -> list[Report]:
    told: list[Report] = []
    while reports := network.advance(math.inf):
        told += reports
    return told


def fcts(capacity: Sequence[float], *flows: FluidFlow, rule: Rule = "fair") -> dict[int, float]:
    begins = {one.id: one.released_at[0] for one in flows}
    return {one.flow: one.at_s - begins[one.flow] for one in run(filled(capacity, flows, rule)) if one.all}


def near(expected: object) -> object:
    return pytest.approx(expected, rel=1e-9, abs=0)


def random_network(seed: int) -> tuple[list[float], list[FluidFlow]]:
    """Capacities that are often equal, so that there are ties, and flows of which many begin at once."""
    draw = random.Random(seed)
    links = draw.choice([1, 2, 5, 12, 40])
    capacity = [draw.choice([5.0, 10.0, 20.0, draw.uniform(1, 30)]) for _ in range(links)]
    flows = []
    for id in range(draw.choice([1, 3, 10, 40, 90])):
        path = tuple(draw.sample(range(links), min(links, draw.randint(1, 5)))) if draw.random() < 0.95 else ()
        at = tuple(sorted(draw.choice([0.0, 3.0, draw.uniform(0, 20)]) for _ in range(draw.randint(1, 4))))
        upto = tuple(np.cumsum([draw.choice([10, draw.randint(1, 60)]) for _ in at]).tolist())
        flows.append(FluidFlow(id, path, at, upto, draw.choice([0, draw.randint(0, upto[-1])])))
    return capacity, flows


def test_closed_forms_come_out_to_1e_9() -> None:
    assert fcts([R, 2 * R], flow(1, (0, 1), 5.46e9, at_s=3.0)) == near({1: 5.46e9 / R})
    assert fcts([R], flow(1, (0,), 1e9), flow(2, (0,), 3e9)) == near({1: 2e9 / R, 2: 4e9 / R})
    parking_lot = [flow(0, (0, 1, 2), 2e9), *(flow(1 + i, (i,), 1e9) for i in range(3))]
    assert fcts([R] * 3, *parking_lot) == near({0: 3e9 / R, 1: 2e9 / R, 2: 2e9 / R, 3: 2e9 / R})
    several = fcts([4.0, 10.0], flow(0, (0,), 4.0), flow(1, (0, 1), 12.0), flow(2, (1,), 8.0))
    assert several == near({0: 2.0, 1: 4.0, 2: 1.0})
    waits = FluidFlow(1, (0,), (0.0, 10.0), (10, 20))
    assert fcts([10.0], waits, flow(2, (0,), 100.0)) == near({1: 12.0, 2: 12.0})
    assert fcts([], FluidFlow(1, (), (1.0, 4.0), (5, 6))) == {1: 3.0}


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_arrivals_of_flows_and_heads_are_those_of_the_readable_network(seed: int) -> None:
    capacity, flows = random_network(seed)
    reference = FluidNetwork(capacity)
    for one in flows:
        reference.add(one)
    events = reference.advance(math.inf)
    told = run(filled(capacity, flows))
    assert {one.flow: one.at_s for one in told if one.all} == near({e.flow: e.at_s for e in events if isinstance(e, Arrived)})
    assert {one.flow: one.at_s for one in told if one.head} == near(
        {e.flow: e.at_s for e in events if isinstance(e, HeadArrived)}
    )


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.booleans())
def test_rates_are_max_min_fair_at_every_instant(seed: int, by_refill: bool) -> None:
    capacity, flows = random_network(seed)
    network = filled(capacity, flows)
    paths = {one.id: one.path for one in flows}
    for _ in range(2 * len(flows)):
        if by_refill:
            levels.refill(network._state)
        rates = network.rates()
        assert not max_min_violations(capacity, [paths[id] for id in rates], list(rates.values()))
        if not network.advance(math.inf):
            break


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6))
def test_levels_agree_with_a_refill_of_the_whole_network(seed: int) -> None:
    capacity, flows = random_network(seed)
    network = filled(capacity, flows)
    while True:
        kept_up = network.rates()
        state = network._state
        for link in range(len(capacity)):
            state.levels[link] = random.Random(seed + link).choice([0.0, 1.0, math.inf])
            soil(state, link)
        assert levels.relax(state)  # from any state of the levels
        found = {
            id: lowest_level(state.levels, state.memberships, int(state.counts[HOPS]), network._slot[id], -1, -1)
            for id in kept_up
        }
        assert found == near(kept_up)
        if not network.advance(math.inf):
            break


def test_many_starts_at_once_are_served_by_one_refill() -> None:
    network = filled([10.0, 20.0], [flow(id, (id % 2,), 10.0 + id) for id in range(60)])
    network.advance(0.0)
    assert (network.effort.refilled, network.effort.relaxed) == (1, 0)
    assert len(run(network)) == 60


def test_work_is_bounded_and_what_comes_to_no_end_is_filled_anew() -> None:
    network = filled([10.0] * 8, [flow(id, tuple(range(8)), 10.0) for id in range(3)])
    state = network._state
    network.advance(0.0)
    for link in range(8):
        soil(state, link)
    state.counts[SENDING] = -100  # as if nothing were sending: no work is allowed
    assert not levels.relax(state)


def test_the_same_calls_give_the_same_bytes() -> None:
    capacity, flows = random_network(7)
    assert repr(run(filled(capacity, flows))) == repr(run(filled(capacity, flows)))


def test_time_stops_at_the_first_report_and_else_where_it_was_asked_to() -> None:
    network = filled([10.0], [flow(1, (0,), 10.0, at_s=1.0), flow(2, (0,), 30.0, at_s=1.0)])
    assert network.advance(1.5) == ()
    assert network.now_s == 1.5
    assert network.advance(9.0) == (Report(3.0, 1, False, True),)
    network.add(3, range(3, 4), [(0,)], [0.0], [5.0])  # released before the present
    assert network.now_s == 3.0
    assert network.advance(9.0) == (Report(4.0, 3, False, True),)
    assert network.advance(9.0) == (Report(5.5, 2, False, True),)
    with pytest.raises(ValueError, match="back to"):
        network.advance(5.0)


def test_a_flow_that_is_given_up_leaves_its_share_to_others() -> None:
    network = filled([10.0], [flow(1, (0,), 100.0), flow(2, (0,), 100.0)])
    network.advance(4.0)
    assert network.remove(1) == near(20.0)
    assert network.advance(math.inf) == (Report(12.0, 2, False, True),)


def test_room_grows_for_flows_and_schedules_and_is_used_again() -> None:
    network = FastNetwork([1e6])
    steps = 3000
    for group in range(120):
        network.add(
            group,
            range(2 * group, 2 * group + 2),
            [(0,), ()],
            [group + i / steps for i in range(steps)],
            list(range(1, steps + 1)),
        )
        while network.advance(float(group)):  # all but the last group
            pass
    assert len(run(network)) > 0
    assert not network._slot
    assert len(network._state.releases) < 120 * steps
    for group in range(600):
        network.add(group, range(group, group + 1), [(0,)], [100.0], [1.0])
    assert len(run(network)) == 600


def test_shortest_remaining_transfer_goes_first_and_pre_empts() -> None:
    long, short = flow(1, (0,), 100.0), flow(2, (0,), 20.0, at_s=2.0)
    assert fcts([10.0], long, short, rule="srpt") == near({1: 12.0, 2: 2.0})
    nearly_done = flow(2, (0,), 50.0, at_s=6.0)  # 40 of the first are left by then
    assert fcts([10.0], long, nearly_done, rule="srpt") == near({1: 10.0, 2: 9.0})
    # The remaining bytes are the transfer's, not the flow's; what the first leaves of a link the next may have.
    network = FastNetwork([10.0, 10.0], rule="srpt")
    network.add(1, range(1, 3), [(0,), (1,)], [0.0], [30.0])
    network.add(2, range(3, 4), [(0,)], [0.0], [50.0])
    assert network.rates() == {}
    network.advance(0.0)
    assert network.rates() == {1: 0.0, 2: 10.0, 3: 10.0}


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6))
def test_srpt_never_overloads_a_link_and_leaves_none_idle_that_could_work(seed: int) -> None:
    capacity, flows = random_network(seed)
    paths = {one.id: one.path for one in flows}
    network = filled(capacity, flows, "srpt")
    for _ in range(2 * len(flows)):
        rates = network.rates()
        load = [sum(rate for id, rate in rates.items() if link in paths[id]) for link in range(len(capacity))]
        assert all(used <= limit * (1 + 1e-9) for used, limit in zip(load, capacity, strict=True))
        assert all(any(load[link] >= capacity[link] * (1 - 1e-9) for link in paths[id]) for id in rates if paths[id])
        if not network.advance(math.inf):
            break
    assert not network._slot


@pytest.mark.parametrize(
    "call",
    [
        lambda n: n.add(1, range(1, 2), [(0, 0)], [0.0], [1.0]),
        lambda n: n.add(1, range(1, 2), [(9,)], [0.0], [1.0]),
        lambda n: n.add(1, range(1, 1), [], [0.0], [1.0]),
        lambda n: n.add(1, range(1, 2), [(0,)], [1.0, 0.0], [1.0, 2.0]),
        lambda n: n.add(1, range(1, 2), [(0,)], [0.0, 1.0], [1.0, 1.0]),
        lambda n: n.add(1, range(1, 2), [(0,)], [math.nan], [1.0]),
        lambda n: n.add(1, range(1, 2), [(0,)], [0.0], [1.0], 2.0),
        lambda n: n.add(1, range(1, 2), [(0, 1, 2)], [0.0], [1.0]),
        lambda n: FastNetwork([-1.0]),
        lambda n: FastNetwork([math.inf]),
    ],
)
def test_what_cannot_be_is_refused(call: object) -> None:
    assert callable(call)
    with pytest.raises(ValueError, match=r"group|capacity"):
        call(FastNetwork([1.0, 1.0, 1.0], hops=2))


def test_warming_compiles_all_that_a_simulation_calls() -> None:
    warm()
    compiled: list[Any] = [bad_path, bad_schedule, solver._admit, solver._advance, solver._settle, solver._withdraw]
    before = [len(one.signatures) for one in compiled]
    assert min(before) > 0
    network = FastNetwork([1.0] * 3, hops=2)
    network.add(5, range(7, 9), [(0, 2), ()], (0.0, 2.0), (1, 5), 1)
    network.advance(0.25)
    network.remove(7)
    assert network.rates() == {}
    assert [len(one.signatures) for one in compiled] == before
