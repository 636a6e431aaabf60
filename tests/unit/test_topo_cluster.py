"""The cluster's layout, leaf-spine at any ratio, and names, MACs and datapath ids that no two nodes share."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topo.cluster import Cluster, Role
from topo.fabric import IFNAMSIZ, Fabric, FabricError, Link, Node, NodeKind, Port
from topo.leafspine import RATIO_TOLERANCE, LeafSpine, parse_ratio, uplinks_for
from topo.routing import layer3

pytestmark = pytest.mark.unit

CLUSTERS = st.builds(Cluster, st.integers(1, 9), st.integers(1, 9), st.sampled_from([1, 2, 4, 8]), st.integers(1, 33))
FABRICS = st.builds(lambda cluster, uplinks: LeafSpine(cluster, uplinks, 25e6).build(), CLUSTERS, st.integers(1, 5))


@given(CLUSTERS)
def test_no_rack_mixes_the_roles_and_no_slot_holds_two_gpus(cluster: Cluster) -> None:
    gpus = cluster.gpus()
    roles: dict[int, set[Role]] = {}
    for gpu in gpus:
        roles.setdefault(gpu.rack, set()).add(gpu.role)
    assert all(len(found) == 1 for found in roles.values())
    assert len({(gpu.rack, gpu.slot) for gpu in gpus}) == len(gpus) == cluster.size
    assert all(0 <= gpu.slot < cluster.rack for gpu in gpus)
    assert set(roles) == set(range(cluster.racks))


@given(CLUSTERS)
def test_every_gpu_is_found_again_by_its_place_in_the_instance(cluster: Cluster) -> None:
    gpus = cluster.gpus()
    assert [gpu.index for gpu in gpus] == list(range(cluster.size))
    assert all(cluster.gpu(gpu.role, gpu.instance, gpu.position) == gpu for gpu in gpus)


def test_a_gpu_outside_the_cluster_is_an_index_error() -> None:
    cluster = Cluster(2, 1, 4, 4)
    for place in ((Role.PREFILL, 2, 0), (Role.DECODE, 1, 0), (Role.PREFILL, 0, 4), (Role.PREFILL, -1, 0)):
        with pytest.raises(IndexError):
            cluster.gpu(*place)


@pytest.mark.parametrize("field", ["prefill", "decode", "tp", "rack"])
def test_a_cluster_without_something_is_refused_by_name(field: str) -> None:
    with pytest.raises(ValueError, match=f"cluster.{field} is 0"):
        Cluster(**{"prefill": 1, "decode": 1, "tp": 1, "rack": 1, field: 0})


@pytest.mark.parametrize(
    ("text", "hosts", "uplinks"),
    [
        *[("1:1", hosts, hosts) for hosts in (1, 2, 4, 8, 32)],
        *[("2:1", hosts, hosts // 2) for hosts in (2, 4, 8, 16, 32)],
        *[("3:1", hosts, uplinks) for hosts, uplinks in ((32, 11), (3, 1), (6, 2), (9, 3), (16, 6), (8, 3))],
        ("4:1", 8, 2),
        ("3:2", 6, 4),
    ],
)
def test_a_ratio_gives_whole_uplinks(text: str, hosts: int, uplinks: int) -> None:
    assert uplinks_for(hosts, parse_ratio(text)) == uplinks


def test_three_to_one_is_32_hosts_on_11_uplinks() -> None:
    assert parse_ratio("3:1") == Fraction(32, 11)


@pytest.mark.parametrize(("text", "hosts"), [("2:1", 1), ("3:1", 1), ("3:1", 4), ("2:1", 3), ("4:1", 2)])
def test_a_ratio_that_no_port_count_gives_is_refused_with_what_it_would_be(text: str, hosts: int) -> None:
    with pytest.raises(FabricError, match=r"cannot be .*uplinks give"):
        uplinks_for(hosts, parse_ratio(text))


@pytest.mark.parametrize("text", ["", "2", "2:0", "a:b", "1:2", "-2:1", "2:1:1"])
def test_what_is_no_ratio_is_refused(text: str) -> None:
    with pytest.raises(FabricError):
        parse_ratio(text)


@given(st.integers(1, 64), st.fractions(min_value=1, max_value=8, max_denominator=16))
def test_a_ratio_that_is_accepted_is_within_tolerance(hosts: int, ratio: Fraction) -> None:
    try:
        uplinks = uplinks_for(hosts, ratio)
    except FabricError:
        assert abs(Fraction(hosts, max(1, round(hosts / ratio))) / ratio - 1) > RATIO_TOLERANCE
    else:
        assert abs(Fraction(hosts, uplinks) / ratio - 1) <= RATIO_TOLERANCE


def assert_nothing_is_shared(fabric: Fabric) -> None:
    names = [node.name for node in fabric.nodes]
    ports = [port for link in fabric.links for port in link.ports]
    macs = [fabric.by_name[port.node].mac(port.number) for port in ports]
    plan = layer3(fabric)
    addresses = [cidr.split("/")[0] for config in plan.nodes.values() for cidr in config.addresses.values()]
    addresses += [config.loopback for config in plan.nodes.values() if config.loopback]
    for found in (names, [node.dpid for node in fabric.nodes], macs, [port.name for port in ports], addresses):
        assert len(set(found)) == len(found), [item for item, times in Counter(found).items() if times > 1][:5]
    assert all(0 < node.dpid < 1 << 64 for node in fabric.nodes)
    assert all(int(mac[:2], 16) & 3 == 2 for mac in macs), "a MAC is not locally administered unicast"
    assert all(len(port.name.encode()) <= IFNAMSIZ for port in ports)


@pytest.mark.parametrize("uplinks", [11, 16, 32])
def test_512_hosts_share_no_name_mac_dpid_or_address(uplinks: int) -> None:
    fabric = LeafSpine(Cluster(32, 32, 8, 32), uplinks, 25e6).build()
    assert len(fabric.of_kind(NodeKind.HOST)) == 512
    assert_nothing_is_shared(fabric)


@settings(max_examples=40, deadline=None)
@given(FABRICS)
def test_no_fabric_shares_a_name_mac_dpid_or_address(fabric: Fabric) -> None:
    assert_nothing_is_shared(fabric)


@settings(max_examples=40, deadline=None)
@given(CLUSTERS, st.integers(1, 5))
def test_every_leaf_has_one_uplink_to_each_spine_and_every_host_its_leaf(cluster: Cluster, uplinks: int) -> None:
    fabric = LeafSpine(cluster, uplinks, 25e6).build()
    kinds = Counter(tuple(fabric.by_name[port.node].kind for port in link.ports) for link in fabric.links)
    assert kinds[NodeKind.HOST, NodeKind.LEAF] == cluster.size
    assert kinds[NodeKind.LEAF, NodeKind.SPINE] == cluster.racks * uplinks
    for node, gpu in zip(fabric.of_kind(NodeKind.HOST), cluster.gpus(), strict=True):
        assert fabric.peer[Port(node.name, 0)] == Port(f"leaf{gpu.rack}", gpu.slot)
    assert all(fabric.peer[fabric.peer[port]] == port for port in fabric.peer)
    assert set(fabric.rate_of.values()) == {25e6}


def two(*names: str) -> tuple[Node, ...]:
    return tuple(Node(name, NodeKind.HOST, index) for index, name in enumerate(names))


@pytest.mark.parametrize(
    ("nodes", "links", "words"),
    [
        (two("a", "a"), (), "share a name"),
        (two("a", "b"), (Link(Port("a", 0), Port("c", 0), 1.0),), "on no node"),
        (two("a", "b"), (Link(Port("a", 0), Port("b", 0), 0.0),), "not above zero"),
        (two("a", "b"), (Link(Port("a", 0), Port("b", 0), float("inf")),), "not above zero"),
        (two("a", "b"), (Link(Port("a", 0), Port("b", 0), float("nan")),), "not above zero"),
        (two("a", "b"), (Link(Port("a", 0), Port("b", 0), 1.0), Link(Port("a", 0), Port("b", 1), 1.0)), "in two links"),
        (two("a", "prefill-host-7"), (Link(Port("a", 0), Port("prefill-host-7", 0), 1.0),), "longer than 15"),
        (two("a", "ööööö"), (Link(Port("a", 0), Port("ööööö", 10), 1.0),), "longer than 15"),
    ],
)
def test_a_fabric_that_cannot_exist_is_refused(nodes: tuple[Node, ...], links: tuple[Link, ...], words: str) -> None:
    with pytest.raises(FabricError, match=words):
        Fabric(nodes, links)


@pytest.mark.parametrize(("index", "port"), [(1 << 16, 0), (0, 256), (0, -1)])
def test_a_mac_beyond_the_plan_is_refused(index: int, port: int) -> None:
    with pytest.raises(FabricError):
        Node("x", NodeKind.HOST, index).mac(port)
