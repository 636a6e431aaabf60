"""The fluid network: closed forms to 1e-9, conservation on any network, repeatable to the byte."""

from __future__ import annotations

import math
import random
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowsim.fluid import Arrived, FluidEvent, FluidFlow, FluidNetwork, HeadArrived, Started, arrivals
from flowsim.maxmin import max_min_violations
from workloads.replay.flows import ideal_fct

pytestmark = pytest.mark.unit

R = 45e9


def flow(id: int, path: tuple[int, ...], size: float, at_s: float = 0.0, head: float = 0) -> FluidFlow:
    return FluidFlow(id, path, (at_s,), (size,), head)


def fcts(capacity: list[float], *flows: FluidFlow) -> dict[int, float]:
    return {id: event.fct_s for id, event in arrivals(capacity, flows).items()}


def near(expected: object) -> object:
    return pytest.approx(expected, rel=1e-9, abs=0)


def test_one_flow_takes_its_bytes_over_the_rate() -> None:
    assert fcts([R, 2 * R], flow(1, (0, 1), 5.46e9, at_s=3.0)) == near({1: 5.46e9 / R})


def test_two_flows_on_a_link_share_it_while_both_are_there() -> None:
    assert fcts([R], flow(1, (0,), 1e9), flow(2, (0,), 3e9)) == near({1: 2e9 / R, 2: 4e9 / R})
    second_s = 0.5e9 / R  # joins when half of the first has gone
    assert fcts([R], flow(1, (0,), 1e9), flow(2, (0,), 1e9, second_s)) == near({1: 1.5e9 / R, 2: 1.5e9 / R})


def test_parking_lot_of_three_links() -> None:
    flows = [flow(0, (0, 1, 2), 2e9), *(flow(1 + i, (i,), 1e9) for i in range(3))]
    assert fcts([R] * 3, *flows) == near({0: 3e9 / R, 1: 2e9 / R, 2: 2e9 / R, 3: 2e9 / R})


def test_several_bottlenecks_one_after_the_other() -> None:
    # Rates 2, 2 and 8 B/s at first; flow 2 ends at 1 s, then flow 1 is still held by link 0, until flow 0 ends at 2 s.
    found = fcts([4.0, 10.0], flow(0, (0,), 4.0), flow(1, (0, 1), 12.0), flow(2, (1,), 8.0))
    assert found == near({0: 2.0, 1: 2.0 + 8.0 / 4.0, 2: 1.0})


def test_half_the_rate_doubles_a_network_bound_fct() -> None:
    flows = [flow(i, (i % 3, 3), 1e9 * (1 + i)) for i in range(7)]
    fast, slow = fcts([R] * 4, *flows), fcts([R / 2] * 4, *flows)
    assert slow == near({id: 2 * fct_s for id, fct_s in fast.items()})


@pytest.mark.parametrize("rate_Bps", [50.0, 100.0, 1e6])
def test_a_flow_that_waits_for_its_releases_takes_as_long_as_the_ideal_transfer(rate_Bps: float) -> None:
    at, size = (1.0, 2.0, 2.5, 9.0), (100, 150, 400, 401)
    assert fcts([rate_Bps], FluidFlow(1, (0,), at, size)) == near({1: ideal_fct(at, size, rate_Bps)})


def test_a_flow_that_waits_for_its_release_leaves_the_link_to_others() -> None:
    waiting = FluidFlow(1, (0,), (0.0, 10.0), (10, 20))
    # Shared until 1 sends nothing any more (2 s), alone until 10 s (90 of 100 sent by then), shared again.
    assert fcts([10.0], waiting, flow(2, (0,), 100.0)) == near({1: 12.0, 2: 12.0})


def test_no_network_delivers_at_the_release() -> None:
    assert arrivals([], [FluidFlow(1, (), (1.0, 4.0), (5, 6))]) == {1: Arrived(4.0, 1, 3.0)}


def test_events_tell_start_head_and_arrival() -> None:
    network = FluidNetwork([10.0])
    network.add(FluidFlow(1, (0,), (1.0, 2.0), (30, 40), head_bytes=20))
    assert network.next_event_s() == 1.0
    assert network.advance(2.9) == (Started(1.0, 1),)
    assert network.rates() == {1: 10.0}
    assert network.advance(3.0) == (HeadArrived(3.0, 1),)
    assert network.advance(9.0) == (Arrived(5.0, 1, 4.0),)
    assert network.next_event_s() == math.inf
    assert network.now_s == 9.0


def test_events_of_one_instant_come_in_the_order_of_flows() -> None:
    network = FluidNetwork([10.0, 10.0])
    network.add(flow(2, (0,), 20.0))
    network.add(flow(1, (1,), 10.0, at_s=1.0))
    assert network.advance(2.0)[2:] == (Arrived(2.0, 1, 1.0), Arrived(2.0, 2, 2.0))


def test_a_head_that_is_all_there_is_arrives_with_the_flow() -> None:
    network = FluidNetwork([10.0])
    network.add(flow(1, (0,), 10.0, head=10.0))
    assert network.advance(1.0)[1:] == (HeadArrived(1.0, 1), Arrived(1.0, 1, 1.0))


def test_a_dark_link_holds_a_flow_until_it_is_up_again() -> None:
    network = FluidNetwork([10.0])
    network.add(flow(1, (0,), 40.0))
    network.advance(1.0)
    network.set_capacity(0, 0.0)
    assert network.next_event_s() == math.inf
    assert network.advance(5.0) == ()
    network.set_capacity(0, 5.0)
    assert network.advance(math.inf) == (Arrived(11.0, 1, 11.0),)
    assert arrivals([0.0], [flow(1, (0,), 1.0)]) == {}


def test_a_flow_takes_its_remaining_bytes_to_another_path() -> None:
    network = FluidNetwork([10.0, 10.0])
    network.add(flow(1, (0,), 100.0))
    network.add(flow(2, (0,), 100.0))
    network.advance(2.0)
    network.repath(2, (1,))
    assert network.advance(math.inf) == (Arrived(11.0, 1, 11.0), Arrived(11.0, 2, 11.0))


def test_a_flow_that_is_given_up_leaves_its_share() -> None:
    network = FluidNetwork([10.0])
    network.add(flow(1, (0,), 100.0))
    network.add(FluidFlow(2, (0,), (0.0, 50.0), (100.0, 200.0)))
    network.advance(4.0)
    assert network.remove(2) == 20.0
    assert network.advance(math.inf) == (Arrived(12.0, 1, 12.0),)


def test_what_makes_no_sense_is_refused() -> None:
    for at, size, head in (((), (), 0), ((2.0, 1.0), (1, 2), 0), ((1.0,), (0,), 0), ((1.0, 2.0), (2, 2), 0), ((1.0,), (1,), 2)):
        with pytest.raises(ValueError, match="flow 1: "):
            FluidFlow(1, (0,), at, size, head)
    with pytest.raises(ValueError, match="crosses a link twice"):
        flow(1, (0, 0), 1.0)
    network = FluidNetwork([1.0])
    network.add(flow(1, (0,), 1.0))
    with pytest.raises(ValueError, match="is there already"):
        network.add(flow(1, (0,), 1.0))
    with pytest.raises(ValueError, match="not among the 1"):
        network.add(flow(2, (1,), 1.0))
    with pytest.raises(ValueError, match="cannot cross"):
        network.repath(1, (0, 0))
    network.advance(5.0)
    with pytest.raises(ValueError, match="begins before the present"):
        network.add(flow(2, (0,), 1.0, at_s=4.0))
    with pytest.raises(ValueError, match="back to"):
        network.advance(4.0)


def random_flows(seed: int, count: int, links: int) -> list[FluidFlow]:
    rng, flows = random.Random(seed), []
    for id in range(count):
        at = sorted(rng.choice([0.0, 0.5, rng.random() * 4]) for _ in range(rng.randint(1, 4)))
        size = [rng.randint(1, 40)]
        while len(size) < len(at):
            size.append(size[-1] + rng.randint(1, 40))
        path = tuple(rng.sample(range(links), rng.randint(0, min(3, links))))
        flows.append(FluidFlow(id, path, tuple(at), tuple(size), rng.choice([0, 1, size[0], size[-1]])))
    return flows


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 12), st.integers(1, 5))
def test_on_any_network_all_bytes_arrive_at_max_min_rates_and_none_before_its_release(seed: int, count: int, links: int) -> None:
    flows = {one.id: one for one in random_flows(seed, count, links)}
    capacity = [random.Random(seed + 1).choice([1.0, 7.0, 1 / 3]) for _ in range(links)]
    network = FluidNetwork(capacity)
    for one in flows.values():
        network.add(one)
    sent = dict.fromkeys(flows, Fraction(0))
    events: list[FluidEvent] = []
    while (at_s := network.next_event_s()) < math.inf:
        rates = network.rates()
        assert max_min_violations(capacity, [flows[id].path for id in rates], list(rates.values())) == ()
        for id, rate_Bps in rates.items():
            if rate_Bps < math.inf:
                sent[id] += Fraction(rate_Bps) * (Fraction(at_s) - Fraction(max(network.now_s, flows[id].released_at[0])))
        came = network.advance(at_s)
        events += came
        for event in came:
            one = flows[event.flow]
            if isinstance(event, Arrived) and one.path:
                assert float(sent[event.flow]) == near(one.released_bytes[-1])
                alone_s = ideal_fct(one.released_at, [int(b) for b in one.released_bytes], min(capacity[i] for i in one.path))
                assert event.fct_s >= alone_s * (1 - 1e-9)  # no slowdown under 1
        for id, one in flows.items():
            released = max((b for t, b in zip(one.released_at, one.released_bytes, strict=True) if t <= at_s), default=0)
            assert float(sent[id]) <= released * (1 + 1e-9)
    assert all(a.at_s <= b.at_s for a, b in pairwise(events))
    for kind, expected in (
        (Started, set(flows)),
        (Arrived, set(flows)),
        (HeadArrived, {i for i in flows if flows[i].head_bytes}),
    ):
        assert sorted(event.flow for event in events if isinstance(event, kind)) == sorted(expected)


def test_the_same_flows_give_the_same_bytes_whatever_the_order_they_came_in() -> None:
    flows, capacity = random_flows(11, 60, 6), [3.0, 1 / 3, 7.0, 1.0, 45.0, 0.1]
    first = repr(sorted(arrivals(capacity, flows).items()))
    assert repr(sorted(arrivals(capacity, flows).items())) == first
    assert repr(sorted(arrivals(capacity, flows[::-1]).items())) == first


def test_advancing_in_small_steps_changes_nothing() -> None:
    flows, capacity = random_flows(3, 20, 4), [3.0, 1 / 3, 7.0, 1.0]
    network, events = FluidNetwork(capacity), list[FluidEvent]()
    for one in flows:
        network.add(one)
    now_s = 0.0
    while network.next_event_s() < math.inf:
        now_s += 0.37
        events += network.advance(now_s)
    assert {event.flow: event for event in events if isinstance(event, Arrived)} == arrivals(capacity, flows)
