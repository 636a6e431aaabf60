"""The optical switch: crossbar, its rules, and what light allows."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ocs_switch.crossbar import Circuit, Crossbar, Dark, Down, Event, Refusal, Refused, Up
from ocs_switch.optics import DR4, FR4, Module, OpticalPath, OpticsError, check_link, check_ports, highest_tdecq_dB, reach_gpus
from ocs_switch.rules import Rule, difference, rules

pytestmark = pytest.mark.unit

TAU_S = 0.025


def plane(*circuits: tuple[int, int], ports: int = 8) -> Crossbar:
    """A plane on which circuits stand, at time 1."""
    one = Crossbar(ports, TAU_S)
    for a, b in circuits:
        one.connect(a, b, 0.0)
    one.advance(1.0)
    return one


def refusal(events: tuple[Event, ...]) -> Refusal:
    (event,) = events
    assert isinstance(event, Refused)
    return event.reason


def test_a_circuit_is_dark_for_tau_and_then_up_both_ways() -> None:
    one = Crossbar(4, TAU_S)
    circuit = Circuit(0, 3)
    assert one.connect(3, 0, 2.0) == (Dark(2.0, circuit, 2.0 + TAU_S),)
    assert (one.circuits, one.moving, one.next_up_s) == (frozenset[Circuit](), frozenset({circuit}), 2.0 + TAU_S)
    assert one.advance(2.0 + TAU_S / 2) == ()
    assert (one.peer(0), one.peer(3)) == (None, None)
    assert one.advance(9.0) == (Up(2.0 + TAU_S, circuit),)  # late, but with the exact instant
    assert (one.peer(0), one.peer(3), one.next_up_s) == (3, 0, None)
    assert one.advance(1e9) == ()
    assert one.circuits == {circuit}


def test_no_delay_is_up_at_once() -> None:
    assert Crossbar(2, 0.0).connect(0, 1, 5.0) == (Dark(5.0, Circuit(0, 1), 5.0), Up(5.0, Circuit(0, 1)))


@pytest.mark.parametrize(
    ("a", "b", "reason"),
    [
        (0, 8, Refusal.OUT_OF_RANGE),
        (-1, 5, Refusal.OUT_OF_RANGE),
        (5, 5, Refusal.HAIRPIN),
        (0, 5, Refusal.BUSY),
        (5, 1, Refusal.BUSY),
        (2, 5, Refusal.MOVING),
        (5, 3, Refusal.MOVING),
        (0, 2, Refusal.MOVING),
    ],
)
def test_what_cannot_be_joined_is_refused_and_changes_nothing(a: int, b: int, reason: Refusal) -> None:
    one = plane((0, 1))
    one.connect(2, 3, 1.0)
    before = one.circuits, one.moving, one.next_up_s
    assert refusal(one.connect(a, b, 1.0)) is reason
    assert (one.circuits, one.moving, one.next_up_s) == before


def test_replacing_moves_two_ports_and_leaves_their_peers_dark_but_free() -> None:
    one = plane((0, 1), (2, 3), (4, 5))
    events = one.connect(0, 2, 1.0, replace=True)
    assert events == (Down(1.0, Circuit(0, 1)), Down(1.0, Circuit(2, 3)), Dark(1.0, Circuit(0, 2), 1.0 + TAU_S))
    assert one.circuits == {Circuit(4, 5)}
    assert one.connect(1, 3, 1.0) == (Dark(1.0, Circuit(1, 3), 1.0 + TAU_S),)
    one.advance(2.0)
    assert one.circuits == {Circuit(0, 2), Circuit(1, 3), Circuit(4, 5)}


def test_a_moving_port_is_refused_even_to_replace_and_to_disconnect() -> None:
    one = plane((0, 1))
    one.connect(2, 3, 1.0)
    assert refusal(one.connect(0, 2, 1.0, replace=True)) is Refusal.MOVING
    assert refusal(one.disconnect(2, 3, 1.0)) is Refusal.MOVING
    assert one.circuits == {Circuit(0, 1)}


def test_commands_are_idempotent() -> None:
    one = plane((0, 1))
    assert one.connect(1, 0, 1.0) == ()
    assert one.connect(0, 1, 1.0, replace=True) == ()
    one.connect(2, 3, 1.0)
    assert one.connect(3, 2, 1.01) == ()
    assert one.next_up_s == 1.0 + TAU_S  # the second command does not start τ anew
    assert one.disconnect(1, 0, 2.0) == (Up(1.0 + TAU_S, Circuit(2, 3)), Down(2.0, Circuit(0, 1)))
    assert one.disconnect(1, 0, 2.0) == ()
    assert one.disconnect(0, 2, 2.0) == ()  # never joined
    assert one.circuits == {Circuit(2, 3)}


def test_a_mechanism_that_says_when_it_is_done_overrules_tau() -> None:
    one = Crossbar(4, TAU_S)
    one.connect(0, 1, 1.0, until_s=float("inf"))
    one.connect(2, 3, 1.0)
    assert one.advance(5.0) == (Up(1.0 + TAU_S, Circuit(2, 3)),)
    one.settle(1, 0, 5.5)
    assert one.next_up_s == 5.5
    assert one.advance(6.0) == (Up(5.5, Circuit(0, 1)),)
    with pytest.raises(ValueError, match="0-1 is not being set up"):
        one.settle(0, 1, 7.0)


def test_an_abandoned_circuit_never_comes_up_and_frees_its_ports() -> None:
    one = plane((0, 1))
    one.connect(0, 2, 1.0, replace=True)
    assert one.refusal(2, 3, 1.0) == Refused(1.0, 2, 3, 2, Refusal.MOVING)
    one.abandon(0, 2)
    assert (one.circuits, one.moving, one.next_up_s) == (frozenset[Circuit](), frozenset[Circuit](), None)
    assert one.refusal(2, 3, 1.0) is None
    with pytest.raises(ValueError, match="not being set up"):
        one.abandon(0, 2)


def test_a_plane_and_its_clock_must_make_sense() -> None:
    one = plane()
    with pytest.raises(ValueError, match=r"time went from 1\.0 s back to 0\.5 s"):
        one.connect(0, 1, 0.5)
    with pytest.raises(ValueError, match="at least 2"):
        Crossbar(1, TAU_S)
    with pytest.raises(ValueError, match="not a time"):
        Crossbar(2, float("nan"))


commands = st.lists(
    st.tuples(
        st.sampled_from(["connect", "replace", "disconnect"]),
        st.integers(-1, 6),
        st.integers(-1, 6),
        st.sampled_from([0.0, 0.01, TAU_S, 0.1]),
    ),
    max_size=40,
)


@settings(max_examples=80)
@given(commands)
def test_any_commands_keep_a_port_in_one_circuit_and_touch_no_port_they_do_not_name(
    given_commands: list[tuple[str, int, int, float]],
) -> None:
    one, now_s = Crossbar(6, TAU_S), 0.0
    lit: set[Circuit] = set()  # rebuilt from the events alone
    moving: dict[Circuit, float] = {}
    for verb, a, b, wait_s in given_commands:
        now_s += wait_s
        for event in one.advance(now_s):
            assert isinstance(event, Up)
            assert moving.pop(event.circuit) == event.at_s <= now_s
            lit.add(event.circuit)
        before = one.circuits
        events = one.disconnect(a, b, now_s) if verb == "disconnect" else one.connect(a, b, now_s, replace=verb == "replace")
        for event in events:
            if isinstance(event, Down):
                lit.remove(event.circuit)
                assert {event.circuit.a, event.circuit.b} & {a, b}
            elif isinstance(event, Dark):
                assert event.circuit == Circuit.of(a, b)
                moving[event.circuit] = event.until_s
            else:
                assert isinstance(event, Refused)
                assert events == (event,)
                assert one.circuits == before
        assert one.circuits == lit
        assert one.moving == set(moving)
        ports = [port for circuit in (*lit, *moving) for port in (circuit.a, circuit.b)]
        assert len(ports) == len(set(ports))
        assert {c for c in before if not {c.a, c.b} & {a, b}} <= lit


circuit_sets = st.permutations(range(8)).flatmap(
    lambda ports: st.integers(0, 4).map(lambda n: [Circuit.of(*ports[2 * i : 2 * i + 2]) for i in range(n)])
)


@settings(max_examples=50)
@given(circuit_sets, circuit_sets)
def test_the_difference_of_two_states_turns_one_into_the_other_and_leaves_standing_circuits_alone(
    before: list[Circuit], after: list[Circuit]
) -> None:
    change = difference(before, after)
    table = set(rules(before))
    assert table.issuperset(change.remove)
    table -= set(change.remove)
    assert len({rule.in_port for rule in table} | {rule.in_port for rule in change.add}) == len(table) + len(change.add)
    assert table | set(change.add) == rules(after)
    assert not (set(change.remove) | set(change.add)) & rules(set(before) & set(after))


def test_a_circuit_is_two_rules_and_a_moving_one_is_none() -> None:
    one = plane((1, 0))
    one.connect(2, 3, 1.0)
    assert rules(one.circuits) == {Rule(0, 1), Rule(1, 0)}


def test_the_link_budget_of_the_published_path() -> None:
    path = OpticalPath()
    assert path.loss_dB == pytest.approx(5.95)
    assert highest_tdecq_dB(path, DR4) == pytest.approx(1.55)
    assert highest_tdecq_dB(path, FR4) == pytest.approx(1.75)


def test_a_link_over_its_budget_is_an_error_that_says_what_would_do() -> None:
    with pytest.raises(OpticsError, match=r"5\.95 dB through the switch, DR4 allows 3\.00 dB; splice .* at most 1\.55 dB"):
        check_link(OpticalPath(), DR4)
    with pytest.raises(OpticsError, match=r"at most 1\.75 dB; 1\.8 dB is given"):
        check_link(OpticalPath(), FR4, tdecq_dB=1.8)
    with pytest.raises(OpticsError, match="no transmitter closes it"):
        check_link(OpticalPath(fibre_dB=4.0), FR4, tdecq_dB=0.1)
    with pytest.raises(OpticsError, match="zero or more"):
        OpticalPath(fibre_dB=-1.0)


@pytest.mark.parametrize(("module", "tdecq_dB"), [(DR4, 1.5), (FR4, 1.7)])
def test_selected_transmitters_or_splices_close_the_link(module: Module, tdecq_dB: float) -> None:
    check_link(OpticalPath(), module, tdecq_dB=tdecq_dB)
    spliced = OpticalPath(connectors=0, splices=4, switch_dB=2.3)
    assert spliced.loss_dB <= module.allocation_dB
    check_link(spliced, module)


def test_eight_planes_of_384_ports_reach_3072_gpus_and_parallel_fibres_a_quarter() -> None:
    assert reach_gpus(384, 8) == 3072
    assert reach_gpus(384, 8, DR4) == 768
    check_ports(384, 384)
    with pytest.raises(OpticsError, match="cannot join 97 instances over DR4: 388 needed"):
        check_ports(97, 384, DR4)
