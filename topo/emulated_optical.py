"""A leaf-spine with optical planes beside it, made real: one Open vSwitch bridge a plane, one KV NIC of every host in it.

A KV NIC is shaped where it sends, in the host. The switch's end is bare, and is held to be: a circuit has no queue. What is
forwarded is the controller's business; when light passes, the shutters' (``ocs_switch.shutters``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from topo import links, tc
from topo.emulated import EmulatedFabric, LinkSettings
from topo.fabric import IFNAMSIZ, Fabric, FabricError, Port
from topo.mn import NetlinkNode, ShapedLink, one_segment
from topo.netlink import NetlinkSocket
from topo.netns import RPS_DEFAULT, Namespace, has_sysctl
from topo.optical import KV_NIC, Optical, PlanePort, switch_mac
from topo.ovs import Datapath, PrivateOvs
from topo.shaping import PortShape
from topo.steering import cpu_mask
from topo.tc import PortState

BARE = PortState({}, {}, ())
"""The switch's end of a KV link, as read back: no qdisc but veth's none."""


QUIET_PORTS = "net.ipv6.conf.default.disable_ipv6"
"""The switch's ports are born without IPv6, which would send of its own accord into every circuit."""


_GROUP = 0x6F6373  # of the switch's ports, to be removed together


class PlaneSwitch(NetlinkNode):
    """Mininet's node for the ports of a plane. They live in the sandbox's own namespace, where the switch's daemon is."""

    def __init__(self, name: str, **params: Any) -> None:
        params["inNamespace"] = False
        super().__init__(name, **params)


class FibreLink(ShapedLink):
    """A veth pair from a host, shaped, to a switch's port, bare."""

    def makeIntfPair(self, intfname1: str, intfname2: str, addr1: str | None = None, addr2: str | None = None,
                     node1: Any = None, node2: Any = None, deleteIntfs: bool = False) -> tuple[str, str]:  # fmt: skip
        """Make both ends where they belong, shape the host's, bring both up. The switch's index is the kernel's choice."""
        for name in (intfname1, intfname2):
            if len(name.encode()) > IFNAMSIZ:
                raise FabricError(f"interface {name!r} is longer than {IFNAMSIZ} characters; shorten the node's name")
        host = links.VethEnd(node1.namespace.fd, node1.next_index(), intfname1, addr1)
        switch = links.VethEnd(node2.namespace.fd, 0, intfname2, addr2)
        node1.namespace.netlink.apply([self.pair(host, switch)])
        node1.index_of[intfname1] = host.index
        node2.index_of[intfname2] = node2.namespace.index(intfname2)
        for node, name in ((node1, intfname1), (node2, intfname2)):
            if self.offload:
                node.namespace.offload(name, self.offload)
        index = node2.index_of[intfname2]
        node2.namespace.netlink.apply([links.group(index, intfname2, _GROUP), links.set_link(index, intfname2, up=True)])
        node1.namespace.netlink.apply(
            [*tc.shape_requests(self.shape, host.index, intfname1), links.set_link(host.index, intfname1, up=True)]
        )
        return intfname1, intfname2


@dataclass(frozen=True, slots=True)
class SwitchSettings:
    """The switch that emulates the planes.

    ``directory`` for its sockets and log; ``controller`` like ``tcp:127.0.0.1:6653``, or None while somebody else writes the
    rules; ``cpus`` for its daemons; ``receive_cpu`` for what its ports receive until the daemon reads it (best one of ``cpus``;
    None: the sender's); ``userspace_tso`` see PrivateOvs.
    """

    directory: Path
    controller: str | None = None
    datapath: Datapath = "auto"
    userspace_tso: bool = True
    cpus: Collection[int] | None = None
    receive_cpu: int | None = None


class EmulatedOptical(EmulatedFabric):
    """The leaf-spine, and the planes. Everything of EmulatedFabric means the leaf-spine, except ``shaping_faults``,
    ``offloads`` and ``counters``, which have the KV NICs too.

    ``kv`` are the settings of KV links (the planes' rate comes from ``optical``). Raises what EmulatedFabric raises, and
    OvsError.
    """

    def __init__(self, fabric: Fabric, settings: LinkSettings, optical: Optical, kv: LinkSettings,
                 switch: SwitchSettings, **others: Any) -> None:  # fmt: skip
        self.optical = optical
        self.kv_settings = kv
        self._kv_address = {optical.name(gpu): optical.address(gpu) for gpu in optical.cluster.gpus()}
        self._switch: PrivateOvs | None = None
        super().__init__(fabric, settings, **others)
        try:
            self._kv_shapes = {Port(optical.name(gpu), KV_NIC): kv.shape(optical.rate_Bps) for gpu in optical.cluster.gpus()}
            self._join_planes(switch.receive_cpu)
            self._switch = PrivateOvs(
                switch.directory, userspace_tso=switch.userspace_tso, datapath=switch.datapath, cpus=switch.cpus
            )
            for plane in range(optical.planes):
                node = optical.switch(plane)
                ports = [
                    (optical.switch_port(place).name, place.openflow) for place, _ in optical.places() if place.plane == plane
                ]
                self._switch.add_bridge(node.name, node.dpid, ports, switch.controller)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> EmulatedOptical:
        return self

    def _join_planes(self, cpu: int | None) -> None:
        here = Namespace.current("switch")
        here.sysctl({QUIET_PORTS: "1"})
        steered = cpu is not None and has_sysctl(RPS_DEFAULT)
        before = here.read_sysctls([RPS_DEFAULT]) if steered else {}
        try:
            if cpu is not None and steered:
                here.sysctl({RPS_DEFAULT: cpu_mask(cpu)})
            for plane in range(self.optical.planes):
                self.net.addHost(self.optical.switch(plane).name, cls=PlaneSwitch)
            for place, gpu in self.optical.places():
                host, end = self.optical.name(gpu), self.optical.switch_port(place)
                self.net.addLink(
                    self.node(host), self.node(end.node), cls=FibreLink,
                    port1=KV_NIC, port2=end.number,
                    addr1=self.optical.fabric.by_name[host].mac(KV_NIC), addr2=switch_mac(place),
                    shape=self._kv_shapes[Port(host, KV_NIC)], offload=self.kv_settings.offload,
                )  # fmt: skip
        finally:
            if before:
                here.sysctl(before)
            here.close()
        for host, config in self.optical.configs().items():
            self.node(host).configure(config)

    def close(self) -> None:
        """End the switch, remove its ports, then let go of every node.

        The kernel would take the ports down with the hosts, but later: the next testbed would find their names taken.
        """
        if self._switch is not None:
            self._switch.close()
        with suppress(OSError), closing(NetlinkSocket()) as netlink:  # no port was made yet
            netlink.apply([links.delete_group(_GROUP)])
        super().close()

    @property
    def switch(self) -> PrivateOvs:
        """The running switch, for its flows and its controllers' state."""
        assert self._switch is not None
        return self._switch

    def kv_address(self, host: str) -> str:
        """The address of a host's KV NIC. Raises KeyError for no host of the cluster."""
        return self._kv_address[host]

    def kv_path(self, source: str, destination: str) -> tuple[Port, Port]:
        """The egress ports of a KV flow over a standing circuit: the sender's NIC, and the switch's port to the receiver."""
        return Port(source, KV_NIC), self.optical.fabric.peer[Port(destination, KV_NIC)]

    def switch_indices(self) -> dict[PlanePort, int]:
        """The interface index of every port of every plane, in the sandbox's own namespace: what a shutter goes by."""
        return {
            place: self.node(end.node).index_of[end.name]
            for place, _ in self.optical.places()
            for end in (self.optical.switch_port(place),)
        }

    def switch_counters(self) -> dict[PlanePort, links.LinkCounters]:
        """What every port of every plane has received and sent; what the shutter then swallowed is among the received."""
        by_index = links.link_counters(self.node(self.optical.switch(0).name).namespace.netlink)
        return {place: by_index[index] for place, index in self.switch_indices().items() if index in by_index}

    def shaping_faults(self) -> list[str]:
        """Every port that is not shaped as planned: the leaf-spine's, the KV NICs, and switch ports that have any queue."""
        found = super().shaping_faults()
        for port, shape in self._kv_shapes.items():
            found += self._fault(port, tc.expected(shape))
        for place, _ in self.optical.places():
            found += self._fault(self.optical.switch_port(place), BARE)
        return found

    def _single_segment_ports(self) -> list[Port]:
        found = super()._single_segment_ports()
        return [*found, *self._kv_shapes] if one_segment(self.kv_settings.offload) else found

    def _fault(self, port: Port, wanted: PortState) -> list[str]:
        node = self.node(port.node)
        index = node.index_of.get(port.name)
        if index is None:
            return [f"{port.name}: no such interface"]
        try:
            have = tc.read(node.namespace.netlink, index)
        except OSError as error:
            return [f"{port.name}: {error}"]
        if wanted == BARE:
            return [f"{port.name}: qdisc is {', '.join(have.qdiscs.values())}, planned none"] if have.qdiscs else []
        fault = tc.difference(port.name, wanted, have)
        return [fault] if fault else []

    def offloads(self) -> dict[str, dict[str, bool]]:
        """The offload state of every port, both ends of the KV links included."""
        found = super().offloads()
        for port in self.optical.fabric.peer:
            found[port.name] = self.node(port.node).namespace.offloads(port.name)
        return found

    def counters(self) -> dict[Port, tc.PortCounters]:
        """What every shaped port has carried so far, KV NICs included. The switch's: ``switch_counters``."""
        found = super().counters()
        for port in self._kv_shapes:
            node = self.node(port.node)
            by_index = tc.counters(node.namespace.netlink)
            if node.index_of[port.name] in by_index:
                found[port] = by_index[node.index_of[port.name]]
        return found

    @property
    def shapes(self) -> Mapping[Port, PortShape]:
        """The planned shape of every shaped port: the leaf-spine's and the KV NICs."""
        return {**super().shapes, **self._kv_shapes}

    def peer(self, port: Port) -> Port:
        """The other end of a port's link, a plane's included."""
        return self.optical.fabric.peer.get(port) or super().peer(port)
