"""Which CPU works for whom."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topo.cluster import Cluster
from topo.emulated import cpu_masks
from topo.leafspine import LeafSpine
from topo.steering import Steering, cpu_mask, same_mask, steering_for

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(("cpu", "mask"), [(0, "1"), (1, "2"), (5, "20"), (31, "80000000"), (32, "00000001,00000000")])
def test_a_mask_is_written_in_groups_of_32_bits(cpu: int, mask: str) -> None:
    assert cpu_mask(cpu) == mask


@given(st.integers(0, 300))
def test_a_mask_names_one_cpu_whatever_the_padding(cpu: int) -> None:
    assert int(cpu_mask(cpu).replace(",", ""), 16) == 1 << cpu
    assert same_mask(cpu_mask(cpu), "00000000," * 12 + cpu_mask(cpu).zfill(8))
    assert not same_mask(cpu_mask(cpu), cpu_mask(cpu + 1))


@given(st.dictionaries(st.integers(0, 63), st.floats(0, 1), min_size=2, max_size=16))
def test_the_idlest_cpu_is_the_hosts_and_all_others_are_the_routers(idle: dict[int, float]) -> None:
    steering = steering_for(idle)
    assert steering is not None
    assert idle[steering.host_cpu] == max(idle.values())
    assert {steering.host_cpu, *steering.router_cpus} == set(idle)
    assert steering.host_cpu not in steering.router_cpus


def test_one_cpu_is_not_split() -> None:
    assert steering_for({0: 1.0}) is None


def test_routers_are_dealt_out_and_hosts_stay_together() -> None:
    fabric = LeafSpine(Cluster(prefill=1, decode=1, tp=2, rack=2), 2, 1e6).build()
    masks = cpu_masks(fabric, Steering(host_cpu=2, router_cpus=(0, 1)))
    assert {masks[host] for host in ("p0g0", "p0g1", "d0g0", "d0g1")} == {"4"}
    assert [masks[router] for router in ("leaf0", "leaf1", "spine0", "spine1")] == ["1", "2", "1", "2"]
