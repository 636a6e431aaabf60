"""Addresses and routes of a layer-3 leaf-spine, as a real data-centre switch running a Linux NOS has them.

Every host has a /32 of its leaf's /24 and routes through the leaf's loopback; every leaf-spine link is a /31; a leaf
reaches another leaf's prefix through one nexthop group over all of its uplinks. Neighbours are static, one per link end, so
no packet ever waits for ARP and no table grows with the square of the hosts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network

from topo.fabric import Fabric, FabricError, NodeKind, Port

MAX_LEAVES = 1 << 8
MAX_HOSTS_PER_LEAF = 252
GATEWAY = 254
_LINK_BASE = int(IPv4Address("172.16.0.0"))
_MAX_LINKS = 1 << 19


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A static neighbour: who answers for ``address`` behind ``port``."""

    port: Port
    address: str
    mac: str


@dataclass(frozen=True, slots=True)
class Hop:
    """One way out: a port and the neighbour's address behind it."""

    port: Port
    gateway: str


@dataclass(frozen=True, slots=True)
class Route:
    """``prefix`` through one hop, or hashed over several. ``onlink``: the gateway is no subnet of the port's."""

    prefix: str
    hops: tuple[Hop, ...]
    onlink: bool = False


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """Everything layer 3 of one node."""

    loopback: str | None
    addresses: Mapping[Port, str]
    neighbours: tuple[Neighbour, ...]
    routes: tuple[Route, ...]


@dataclass(frozen=True, slots=True)
class Layer3:
    """The configuration of every node, and the address of every host."""

    nodes: Mapping[str, NodeConfig]
    address_of: Mapping[str, str]
    host_at: Mapping[str, str]


def leaf_prefix(leaf: int) -> IPv4Network:
    """The /24 of a leaf. Raises FabricError beyond 256 leaves."""
    if not 0 <= leaf < MAX_LEAVES:
        raise FabricError(f"leaf {leaf}: addresses reach for {MAX_LEAVES} leaves; use larger racks")
    return IPv4Network((int(IPv4Address("10.0.0.0")) + (leaf << 8), 24))


def layer3(fabric: Fabric) -> Layer3:
    """Addresses, neighbours and routes of a leaf-spine. Raises FabricError when the address space does not reach."""
    addresses: dict[str, dict[Port, str]] = {node.name: {} for node in fabric.nodes}
    neighbours: dict[str, list[Neighbour]] = {node.name: [] for node in fabric.nodes}
    routes: dict[str, list[Route]] = {node.name: [] for node in fabric.nodes}
    gateway_of = {leaf.name: str(leaf_prefix(leaf.index)[GATEWAY]) for leaf in fabric.of_kind(NodeKind.LEAF)}
    uplinks: dict[str, list[Hop]] = {name: [] for name in gateway_of}
    address_of: dict[str, str] = {}

    def mac(port: Port) -> str:
        return fabric.by_name[port.node].mac(port.number)

    for number, link in enumerate(fabric.links):
        low, high = sorted(link.ports, key=lambda port: fabric.by_name[port.node].kind.value)
        lower, upper = fabric.by_name[low.node], fabric.by_name[high.node]
        if lower.kind is NodeKind.HOST:
            if high.number >= MAX_HOSTS_PER_LEAF:
                raise FabricError(f"{upper.name}: addresses reach for {MAX_HOSTS_PER_LEAF} hosts on a leaf; use smaller racks")
            address, gateway = str(leaf_prefix(upper.index)[high.number + 1]), gateway_of[upper.name]
            address_of[lower.name] = address
            addresses[lower.name][low] = f"{address}/32"
            neighbours[lower.name].append(Neighbour(low, gateway, mac(high)))
            neighbours[upper.name].append(Neighbour(high, address, mac(low)))
            routes[lower.name].append(Route("0.0.0.0/0", (Hop(low, gateway),), onlink=True))
            routes[upper.name].append(Route(f"{address}/32", (Hop(high, ""),)))
        else:
            if number >= _MAX_LINKS:
                raise FabricError("more links than the address plan holds")
            near, far = (str(IPv4Address(_LINK_BASE + 2 * number + end)) for end in (0, 1))
            addresses[lower.name][low] = f"{near}/31"
            addresses[upper.name][high] = f"{far}/31"
            neighbours[lower.name].append(Neighbour(low, far, mac(high)))
            neighbours[upper.name].append(Neighbour(high, near, mac(low)))
            uplinks[lower.name].append(Hop(low, far))
            routes[upper.name].append(Route(str(leaf_prefix(lower.index)), (Hop(high, near),)))
    for leaf in fabric.of_kind(NodeKind.LEAF):
        others = (other for other in fabric.of_kind(NodeKind.LEAF) if other is not leaf)
        routes[leaf.name] += [Route(str(leaf_prefix(other.index)), tuple(uplinks[leaf.name])) for other in others]
    configs = {
        node.name: NodeConfig(
            gateway_of.get(node.name), addresses[node.name], tuple(neighbours[node.name]), tuple(routes[node.name])
        )
        for node in fabric.nodes
    }
    return Layer3(configs, address_of, {address: host for host, address in address_of.items()})
