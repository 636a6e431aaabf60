"""What dump-flows prints, as data."""

from __future__ import annotations

import pytest

from topo.flowtext import FlowTextError, circuit_rules, parse_flow, parse_flows

pytestmark = pytest.mark.unit

DUMP = """OFPST_FLOW reply (OF1.5) (xid=0x2):
 cookie=0x5, duration=3.5s, table=0, n_packets=12, n_bytes=840, idle_age=1, priority=7,in_port=1 actions=output:2
 cookie=0x5, duration=3.5s, table=0, n_packets=0, n_bytes=0, idle_age=1, priority=7,in_port=2 actions=output:1
 cookie=0x0, duration=9.1s, table=0, n_packets=3, n_bytes=90, reset_counts ip,nw_dst=10.0.0.1 actions=drop
"""


def test_a_dump_becomes_flows() -> None:
    first, _, last = parse_flows(DUMP)
    assert (first.priority, first.cookie, first.packets, first.bytes) == (7, 5, 12, 840)
    assert (first.in_port, first.output) == (1, 2)
    assert (last.priority, dict(last.match), last.actions) == (32768, {"ip": "", "nw_dst": "10.0.0.1"}, "drop")
    assert (last.in_port, last.output) == (None, None)


def test_circuits_are_the_rules_that_only_forward() -> None:
    assert circuit_rules(parse_flows(DUMP)) == {(1, 2), (2, 1)}


def test_counters_do_not_make_a_flow_another() -> None:
    counted, fresh = (f"n_packets={n}, n_bytes={n}, priority=7,in_port=1 actions=output:2" for n in (9, 0))
    assert parse_flow(counted) == parse_flow(fresh)


@pytest.mark.parametrize("actions", ["output:1,output:2", "drop", "CONTROLLER:65535", "IN_PORT"])
def test_anything_beyond_one_output_is_no_circuit(actions: str) -> None:
    assert parse_flow(f"in_port=1 actions={actions}").output is None


@pytest.mark.parametrize("line", ["nonsense", "priority=x,in_port=1 actions=output:2"])
def test_what_is_no_flow_is_refused(line: str) -> None:
    with pytest.raises(FlowTextError, match="is no flow"):
        parse_flow(line)


def test_an_empty_table_has_no_flows() -> None:
    assert parse_flows("OFPST_FLOW reply (OF1.5) (xid=0x2):\n") == ()
