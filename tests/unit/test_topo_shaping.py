"""The arithmetic of a shaped port, its netlink template, and flow classes."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topo import tc
from topo.netlink import attribute, attributes
from topo.shaping import PortShape, Queue, header_efficiency

pytestmark = pytest.mark.unit

PORTS = st.integers(0, 65535)
CLASSES = st.sampled_from([2**power for power in range(1, 13)])


@pytest.mark.parametrize(("mtu", "expected"), [(1500, 1448 / 1514), (9000, 8948 / 9014), (4096, 4044 / 4110)])
def test_the_header_efficiency_is_arithmetic(mtu: int, expected: float) -> None:
    assert header_efficiency(mtu) == expected


@given(st.floats(1e3, 1e12), st.integers(576, 65535))
def test_the_shaper_runs_faster_than_the_goodput_by_the_headers_alone(rate_Bps: float, mtu: int) -> None:
    shape = PortShape(rate_Bps, mtu)
    assert shape.wire_Bps == pytest.approx(rate_Bps * (mtu + 14) / (mtu - 52), abs=0.51, rel=1e-12)
    assert shape.frame == mtu + 14


@given(st.floats(1e3, 1e12), st.integers(576, 65535), st.floats(0, 0.01))
def test_the_bucket_holds_what_a_late_timer_misses_and_never_less_than_a_frame(rate_Bps: float, mtu: int, slack_s: float) -> None:
    shape = PortShape(rate_Bps, mtu, timer_slack_s=slack_s)
    assert shape.buffer >= shape.frame
    assert shape.buffer == shape.frame or 0 <= shape.buffer - shape.wire_Bps * slack_s < 1 + 1e-9 * shape.buffer
    assert shape.burst == shape.buffer + shape.frame


def test_without_timer_slack_the_bucket_is_one_frame() -> None:
    assert PortShape(45e9, 9000, timer_slack_s=0).buffer == 9014


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rate_Bps": 0}, "rate"),
        ({"rate_Bps": float("nan")}, "rate"),
        ({"rate_Bps": -1}, "rate"),
        ({"rate_Bps": 2.0**63}, "rate"),
        ({"mtu": 575}, "MTU"),
        ({"mtu": 65536}, "MTU"),
        ({"classes": 63}, "power of two"),
        ({"classes": 1}, "power of two"),
        ({"classes": 8192}, "power of two"),
        ({"limit": 0}, "holds nothing"),
        ({"timer_slack_s": -1e-6}, "timer slack"),
        ({"timer_slack_s": 0.011}, "timer slack"),
    ],
)
def test_a_shape_that_makes_no_sense_is_refused(changes: dict[str, float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        PortShape(**{"rate_Bps": 25e6, "mtu": 1500, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("queue", Queue)
@given(first=st.integers(1, 2**31 - 1), second=st.integers(1, 2**31 - 1))
def test_two_ports_of_a_shape_differ_in_the_interface_index_alone(queue: Queue, first: int, second: int) -> None:
    shape = PortShape(25e6, 1500, queue, 16)
    pairs = zip(tc.shape_requests(shape, first, "a"), tc.shape_requests(shape, second, "b"), strict=True)
    for one, other in pairs:
        assert struct.unpack_from("=i", one.data, 20) == (first,)
        assert struct.unpack_from("=i", other.data, 20) == (second,)
        assert one.data[:20] + one.data[24:] == other.data[:20] + other.data[24:]
        assert struct.unpack_from("=I", one.data) == (len(one.data),)
        assert (one.what[:2], other.what[:2]) == ("a:", "b:")


@pytest.mark.parametrize(("queue", "count"), [(Queue.FIFO, 2), (Queue.FAIR, 1 + 1 + 1 + 16 + 1)])
def test_a_port_takes_a_request_for_each_object(queue: Queue, count: int) -> None:
    assert len(tc.shape_requests(PortShape(25e6, 1500, queue, 16), 7, "x")) == count


def test_a_plan_differs_from_another_rate_even_where_32_bits_are_full() -> None:
    plans = [tc.expected(PortShape(rate * 1e9 / 8, 9000, Queue.FIFO)) for rate in (40, 50, 50)]
    assert tc.difference("x", plans[0], plans[1]) is not None
    assert tc.difference("x", plans[1], plans[2]) is None


@pytest.mark.parametrize(
    ("have", "words"),
    [
        (PortShape(24e6, 1500, classes=16), "x: class 5:1 has ceil 25093923 B/s"),
        (PortShape(25e6, 1500, classes=32), "x: 34 htb classes, planned 18"),
        (PortShape(25e6, 1500, Queue.FIFO), "x: 1 htb classes, planned 18"),
    ],
)
def test_a_port_that_is_shaped_otherwise_is_named_with_what_differs(have: PortShape, words: str) -> None:
    said = tc.difference("x", tc.expected(PortShape(25e6, 1500, classes=16)), tc.expected(have))
    assert said is not None
    assert said.startswith(words)


@given(PORTS, PORTS, CLASSES)
def test_both_directions_of_a_connection_are_in_one_class(sport: int, dport: int, classes: int) -> None:
    found = tc.flow_class(sport, dport, classes)
    assert found == tc.flow_class(dport, sport, classes) == (sport + dport) % classes


@given(st.integers(0, 65535 - 64), PORTS)
def test_neighbouring_source_ports_fill_every_class_once(first: int, dport: int) -> None:
    assert {tc.flow_class(first + step, dport, 64) for step in range(64)} == set(range(64))


@given(st.lists(st.tuples(st.integers(1, 0x3FFF), st.binary(max_size=40)), max_size=6))
def test_netlink_attributes_come_back_as_they_were(items: list[tuple[int, bytes]]) -> None:
    data = b"".join(attribute(kind, payload) for kind, payload in items)
    assert len(data) % 4 == 0
    assert list(attributes(data)) == items
