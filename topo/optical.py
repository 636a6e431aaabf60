"""The optical fabric of a cluster as data: planes of circuits beside the leaf-spine, one KV NIC of every GPU in one plane.

Every GPU keeps its host NIC (port 0) in the leaf-spine, for requests and control, and gets a KV NIC (port 1) in its plane.
A plane joins equal GPU positions of all instances, because KV moves between equal positions: with as many planes as an instance
has GPUs, plane i joins position i. With fewer, a plane carries several positions, each with ports of its own. Source: fabrics.md
of the design, "Optical fabric". Pure.

Ports of a plane count from 0: all prefill instances, then all decode instances, and so on for the next position of the
plane. The OpenFlow port is one more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from ipaddress import IPv4Address

from topo.cluster import Cluster, Gpu, Role
from topo.fabric import Fabric, FabricError, Link, Node, NodeKind, Port
from topo.leafspine import host_name
from topo.routing import Neighbour, NodeConfig

HOST_NIC, KV_NIC = 0, 1
"""A host's ports: into the leaf-spine, into its plane."""

MAX_PLANES = 128
MAX_PORTS = 60_000
_KV_BASE = int(IPv4Address("10.128.0.0"))
"""Planes are the /16 networks from here on. The leaf-spine has 10.0.0.0/16 and 172.16.0.0/12 (``topo.routing``)."""


@dataclass(frozen=True, slots=True, order=True)
class PlanePort:
    """A port of the crossbar of a plane. Both count from 0."""

    plane: int
    port: int

    @property
    def openflow(self) -> int:
        """The port's number on the switch that emulates the plane."""
        return self.port + 1


@dataclass(frozen=True, slots=True, order=True)
class PlaneCircuit:
    """A prefill GPU's port and a decode GPU's, in one plane."""

    plane: int
    prefill_port: int
    decode_port: int


@dataclass(frozen=True)
class Optical:
    """The planes of a cluster, KV links of ``rate_Bps`` goodput. ``planes`` 0 means one for each GPU position.

    Raises FabricError where the positions do not divide among the planes or the address space does not reach.
    """

    cluster: Cluster
    rate_Bps: float
    planes: int = 0

    def __post_init__(self) -> None:
        if self.planes == 0:
            object.__setattr__(self, "planes", self.cluster.tp)
        if self.planes < 1 or self.cluster.tp % self.planes:
            raise FabricError(
                f"{self.cluster.tp} GPU positions do not divide among {self.planes} planes; set planes to a divisor"
            )
        if self.planes > MAX_PLANES:
            raise FabricError(f"{self.planes} planes: addresses reach for {MAX_PLANES}")
        if self.ports > MAX_PORTS:
            raise FabricError(f"{self.ports} ports in a plane: addresses reach for {MAX_PORTS}; use more planes")

    @property
    def instances(self) -> int:
        return self.cluster.prefill + self.cluster.decode

    @property
    def ports(self) -> int:
        """Ports of one plane."""
        return self.instances * (self.cluster.tp // self.planes)

    def at(self, role: Role, instance: int, position: int) -> PlanePort:
        """Where a GPU's KV NIC is plugged in. Raises IndexError outside the cluster."""
        gpu = self.cluster.gpu(role, instance, position)
        rank = gpu.instance + (self.cluster.prefill if gpu.role is Role.DECODE else 0)
        return PlanePort(gpu.position % self.planes, gpu.position // self.planes * self.instances + rank)

    def gpu_at(self, place: PlanePort) -> Gpu:
        """The GPU behind a port. Raises IndexError outside the planes."""
        if not (0 <= place.plane < self.planes and 0 <= place.port < self.ports):
            raise IndexError(f"no port {place.port} of plane {place.plane} in this cluster")
        lane, rank = divmod(place.port, self.instances)
        decode = rank >= self.cluster.prefill
        role = Role.DECODE if decode else Role.PREFILL
        return self.cluster.gpu(role, rank - self.cluster.prefill * decode, lane * self.planes + place.plane)

    def circuits(self, prefill: int, decode: int) -> tuple[PlaneCircuit, ...]:
        """What joins two instances: a circuit for every GPU position. Raises IndexError outside the cluster."""
        pairs = ((self.at(Role.PREFILL, prefill, g), self.at(Role.DECODE, decode, g)) for g in range(self.cluster.tp))
        return tuple(PlaneCircuit(source.plane, source.port, sink.port) for source, sink in pairs)

    def switch(self, plane: int) -> Node:
        """The switch that emulates a plane: its name, its datapath id."""
        return Node(f"ocs{plane}", NodeKind.OCS, plane)

    def switch_port(self, place: PlanePort) -> Port:
        """The switch's end of a KV link."""
        return Port(self.switch(place.plane).name, place.port)

    def address(self, gpu: Gpu) -> str:
        """The address of a GPU's KV NIC: the plane's network, the port's number plus one."""
        place = self.at(gpu.role, gpu.instance, gpu.position)
        return str(IPv4Address(_KV_BASE + (place.plane << 16) + place.port + 1))

    def name(self, gpu: Gpu) -> str:
        return host_name(gpu.role, gpu.instance, gpu.position)

    def places(self) -> Iterator[tuple[PlanePort, Gpu]]:
        """Every port of every plane, in order, with the GPU behind it."""
        for plane in range(self.planes):
            for port in range(self.ports):
                yield PlanePort(plane, port), self.gpu_at(PlanePort(plane, port))

    @cached_property
    def fabric(self) -> Fabric:
        """The graph: the hosts of the leaf-spine with their KV NICs, and one switch a plane."""
        hosts = tuple(Node(self.name(gpu), NodeKind.HOST, gpu.index) for gpu in self.cluster.gpus())
        switches = tuple(self.switch(plane) for plane in range(self.planes))
        links = tuple(Link(Port(self.name(gpu), KV_NIC), self.switch_port(place), self.rate_Bps) for place, gpu in self.places())
        return Fabric(hosts + switches, links)

    def configs(self) -> dict[str, NodeConfig]:
        """Layer 3 of every host's KV NIC: its address, and a fixed neighbour for every GPU a circuit can join it to.

        Nothing ever asks for an address: a question sent before the circuit is up would be lost, and the data behind it wait.
        """
        found = {}
        for gpu in self.cluster.gpus():
            port = Port(self.name(gpu), KV_NIC)
            neighbours = tuple(
                Neighbour(port, self.address(peer), self.fabric.by_name[self.name(peer)].mac(KV_NIC)) for peer in self._peers(gpu)
            )
            found[port.node] = NodeConfig(None, {port: f"{self.address(gpu)}/16"}, neighbours, ())
        return found

    def _peers(self, gpu: Gpu) -> Iterator[Gpu]:
        """The GPUs of the other role at the same position."""
        role, count = (Role.DECODE, self.cluster.decode) if gpu.role is Role.PREFILL else (Role.PREFILL, self.cluster.prefill)
        return (self.cluster.gpu(role, instance, gpu.position) for instance in range(count))


def switch_mac(place: PlanePort) -> str:
    """The MAC address of the switch's end of a KV link, which no frame ever carries."""
    return f"02:00:{NodeKind.OCS.value:02x}:{place.plane:02x}:{place.port >> 8:02x}:{place.port & 255:02x}"
