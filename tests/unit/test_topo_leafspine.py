"""Clusters in racks, and the leaf-spine that joins them at a ratio."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topo.cluster import Cluster, Role
from topo.fabric import FabricError, NodeKind
from topo.leafspine import RATIOS, LeafSpine, host_name, parse_ratio, uplinks_for

pytestmark = pytest.mark.unit

clusters = st.builds(
    Cluster, prefill=st.integers(1, 6), decode=st.integers(1, 6), tp=st.integers(1, 8), rack=st.integers(1, 16)
)  # fmt: skip


@settings(max_examples=50, deadline=None)
@given(clusters)
def test_no_rack_mixes_the_roles_and_none_is_overfull(cluster: Cluster) -> None:
    roles: dict[int, set[Role]] = {}
    for gpu in cluster.gpus():
        roles.setdefault(gpu.rack, set()).add(gpu.role)
    assert all(len(found) == 1 for found in roles.values())
    assert sorted(roles) == list(range(cluster.racks))
    assert max(Counter(gpu.rack for gpu in cluster.gpus()).values()) <= cluster.rack


@settings(max_examples=50, deadline=None)
@given(clusters)
def test_gpus_are_counted_once_in_order_and_no_two_share_a_place(cluster: Cluster) -> None:
    gpus = cluster.gpus()
    assert [gpu.index for gpu in gpus] == list(range(cluster.size))
    assert len({(gpu.rack, gpu.slot) for gpu in gpus}) == cluster.size
    assert all(0 <= gpu.slot < cluster.rack for gpu in gpus)


def test_the_production_cluster_has_32_gpu_racks_of_one_role() -> None:
    cluster = Cluster(prefill=16, decode=48, tp=8, rack=32)
    assert (cluster.size, cluster.racks_of(Role.PREFILL), cluster.racks_of(Role.DECODE)) == (512, 4, 12)
    first = cluster.gpu(Role.DECODE, 0, 0)
    assert (first.index, first.rack, first.slot) == (128, 4, 0)


@pytest.mark.parametrize("name", ["prefill", "decode", "tp", "rack"])
def test_a_cluster_without_something_is_refused_by_name(name: str) -> None:
    sizes = {"prefill": 1, "decode": 1, "tp": 1, "rack": 1, name: 0}
    with pytest.raises(ValueError, match=rf"cluster\.{name} is 0"):
        Cluster(**sizes)


@pytest.mark.parametrize(("instance", "position"), [(2, 0), (-1, 0), (0, 4), (0, -1)])
def test_a_gpu_outside_the_cluster_is_no_gpu(instance: int, position: int) -> None:
    with pytest.raises(IndexError, match="no GPU prefill"):
        Cluster(prefill=2, decode=3, tp=4, rack=8).gpu(Role.PREFILL, instance, position)


@pytest.mark.parametrize(("ratio", "uplinks", "real"), [("1:1", 32, 1.0), ("2:1", 16, 2.0), ("3:1", 11, 2.909)])
def test_a_rack_of_32_has_the_uplinks_of_the_literature(ratio: str, uplinks: int, real: float) -> None:
    assert uplinks_for(32, parse_ratio(ratio)) == uplinks
    cluster = Cluster(prefill=8, decode=8, tp=8, rack=32)
    assert LeafSpine(cluster, uplinks, 1e6).ratio == pytest.approx(real, abs=1e-3)


@pytest.mark.parametrize(
    ("rack", "ratio", "uplinks"),
    [(4, "1:1", 4), (4, "2:1", 2), (8, "2:1", 4), (16, "3:1", 6), (6, "3:1", 2), (3, "3:1", 1), (1, "1:1", 1)],
)
def test_small_racks_keep_the_ratio(rack: int, ratio: str, uplinks: int) -> None:
    assert uplinks_for(rack, parse_ratio(ratio)) == uplinks


@pytest.mark.parametrize(("rack", "ratio"), [(1, "2:1"), (3, "2:1"), (4, "3:1"), (2, "3:1"), (5, "2:1")])
def test_a_ratio_that_whole_ports_miss_by_over_a_tenth_is_refused(rack: int, ratio: str) -> None:
    with pytest.raises(FabricError, match=r"set fabric\.uplinks, or other racks"):
        uplinks_for(rack, parse_ratio(ratio))


@given(st.integers(1, 64), st.fractions(1, 8, max_denominator=11))
def test_a_ratio_is_kept_within_a_tenth_or_refused(rack: int, ratio: Fraction) -> None:
    try:
        uplinks = uplinks_for(rack, ratio)
    except FabricError:
        return
    assert abs(Fraction(rack, uplinks) / ratio - 1) <= Fraction(1, 10)


def test_three_to_one_means_32_on_11() -> None:
    assert parse_ratio("3:1") == RATIOS["3:1"] == Fraction(32, 11)
    assert parse_ratio("4:2") == 2
    assert parse_ratio("2.5:1") == Fraction(5, 2)


@pytest.mark.parametrize("text", ["", "2", "two:one", "2:0", ":", "2:1:1", "nan:1"])
def test_what_is_no_ratio_is_refused(text: str) -> None:
    with pytest.raises(FabricError, match="write it like 2:1"):
        parse_ratio(text)


@pytest.mark.parametrize("text", ["1:2", "0:1", "-2:1"])
def test_more_uplinks_than_hosts_is_refused(text: str) -> None:
    with pytest.raises(FabricError, match="more uplinks than hosts"):
        parse_ratio(text)


@settings(max_examples=50, deadline=None)
@given(clusters, st.integers(1, 5))
def test_every_leaf_has_one_uplink_to_every_spine_and_every_host_one_leaf(cluster: Cluster, uplinks: int) -> None:
    fabric = LeafSpine(cluster, uplinks, 25e6).build()
    kinds = Counter(node.kind for node in fabric.nodes)
    assert kinds == {NodeKind.HOST: cluster.size, NodeKind.LEAF: cluster.racks, NodeKind.SPINE: uplinks}
    pairs = Counter((link.a.node, link.b.node) for link in fabric.links)
    assert set(pairs.values()) == {1}
    for gpu in cluster.gpus():
        host = host_name(gpu.role, gpu.instance, gpu.position)
        (port,) = fabric.ports_of[host]
        assert (fabric.peer[port].node, fabric.peer[port].number) == (f"leaf{gpu.rack}", gpu.slot)
    for leaf in fabric.of_kind(NodeKind.LEAF):
        above = [fabric.peer[port].node for port in fabric.ports_of[leaf.name] if port.number >= cluster.rack]
        assert above == [spine.name for spine in fabric.of_kind(NodeKind.SPINE)]
    assert set(fabric.rate_of.values()) == {25e6}
