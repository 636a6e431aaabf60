"""The arithmetic of a shaped port, its netlink template, and flow classes."""

from __future__ import annotations

import struct
from dataclasses import replace

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
def test_the_bucket_holds_what_a_late_timer_misses_and_no_more(rate_Bps: float, mtu: int, slack_s: float) -> None:
    shape = PortShape(rate_Bps, mtu, timer_slack_s=slack_s)
    assert 0 <= shape.buffer - shape.wire_Bps * slack_s <= 1 + 1e-9 * shape.buffer
    assert shape.burst == shape.buffer + 2 * shape.frame
    assert replace(shape, queue=Queue.FIFO).burst == shape.buffer + shape.frame


def test_without_timer_slack_only_overdrawn_frames_leave_at_once() -> None:
    assert PortShape(45e9, 9000, Queue.FIFO, timer_slack_s=0).burst == 1 + 9014


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


@pytest.mark.parametrize(
    ("rate_Bps", "mtu", "bucket"),
    [(12.5e6, 1500, 1961), (50e6, 9000, 7556), (25e6, 9000, 3778), (1.0, 1500, 1)],
)
def test_the_bucket_is_what_a_late_timer_would_lose(rate_Bps: float, mtu: int, bucket: int) -> None:
    shape = PortShape(rate_Bps, mtu)
    assert (shape.buffer, shape.burst) == (bucket, bucket + 2 * (mtu + 14))


def run_filter(program: bytes, frame: bytes) -> int:
    """What classic BPF returns for a frame: the instructions the flow filter is made of."""
    lines: list[tuple[int, int, int, int]] = [*struct.iter_unpack("=HBBI", program)]
    a: int = 0
    x: int = 0
    at = 0
    while True:
        code, true, false, k = lines[at]
        at += 1
        if code == 0x28:  # ldh
            a = int.from_bytes(frame[k : k + 2], "big")
        elif code == 0x30:  # ldb
            a = frame[k]
        elif code == 0x07:  # tax
            x = a
        elif code == 0x74:  # rsh
            a >>= k
        elif code == 0x54:  # and
            a &= k
        elif code == 0x04:  # add k
            a += k
        elif code == 0x0C:  # add x
            a += x
        elif code == 0x1D:  # jeq x
            at += true if a == x else false
        elif code == 0x06:  # ret k
            return k
        elif code == 0x16:  # ret a
            return a
        else:
            raise AssertionError(f"instruction {code:#x}")


def tcp_frame(sport: int, dport: int, options: int, payload: int) -> bytes:
    """A frame of IPv4 without options and TCP with ``options`` words of them."""
    ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 40 + 4 * options + payload, 0, 0, 64, 6, 0, bytes(4), bytes(4))
    tcp = struct.pack(">HHIIBBHHH", sport, dport, 0, 0, (5 + options) << 4, 0x10, 0, 0, 0)
    return bytes(12) + b"\x08\x00" + ip + tcp + bytes(4 * options + payload)


@given(PORTS, PORTS, st.integers(0, 10), st.integers(0, 3000), CLASSES)
def test_the_filter_frees_what_has_no_payload_and_classes_the_rest_by_its_ports(
    sport: int, dport: int, options: int, payload: int, classes: int
) -> None:
    frame = tcp_frame(sport, dport, options, payload)
    by_ports = 0x50010 + tc.flow_class(sport, dport, classes)
    (program,) = tc.expected(PortShape(25e6, 1500, classes=classes)).filters
    assert run_filter(program, frame) == (by_ports if payload else 0x50000)
    (program,) = tc.expected(PortShape(25e6, 1500, classes=classes, free_acks=False)).filters
    assert run_filter(program, frame) == by_ports


def test_free_packets_are_not_held_against_the_rate() -> None:
    assert tc.PortCounters(bytes=151_400 + 50 * 66, packets=150, drops=0, backlog=0, free_packets=50).shaped_bytes == 151_400
