"""The layer-3 plan walked without a kernel: every host reaches every host, and answers come back."""

from __future__ import annotations

import random
from collections import Counter
from ipaddress import IPv4Address, IPv4Network

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topo.cluster import Cluster
from topo.fabric import Fabric, FabricError, NodeKind, Port
from topo.leafspine import LeafSpine
from topo.routing import MAX_HOSTS_PER_LEAF, MAX_LEAVES, Hop, Layer3, layer3, leaf_prefix

pytestmark = pytest.mark.unit

Table = list[tuple[IPv4Network, tuple[Hop, ...]]]


class Walker:
    """A router's longest-prefix match over the plan, and the neighbour table that must know who is next."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self.plan: Layer3 = layer3(fabric)
        self.tables: dict[str, Table] = {}
        self.neighbours: dict[tuple[Port, str], str] = {}
        for name, config in self.plan.nodes.items():
            routes = [(IPv4Network(route.prefix), route.hops) for route in config.routes]
            self.tables[name] = sorted(routes, key=lambda entry: -entry[0].prefixlen)
            for entry in config.neighbours:
                self.neighbours[entry.port, entry.address] = entry.mac

    def hops(self, node: str, destination: str) -> tuple[Hop, ...]:
        wanted = IPv4Address(destination)
        return next(hops for prefix, hops in self.tables[node] if wanted in prefix)

    def walk(self, source: str, target: str, draw: random.Random) -> list[str]:
        """The nodes from source to target, a random member of every group; raises when a step is not possible."""
        destination = self.plan.address_of[target]
        path = [source]
        while path[-1] != target:
            hop = draw.choice(self.hops(path[-1], destination))
            assert hop.port.node == path[-1], "a route through another node's port"
            arrived = self.fabric.peer[hop.port]
            mac = self.neighbours[hop.port, hop.gateway or destination]
            assert mac == self.fabric.by_name[arrived.node].mac(arrived.number), "the neighbour is not who is behind the port"
            path.append(arrived.node)
            assert len(path) <= 5, f"a loop: {path}"
        return path


def assert_all_reach_all(fabric: Fabric, pairs: int | None = None) -> None:
    walker, draw = Walker(fabric), random.Random(1)
    hosts = [node.name for node in fabric.of_kind(NodeKind.HOST)]
    every = [(a, b) for a in hosts for b in hosts if a != b]
    for source, target in every if pairs is None or len(every) <= pairs else draw.sample(every, pairs):
        path = walker.walk(source, target, draw)
        leaves = [fabric.peer[Port(host, 0)].node for host in (source, target)]
        assert len(path) == (3 if leaves[0] == leaves[1] else 5)
        assert all(fabric.by_name[name].kind is not NodeKind.HOST for name in path[1:-1])


def test_every_host_of_the_demo_reaches_every_host() -> None:
    assert_all_reach_all(LeafSpine(Cluster(2, 2, 4, 4), 2, 25e6).build())


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 4), st.integers(1, 4), st.sampled_from([1, 2, 4]), st.integers(1, 9), st.integers(1, 4))
def test_every_host_reaches_every_host(prefill: int, decode: int, tp: int, rack: int, uplinks: int) -> None:
    fabric = LeafSpine(Cluster(prefill, decode, tp, rack), uplinks, 25e6).build()
    assert_all_reach_all(fabric, 120)


def test_hosts_among_512_reach_each_other() -> None:
    assert_all_reach_all(LeafSpine(Cluster(32, 32, 8, 32), 11, 25e6).build(), 2_000)


def test_a_leaf_hashes_over_all_of_its_uplinks_and_nobody_else_hashes() -> None:
    fabric = LeafSpine(Cluster(2, 2, 4, 4), 3, 25e6).build()
    plan = layer3(fabric)
    for node in fabric.nodes:
        widths = Counter(len(route.hops) for route in plan.nodes[node.name].routes)
        assert widths == ({1: 4, 3: 3} if node.kind is NodeKind.LEAF else {1: 4} if node.kind is NodeKind.SPINE else {1: 1})


def test_no_table_grows_with_the_square_of_the_hosts() -> None:
    plan = layer3(LeafSpine(Cluster(32, 32, 8, 32), 16, 25e6).build())
    assert max(len(config.neighbours) for config in plan.nodes.values()) == 32 + 16
    assert max(len(config.routes) for config in plan.nodes.values()) == 32 + 15


def test_a_host_is_found_by_its_address() -> None:
    plan = layer3(LeafSpine(Cluster(1, 1, 4, 4), 2, 25e6).build())
    assert all(plan.host_at[address] == host for host, address in plan.address_of.items())
    assert plan.address_of["p0g0"] == "10.0.0.1"
    assert plan.address_of["d0g3"] == "10.0.1.4"


def test_an_address_space_that_does_not_reach_is_refused() -> None:
    with pytest.raises(FabricError, match="larger racks"):
        leaf_prefix(MAX_LEAVES)
    with pytest.raises(FabricError, match="larger racks"):
        layer3(LeafSpine(Cluster(256, 1, 1, 1), 1, 25e6).build())
    with pytest.raises(FabricError, match="smaller racks"):
        layer3(LeafSpine(Cluster(254, 1, 1, 254), 1, 25e6).build())


def test_the_largest_rack_of_the_plan_still_leaves_the_gateway_free() -> None:
    plan = layer3(LeafSpine(Cluster(MAX_HOSTS_PER_LEAF, 1, 1, MAX_HOSTS_PER_LEAF), 1, 25e6).build())
    loopbacks = {config.loopback for config in plan.nodes.values()}
    assert not loopbacks & set(plan.address_of.values())
