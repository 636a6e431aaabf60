"""The controller of the optical switch on a real Open vSwitch, with os-ken and with Ryu: circuits, shutters and hard times."""

from __future__ import annotations

import time

import pytest
from ocs_bench import armed, bench, check_reaches, dpid, join, wait_until

from controller.client import Planes
from controller.ocs_messages import Event, EventKind, Order, Outcome, Verb

pytestmark = [pytest.mark.netns, pytest.mark.sealed]

libraries = pytest.mark.parametrize("library", ["os-ken", "ryu"])
TAU_S = 0.02
FOREIGN = (
    "priority=200,in_port=13,actions=output:12",
    "priority=7,actions=flood",
    "table=3,priority=1,actions=drop",
    "priority=100,in_port=12,actions=output:14",
)


@libraries
@pytest.mark.parametrize("light", [True, False], ids=["light", "timer"])
def test_circuits_carry_frames_both_ways_and_nothing_else_arrives_anywhere(library: str, light: bool) -> None:
    with bench(library, planes=2, tau_s=TAU_S, light=light) as one:
        check_reaches(one, {(plane, port): None for plane in (0, 1) for port in range(4)})
        join(one, Order(a=0, b=2), Order(a=1, b=3, planes=(1,)))
        check_reaches(one, {(0, 0): 2, (0, 2): 0, (0, 1): None, (0, 3): None, (1, 0): 2, (1, 2): 0, (1, 1): 3, (1, 3): 1})
        assert one.flows(0) == {
            f"cookie=0x6b766f63, priority=100,in_port={a} actions=output:{b}" for a, b in ((11, 13), (13, 11))
        }
        one.client.disconnect(Order(a=0, b=2, verb=Verb.DISCONNECT, planes=(1,)))
        one.wait(lambda e: e.kind is EventKind.DOWN)
        time.sleep(0.03)  # the timer's way: the data plane lags behind the reply
        check_reaches(one, {(1, 0): None, (1, 2): None, (1, 1): 3, (0, 0): 2})


@libraries
def test_the_first_frame_after_up_arrives_a_hundred_times_of_a_hundred(library: str) -> None:
    with bench(library, tau_s=TAU_S) as one:
        for number in range(100):
            first, second = ((0, 1), (2, 3)) if number % 2 else ((0, 2), (1, 3))
            events = join(one, *(Order(a=a, b=b, replace=True) for a, b in (first, second)))
            sent = {(event.a, event.b): one.send(0, event.a or 0) for event in events}
            assert one.arrivals(0.03) == {(0, b, frame) for (_, b), frame in sent.items()}, number
            for event in events:
                assert event.dark_ns is not None
                assert event.up_ns is not None
                assert event.up_ns - event.dark_ns == TAU_S * 1e9 + (event.late_ns or 0)
                assert event.at_ns < event.up_ns


def test_the_first_frame_after_up_arrives_also_where_the_data_plane_decides_when_that_is() -> None:
    """With τ shorter than the switch needs, up is the barrier's reply and ``settle_s``; without the latter one in ten is lost."""
    with bench("os-ken", tau_s=0.001) as one:
        for number in range(60):
            peer = 1 + number % 2
            one.client.connect(Order(a=0, b=peer, replace=True))
            event = one.wait(lambda e: e.kind is EventKind.ARMED)
            wait_until(event.up_ns or 0)
            frame = one.send(0, 0)
            assert one.arrivals(0.03) == {(0, peer, frame)}, number


@libraries
def test_ports_are_dark_to_the_instant_ordered_and_for_tau(library: str) -> None:
    """Frames all the time: what is lost is what was sent in the dark, and none comes out at the old peer after it."""
    with bench(library, tau_s=TAU_S) as one:
        join(one, Order(a=0, b=1))
        at = time.monotonic_ns() + 5_000_000
        one.client.connect(Order(a=0, b=2, at_ns=at, replace=True, tag="moves"))
        sent: dict[int, tuple[int, int]] = {}
        while (before := time.monotonic_ns()) < at + 2 * TAU_S * 1e9:
            frame = one.send(0, 0)
            sent[frame] = before, time.monotonic_ns()
            time.sleep(0.0003)
        arrived = {frame: port for _, port, frame in one.arrivals()}
        (event,) = armed(one, 1)
        up = event.up_ns
        assert up is not None
        assert (event.dark_ns, event.tag) == (at, "moves")
        for frame, (before, after) in sent.items():
            if after < at:
                assert arrived.get(frame) == 1
            elif before >= up:
                assert arrived.get(frame) == 2
            elif before >= at and after < up:
                assert frame not in arrived
        assert set(arrived.values()) == {1, 2}


@libraries
def test_a_dead_controller_leaves_the_circuits_as_they_were(library: str) -> None:
    with bench(library, tau_s=TAU_S) as one:
        join(one, Order(a=0, b=2))
        before = one.flows()
        one.controller.kill()
        one.controller.wait()
        until = time.monotonic() + 4
        while time.monotonic() < until:
            check_reaches(one, {(0, 0): 2, (0, 2): 0, (0, 1): None, (0, 3): None})
            time.sleep(0.25)
        assert one.flows() == before


@libraries
def test_a_switch_that_comes_back_is_synchronised_and_foreign_rules_go(library: str) -> None:
    with bench(library, tau_s=TAU_S) as one:
        assert one.ovs is not None
        join(one, Order(a=0, b=2))
        intended = one.flows()
        one.ovs._vsctl("del-controller", "ocs0")
        one.wait(lambda e: e.kind is EventKind.DISCONNECTED)
        refused = one.answers(one.client.connect(Order(a=1, b=3)))
        assert refused.answers[0].reason == "no switch"
        one.ovs.ofctl("del-flows", "ocs0", "in_port=11")
        for foreign in FOREIGN:
            one.ovs.ofctl("add-flow", "ocs0", foreign)
        one.ovs._vsctl("set-controller", "ocs0", "tcp:127.0.0.1:6653", "--", "set", "controller", "ocs0", "max_backoff=1000")
        one.wait(lambda e: e.kind is EventKind.READY)
        assert one.flows() == intended
        time.sleep(0.03)
        check_reaches(one, {(0, 0): 2, (0, 2): 0, (0, 1): None, (0, 3): None})
        join(one, Order(a=1, b=3))
        check_reaches(one, {(0, 0): 2, (0, 1): 3})


@libraries
def test_an_unknown_switch_is_refused_and_the_known_ones_go_on(library: str) -> None:
    with bench(library, tau_s=TAU_S) as one:
        assert one.ovs is not None
        one.ovs.add_bridge("stranger", 0xBAD, [], "tcp:127.0.0.1:6653")
        event = one.wait(lambda e: e.kind is EventKind.ERROR)
        assert "0000000000000bad" in event.detail
        assert event.plane is None
        join(one, Order(a=0, b=2))
        check_reaches(one, {(0, 0): 2})


@libraries
def test_a_second_connection_of_a_switch_is_refused_and_the_first_goes_on(library: str) -> None:
    with bench(library, tau_s=TAU_S) as one:
        assert one.ovs is not None
        one.ovs._vsctl("--no-wait", "add-br", "double", "--", "set", "bridge", "double", "datapath_type=netdev",
                       "protocols=OpenFlow13", "fail_mode=secure", f"other-config:datapath-id={dpid(0):016x}",
                       "--", "set-controller", "double", "tcp:127.0.0.1:6653")  # fmt: skip
        event = one.wait(lambda e: e.kind is EventKind.ERROR)
        assert (event.plane, event.detail) == (0, "a second connection of this switch was refused")
        time.sleep(one.timing.barrier_s + 0.2)  # the first was probed, and has answered
        join(one, Order(a=0, b=2))
        check_reaches(one, {(0, 0): 2})


@libraries
def test_a_rule_the_switch_refuses_is_an_error_and_never_up(library: str) -> None:
    with bench(library, tau_s=TAU_S) as one:
        assert one.ovs is not None
        one.ovs._vsctl("--", "--id=@t", "create", "flow_table", "flow_limit=0", "overflow_policy=refuse", "--",
                       "set", "bridge", "ocs0", "flow_tables:0=@t")  # fmt: skip
        one.client.connect(Order(a=0, b=2))
        event = one.wait(lambda e: e.kind is EventKind.ERROR)
        assert "refused a message" in event.detail
        one.wait(lambda e: e.kind is EventKind.DISCONNECTED)
        assert not any(isinstance(said, Event) and said.kind in (EventKind.ARMED, EventKind.UP) for said in one.received)


def test_several_planes_and_later_orders_in_one_request_are_answered_each() -> None:
    with bench("os-ken", planes=3, tau_s=TAU_S) as one:
        at = time.monotonic_ns() + 10_000_000
        request = one.client.connect(
            Order(a=0, b=1, tag="now"),
            Order(a=2, b=3, planes=(2,), at_ns=at),
            Order(a=0, b=3, planes=(1,)),
            Order(a=1, b=1, planes=(0,)),
        )
        answers = one.answers(request).answers
        assert [(a.plane, a.outcome) for a in answers] == [
            *((plane, Outcome.STARTED) for plane in range(3)), (2, Outcome.ANNOUNCED), (1, Outcome.REFUSED), (0, Outcome.REFUSED),
        ]  # fmt: skip
        assert [a.reason for a in answers[-2:]] == ["moving port 0", "hairpin 1"]
        ups = [one.wait(lambda e: e.kind is EventKind.UP) for _ in range(4)]
        assert {(e.plane, e.a, e.b) for e in ups} == {(0, 0, 1), (1, 0, 1), (2, 0, 1), (2, 2, 3)}
        one.client.planes()
        while not (states := [said for said in one.received if isinstance(said, Planes)]):
            one.pump(1.0)
        assert [state.circuits for state in states[0].planes] == [((0, 1),), ((0, 1),), ((0, 1), (2, 3))]
        assert {state.state for state in states[0].planes} == {"ready"}


@libraries
def test_a_late_switch_is_reported_and_the_port_stays_dark_until_its_rules_are_in(library: str) -> None:
    with bench(library, tau_s=0.002) as one:  # less than the data plane needs
        one.client.connect(Order(a=0, b=2))
        event = one.wait(lambda e: e.kind is EventKind.ERROR)
        assert event.up_ns is not None
        assert event.dark_ns is not None
        assert event.late_ns == event.up_ns - event.dark_ns - 2_000_000 > 0
        assert "late" in event.detail
        wait_until(event.up_ns)
        check_reaches(one, {(0, 0): 2})


@libraries
def test_rules_are_sent_within_milliseconds_of_the_order_and_the_instant_of_up_is_known_long_before_it(library: str) -> None:
    """Medians, with room for a busy machine; docs/northbound.md has what is usual."""
    with bench(library, tau_s=TAU_S) as one:
        sent_ms, ahead_ms = [], []
        for number in range(40):
            start = time.monotonic_ns()
            one.client.connect(Order(a=0, b=1 + number % 2, replace=True))
            (event,) = armed(one, 1)
            sent_ms.append(((event.commanded_ns or 0) - start) / 1e6)
            ahead_ms.append(((event.up_ns or 0) - time.monotonic_ns()) / 1e6)
            one.wait(lambda e: e.kind is EventKind.UP)
        assert sorted(sent_ms)[20] < 2.0
        assert sorted(ahead_ms)[20] > TAU_S * 1e3 / 2
