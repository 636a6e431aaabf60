"""A leaf-spine fabric made real in network namespaces, routed at layer 3, and asked what it is.

``RoutedTopo`` is the fabric as a Mininet Topo; ``EmulatedFabric`` builds it and answers: is every port shaped as planned,
which path will a 5-tuple take, which did it take, how much has each port carried.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from mininet.topo import Topo

from topo import links, observe, tc
from topo.fabric import Fabric, NodeKind, Port
from topo.mn import FabricNet, Host, NetlinkNode, Router, ShapedLink, one_segment
from topo.netns import RPS_DEFAULT, has_sysctl
from topo.routing import layer3
from topo.shaping import PortShape, Queue
from topo.steering import Steering, cpu_mask

ROUTER_SYSCTLS = {
    "net.ipv4.ip_forward": "1",
    "net.ipv4.conf.all.rp_filter": "0",
    "net.ipv4.conf.all.send_redirects": "0",
    "net.ipv4.fib_multipath_hash_policy": "3",
    "net.ipv4.fib_multipath_hash_fields": "55",
}
"""Hash over source, destination, protocol and both ports (0x37). Policy 1 is not used: under it the sender's random socket
hash survives the veth and the same 5-tuple takes different paths on successive connections."""

QUIET_SYSCTLS = {"net.ipv6.conf.all.disable_ipv6": "1", "net.ipv6.conf.default.disable_ipv6": "1"}
"""No neighbour discovery and no MLD packets among the measured ones."""

_NFT_AT_ONCE = 4

HASH_SEED = "net.ipv4.fib_multipath_hash_seed"


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """What every port of the fabric gets besides its rate. ``offload``: on or off for tx, sg, tso, gso, gro."""

    mtu: int
    queue: Queue = Queue.FAIR
    classes: int = 64
    limit: int = 200
    free_acks: bool = True
    offload: Mapping[str, bool] = field(default_factory=lambda: {"tso": False, "gso": False, "gro": False})

    def shape(self, rate_Bps: float) -> PortShape:
        return PortShape(rate_Bps, self.mtu, self.queue, self.classes, self.limit, free_acks=self.free_acks)


@dataclass(frozen=True, slots=True)
class FlowTuple:
    """A TCP connection between two hosts of the fabric, by name."""

    source: str
    destination: str
    sport: int
    dport: int


class NoPathError(LookupError):
    """A router has no route for a flow."""


class RoutedTopo(Topo):
    """A leaf-spine as Mininet's Topo: hosts, and routers as hosts of class Router.

    ``hash_seeds`` gives each router's multipath seed (equal seeds on every tier polarise paths); None leaves the kernel's.
    """

    def build(self, fabric: Fabric, settings: LinkSettings, *, host_sysctls: Mapping[str, str],
              hash_seeds: Mapping[str, int] | None, masks: Mapping[str, str], publish: Path | None) -> None:  # fmt: skip
        plan = layer3(fabric)
        for node in fabric.nodes:
            sysctls = dict(QUIET_SYSCTLS)
            if node.kind is NodeKind.HOST:
                sysctls |= host_sysctls
            else:
                sysctls |= ROUTER_SYSCTLS
                if hash_seeds is not None:
                    sysctls[HASH_SEED] = str(hash_seeds[node.name])
            if node.name in masks:
                sysctls[RPS_DEFAULT] = masks[node.name]
            kind = Host if node.kind is NodeKind.HOST else Router
            self.addHost(node.name, cls=kind, layer3=plan.nodes[node.name], sysctls=sysctls, publish=publish)
        for link in fabric.links:
            a, b = (fabric.by_name[port.node] for port in link.ports)
            self.addLink(
                link.a.node,
                link.b.node,
                cls=ShapedLink,
                port1=link.a.number,
                port2=link.b.number,
                addr1=a.mac(link.a.number),
                addr2=b.mac(link.b.number),
                shape=settings.shape(link.rate_Bps),
                offload=settings.offload,
            )


def hash_seeds(fabric: Fabric, seed: int) -> dict[str, int]:
    """A multipath hash seed for every router, distinct and repeatable."""
    routers = fabric.of_kind(NodeKind.LEAF, NodeKind.SPINE)
    drawn = random.Random(f"hash seeds {seed}").sample(range(1, 1 << 31), len(routers))
    return {node.name: value for node, value in zip(routers, drawn, strict=True)}


def cpu_masks(fabric: Fabric, steering: Steering) -> dict[str, str]:
    """The CPU mask of every node: hosts together, routers dealt out."""
    hosts = {node.name: cpu_mask(steering.host_cpu) for node in fabric.of_kind(NodeKind.HOST)}
    routers = fabric.of_kind(NodeKind.LEAF, NodeKind.SPINE)
    return hosts | {node.name: cpu_mask(steering.router_cpu(place)) for place, node in enumerate(routers)}


class EmulatedFabric:
    """The fabric, built. Raises OSError (NetlinkError, SysctlError) or ObserveError when the machine refuses any of it.

    ``steering`` says which CPU receives for whom; None leaves it to the kernel.

    Use as a context manager, inside a sandbox: leaving it lets go of every namespace.
    """

    def __init__(self, fabric: Fabric, settings: LinkSettings, *, host_sysctls: Mapping[str, str] | None = None,
                 seed: int = 0, publish: Path | None = None, observed: bool = True,
                 steering: Steering | None = None) -> None:  # fmt: skip
        self.fabric = fabric
        self.settings = settings
        self.layer3 = layer3(fabric)
        self.seeds = hash_seeds(fabric, seed) if has_sysctl(HASH_SEED) else None
        masks = {} if steering is None else cpu_masks(fabric, steering)
        by_birth = has_sysctl(RPS_DEFAULT)
        topo = RoutedTopo(
            fabric=fabric, settings=settings, host_sysctls=host_sysctls or {}, hash_seeds=self.seeds,
            masks=masks if by_birth else {}, publish=publish,
        )  # fmt: skip
        self.net = FabricNet(topo=topo, controller=None, build=False)
        try:
            self.net.start()
            for name, mask in () if by_birth else masks.items():
                self.node(name).namespace.steer([port.name for port in fabric.ports_of[name]], mask)
            self._observers = [self.node(spine.name) for spine in fabric.of_kind(NodeKind.SPINE)] if observed else []
            with ThreadPoolExecutor(_NFT_AT_ONCE) as pool:
                list(pool.map(lambda router: observe.count_flows(router.namespace), self._observers))
        except BaseException:
            self.close()  # else the namespaces made so far would live as long as this process
            raise
        self._shapes = {port: settings.shape(rate) for port, rate in fabric.rate_of.items()}
        self._port_at = {(port.node, self.node(port.node).index_of[port.name]): port for port in self._shapes}

    def __enter__(self) -> EmulatedFabric:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of every node. The kernel takes the network down."""
        self.net.stop()

    def node(self, name: str) -> NetlinkNode:
        """Mininet's node of that name."""
        found = self.net.nameToNode[name]
        assert isinstance(found, NetlinkNode)
        return found

    def address(self, host: str) -> str:
        return self.layer3.address_of[host]

    @property
    def shapes(self) -> Mapping[Port, PortShape]:
        """The planned shape of every shaped port."""
        return self._shapes

    def peer(self, port: Port) -> Port:
        """The other end of a port's link."""
        return self.fabric.peer[port]

    def shaping_faults(self) -> list[str]:
        """Every port that is not shaped as planned, in words; read from the kernel now."""
        found = []
        for port, shape in self._shapes.items():
            node = self.node(port.node)
            index = node.index_of.get(port.name)
            if index is None:
                found.append(f"{port.name}: no such interface")
                continue
            fault = tc.difference(port.name, tc.expected(shape), tc.read(node.namespace.netlink, index))
            if fault:
                found.append(fault)
        return found + self._segment_faults()

    def _single_segment_ports(self) -> list[Port]:
        """Ports of hosts to which TCP is to hand over single segments."""
        hosts = self.fabric.of_kind(NodeKind.HOST) if one_segment(self.settings.offload) else ()
        return [port for host in hosts for port in self.fabric.ports_of[host.name]]

    def _segment_faults(self) -> list[str]:
        limits: dict[str, dict[int, int]] = {}
        found = []
        for port in self._single_segment_ports():
            node = self.node(port.node)
            if port.node not in limits:
                limits[port.node] = links.segment_limits(node.namespace.netlink)
            limit = limits[port.node].get(node.index_of.get(port.name, 0), 1)  # one that is gone is named already
            if limit != 1:
                found.append(f"{port.name}: TCP may hand over {limit} segments as one packet, planned 1")
        return found

    def offloads(self) -> dict[str, dict[str, bool]]:
        """The offload state of every port, as the kernel has it."""
        return {port.name: self.node(port.node).namespace.offloads(port.name) for port in self._shapes}

    def predict(self, flow: FlowTuple) -> tuple[Port, ...]:
        """The egress port of every node on the way of a flow, from the source host on: what the kernel says it will do.

        Raises NoPathError.
        """
        destination = self.layer3.host_at[self.address(flow.destination)]
        path = [self.fabric.ports_of[flow.source][0]]
        while (arrived := self.fabric.peer[path[-1]]).node != destination:
            node = self.node(arrived.node)
            try:
                out = links.lookup(
                    node.namespace.netlink,
                    iif=node.index_of[arrived.name],
                    source=self.address(flow.source),
                    destination=self.address(flow.destination),
                    sport=flow.sport,
                    dport=flow.dport,
                )
            except OSError as error:
                raise NoPathError(f"{arrived.node} has no route from {flow.source} to {flow.destination}: {error}") from None
            path.append(self._port_at[arrived.node, out])
            if len(path) > len(self.fabric.nodes):
                raise NoPathError(f"the route from {flow.source} to {flow.destination} loops")
        return tuple(path)

    def observed(self) -> dict[observe.FlowKey, dict[str, observe.FlowCount]]:
        """For every flow seen by a spine, what each spine counted of it."""
        found: dict[observe.FlowKey, dict[str, observe.FlowCount]] = {}
        for router in self._observers:
            for key, count in observe.flow_counts(router.namespace).items():
                found.setdefault(key, {})[router.name] = count
        return found

    def counters(self) -> dict[Port, tc.PortCounters]:
        """What every shaped port has carried so far."""
        found = {}
        for name, ports in self.fabric.ports_of.items():
            node = self.node(name)
            by_index = tc.counters(node.namespace.netlink)
            found.update({port: by_index[node.index_of[port.name]] for port in ports if node.index_of[port.name] in by_index})
        return found
