"""The arithmetic of a shaped port, its netlink template, flow classes, CPU masks, hash seeds, and scale."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topo import tc
from topo.cluster import Cluster
from topo.emulated import cpu_masks, hash_seeds
from topo.leafspine import LeafSpine
from topo.netlink import attribute, attributes
from topo.scale import Scale
from topo.shaping import PortShape, Queue, header_efficiency
from topo.steering import Steering, cpu_mask, same_mask, steering_for

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
    ("cpu", "mask"),
    [(0, "1"), (1, "2"), (5, "20"), (31, "80000000"), (32, "00000001,00000000"), (70, "00000040,00000000,00000000")],
)
def test_a_mask_is_written_as_the_kernel_writes_it(cpu: int, mask: str) -> None:
    assert cpu_mask(cpu) == mask


@given(st.integers(0, 1000))
def test_a_mask_names_one_cpu_whatever_its_padding(cpu: int) -> None:
    assert int(cpu_mask(cpu).replace(",", ""), 16) == 1 << cpu
    assert same_mask(cpu_mask(cpu), f"{1 << cpu:0300x}")
    assert not same_mask(cpu_mask(cpu), cpu_mask(cpu + 1))


@given(st.dictionaries(st.integers(0, 63), st.floats(0, 1), min_size=2, max_size=8))
def test_the_idlest_cpu_goes_to_the_hosts_and_the_others_to_the_routers(idle: dict[int, float]) -> None:
    steering = steering_for(idle)
    assert steering is not None
    assert idle[steering.host_cpu] == max(idle.values())
    assert {steering.host_cpu, *steering.router_cpus} == set(idle)
    assert steering.host_cpu not in steering.router_cpus


def test_one_cpu_cannot_be_split() -> None:
    assert steering_for({0: 1.0}) is None


def test_hosts_share_a_cpu_and_routers_are_dealt_out() -> None:
    fabric = LeafSpine(Cluster(1, 1, 4, 4), 2, 25e6).build()
    masks = cpu_masks(fabric, Steering(1, (0, 2)))
    assert {masks[f"{role}0g{position}"] for role in "pd" for position in range(4)} == {"2"}
    assert [masks[name] for name in ("leaf0", "leaf1", "spine0", "spine1")] == ["1", "4", "1", "4"]
    assert set(masks) == set(fabric.by_name)


def test_every_router_has_a_hash_seed_of_its_own_and_the_same_again() -> None:
    fabric = LeafSpine(Cluster(32, 32, 8, 32), 32, 25e6).build()
    seeds = hash_seeds(fabric, 7)
    assert len(set(seeds.values())) == len(seeds) == 16 + 32
    assert seeds == hash_seeds(fabric, 7) != hash_seeds(fabric, 8)
    assert all(0 < seed < 1 << 31 for seed in seeds.values())


POSITIVE = st.floats(1e-3, 1e3)


@given(st.floats(1e9, 1e12), st.floats(1e6, 1e9), POSITIVE, POSITIVE)
def test_a_time_that_is_scaled_scales_back(real_Bps: float, emu_Bps: float, time: float, value: float) -> None:
    scale = Scale(real_Bps, emu_Bps, time)
    assert scale.to_real_time(scale.to_emu_time(value)) == pytest.approx(value, rel=1e-12)


@given(st.floats(1e9, 1e12), st.floats(1e6, 1e9), st.floats(1, 1e3), st.integers(10**6, 10**12))
def test_a_transfer_takes_as_long_as_its_scaled_time_says(real_Bps: float, emu_Bps: float, time: float, size: int) -> None:
    scale = Scale(real_Bps, emu_Bps, time)
    emulated = scale.to_emu_bytes(size)
    assert (
        emulated / emu_Bps == pytest.approx(scale.to_emu_time(size / real_Bps), abs=0.5001 / emu_Bps, rel=1e-9) or emulated == 1
    )


def test_the_anchor_of_the_design() -> None:
    """66.7K tokens at 80 KiB are 5.46 GB, 121 ms at 45 GB/s; at 200 Mb/s and γ = 10 still 1.21 s."""
    size = 66_700 * 80 * 1024
    assert size == pytest.approx(5.46e9, rel=1e-3)
    assert size / 45e9 == pytest.approx(0.121, rel=5e-3)
    scale = Scale(45e9, 25e6, 10)
    assert scale.to_emu_bytes(size) / 25e6 == pytest.approx(1.21, rel=5e-3)
    assert scale.to_emu_time(0.025) == pytest.approx(0.25)


def test_something_stays_something_and_nothing_nothing() -> None:
    scale = Scale(45e9, 25e6, 1)
    assert (scale.to_emu_bytes(1), scale.to_emu_bytes(0)) == (1, 0)
