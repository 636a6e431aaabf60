"""Rules as flow entries, tested by packets; and what repairs a table."""

from __future__ import annotations

import pytest
from fake_flow_table import FakeFlowTable
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.flow_table import Entry, entry_of, repair
from ocs_switch.crossbar import Circuit
from ocs_switch.rules import Rule, difference, rules

pytestmark = pytest.mark.unit

OFPORTS = (11, 12, 13, 14, 15, 16)

circuit_sets = st.permutations(range(6)).flatmap(
    lambda ports: st.integers(0, 3).map(lambda n: frozenset(Circuit.of(*ports[2 * i : 2 * i + 2]) for i in range(n)))
)


def check_joined(table: FakeFlowTable, circuits: frozenset[Circuit]) -> None:
    """A packet into a port leaves by its peer and by nothing else; into any other port by nothing."""
    peers = {port: other for one in circuits for port, other in ((one.a, one.b), (one.b, one.a))}
    for port, ofport in enumerate(OFPORTS):
        expected = (OFPORTS[peers[port]],) if port in peers else ()
        assert table.forward(ofport, eth_dst="ff:ff:ff:ff:ff:ff") == expected


def test_a_circuit_carries_packets_both_ways_and_nothing_else_is_forwarded() -> None:
    table = FakeFlowTable(OFPORTS)
    table.change(difference((), [Circuit(1, 4)]))
    check_joined(table, frozenset({Circuit(1, 4)}))
    assert len(table.entries) == 2


@settings(max_examples=60)
@given(circuit_sets, circuit_sets)
def test_a_change_of_circuits_leaves_exactly_the_new_ones(before: frozenset[Circuit], after: frozenset[Circuit]) -> None:
    table = FakeFlowTable(OFPORTS)
    table.change(difference((), before))
    table.change(difference(before, after))
    check_joined(table, after)


foreign = st.builds(
    Entry,
    match=st.frozensets(st.sampled_from([("in_port", "11"), ("in_port", "12"), ("eth_type", "2048")]), max_size=2),
    actions=st.sampled_from([(), ("output:13",), ("output:4294967291",), ("action 25", "output:12")]),
    priority=st.integers(0, 200),
    cookie=st.integers(0, 3),
    idle_s=st.integers(0, 1),
)


@settings(max_examples=60)
@given(circuit_sets, circuit_sets, st.frozensets(foreign, max_size=5))
def test_a_repaired_table_joins_what_was_intended_whatever_it_had(
    had: frozenset[Circuit], intended: frozenset[Circuit], others: frozenset[Entry]
) -> None:
    table = FakeFlowTable(OFPORTS, others)
    table.change(difference((), had))
    table.repair(repair(table.entries, rules(intended), OFPORTS))
    check_joined(table, intended)
    assert table.entries == {entry_of(rule, OFPORTS) for rule in rules(intended)}


def test_a_table_that_is_as_intended_is_not_touched() -> None:
    intended = rules([Circuit(0, 5)])
    needed = repair([entry_of(rule, OFPORTS) for rule in intended], intended, OFPORTS)
    assert (needed.delete, needed.add) == ((), ())


def test_a_rule_that_would_time_out_is_foreign() -> None:
    rule = Rule(0, 5)
    good = entry_of(rule, OFPORTS)
    fleeting = Entry(good.match, good.actions, hard_s=10)
    needed = repair([fleeting], {rule}, OFPORTS)
    assert (needed.delete, needed.add) == ((fleeting,), (rule,))
