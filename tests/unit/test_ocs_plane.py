"""A plane under control, step by step, without a switch: what it wants done, and when."""

from __future__ import annotations

import pytest
from fake_flow_table import FakeFlowTable
from hypothesis import given, settings
from hypothesis import strategies as st
from plane_rig import MS, OFPORTS, TAU, Rig, standing

from controller.ocs_messages import EventKind, Keeper, Order, Outcome
from controller.ocs_steps import Drop, Emit, Send
from ocs_switch.crossbar import Circuit
from ocs_switch.rules import Rule, RuleChange, rules

pytestmark = pytest.mark.unit


def test_with_light_tau_is_in_the_shutters_and_known_before_it_passes() -> None:
    rig = Rig()
    start = rig.now
    answer = rig.connect(0, 3)
    assert (answer.outcome, answer.dark_ns, answer.up_ns) == (Outcome.STARTED, start, None)
    assert all(rig.is_dark(port, start + 10 * TAU) for port in (0, 3))
    rig.reply(2 * MS)
    armed = rig.last(EventKind.ARMED)
    assert (armed.dark_ns, armed.up_ns, armed.late_ns, armed.at_ns) == (start, start + TAU, None, start + 2 * MS)
    assert rig.windows[0] == rig.windows[3] == (0, start + TAU)
    assert rig.table.forward(11) == (14,)
    rig.advance(start + 2 * TAU)
    assert rig.kinds() == ["dark", "armed", "up"]
    assert rig.last(EventKind.UP).up_ns == start + TAU
    assert rig.last(EventKind.UP).tag == "t"


def test_an_order_for_later_shuts_the_ports_from_then_on_and_sends_nothing_before() -> None:
    rig = standing((0, 1))
    at = rig.now + 5 * MS
    assert rig.connect(0, 2, at=at, replace=True).outcome is Outcome.ANNOUNCED
    assert [rig.windows[port] for port in (0, 1, 2)] == [(at, None), (at, None), (0, None)]
    assert rig.unanswered == []
    assert rig.table.forward(11) == (12,)
    rig.advance(at)
    rig.reply()
    assert rig.kinds() == ["down", "dark", "armed"]
    assert rig.last(EventKind.DOWN).dark_ns == rig.last(EventKind.DARK).dark_ns == at
    assert (rig.table.forward(11), rig.table.forward(12)) == ((13,), ())
    rig.advance(at + 2 * TAU)
    assert rig.windows[1] == (at, None)  # the peer that was left behind stays dark
    assert not rig.is_dark(0, at + TAU)
    assert rig.is_dark(0, at + TAU - 1)


def test_a_late_switch_keeps_the_ports_dark_until_the_rules_are_in_and_it_is_said_by_how_much() -> None:
    rig = Rig()
    start = rig.now
    rig.connect(0, 3)
    rig.advance(start + TAU + 9 * MS)
    assert rig.is_dark(0, rig.now)
    rig.reply(0)
    up = start + TAU + 15 * MS  # the reply, and what the data plane may lag behind it
    assert rig.windows[0] == (0, up)
    assert rig.kinds() == ["dark", "armed", "error"]
    assert (rig.last(EventKind.ARMED).up_ns, rig.last(EventKind.ERROR).late_ns) == (up, 15 * MS)
    rig.advance(up - 1)
    assert rig.plane.crossbar.circuits == frozenset()
    rig.advance(up)
    assert rig.plane.crossbar.circuits == {Circuit(0, 3)}


def test_with_the_timer_rules_go_at_once_and_come_tau_later_less_what_the_switch_takes() -> None:
    rig = standing((0, 1), keeper=Keeper.TIMER)
    start = rig.now
    rig.connect(0, 2, replace=True)
    assert rig.table.forward(11) == ()
    rig.reply(MS)
    assert rig.kinds() == ["down", "dark"]
    assert rig.last(EventKind.DARK).dark_ns == start + MS
    due = rig.plane.next_wake_ns
    assert due is not None
    assert start + MS + TAU - 12 * MS < due < start + MS + TAU - 6 * MS
    rig.advance(due)
    assert rig.table.forward(11) == (13,)
    rig.reply(MS)
    up = rig.last(EventKind.ARMED).up_ns
    assert up == start + MS + TAU
    rig.advance(up)
    assert rig.kinds() == ["down", "dark", "armed", "up"]
    assert {event.keeper for event in rig.events} == {Keeper.TIMER}


def test_the_timer_follows_the_switchs_latency() -> None:
    def lead(latency: int) -> int:
        rig = Rig(Keeper.TIMER)
        for number in range(40):
            rig.connect(0, 1 + number % 2, replace=True)
            rig.reply(MS)
            due = rig.plane.next_wake_ns
            assert due is not None
            early = rig.now + TAU - due
            rig.advance(due)
            rig.reply(latency)
            rig.advance(rig.now + TAU)
        return early

    assert lead(3 * MS) - lead(MS) == pytest.approx(2 * MS, abs=0.3 * MS)


@pytest.mark.parametrize("keeper", list(Keeper))
def test_a_barrier_that_never_returns_is_an_error_within_its_bound_and_the_switch_is_dropped(keeper: Keeper) -> None:
    rig = Rig(keeper)
    rig.connect(0, 3)
    rig.advance(rig.now + 2_000 * MS)
    assert "no reply to a barrier within 1 s" in rig.last(EventKind.ERROR).detail
    assert rig.drops
    assert rig.plane.crossbar.moving == rig.plane.crossbar.circuits == frozenset()
    rig.take(rig.plane.lost(rig.now, "dropped"))
    assert rig.plane.intended() == frozenset()
    rig.reply()  # too late: nothing comes of it
    assert EventKind.UP not in [event.kind for event in rig.events]
    assert rig.plane.next_wake_ns is None


def test_standing_circuits_outlive_a_lost_switch_and_unconfirmed_ones_do_not() -> None:
    rig = standing((0, 1))
    rig.connect(2, 3)
    rig.connect(0, 4, at=rig.now + 5 * MS, replace=True)
    rig.take(rig.plane.lost(rig.now, "gone"))
    assert rig.kinds() == ["dark", "error", "error", "disconnected"]
    assert rig.plane.intended() == rules([Circuit(0, 1)])
    assert not rig.is_dark(0, rig.now + 100 * MS)  # what was announced and has not begun changes nothing
    assert rig.is_dark(2, rig.now + 100 * MS)
    refused = rig.connect(2, 3)
    assert (refused.outcome, refused.reason) == (Outcome.REFUSED, "no switch")
    rig.take(rig.plane.connected(rig.now))
    assert rig.connect(2, 3).reason == "the switch is being synchronised"
    rig.take(rig.plane.synchronised(rig.now))
    assert rig.connect(2, 3).outcome is Outcome.STARTED


def test_an_armed_circuit_comes_up_even_if_the_switch_is_lost_meanwhile() -> None:
    rig = Rig()
    rig.connect(0, 1)
    rig.reply()
    rig.take(rig.plane.lost(rig.now, "gone"))
    assert rig.plane.intended() == rules([Circuit(0, 1)])
    rig.take(rig.plane.connected(rig.now))
    rig.take(rig.plane.synchronised(rig.now + MS))
    assert rig.windows[0] is not None
    assert rig.windows[0][1] is not None
    rig.advance(rig.now + 2 * TAU)
    assert rig.kinds()[-1] == "up"


def test_a_switch_that_is_not_synchronised_in_time_is_dropped() -> None:
    rig = Rig(ready=False)
    rig.take(rig.plane.connected(rig.now))
    rig.advance(rig.now + 1_100 * MS)
    assert rig.drops == ["the switch did not answer within 1 s"]


def test_a_probe_drops_a_silent_switch_and_leaves_one_that_answers() -> None:
    rig = Rig()
    rig.take(rig.plane.probe(rig.now))
    assert rig.plane.probe(rig.now) == []  # one is enough
    rig.reply()
    rig.advance(rig.now + 2_000 * MS)
    assert rig.drops == []
    rig.take(rig.plane.probe(rig.now))
    rig.advance(rig.now + 2_000 * MS)
    assert rig.drops == ["the switch did not answer within 1 s"]


def test_what_the_crossbar_refuses_is_refused_with_its_reason_and_changes_nothing() -> None:
    rig = standing((0, 1))
    windows = dict(rig.windows)
    for (a, b), reason in {(0, 2): "busy port 0", (2, 2): "hairpin 2", (2, 9): "out of range 9"}.items():
        answer = rig.connect(a, b)
        assert (answer.outcome, answer.reason) == (Outcome.REFUSED, reason)
    assert rig.kinds() == ["refused"] * 3
    assert (rig.windows, rig.unanswered) == (windows, [])
    rig.connect(2, 3)
    assert rig.connect(3, 4, replace=True).reason == "moving port 3"
    assert rig.disconnect(2, 3).reason == "moving port 2"


def test_ports_with_an_announced_order_are_taken() -> None:
    rig = standing((0, 1))
    at = rig.now + 5 * MS
    rig.connect(0, 2, at=at, replace=True)
    for a, b in ((0, 3), (1, 3), (2, 3)):
        assert rig.connect(a, b, replace=True).reason.startswith("moving port"), (a, b)
    assert rig.disconnect(0, 1).reason.startswith("moving port")
    again = rig.connect(2, 0, at=at + MS, replace=True)
    assert (again.outcome, again.dark_ns) == (Outcome.ANNOUNCED, at)  # the first order stands


def test_a_plane_is_joined_anew_in_one_request_also_for_later() -> None:
    rig = standing((0, 1), (2, 3))
    at = rig.now + 5 * MS
    for a, b in ((0, 2), (1, 3)):
        assert rig.connect(a, b, at=at, replace=True).outcome is Outcome.ANNOUNCED
    rig.advance(at)
    rig.reply()
    rig.advance(at + TAU)
    assert rig.plane.crossbar.circuits == {Circuit(0, 2), Circuit(1, 3)}
    assert rig.kinds() == ["down", "down", "dark", "dark", "armed", "armed", "up", "up"]
    assert [rig.windows[port] for port in range(4)] == [(at, at + TAU)] * 4
    assert rig.plane.intended() == rules(rig.plane.crossbar.circuits)


def test_a_standing_circuit_is_left_alone_unless_it_is_forced() -> None:
    rig = standing((0, 1))
    start = rig.now
    assert rig.connect(1, 0).outcome is Outcome.STANDING
    assert rig.events == []
    assert rig.connect(0, 1, force=True).outcome is Outcome.STARTED
    rig.reply()
    rig.advance(start + TAU)
    assert rig.kinds() == ["down", "dark", "armed", "up"]
    assert rig.windows[0] == rig.windows[1] == (start, start + TAU)


def test_a_circuit_on_its_way_is_not_begun_again_and_says_when_it_is_up() -> None:
    rig = Rig()
    start = rig.now
    rig.connect(0, 1)
    rig.reply()
    again = rig.connect(1, 0)
    assert (again.outcome, again.up_ns) == (Outcome.STARTED, start + TAU)
    assert rig.unanswered == []


def test_taking_down_is_dark_for_ever_and_free_at_once() -> None:
    rig = standing((0, 1))
    start = rig.now
    assert rig.disconnect(1, 0).outcome is Outcome.STARTED
    assert rig.windows[0] == rig.windows[1] == (start, None)
    assert rig.table.entries == set()
    assert rig.connect(0, 2).outcome is Outcome.STARTED
    rig.reply()
    rig.advance(start + 2 * TAU)
    assert rig.kinds() == ["down", "dark", "armed", "up"]
    assert rig.disconnect(0, 4).outcome is Outcome.ABSENT


def test_an_error_of_the_switch_has_it_synchronised_anew() -> None:
    rig = Rig()
    assert [type(one) for one in rig.plane.error(rig.now, "table full")] == [Emit, Drop]


def test_a_removal_names_where_the_rule_leads() -> None:
    rig = standing((0, 1))
    _, out = rig.plane.ask(Order(a=0, b=2, replace=True), rig.now)
    (send,) = [one for one in out if isinstance(one, Send)]
    assert send.change == RuleChange((Rule(0, 1), Rule(1, 0)), (Rule(0, 2), Rule(2, 0)))


steps = st.lists(
    st.tuples(
        st.sampled_from(["connect", "replace", "force", "disconnect", "reply", "lose"]),
        st.integers(0, 5),
        st.integers(0, 5),
        st.sampled_from([0, 0, 0, 3 * MS, 40 * MS]),  # how far ahead
        st.sampled_from([0, MS, 10 * MS, 60 * MS]),  # how long until the next
    ),
    max_size=30,
)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(list(Keeper)), steps)
def test_whatever_is_ordered_rules_shutters_and_crossbar_agree(
    keeper: Keeper, given_steps: list[tuple[str, int, int, int, int]]
) -> None:
    rig = Rig(keeper)
    for verb, a, b, ahead, wait in given_steps:
        at = rig.now + ahead if ahead else None
        if verb == "reply":
            rig.reply(0)
        elif verb == "lose":
            rig.take(rig.plane.lost(rig.now, "lost"))
            rig.unanswered.clear()
            rig.table = FakeFlowTable(OFPORTS)
            rig.table.change(RuleChange((), tuple(rig.plane.intended())))
            rig.take(rig.plane.connected(rig.now))
            rig.take(rig.plane.synchronised(rig.now))
        elif verb == "disconnect":
            rig.disconnect(a, b, at=at)
        else:
            rig.connect(a, b, at=at, replace=verb != "connect", force=verb == "force")
        rig.advance(rig.now + wait)
        ups = {Circuit.of(e.a, e.b) for e in rig.events if e.kind is EventKind.UP and e.a is not None and e.b is not None}
        assert rig.plane.crossbar.circuits <= ups
        if keeper is Keeper.LIGHT:
            lit = {port for one in rig.plane.crossbar.circuits for port in (one.a, one.b)}
            assert {port for port in range(6) if not rig.is_dark(port, rig.now)} == lit
    while rig.unanswered or rig.plane.next_wake_ns is not None:
        if rig.unanswered:
            rig.reply(MS)
        else:
            rig.advance(rig.plane.next_wake_ns or rig.now)
    assert rig.drops == []
    assert rig.plane.crossbar.moving == frozenset()
    expected = {rule.in_port: rule.out_port for rule in rules(rig.plane.crossbar.circuits)}
    assert {p: rig.table.forward(OFPORTS[p]) for p in range(6)} == {
        p: (OFPORTS[expected[p]],) if p in expected else () for p in range(6)
    }
