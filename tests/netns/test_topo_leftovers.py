"""Nothing is left: not after close, not after a start that failed half way, not after ``kill -9``.

A tripwire is an interface here whose peer is inside a namespace: the kernel takes it down with that namespace, whoever else
makes and unmakes namespaces meanwhile.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from topo import links
from topo.cluster import Cluster
from topo.emulated import EmulatedFabric, LinkSettings
from topo.fabric import FabricError
from topo.leafspine import LeafSpine
from topo.mn import FabricNet, Host, ShapedLink
from topo.netlink import NetlinkSocket
from topo.netns import Namespace, SysctlError
from topo.observe import ObserveError
from topo.shaping import PortShape, Queue

pytestmark = [pytest.mark.netns, pytest.mark.sealed]

FABRIC = LeafSpine(Cluster(prefill=1, decode=1, tp=2, rack=2), 2, 25e6).build()
SETTINGS = LinkSettings(1500, Queue.FIFO)
BOUND_S = 5.0


def lay_tripwires(namespaces: Iterable[Namespace]) -> int:
    """One per namespace; how many."""
    netlink = NetlinkSocket()
    here = os.open("/proc/self/ns/net", os.O_RDONLY)
    count = 0
    for count, namespace in enumerate(namespaces, 1):
        ends = links.VethEnd(here, 5000 + count, f"trip{count}", None), links.VethEnd(namespace.fd, 5000, "trip", None)
        netlink.apply([links.veth(*ends, mtu=1500, queue_length=1)])
    os.close(here)
    netlink.close()
    return count


def tripwires() -> list[str]:
    return [name for _, name in socket.if_nameindex() if name.startswith("trip")]


def none_after(bound_s: float) -> bool:
    end = time.monotonic() + bound_s
    while tripwires() and time.monotonic() < end:
        time.sleep(0.01)
    return not tripwires()


def namespaces_held() -> int:
    """Descriptors of this process that keep a network namespace alive by itself; sockets do, too."""
    targets = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if os.path.islink(f"/proc/self/fd/{fd}")]
    return sum(target.startswith(("net:[", "socket:[")) for target in targets)


def test_every_namespace_is_gone_within_a_second_of_close() -> None:
    built = EmulatedFabric(FABRIC, SETTINGS)
    assert built.node("p0g0").cmd("echo typed").strip() == "typed"
    assert lay_tripwires(built.node(node.name).namespace for node in FABRIC.nodes) == len(FABRIC.nodes)
    time.sleep(0.2)
    assert len(tripwires()) == len(FABRIC.nodes)
    built.close()
    assert none_after(1.0)
    built.close()


def test_published_namespaces_are_gone_too_and_so_are_their_names() -> None:
    place = Path("/run/netns")
    built = EmulatedFabric(FABRIC, SETTINGS, publish=place)
    lay_tripwires(built.node(node.name).namespace for node in FABRIC.nodes)
    built.close()
    assert list(place.iterdir()) == []
    assert none_after(1.0)


def test_twenty_fabrics_one_after_the_other_hold_nothing() -> None:
    before = namespaces_held()
    for _ in range(20):
        with EmulatedFabric(FABRIC, SETTINGS, observed=False):
            pass
    assert namespaces_held() == before


def test_a_killed_process_leaves_nothing() -> None:
    reading, writing = os.pipe()
    builder = os.fork()
    if builder == 0:
        built = EmulatedFabric(FABRIC, SETTINGS)
        lay_tripwires(built.node(node.name).namespace for node in FABRIC.nodes)
        built.node("p0g0").cmd("true")
        os.write(writing, b"up")
        signal.pause()
    os.close(writing)
    assert os.read(reading, 2) == b"up"
    assert len(tripwires()) == len(FABRIC.nodes)
    os.kill(builder, signal.SIGKILL)
    os.waitpid(builder, 0)
    assert none_after(BOUND_S)


def test_a_start_that_fails_at_a_sysctl_holds_nothing() -> None:
    before = namespaces_held()
    with pytest.raises(SysctlError):
        EmulatedFabric(FABRIC, SETTINGS, host_sysctls={"net.ipv4.no_such_thing": "1"})
    assert namespaces_held() == before


def test_a_start_that_fails_at_the_last_step_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(namespace: Namespace) -> None:
        raise ObserveError(f"{namespace.name}: no")

    before = namespaces_held()
    monkeypatch.setattr("topo.observe.count_flows", refuse)
    with pytest.raises(ObserveError, match="spine0: no"):
        EmulatedFabric(FABRIC, SETTINGS)
    assert namespaces_held() == before


def test_a_name_that_is_published_already_is_refused_and_stays() -> None:
    place, before = Path("/run/netns"), namespaces_held()
    (place / "leaf0").write_text("somebody else's")
    with pytest.raises(FileExistsError):
        EmulatedFabric(FABRIC, SETTINGS, publish=place)
    assert namespaces_held() == before
    assert [path.name for path in place.iterdir()] == ["leaf0"]
    assert (place / "leaf0").read_text() == "somebody else's"


def test_a_link_with_too_long_a_name_leaves_no_interface() -> None:
    net = FabricNet(controller=None, build=False)
    one, other = net.addHost("short", cls=Host), net.addHost("not-so-short", cls=Host)
    with pytest.raises(FabricError, match="longer than 15"):
        net.addLink(one, other, cls=ShapedLink, shape=PortShape(25e6, 1500))
    for node in (one, other):
        with node.namespace.entered():
            assert [name for _, name in socket.if_nameindex()] == ["lo"]
    net.stop()
