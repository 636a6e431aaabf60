"""What the optical network is made of: its circuits, its agenda, and a transfer over a circuit of its own."""

from __future__ import annotations

import math
from enum import IntEnum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.agenda import Agenda
from controller.circuits import Circuits
from flowsim.gated import GatedFlow, Sending

pytestmark = pytest.mark.unit


def test_a_circuit_ends_those_its_ports_were_in_and_its_ports_are_free_once_its_light_is_known() -> None:
    one = Circuits()
    assert (one.stands(0, 0), one.free_s(0, 0), one.up_s(0, 0)) == (False, -math.inf, math.inf)
    one.command(0, 0)
    one.command(1, 1)
    assert (one.stands(0, 0), one.free_s(0, 1)) == (True, math.inf)
    assert one.light(0, 0, 2.0)
    assert one.light(1, 1, 3.0)
    assert not one.light(0, 0, 9.0)  # known already
    assert (one.up_s(0, 0), one.free_s(0, 2), one.free_s(0, 1)) == (2.0, 2.0, 3.0)
    one.command(0, 1)
    assert [one.stands(p, d) for p, d in ((0, 0), (1, 1), (0, 1))] == [False, False, True]
    assert not one.light(0, 0, 4.0)  # told too late: it is no more
    assert one.free_s(1, 0) == -math.inf  # the ports left behind do not move
    one.drop(0, 1)
    assert one.free_s(0, 1) == -math.inf


class Kind(IntEnum):
    A = 0
    B = 1


def test_an_agenda_keeps_time_kind_and_order_forgets_the_void_and_asks_for_one_timer() -> None:
    void: set[str] = set()
    one: Agenda[str] = Agenda(void.__contains__)
    assert one.timer() is None
    one.push(2.0, Kind.B, "late")
    at_s, token = one.timer() or (0.0, 0)
    assert at_s == 2.0
    one.push(2.0, Kind.A, "first")
    one.push(3.0, Kind.A, "last")
    assert one.timer() is None  # one that is set already comes early enough
    one.push(1.0, Kind.A, "void")
    assert (one.timer() or (0.0, 0))[0] == 1.0
    void.add("void")
    assert one.pop(lambda at_s: at_s <= 1.0) is None
    one.fired(token)
    assert one.timer() is None  # that of the void one will do
    assert [one.pop(lambda at_s: at_s <= 2.0) for _ in range(3)] == [(Kind.A, "first"), (Kind.B, "late"), None]


def test_bytes_leave_once_released_and_gated_and_a_closed_gate_keeps_what_had_left() -> None:
    one = GatedFlow((0.0, 2.0, 5.0), (8, 12, 16), 8.0)
    assert (one.arrival_s(8), one.sent(9.0)) == (math.inf, 0.0)
    one.open(1.0, 8)
    assert (one.arrival_s(4), one.arrival_s(8), one.arrival_s(9), one.sent(1.5)) == (1.5, 2.0, math.inf, 4.0)
    one.open(4.0, 16)
    assert (one.arrival_s(12), one.arrival_s(16)) == (4.5, 5.5)
    assert one.close(4.25) == (Sending(1.0, 2.0), Sending(4.0, 4.25))
    assert (one.sent(9.0), one.arrival_s(16)) == (10.0, math.inf)
    one.open(8.0, 16)
    assert (one.arrival_s(10), one.arrival_s(16)) == (4.25, 8.75)


@given(
    st.lists(st.tuples(st.floats(0, 5), st.integers(1, 9)), min_size=1, max_size=8),
    st.lists(st.tuples(st.floats(0, 9), st.integers(0, 9)), max_size=3),
)
def test_no_byte_leaves_before_its_release_or_its_gate_or_faster_than_the_port(
    steps: list[tuple[float, int]], gates: list[tuple[float, int]]
) -> None:
    at_s = sorted(step[0] for step in steps)
    released = [sum(size for _, size in steps[: i + 1]) for i in range(len(steps))]
    one = GatedFlow(at_s, released, 4.0)
    for opens_s, upto in sorted(gates):
        one.open(opens_s, upto)
    before = 0.0
    for tick in range(200):
        now_s = tick / 8
        sent = one.sent(now_s)
        allowed_release = max([0, *(size for t, size in zip(at_s, released, strict=True) if t <= now_s)])
        allowed_gate = max([0, *(upto for t, upto in gates if t <= now_s)])
        assert before - 1e-9 <= sent <= min(allowed_release, allowed_gate) + 1e-9
        assert sent - before <= 4.0 / 8 + 1e-9
        before = sent
    assert before == pytest.approx(min(released[-1], max([0, *(upto for _, upto in gates)])))
