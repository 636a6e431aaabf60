"""How long a leaf-spine takes to come up and to be gone, ours beside stock Mininet, on the same graph in the same run.

Stock is what Mininet 2.3 does: a shell per node, TCLink's tc commands, and addresses and routes by ``node.cmd``, one line
each. It gets no static neighbours, no MTU, no sysctls but ``ip_forward`` and no flow counters, all of which ours has, so the
ratio is a lower bound. Each case is a process of its own; its imports are not counted.

"up": until every node can be routed through (a TCP connection between the first and the last host is then made, untimed, and
ours reads every qdisc back). "gone": from the call of stop until the kernel has taken down every node's namespace.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from time import monotonic, perf_counter, sleep

from _common import Figures, main, number, print_figures
from mininet.link import TCLink
from mininet.log import setLogLevel
from mininet.net import Mininet
from mininet.node import Node
from mininet.topo import Topo

from kvfabric import _libc
from kvfabric.machine import CpuSampler
from kvfabric.tables import Cell, Column
from topo import links
from topo.cluster import Cluster
from topo.emulated import EmulatedFabric, LinkSettings
from topo.fabric import Fabric, NodeKind
from topo.leafspine import LeafSpine, parse_ratio, uplinks_for
from topo.netlink import NetlinkSocket
from topo.routing import NodeConfig, layer3
from topo.shaping import Queue

RATE_Bps = 12.5e6
MTU = 1500
_PORT = 7000
_TRIP_INDEX = 60_000
_GONE_WITHIN_S = 120.0
_LOOK_S = 0.5
_CASE_WITHIN_S = 1800.0
KINDS: Mapping[str, LinkSettings | None] = {
    "stock Mininet": None,
    "fifo": LinkSettings(MTU, Queue.FIFO),
    "fair, 16 classes": LinkSettings(MTU, Queue.FAIR, classes=16),
    "fair, 64 classes": LinkSettings(MTU, Queue.FAIR, classes=64),
}
LARGE = ("fifo", "fair, 16 classes")
"""What is brought up at --large hosts: stock and many classes would take minutes there."""


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds: the network itself (nodes and links), then addresses and routes (0 where they come with it), then gone."""

    build_s: float
    configure_s: float
    gone_s: float

    @property
    def up_s(self) -> float:
        return self.build_s + self.configure_s


def fabric_for(hosts: int) -> Fabric:
    """``hosts`` at 2:1, half of them prefill, in racks of 32, or of 4 for fewer than 64. Raises ValueError."""
    rack = 32 if hosts >= 64 else 4
    if hosts < 2 * rack or hosts % (2 * rack):
        raise ValueError(f"{hosts} hosts do not fill racks of {rack} for both roles; choose a multiple of {2 * rack}")
    cluster = Cluster(prefill=hosts // 8, decode=hosts // 8, tp=4, rack=rack)
    return LeafSpine(cluster, uplinks_for(rack, parse_ratio("2:1")), RATE_Bps).build()


class StockTopo(Topo):  # type: ignore[misc]  # Mininet has no types
    """The graph in Mininet's own words."""

    def build(self, fabric: Fabric) -> None:
        for node in fabric.nodes:
            self.addHost(node.name, cls=Node, ip=None)
        for link in fabric.links:
            self.addLink(link.a.node, link.b.node, port1=link.a.number, port2=link.b.number, bw=link.rate_Bps * 8 / 1e6)


def commands(config: NodeConfig, *, router: bool) -> Iterator[str]:
    """What a user types into a node to give it its addresses and routes."""
    if router:
        yield "sysctl -w net.ipv4.ip_forward=1"
    if config.loopback:
        yield f"ip addr add {config.loopback}/32 dev lo"
    for port, cidr in config.addresses.items():
        yield f"ip addr add {cidr} dev {port.name}"
    for route in config.routes:
        if len(route.hops) > 1:
            yield f"ip route add {route.prefix} " + " ".join(f"nexthop via {hop.gateway}" for hop in route.hops)
        else:
            (hop,) = route.hops
            via = f" via {hop.gateway}" if hop.gateway else ""
            yield f"ip route add {route.prefix}{via} dev {hop.port.name}" + (" onlink" if route.onlink else "")


@contextmanager
def within(namespace_fd: int) -> Iterator[None]:
    """This thread is in a network namespace for the duration."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _libc.setns(namespace_fd, _libc.CLONE_NEWNET)
        yield
    finally:
        _libc.setns(home, _libc.CLONE_NEWNET)
        os.close(home)


def check_connects(source_fd: int, destination_fd: int, address: str) -> None:
    """Make one TCP connection. Raises OSError."""
    with within(destination_fd):
        listener = socket.create_server((address, _PORT))
    with within(source_fd):
        sender = socket.socket()
    with listener, sender:
        sender.settimeout(5)
        sender.connect((address, _PORT))


def lay_tripwires(namespace_fds: Iterable[int]) -> frozenset[str]:
    """An interface here for every namespace, whose peer is in it: it goes when the namespace does.

    Counting namespaces would count other people's; this sees ours alone. One veth pair a namespace makes "gone" a little
    longer than it would be, for stock and ours alike.
    """
    netlink = NetlinkSocket()
    here = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    ends = [
        (links.VethEnd(here, _TRIP_INDEX + place, f"trip{place}", None), links.VethEnd(fd, _TRIP_INDEX, "trip", None))
        for place, fd in enumerate(namespace_fds)
    ]
    netlink.apply(links.veth(near, far, mtu=MTU, queue_length=1) for near, far in ends)
    os.close(here)
    netlink.close()
    return frozenset(near.name for near, _ in ends)


def wait_gone(tripwires: frozenset[str]) -> None:
    """Raises TimeoutError when the kernel keeps a namespace."""
    end = perf_counter() + _GONE_WITHIN_S
    while left := tripwires & {name for _, name in socket.if_nameindex()}:
        if perf_counter() > end:
            raise TimeoutError(f"{len(left)} namespaces are still there {_GONE_WITHIN_S:g} s after stop")
        sleep(0.002)


def time_stock(fabric: Fabric) -> Times:
    """One life of the network under stock Mininet."""
    plan = layer3(fabric)
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    setLogLevel("critical")  # TCLink prints one HTB warning a port
    Mininet.inited = True  # spares stock its system-wide sysctls; the one limit it needs is raised above
    start = perf_counter()
    net = Mininet(topo=StockTopo(fabric), link=TCLink, controller=None)
    net.start()
    built = perf_counter()
    for node in fabric.nodes:
        for command in commands(plan.nodes[node.name], router=node.kind is not NodeKind.HOST):
            said = net.get(node.name).cmd(command)
            if "rror" in said or "annot" in said:
                raise OSError(f"stock Mininet: {node.name}: {command}: {said.strip()}")
    up = perf_counter()
    fds = {node.name: os.open(f"/proc/{net.get(node.name).pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC) for node in fabric.nodes}
    first, last = fabric.of_kind(NodeKind.HOST)[0].name, fabric.of_kind(NodeKind.HOST)[-1].name
    check_connects(fds[first], fds[last], plan.address_of[last])
    tripwires = lay_tripwires(fds.values())
    for fd in fds.values():
        os.close(fd)
    stop = perf_counter()
    net.stop()
    wait_gone(tripwires)
    return Times(built - start, up - built, perf_counter() - stop)


def time_ours(fabric: Fabric, settings: LinkSettings) -> Times:
    """One life of the network as ``kvfabric run`` builds it."""
    start = perf_counter()
    built = EmulatedFabric(fabric, settings)
    up = perf_counter()
    fds = {node.name: built.node(node.name).namespace.fd for node in fabric.nodes}
    first, last = fabric.of_kind(NodeKind.HOST)[0].name, fabric.of_kind(NodeKind.HOST)[-1].name
    check_connects(fds[first], fds[last], built.address(last))
    faults = built.shaping_faults()
    if faults:
        raise OSError(f"{len(faults)} ports are not shaped as planned: {faults[0]}")
    tripwires = lay_tripwires(fds.values())
    stop = perf_counter()
    built.close()
    wait_gone(tripwires)
    return Times(up - start, 0.0, perf_counter() - stop)


def time_case(kind: str, hosts: int) -> Times:
    settings = KINDS[kind]
    fabric = fabric_for(hosts)
    return time_stock(fabric) if settings is None else time_ours(fabric, settings)


def best_of(kind: str, hosts: int, repeat: int) -> Times:
    """The shortest of each time over ``repeat`` fresh processes. Raises OSError when one fails."""
    found: Times | None = None
    for _ in range(repeat):
        command = [sys.executable, __file__, "--case", kind, "--hosts", str(hosts)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=_CASE_WITHIN_S, check=False)
        if done.returncode != 0:
            raise OSError(f"{kind} with {hosts} hosts failed")
        times = Times(**json.loads(done.stdout.splitlines()[-1]))
        if found is None:
            found = times
        elif times.up_s < found.up_s:
            found = replace(times, gone_s=min(times.gone_s, found.gone_s))
        else:
            found = replace(found, gone_s=min(times.gone_s, found.gone_s))
    if found is None:
        raise ValueError("repeat must be at least 1")
    return found


COLUMNS = (
    number("hosts"),
    number("ports"),
    Column("how"),
    number("nodes and links", "s"),
    number("addresses and routes", "s"),
    number("up", "s"),
    number("stock / this"),
    number("gone", "s"),
    number("stock / this "),
    number("CPU idle before", "%"),
)


def idle_percent() -> float | None:
    """How idle the machine is just now, over all CPUs: under about 95, the next figures are not only ours."""
    sampler = CpuSampler(monotonic())
    sleep(_LOOK_S)
    sample = sampler.sample(monotonic())
    return 100 * sample.idle if sample else None


def rows_for(hosts: int, kinds: Iterable[str], repeat: int) -> Iterator[tuple[Cell, ...]]:
    """The rows of one size; the first kind, when stock, is what the others are held against."""
    stock: Times | None = None
    ports = 2 * len(fabric_for(hosts).links)
    for kind in kinds:
        print(f"{hosts} hosts, {kind} ...", file=sys.stderr, flush=True)
        idle = idle_percent()
        times = best_of(kind, hosts, repeat)
        if KINDS[kind] is None:
            stock = times
        against = (stock.up_s / times.up_s, stock.gone_s / times.gone_s) if stock else (None, None)
        configure = times.configure_s or None
        yield hosts, ports, kind, times.build_s, configure, times.up_s, against[0], times.gone_s, against[1], idle


def measure(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="bring-up and teardown times, beside stock Mininet's")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of a table")
    parser.add_argument("--hosts", type=int, nargs="+", default=[16, 64, 128], metavar="N", help="sizes (default 16 64 128)")
    parser.add_argument("--large", type=int, default=512, metavar="N", help="a size for ours alone (default 512; 0: none)")
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="fresh processes per case; the shortest time counts")
    parser.add_argument("--case", choices=KINDS, help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    for hosts in (*chosen.hosts, *([chosen.large] if chosen.large else [])):
        try:
            fabric_for(hosts)
        except ValueError as problem:
            parser.error(str(problem))
    if chosen.case:
        print(json.dumps(asdict(time_case(chosen.case, chosen.hosts[0]))))
        return 0
    if chosen.repeat < 1:
        parser.error("--repeat must be at least 1")
    rows = [row for hosts in chosen.hosts for row in rows_for(hosts, KINDS, chosen.repeat)]
    if chosen.large:
        rows += rows_for(chosen.large, LARGE, chosen.repeat)
    facts = {"rate_Bps": RATE_Bps, "mtu": MTU, "ratio": "2:1", "repeat": chosen.repeat}
    print_figures([Figures("Bring-up and teardown", COLUMNS, tuple(rows))], facts, as_json=chosen.json)
    return 0


if __name__ == "__main__":
    sys.exit(main(__file__, sys.argv[1:], measure))
