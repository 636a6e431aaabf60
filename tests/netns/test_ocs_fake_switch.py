"""The controller against switches that misbehave as no Open vSwitch does on demand."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from fake_switch import FakeSwitch
from ocs_bench import OPENFLOW_PORT, Bench, bench, dpid

from controller.ocs_config import Timing
from controller.ocs_messages import Event, EventKind, Order, Outcome

pytestmark = [pytest.mark.netns, pytest.mark.sealed]

libraries = pytest.mark.parametrize("library", ["os-ken", "ryu"])
BARRIER_S = 0.3
QUICK = Timing(settle_s=0.002, barrier_s=BARRIER_S)


def until(one: Bench, switch: FakeSwitch, kind: EventKind, wanted: Callable[[Event], bool] = lambda _: True) -> Event:
    """The next event of a kind, while the switch does what it does."""
    end = time.monotonic() + 8
    while time.monotonic() < end:
        switch.pump()
        one.pump(0.005)
        for index, said in enumerate(one.received):
            if isinstance(said, Event) and said.kind is kind and wanted(said):
                del one.received[: index + 1]
                return said
    raise AssertionError(f"no {kind}; there was {one.received}")


@libraries
def test_a_barrier_that_never_returns_ends_in_an_error_and_the_switch_may_come_back(library: str) -> None:
    with bench(library, switches=False, timing=QUICK) as one:
        switch = FakeSwitch(dpid(0), OPENFLOW_PORT)
        until(one, switch, EventKind.READY)
        switch.answers_barriers = False
        start = time.monotonic()
        one.client.connect(Order(a=0, b=1))
        error = until(one, switch, EventKind.ERROR)
        assert BARRIER_S <= time.monotonic() - start < BARRIER_S + 0.3
        assert (error.a, error.b, error.detail) == (0, 1, "no reply to a barrier within 0.3 s")
        until(one, switch, EventKind.DISCONNECTED)
        while not switch.closed:
            switch.pump(1.0)
        assert switch.flow_mods == 2
        again = FakeSwitch(dpid(0), OPENFLOW_PORT)
        until(one, again, EventKind.READY)
        one.client.connect(Order(a=0, b=1))
        assert until(one, again, EventKind.UP).late_ns is None
        assert again.flow_mods == 2
        again.close()


@libraries
def test_a_late_confirmation_keeps_the_circuit_dark_and_says_by_how_much(library: str) -> None:
    with bench(library, switches=False, timing=QUICK, tau_s=0.01) as one:
        switch = FakeSwitch(dpid(0), OPENFLOW_PORT)
        until(one, switch, EventKind.READY)
        switch.answers_barriers = False
        one.client.connect(Order(a=0, b=1))
        until(one, switch, EventKind.DARK)
        time.sleep(0.05)
        switch.pump()
        assert one.light is not None
        assert one.light.state(100).dark(time.monotonic_ns())
        confirmed = time.monotonic_ns()
        switch.confirm()
        armed = until(one, switch, EventKind.ARMED)
        error = until(one, switch, EventKind.ERROR)
        assert armed.up_ns is not None
        assert armed.dark_ns is not None
        assert armed.up_ns > confirmed + QUICK.settle_s * 1e9
        assert error.late_ns == armed.late_ns == armed.up_ns - armed.dark_ns - 10_000_000
        assert one.light.state(100).until_ns == armed.up_ns
        switch.close()


@libraries
def test_a_switch_that_is_silent_at_the_start_is_let_go_in_time(library: str) -> None:
    with bench(library, switches=False, timing=QUICK) as one:
        switch = FakeSwitch(dpid(0), OPENFLOW_PORT, answers_barriers=False)
        error = until(one, switch, EventKind.ERROR)
        assert error.detail == "the switch did not answer within 0.3 s"
        until(one, switch, EventKind.DISCONNECTED)
        answer = one.answers(one.client.connect(Order(a=0, b=1))).answers[0]
        assert (answer.outcome, answer.reason) == (Outcome.REFUSED, "no switch")
        switch.close()


@libraries
def test_a_connection_that_died_silently_gives_way_to_the_switchs_next(library: str) -> None:
    """Half-open: the old connection still seems to be there when the switch connects again."""
    with bench(library, switches=False, timing=QUICK) as one:
        old = FakeSwitch(dpid(0), OPENFLOW_PORT)
        until(one, old, EventKind.READY)
        old.answers = False
        second = FakeSwitch(dpid(0), OPENFLOW_PORT)
        refused = until(one, second, EventKind.ERROR)
        assert "a second connection" in refused.detail
        until(one, old, EventKind.DISCONNECTED)
        third = FakeSwitch(dpid(0), OPENFLOW_PORT)
        until(one, third, EventKind.READY)
        for switch in (old, second, third):
            switch.close()


@libraries
def test_a_switch_that_goes_in_the_middle_of_an_order_fails_it_at_once(library: str) -> None:
    with bench(library, switches=False, timing=Timing(barrier_s=5.0)) as one:
        switch = FakeSwitch(dpid(0), OPENFLOW_PORT)
        until(one, switch, EventKind.READY)
        switch.answers_barriers = False
        one.client.connect(Order(a=0, b=1))
        until(one, switch, EventKind.DARK)
        start = time.monotonic()
        switch.close()
        error = until(one, switch, EventKind.ERROR)
        assert time.monotonic() - start < 1.0
        assert error.detail == "the switch was lost: its connection ended"
        until(one, switch, EventKind.DISCONNECTED)
