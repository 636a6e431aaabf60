"""Mininet's nodes and links, over netlink.

They plug into stock Mininet: ``Topo``, ``Mininet``, ``Node.cmd``, ``popen`` and the ``CLI`` work as people know them. What
differs is how: a node is a namespace held by descriptor and its shell starts the first time somebody types into it; a link
is made, placed, shaped and brought up in a few netlink batches; what the kernel refuses raises instead of being logged.
"""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mininet.link import Intf, Link
from mininet.net import Mininet
from mininet.node import Node

from topo import links, tc
from topo.fabric import IFNAMSIZ, FabricError
from topo.netlink import Request
from topo.netns import Namespace
from topo.routing import NodeConfig
from topo.shaping import PortShape

_LO = 1
_GROUP = 1 << 20


class NetlinkNode(Node):
    """A node in a namespace of its own, configured over netlink.

    Parameters beyond Mininet's: ``layer3`` (a NodeConfig), ``sysctls`` set and read back inside, ``publish`` (directory
    in which ``ip netns`` finds the name).
    """

    def __init__(self, name: str, inNamespace: bool = True, *, layer3: NodeConfig | None = None,
                 sysctls: Mapping[str, str] | None = None, publish: Path | None = None, **params: Any) -> None:  # fmt: skip
        self._shell: subprocess.Popen[bytes] | None = None
        self._starting = False
        self.namespace = Namespace(name, publish=publish) if inNamespace else Namespace.current(name)
        self.layer3 = layer3
        self.index_of: dict[str, int] = {}
        self.sysctls: dict[str, str] = {}
        try:
            super().__init__(name, inNamespace, **params)
            if inNamespace:
                self.namespace.netlink.apply([links.set_link(_LO, "lo", up=True)])
            if sysctls:
                self.sysctls = self.namespace.sysctl(sysctls)
        except BaseException:
            self.namespace.close()  # Mininet does not know this node yet, so its stop() would not
            raise

    @classmethod
    def setup(cls) -> None:
        """Stock Mininet asks for ifconfig here; these nodes need no command but mnexec, and that only for a shell."""

    def next_index(self) -> int:
        """An interface index free in this node (1 is lo)."""
        return max(self.index_of.values(), default=_LO) + 1

    # The shell, started when first needed. Mininet reads and writes these two attributes everywhere.

    @property
    def shell(self) -> subprocess.Popen[bytes] | None:
        if self._shell is None and not self._starting and self.namespace.fd >= 0 and hasattr(self, "decoder"):
            self._starting = True
            try:
                super().startShell()
            finally:
                self._starting = False
        return self._shell

    @shell.setter
    def shell(self, value: subprocess.Popen[bytes] | None) -> None:
        self._shell = value

    @property
    def pid(self) -> int | None:
        shell = self.shell
        return shell.pid if shell else None

    @pid.setter
    def pid(self, value: int | None) -> None:
        """Mininet stores what ``shell.pid`` already says."""

    def startShell(self, mnopts: str | None = None) -> None:
        """Nothing yet: see ``shell``."""

    def _popen(self, cmd: list[str], **params: Any) -> subprocess.Popen[bytes]:
        if self._starting:  # the node's own shell: into the namespace that exists, where mnexec -n would make another
            cmd = [word.replace("n", "") if word.startswith("-") and place == 1 else word for place, word in enumerate(cmd)]
            params["preexec_fn"] = self.namespace.enter_with_own_mounts
        return subprocess.Popen(cmd, **params)

    def terminate(self) -> None:
        """End the shell, if one was started, and let go of the namespace."""
        if self._shell is not None:
            super().terminate()
        self.namespace.close()

    # Configuration

    def config(self, mac: str | None = None, ip: str | None = None, defaultRoute: str | None = None,
               lo: str = "up", **_params: Any) -> dict[str, Any]:  # fmt: skip
        """Layer 3 from ``layer3`` when the node has one; else Mininet's ip, mac and defaultRoute."""
        if self.layer3 is not None:
            self.configure(self.layer3)
        elif self.intfs:
            if mac:
                self.setMAC(mac)
            if ip:
                self.setIP(ip)
            if defaultRoute:
                self.setDefaultRoute(defaultRoute)
        return {}

    def configure(self, plan: NodeConfig) -> None:
        """Addresses, neighbours and routes, in one batch; those of a link added later too."""
        self.namespace.netlink.apply(self._layer3_requests(plan))
        for port, cidr in plan.addresses.items():  # so that node.IP() and the CLI's substitution know it
            self.nameToIntf[port.name].noteIP(cidr)

    def _layer3_requests(self, plan: NodeConfig) -> list[Request]:
        index = {port: self.index_of[port.name] for port in plan.addresses} | {
            entry.port: self.index_of[entry.port.name] for entry in plan.neighbours
        }
        found = [links.address(_LO, f"{plan.loopback}/32", name=self.name)] if plan.loopback else []
        found += [links.address(index[port], cidr, name=port.name) for port, cidr in plan.addresses.items()]
        found += [links.neighbour(index[entry.port], entry.address, entry.mac, name=self.name) for entry in plan.neighbours]
        groups: dict[tuple[Any, ...], int] = {}
        for entry in plan.routes:
            if len(entry.hops) > 1 and entry.hops not in groups:
                groups[entry.hops] = _GROUP + len(groups)
                members = [100 * (len(groups) - 1) + place + 1 for place in range(len(entry.hops))]
                found += [
                    links.nexthop(member, index[hop.port], hop.gateway, name=self.name)
                    for member, hop in zip(members, entry.hops, strict=True)
                ]
                found.append(links.nexthop_group(groups[entry.hops], members, name=self.name))
            if len(entry.hops) > 1:
                found.append(links.route(entry.prefix, name=self.name, group=groups[entry.hops]))
            else:
                hop = entry.hops[0]
                found.append(
                    links.route(
                        entry.prefix,
                        name=self.name,
                        index=index[hop.port],
                        gateway=hop.gateway or None,
                        onlink=entry.onlink,
                    )
                )
        return found

    def setARP(self, ip: str, mac: str) -> None:
        """A permanent neighbour on the default interface."""
        intf = self.defaultIntf()
        self.namespace.netlink.apply([links.neighbour(self.index_of[intf.name], ip, mac, name=intf.name)])

    def setHostRoute(self, ip: str, intf: str) -> None:
        """A route to one host through an interface."""
        self.namespace.netlink.apply([links.route(f"{ip}/32", name=self.name, index=self.index_of[str(intf)])])

    def setDefaultRoute(self, intf: Any = None) -> None:
        """``"dev IF"``, ``"via GATEWAY"``, both, or an interface."""
        words = str(intf).split()
        named = dict(zip(words[::2], words[1::2], strict=False)) if len(words) > 1 else {"dev": words[0]}
        index = self.index_of[named["dev"]] if "dev" in named else None
        self.namespace.netlink.apply([links.route("0.0.0.0/0", name=self.name, index=index, gateway=named.get("via"))])


class Host(NetlinkNode):
    """A GPU's end of the fabric."""


class Router(NetlinkNode):
    """A leaf or a spine that routes at layer 3."""


class NetlinkIntf(Intf):
    """An interface that is asked and told over netlink."""

    def _apply(self, *requests: Request) -> None:
        self.node.namespace.netlink.apply(requests)

    @property
    def index(self) -> int:
        return int(self.node.index_of[self.name])

    def config(self, **_params: Any) -> dict[str, Any]:
        """Nothing: the link has already made and shaped it."""
        return {}

    def ifconfig(self, *args: str) -> str:
        """Only ``up`` and ``down``; everything else has a method of its own."""
        if args not in (("up",), ("down",)):
            raise NotImplementedError(f"{self.name}: ifconfig {' '.join(args)}; use setIP, setMAC, rename")
        self._apply(links.set_link(self.index, self.name, up=args[0] == "up"))
        return ""

    def setIP(self, ipstr: str, prefixLen: int | None = None) -> str:
        """Give the interface this address, in place of the one it had. Raises ValueError without a prefix length."""
        if "/" not in ipstr and prefixLen is None:
            raise ValueError(f"{self.name}: no prefix length for {ipstr}")
        cidr = ipstr if "/" in ipstr else f"{ipstr}/{prefixLen}"
        had = links.addresses(self.node.namespace.netlink, self.index)
        gone = [links.remove_address(self.index, old, name=self.name) for old in had if old != cidr]
        self._apply(*gone, links.address(self.index, cidr, name=self.name))
        self.noteIP(cidr)
        return ""

    def noteIP(self, cidr: str) -> None:
        """Remember an address that the interface has been given."""
        address, length = cidr.split("/")
        self.ip: str | None = address
        self.prefixLen: str | None = length

    def updateIP(self) -> str | None:
        """The address the kernel has now."""
        found = links.addresses(self.node.namespace.netlink, self.index)
        if found:
            self.noteIP(found[0])
        else:
            self.ip = self.prefixLen = None
        return self.ip

    def setMAC(self, macstr: str) -> str:
        self.mac: str | None = macstr
        self._apply(links.set_link(self.index, self.name, mac=macstr))
        return ""

    def updateMAC(self) -> str | None:
        mac = links.link_state(self.node.namespace.netlink, self.index)[1]
        self.mac = mac
        return mac

    def updateAddr(self) -> tuple[str | None, str | None]:
        """Address and MAC as the kernel has them now."""
        return self.updateIP(), self.updateMAC()

    def rename(self, newname: str) -> str:
        """Another name for the interface, which has to be down for a moment: its routes go."""
        index, old = self.index, str(self)
        steps = [links.set_link(index, old, up=False), links.set_link(index, old, new_name=newname)]
        if self.isUp():
            steps.append(links.set_link(index, newname, up=True))
        self._apply(*steps)
        for names in (self.node.index_of, self.node.nameToIntf):
            names[newname] = names.pop(old)
        self.name: str = newname
        return ""

    def isUp(self, setUp: bool = False) -> bool:
        if setUp:
            self.ifconfig("up")
        return links.link_state(self.node.namespace.netlink, self.index)[0]

    def delete(self) -> None:
        """Remove the interface and its peer."""
        if self.name in self.node.index_of:
            self._apply(links.delete_link(self.index, self.name))
            del self.node.index_of[self.name]
        self.node.delIntf(self)


def one_segment(offload: Mapping[str, bool]) -> bool:
    """Whether TCP is to hand over single segments. Switching tso and gso off does not do it: since Linux 4.17 TCP makes large
    packets all the same, and they are cut up only behind the shaper, which lets each pass whole."""
    return offload.get("tso") is False and offload.get("gso") is False


class ShapedLink(Link):
    """A veth pair, both ends shaped alike. ``shape`` is required: there is no link that is not the link you asked for.

    ``offload`` switches tx, sg, tso, gso, gro of both ends. Mininet's bw, delay and loss are refused.
    """

    def __init__(self, node1: NetlinkNode, node2: NetlinkNode, *, shape: PortShape,
                 offload: Mapping[str, bool] | None = None, **params: Any) -> None:  # fmt: skip
        for foreign in ("bw", "delay", "jitter", "loss", "max_queue_size"):
            if foreign in params:
                raise TypeError(f"{foreign} is TCLink's; a ShapedLink takes shape=PortShape(...)")
        self.shape = shape
        self.offload = dict(offload or {})
        params["intf"] = NetlinkIntf
        super().__init__(node1, node2, **params)

    def makeIntfPair(self, intfname1: str, intfname2: str, addr1: str | None = None, addr2: str | None = None,
                     node1: Any = None, node2: Any = None, deleteIntfs: bool = False) -> tuple[str, str]:  # fmt: skip
        """Make both ends where they belong, shape them, bring them up."""
        ends: list[links.VethEnd] = []
        for node, name, mac in ((node1, intfname1, addr1), (node2, intfname2, addr2)):
            if len(name.encode()) > IFNAMSIZ:
                raise FabricError(f"interface {name!r} is longer than {IFNAMSIZ} characters; shorten the node's name")
            ends.append(links.VethEnd(node.namespace.fd, node.next_index() + (bool(ends) and node1 is node2), name, mac))
        node1.namespace.netlink.apply([self.pair(ends[0], ends[1])])
        node1.index_of[intfname1], node2.index_of[intfname2] = ends[0].index, ends[1].index
        for node, end in ((node1, ends[0]), (node2, ends[1])):
            if self.offload:
                node.namespace.offload(end.name, self.offload)
            node.namespace.netlink.apply(
                [*tc.shape_requests(self.shape, end.index, end.name), links.set_link(end.index, end.name, up=True)]
            )
        return intfname1, intfname2

    def pair(self, a: links.VethEnd, b: links.VethEnd) -> Request:
        """The request for the pair itself."""
        segments = 1 if one_segment(self.offload) else None
        return links.veth(a, b, mtu=self.shape.mtu, queue_length=self.shape.limit, segments=segments)

    def delete(self) -> None:
        """Remove the pair."""
        self.intf1.delete()
        other = self.intf2
        other.node.index_of.pop(other.name, None)
        other.node.delIntf(other)

    def stop(self) -> None:
        """Nothing: a link goes with the namespaces of its nodes, all at once."""


class FabricNet(Mininet):
    """Mininet with these classes.

    Stock Mininet writes system-wide sysctls the first time it starts; this one touches nothing outside its namespaces, and
    only raises the number of files this process may open. Its links are ShapedLinks, those added while it runs too.
    Raises PermissionError when not root.
    """

    def __init__(self, *args: Any, **params: Any) -> None:
        if os.geteuid() != 0:
            raise PermissionError("a network of namespaces needs root")
        _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        params.setdefault("link", ShapedLink)
        Mininet.inited = True  # the base class would call Mininet.init(), which is where the sysctls are written
        super().__init__(*args, **params)
