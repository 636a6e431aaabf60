"""Mininet as people know it, with these nodes and links in it: its own class, shells, CLI, links added while it runs."""

from __future__ import annotations

import logging
import os
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from mininet.cli import CLI
from mininet.log import lg
from mininet.net import Mininet

from topo import links, tc
from topo.cluster import Cluster
from topo.emulated import EmulatedFabric, LinkSettings, RoutedTopo
from topo.fabric import Fabric, FabricError, Link, Node, NodeKind, Port
from topo.leafspine import LeafSpine
from topo.mn import FabricNet, Host, NetlinkIntf, ShapedLink
from topo.netlink import NetlinkError
from topo.shaping import PortShape, Queue

pytestmark = [pytest.mark.netns, pytest.mark.sealed]

SETTINGS = LinkSettings(1500, Queue.FAIR, classes=8)
SHAPE = PortShape(25e6, 1500, Queue.FAIR, 8)
GONE_WITHIN_S = 5.0  # the kernel takes namespaces down in the background


def small_fabric() -> EmulatedFabric:
    return EmulatedFabric(LeafSpine(Cluster(1, 1, 2, 2), 2, 25e6).build(), SETTINGS)


@contextmanager
def two_hosts(**link: Any) -> Iterator[tuple[FabricNet, Host, Host]]:
    net = FabricNet(controller=None, build=False)
    a, b = net.addHost("a", cls=Host, ip="10.0.0.1/24"), net.addHost("b", cls=Host, ip="10.0.0.2/24")
    net.addLink(a, b, **({"shape": SHAPE} | link))
    net.build()
    net.start()
    yield net, a, b
    net.stop()


def assert_shaped(node: Host, intf: str, shape: PortShape = SHAPE) -> None:
    have = tc.read(node.namespace.netlink, node.index_of[intf])
    assert tc.difference(intf, tc.expected(shape), have) is None


def assert_connects(net: Mininet, source: str, destination: str, address: str) -> None:
    """Three bytes over TCP."""
    with net[destination].namespace.entered():
        server = socket.create_server((address, 7000))
    with net[source].namespace.entered():
        client = socket.socket()
    with server, client:
        server.settimeout(5)
        client.settimeout(5)
        client.connect((address, 7000))
        client.sendall(b"abc")
        served, _ = server.accept()
        with served:
            assert served.recv(3) == b"abc"


def processes() -> set[str]:
    """All there is in this test's own PID namespace."""
    return {entry for entry in os.listdir("/proc") if entry.isdigit()}


def held_namespaces() -> int:
    found = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{name}").startswith("net:")
        except FileNotFoundError:  # the listing's own
            continue
    return found


def test_stock_mininet_builds_the_topo() -> None:
    """Not even our Mininet class is needed: the topo names its classes."""
    Mininet.inited = True  # spares the machine Mininet's system-wide sysctls
    fabric = LeafSpine(Cluster(1, 1, 2, 2), 2, 25e6).build()
    topo = RoutedTopo(fabric=fabric, settings=SETTINGS, host_sysctls={}, hash_seeds=None, masks={}, publish=None)
    net = Mininet(topo=topo, controller=None)
    net.start()
    try:
        assert type(net) is Mininet
        assert_connects(net, "p0g0", "d0g1", net.get("d0g1").IP())
        assert_shaped(net.get("leaf0"), "leaf0-eth0")
    finally:
        net.stop()


def test_nodes_are_found_run_commands_and_know_their_addresses() -> None:
    with small_fabric() as fabric:
        net = fabric.net
        host, leaf = net.get("p0g0", "leaf0")
        assert host is net["p0g0"] is fabric.node("p0g0")
        assert host.cmd("echo one; echo two").split() == ["one", "two"]
        assert host.IP() == fabric.address("p0g0")
        assert host.IP() in host.cmd("ip -4 addr show dev p0g0-eth0")
        assert host.MAC() == fabric.fabric.by_name["p0g0"].mac(0)
        assert leaf.intfNames() == ["leaf0-eth0", "leaf0-eth1", "leaf0-eth2", "leaf0-eth3"]
        assert [len(leaf.connectionsTo(net["spine0"])), len(leaf.connectionsTo(net["d0g0"]))] == [1, 0]


def test_popen_and_pexec_run_inside() -> None:
    with small_fabric() as fabric:
        host = fabric.net["d0g0"]
        out, err, code = host.pexec("ip -o -4 addr")
        assert (fabric.address("d0g0") in out, err, code) == (True, "", 0)
        with host.popen(["sh", "-c", "ip -o link; exit 3"]) as process:
            shown, _ = process.communicate(timeout=5)
        assert (b"d0g0-eth0" in shown, process.returncode) == (True, 3)


@pytest.mark.skipif(shutil.which("ping") is None, reason="no ping command on this machine")
def test_ping_all_loses_nothing() -> None:
    with small_fabric() as fabric:
        hosts = [fabric.net[name] for name in ("p0g0", "p0g1", "d0g0", "d0g1")]
        assert fabric.net.ping(hosts, timeout="2") == 0.0


def test_a_shell_starts_when_somebody_types_and_not_before() -> None:
    with small_fabric() as fabric:
        assert processes() == {"1"}
        fabric.net["p0g0"].cmd("true")
        assert len(processes()) == 2


def test_a_shell_sees_its_own_sysfs_and_private_directories() -> None:
    net = FabricNet(controller=None, build=False)
    a, b = (net.addHost(name, cls=Host, privateDirs=["/run/mine"]) for name in "ab")
    net.addLink(a, b, shape=SHAPE)
    assert a.cmd("ls /sys/class/net").split() == ["a-eth0", "lo"]
    a.cmd("touch /run/mine/of-a")
    assert [a.cmd("ls /run/mine").split(), b.cmd("ls /run/mine").split()] == [["of-a"], []]
    assert not Path("/run/mine/of-a").exists()
    net.stop()


def cli_output(net: Mininet, script: Path) -> str:
    """What the CLI prints for a script of commands."""
    said: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    listener = Listener()
    lg.addHandler(listener)
    try:
        with open(os.devnull) as nothing:
            CLI(net, stdin=nothing, script=str(script))
    finally:
        lg.removeHandler(listener)
    return "".join(said)


def test_the_cli_takes_a_script(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("nodes\np0g0 ip addr\np0g0 echo d0g1 is there\nlinks\nexit\n")
    with small_fabric() as fabric:
        said = cli_output(fabric.net, script)
        assert "d0g0 d0g1 leaf0 leaf1 p0g0 p0g1 spine0 spine1" in said
        assert f"inet {fabric.address('p0g0')}/32" in said
        assert f"{fabric.address('d0g1')} is there" in said, "the CLI puts addresses in place of names"
        assert "leaf0-eth2<->spine0-eth0 (OK OK)" in said


def test_the_cli_takes_a_link_down_and_up(tmp_path: Path) -> None:
    script = tmp_path / "script"
    with two_hosts() as (net, a, _b):
        script.write_text("link a b down\n")
        cli_output(net, script)
        assert not a.intf("a-eth0").isUp()
        script.write_text("link a b up\n")
        cli_output(net, script)
        assert a.intf("a-eth0").isUp()
        assert_shaped(a, "a-eth0")


def test_a_link_added_while_running_is_shaped_like_any_other() -> None:
    with small_fabric() as fabric:
        net, shape = fabric.net, PortShape(5e6, 9000, Queue.FIFO)
        added = net.addLink("p0g0", "d0g0", shape=shape, offload={"tso": False})
        assert type(added) is ShapedLink
        for intf in (added.intf1, added.intf2):
            assert_shaped(intf.node, intf.name, shape)
            assert (intf.isUp(), intf.node.namespace.offloads(intf.name)["tso"]) == (True, False)
        added.intf1.setIP("10.9.0.1/24")
        added.intf2.setIP("10.9.0.2", 24)
        assert_connects(net, "p0g0", "d0g0", "10.9.0.2")
        assert fabric.shaping_faults() == []


def test_a_link_removed_while_running_is_gone_at_both_ends() -> None:
    with small_fabric() as fabric:
        net = fabric.net
        (link,) = net.linksBetween(net["leaf0"], net["spine1"])
        net.delLink(link)
        assert net.linksBetween(net["leaf0"], net["spine1"]) == []
        assert "leaf0-eth3" not in net["leaf0"].cmd("ip link")
        assert "spine1-eth0" not in net["spine1"].cmd("ip link")
        assert sorted(fabric.shaping_faults()) == ["leaf0-eth3: no such interface", "spine1-eth0: no such interface"]
        again = net.addLink("leaf0", "spine1", shape=SHAPE)
        assert_shaped(again.intf1.node, again.intf1.name)


def test_an_address_is_set_and_replaced() -> None:
    with two_hosts() as (_net, a, _b):
        intf = a.intf()
        assert type(intf) is NetlinkIntf
        intf.setIP("10.1.0.1/16")
        a.setIP("10.2.0.1", 24)
        assert links.addresses(a.namespace.netlink, intf.index) == ["10.2.0.1/24"]
        assert (intf.IP(), intf.prefixLen) == ("10.2.0.1", "24")
        with pytest.raises(ValueError, match="prefix length"):
            intf.setIP("10.3.0.1")
        a.cmd("ip addr flush dev a-eth0; ip addr add 10.4.0.1/8 dev a-eth0")
        assert intf.updateAddr() == ("10.4.0.1", intf.MAC())
        a.cmd("ip addr flush dev a-eth0")
        assert intf.updateIP() is None


def test_a_mac_is_set_and_read() -> None:
    with two_hosts() as (_net, a, _b):
        intf = a.intf()
        intf.setMAC("02:00:00:00:aa:01")
        assert intf.MAC() == "02:00:00:00:aa:01"
        assert "02:00:00:00:aa:01" in a.cmd("ip link show a-eth0")
        a.cmd("ip link set a-eth0 address 02:00:00:00:aa:02")
        assert intf.updateMAC() == "02:00:00:00:aa:02"


def test_an_interface_goes_down_up_gets_a_name_and_is_deleted() -> None:
    with two_hosts() as (_net, a, b):
        intf = a.intf()
        intf.ifconfig("down")
        assert not intf.isUp()
        assert intf.isUp(setUp=True)
        intf.rename("eth-new")
        assert a.intf("eth-new") is intf
        assert intf.isUp()
        assert_shaped(a, "eth-new")
        with pytest.raises(NotImplementedError, match="use setIP"):
            intf.ifconfig("10.0.0.9/8", "up")
        intf.delete()
        assert "eth" not in a.cmd("ip -o link")
        assert "eth" not in b.cmd("ip -o link")
        assert a.intfNames() == []


def test_routes_and_neighbours_are_set_as_in_mininet() -> None:
    with two_hosts() as (_net, a, b):
        a.setDefaultRoute("dev a-eth0 via 10.0.0.2")
        assert "default via 10.0.0.2 dev a-eth0" in a.cmd("ip route")
        a.setDefaultRoute(a.intf())
        assert "default dev a-eth0" in a.cmd("ip route")
        a.setHostRoute("10.7.7.7", "a-eth0")
        assert "10.7.7.7 dev a-eth0" in a.cmd("ip route")
        a.setARP("10.0.0.2", b.MAC())
        assert "PERMANENT" in a.cmd("ip neigh show 10.0.0.2")


@pytest.mark.parametrize("name", ["bw", "delay", "jitter", "loss", "max_queue_size"])
def test_a_parameter_of_tclink_is_refused(name: str) -> None:
    with two_hosts() as (net, a, b):
        with pytest.raises(TypeError, match=f"{name} is TCLink's"):
            net.addLink(a, b, shape=SHAPE, **{name: 10})
        assert a.intfNames() == ["a-eth0"]


def test_a_link_without_a_shape_is_refused() -> None:
    with two_hosts() as (net, a, b):
        with pytest.raises(TypeError, match="shape"):
            net.addLink(a, b)
        assert len(a.cmd("ip -o link").splitlines()) == 2


def test_an_overlong_name_is_refused_before_anything_exists() -> None:
    before = held_namespaces()
    nodes = (Node("prefill-host-7", NodeKind.HOST, 0), Node("b", NodeKind.HOST, 1))
    with pytest.raises(FabricError, match="'prefill-host-7-eth0' is longer than 15"):
        EmulatedFabric(Fabric(nodes, (Link(Port("prefill-host-7", 0), Port("b", 0), 25e6),)), SETTINGS)
    assert held_namespaces() == before
    with two_hosts() as (net, a, _b):
        long = net.addHost("a-name-too-long", cls=Host)
        with pytest.raises(FabricError, match="'a-name-too-long-eth0' is longer than 15"):
            net.addLink(a, long, shape=SHAPE)
        assert a.index_of.keys() == {"a-eth0"}
        assert len(a.cmd("ip -o link").splitlines()) == 2


def test_what_the_kernel_refuses_raises_and_says_what() -> None:
    with two_hosts() as (net, a, b):
        with pytest.raises(NetlinkError, match="link a-eth0 - b-eth7"):
            net.addLink(a, b, shape=SHAPE, intfName1="a-eth0", intfName2="b-eth7")
        assert (set(a.index_of), set(b.index_of)) == ({"a-eth0"}, {"b-eth0"})


def test_nothing_is_left_after_close() -> None:
    """No process, no held namespace, and each namespace gone from the kernel: its end of a wire to here goes with it."""
    before = held_namespaces(), len(os.listdir("/proc/self/fd"))
    fabric = small_fabric()
    for name in ("p0g0", "leaf0"):
        fabric.net[name].cmd("true")
    here = fabric.net.addHost("here", cls=Host, inNamespace=False)
    names = [node.name for node in fabric.fabric.nodes]
    for name in names:
        fabric.net.addLink(here, name, shape=SHAPE, port2=60)
    assert len(socket.if_nameindex()) == 1 + len(names)
    fabric.close()
    deadline = time.monotonic() + GONE_WITHIN_S
    while len(socket.if_nameindex()) > 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert [name for _, name in socket.if_nameindex()] == ["lo"]
    assert processes() == {"1"}
    assert (held_namespaces(), len(os.listdir("/proc/self/fd"))) == before


def test_twenty_networks_one_after_the_other_reuse_every_name() -> None:
    for _ in range(20):
        with two_hosts() as (_net, a, _b):
            assert_shaped(a, "a-eth0")
