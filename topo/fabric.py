"""A fabric as data: named nodes joined by links of a declared goodput.

Nothing here knows the kernel. Names, ports, datapath ids and MAC addresses are unique by construction, from the kind and
the index of a node, never from digits found in a name.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

IFNAMSIZ = 15
"""Longest interface name the kernel takes, in bytes."""


class FabricError(ValueError):
    """A fabric that cannot exist: a ratio no port count gives, a name too long, an address space exhausted."""


class NodeKind(enum.Enum):
    """What a node does; the value is its code in MAC addresses and datapath ids."""

    HOST = 1
    LEAF = 2
    SPINE = 3
    OCS = 4


@dataclass(frozen=True, slots=True)
class Node:
    """A host, a router or a switch. ``index`` counts within its kind, from 0."""

    name: str
    kind: NodeKind
    index: int

    @property
    def dpid(self) -> int:
        """64-bit datapath id: the kind in the top 16 bits, index + 1 below (so that no id is 0)."""
        return self.kind.value << 48 | (self.index + 1)

    def mac(self, port: int) -> str:
        """Locally administered MAC address of a port. Raises FabricError beyond 65,536 nodes of a kind or 256 ports."""
        if not (0 <= self.index < 1 << 16 and 0 <= port < 1 << 8):
            raise FabricError(f"{self.name}: no MAC address for port {port} of node {self.index}")
        return f"02:00:{self.kind.value:02x}:{self.index >> 8:02x}:{self.index & 255:02x}:{port:02x}"


@dataclass(frozen=True, slots=True)
class Port:
    """One end of a link: the ``number``-th port of ``node``; ``name`` is the interface, Mininet's ``NODE-ethN``."""

    node: str
    number: int

    @property
    def name(self) -> str:
        return f"{self.node}-eth{self.number}"


@dataclass(frozen=True, slots=True)
class Link:
    """A full-duplex link. ``rate_Bps`` is the goodput one TCP flow alone gets in either direction."""

    a: Port
    b: Port
    rate_Bps: float

    @property
    def ports(self) -> tuple[Port, Port]:
        return self.a, self.b


@dataclass(frozen=True)
class Fabric:
    """Nodes and links. Raises FabricError for duplicate or overlong names, unknown nodes, rates that are not positive."""

    nodes: tuple[Node, ...]
    links: tuple[Link, ...]
    by_name: Mapping[str, Node] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_name = {node.name: node for node in self.nodes}
        if len(by_name) != len(self.nodes):
            raise FabricError("two nodes of the fabric share a name")
        seen: set[Port] = set()
        for link in self.links:
            if not 0 < link.rate_Bps < float("inf"):
                raise FabricError(f"link {link.a.name}: a rate of {link.rate_Bps} B/s is not above zero")
            for port in link.ports:
                if port.node not in by_name:
                    raise FabricError(f"port {port.name} is on no node of the fabric")
                if len(port.name.encode()) > IFNAMSIZ:
                    raise FabricError(f"interface {port.name!r} is longer than {IFNAMSIZ} characters; shorten the node's name")
                if port in seen:
                    raise FabricError(f"port {port.name} is in two links")
                seen.add(port)
        object.__setattr__(self, "by_name", by_name)

    def of_kind(self, *kinds: NodeKind) -> tuple[Node, ...]:
        return tuple(node for node in self.nodes if node.kind in kinds)

    @cached_property
    def peer(self) -> Mapping[Port, Port]:
        """The port at the other end of every port's link."""
        return {end: other for link in self.links for end, other in ((link.a, link.b), (link.b, link.a))}

    @cached_property
    def rate_of(self) -> Mapping[Port, float]:
        """Goodput of every port, in bytes per second."""
        return {port: link.rate_Bps for link in self.links for port in link.ports}

    @cached_property
    def ports_of(self) -> Mapping[str, tuple[Port, ...]]:
        """The ports of every node, by number."""
        found: dict[str, list[Port]] = {node.name: [] for node in self.nodes}
        for link in self.links:
            for port in link.ports:
                found[port.node].append(port)
        return {name: tuple(sorted(ports, key=lambda port: port.number)) for name, ports in found.items()}
