"""A fabric's names, ports, datapath ids and MAC addresses."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topo.cluster import Cluster
from topo.emulated import hash_seeds
from topo.fabric import IFNAMSIZ, Fabric, FabricError, Link, Node, NodeKind, Port
from topo.leafspine import LeafSpine
from topo.routing import layer3

pytestmark = pytest.mark.unit

A, B = Node("a", NodeKind.HOST, 0), Node("b", NodeKind.HOST, 1)
ends = Port("a", 0), Port("b", 0)


def expect_all_unique(fabric: Fabric) -> None:
    ports = [port for link in fabric.links for port in link.ports]
    names = [port.name for port in ports]
    macs = [fabric.by_name[port.node].mac(port.number) for port in ports]
    dpids = [node.dpid for node in fabric.nodes]
    addresses = [address for config in layer3(fabric).nodes.values() for address in config.addresses.values()]
    for found in (names, macs, dpids, addresses, [node.name for node in fabric.nodes]):
        assert len(set(found)) == len(found)
    hosts = fabric.of_kind(NodeKind.HOST)
    assert len(addresses) == len(ports) - len(hosts), "a leaf's ports to hosts need none"
    assert max(len(name) for name in names) <= IFNAMSIZ
    assert all(0 < dpid < 1 << 64 for dpid in dpids)
    assert all(int(mac[:2], 16) & 3 == 2 for mac in macs), "locally administered, unicast"


@pytest.mark.parametrize("uplinks", [32, 16, 11])
def test_everything_is_unique_with_512_hosts(uplinks: int) -> None:
    fabric = LeafSpine(Cluster(prefill=16, decode=48, tp=8, rack=32), uplinks, 25e6).build()
    assert len(fabric.of_kind(NodeKind.HOST)) == 512
    expect_all_unique(fabric)


@settings(max_examples=30, deadline=None)
@given(
    st.builds(Cluster, prefill=st.integers(1, 12), decode=st.integers(1, 12), tp=st.integers(1, 8), rack=st.integers(1, 9)),
    st.integers(1, 9),
)
def test_everything_is_unique_in_any_cluster(cluster: Cluster, uplinks: int) -> None:
    expect_all_unique(LeafSpine(cluster, uplinks, 25e6).build())


def test_datapath_ids_come_from_kind_and_index_and_not_from_digits_in_names() -> None:
    assert Node("leaf1", NodeKind.LEAF, 1).dpid != Node("spine1", NodeKind.SPINE, 1).dpid
    assert Node("x", NodeKind.HOST, 0).dpid == 0x0001_0000_0000_0001


def test_a_name_over_15_characters_is_refused_before_anything_exists() -> None:
    long = Node("a-host-too-long", NodeKind.HOST, 0)
    with pytest.raises(FabricError, match=r"'a-host-too-long-eth0' is longer than 15 characters"):
        Fabric((long, B), (Link(Port(long.name, 0), ends[1], 1.0),))


def test_a_name_is_measured_in_bytes_as_the_kernel_does() -> None:
    node = Node("höööööst", NodeKind.HOST, 0)
    with pytest.raises(FabricError, match="longer than 15"):
        Fabric((node, B), (Link(Port(node.name, 0), ends[1], 1.0),))


@pytest.mark.parametrize("rate_Bps", [0.0, -1.0, float("inf"), float("nan")])
def test_a_link_without_a_rate_is_refused(rate_Bps: float) -> None:
    with pytest.raises(FabricError, match="is not above zero"):
        Fabric((A, B), (Link(*ends, rate_Bps),))


def test_inconsistent_graphs_are_refused() -> None:
    with pytest.raises(FabricError, match="share a name"):
        Fabric((A, Node("a", NodeKind.LEAF, 0)), ())
    with pytest.raises(FabricError, match="on no node"):
        Fabric((A,), (Link(*ends, 1.0),))
    with pytest.raises(FabricError, match="in two links"):
        Fabric((A, B), (Link(*ends, 1.0), Link(ends[0], Port("b", 1), 1.0)))


@pytest.mark.parametrize(("index", "port"), [(1 << 16, 0), (0, 256), (-1, 0), (0, -1)])
def test_no_mac_address_is_made_up_beyond_the_space(index: int, port: int) -> None:
    with pytest.raises(FabricError, match="no MAC address"):
        Node("n", NodeKind.HOST, index).mac(port)


def test_lookups_by_port() -> None:
    fabric = Fabric((A, B), (Link(*ends, 3.0), Link(Port("a", 2), Port("b", 1), 4.0)))
    assert fabric.peer[Port("a", 2)] == Port("b", 1)
    assert fabric.rate_of[Port("b", 1)] == 4.0
    assert [port.number for port in fabric.ports_of["a"]] == [0, 2]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1 << 32), st.integers(1, 20))
def test_every_router_hashes_with_a_seed_of_its_own_and_the_same_one_next_time(seed: int, uplinks: int) -> None:
    fabric = LeafSpine(Cluster(prefill=4, decode=4, tp=2, rack=2), uplinks, 1e6).build()
    seeds = hash_seeds(fabric, seed)
    assert set(seeds) == {node.name for node in fabric.of_kind(NodeKind.LEAF, NodeKind.SPINE)}
    assert len(set(seeds.values())) == len(seeds)
    assert all(0 < value < 1 << 31 for value in seeds.values())
    assert hash_seeds(fabric, seed) == seeds
    assert hash_seeds(fabric, seed + 1) != seeds
