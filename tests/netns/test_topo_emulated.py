"""A leaf-spine in real namespaces: shaped as planned, faults named, paths as predicted, settings read back."""

from __future__ import annotations

import math
import random
import re
import socket
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from topo import links, tc
from topo.cluster import Cluster
from topo.emulated import HASH_SEED, ROUTER_SYSCTLS, EmulatedFabric, FlowTuple, LinkSettings
from topo.fabric import NodeKind, Port
from topo.leafspine import LeafSpine
from topo.netlink import NLM_F_ACK, NLM_F_CREATE, NLM_F_REPLACE, raw_request
from topo.netns import RPS_DEFAULT, SysctlError, has_sysctl
from topo.shaping import PortShape, Queue
from topo.steering import Steering

pytestmark = [pytest.mark.netns, pytest.mark.sealed]

RATE_BPS = 25e6
SMALL = Cluster(1, 1, 4, 4)
SIXTEEN = Cluster(2, 2, 4, 4)


def emulated(cluster: Cluster = SMALL, uplinks: int = 2, rate_Bps: float = RATE_BPS, *, queue: Queue = Queue.FAIR,
             mtu: int = 1500, offload: dict[str, bool] | None = None, **others: Any) -> EmulatedFabric:  # fmt: skip
    chosen = LinkSettings(mtu, queue, classes=8, limit=123)
    settings = chosen if offload is None else replace(chosen, offload=offload)
    return EmulatedFabric(LeafSpine(cluster, uplinks, rate_Bps).build(), settings, **others)


def tc_command(net: EmulatedFabric, node: str, *words: str) -> str:
    """What a user's own ``tc`` does inside a node."""
    enter = net.node(node).namespace.enter
    done = subprocess.run(["tc", *words], preexec_fn=enter, capture_output=True, text=True, timeout=10, check=True)
    return done.stdout


@pytest.mark.parametrize("queue", Queue)
@pytest.mark.parametrize("cluster", [SMALL, SIXTEEN], ids=["8", "16"])
def test_a_fabric_comes_up_shaped_as_planned(cluster: Cluster, queue: Queue) -> None:
    with emulated(cluster, queue=queue) as net:
        assert net.shaping_faults() == []
        assert set(net.counters()) == set(net.fabric.peer)


def test_what_tc_shows_is_what_was_asked() -> None:
    """The kernel's word through another program than ours."""
    with emulated() as net:
        kbit = PortShape(RATE_BPS, 1500).wire_Bps * 8 // 1000
        shown = tc_command(net, "leaf0", "-d", "class", "show", "dev", "leaf0-eth0")
        assert len(shown.splitlines()) == 1 + 1 + 8
        assert f"ceil {kbit}Kbit" in shown
        assert "quantum 1514" in shown
        burst = int(re.findall(r"cburst (\d+)b", shown)[0])
        bucket = PortShape(RATE_BPS, 1500).buffer
        assert bucket - 64e-9 * kbit * 125 - 26 <= burst <= bucket  # a tick is 64 ns, and tc rounds its way too
        assert len(tc_command(net, "leaf0", "filter", "show", "dev", "leaf0-eth0").splitlines()) >= 2


def test_a_deleted_qdisc_is_named() -> None:
    with emulated() as net:
        tc_command(net, "leaf1", "qdisc", "del", "dev", "leaf1-eth2", "root")
        (fault,) = net.shaping_faults()
        assert fault.startswith("leaf1-eth2: qdisc is ")
        assert "planned htb" in fault


def test_a_qdisc_put_in_its_place_is_named() -> None:
    with emulated() as net:
        tc_command(net, "p0g1", "qdisc", "replace", "dev", "p0g1-eth0", "root", "pfifo")
        (fault,) = net.shaping_faults()
        assert fault.startswith("p0g1-eth0: qdisc is pfifo")


def test_a_changed_rate_is_named_with_both_rates() -> None:
    with emulated(queue=Queue.FIFO) as net:
        change = (
            "class",
            "change",
            "dev",
            "spine0-eth1",
            "classid",
            "5:1",
            "htb",
            "rate",
            "80mbit",
            "burst",
            "1514",
            "cburst",
            "1514",
        )
        tc_command(net, "spine0", *change)
        (fault,) = net.shaping_faults()
        assert fault.startswith("spine0-eth1: class 5:1")
        assert "10000000 B/s" in fault
        assert f"planned {PortShape(RATE_BPS, 1500).wire_Bps} B/s" in fault


def test_a_changed_burst_is_named() -> None:
    with emulated(queue=Queue.FIFO) as net:
        rate = f"{PortShape(RATE_BPS, 1500).wire_Bps * 8}bit"
        tc_command(net, "p0g0", "class", "change", "dev", "p0g0-eth0", "classid", "5:1", "htb", "rate", rate, "burst", "15k")
        (fault,) = net.shaping_faults()
        assert fault.startswith("p0g0-eth0: class 5:1")


def test_a_removed_class_is_named() -> None:
    with emulated() as net:
        tc_command(net, "p0g0", "class", "del", "dev", "p0g0-eth0", "classid", "5:10")
        assert net.shaping_faults() == ["p0g0-eth0: 9 htb classes, planned 10"]


def test_a_removed_filter_is_named() -> None:
    with emulated() as net:
        tc_command(net, "leaf0", "filter", "del", "dev", "leaf0-eth4", "parent", "5:")
        assert net.shaping_faults() == ["leaf0-eth4: 0 flow filters, planned 1"]


def test_another_filter_in_its_place_is_named() -> None:
    with emulated() as net:
        tc_command(net, "leaf0", "filter", "del", "dev", "leaf0-eth4", "parent", "5:")
        program = "1,6 0 0 327696"  # every packet into the first class
        words = ("filter", "add", "dev", "leaf0-eth4", "parent", "5:", "protocol", "ip", "prio", "1", "bpf", "bytecode", program)
        tc_command(net, "leaf0", *words)
        assert net.shaping_faults() == ["leaf0-eth4: the flow filter is another program than planned"]


def test_an_interface_that_is_gone_is_named() -> None:
    with emulated() as net:
        net.node("p0g2").intf("p0g2-eth0").delete()
        assert "p0g2-eth0: no such interface" in net.shaping_faults()


@pytest.mark.parametrize("rate_Gbps", [5, 50])
def test_rates_beyond_a_gigabit_are_shaped_at_that_rate(rate_Gbps: int) -> None:
    with emulated(rate_Bps=rate_Gbps * 1e9 / 8, mtu=9000, queue=Queue.FIFO) as net:
        assert net.shaping_faults() == []
        shown = tc_command(net, "p0g0", "-r", "class", "show", "dev", "p0g0-eth0")
        said = next(word for before, word in zip(shown.split(), shown.split()[1:], strict=False) if before == "rate")
        units = {"bit": 1.0, "Kbit": 1e3, "Mbit": 1e6, "Gbit": 1e9}
        digits = said.rstrip("GMKbit")
        assert float(digits) * units[said[len(digits) :]] == pytest.approx(rate_Gbps * 1e9 * 9014 / 8948, rel=1e-3)


def test_a_change_between_rates_beyond_32_bits_is_named() -> None:
    """From 34.4 Gb/s on the kernel's 32-bit field is full, and only the 64-bit one tells rates apart."""
    with emulated(rate_Bps=50e9 / 8, mtu=9000, queue=Queue.FIFO) as net:
        node, other = net.node("p0g0"), PortShape(40e9 / 8, 9000, Queue.FIFO, 8, 123)
        _qdisc, wanted = tc.shape_requests(other, node.index_of["p0g0-eth0"], "p0g0-eth0")
        flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE
        node.namespace.netlink.apply([raw_request(tc.RTM_NEWTCLASS, wanted.data[16:], "change", flags=flags)])
        (fault,) = net.shaping_faults()
        assert f"has ceil {other.wire_Bps} B/s" in fault
        assert f"planned {PortShape(50e9 / 8, 9000).wire_Bps} B/s" in fault


def test_sysctls_read_back_in_every_namespace() -> None:
    """Namespaces do not inherit them: each is asked by itself, in a process of its own."""
    asked = {"net.ipv4.tcp_no_metrics_save": "1", "net.ipv4.tcp_slow_start_after_idle": "0"}
    steering = Steering(0, (0,))
    with emulated(host_sysctls=asked, steering=steering) as net:
        for node in net.fabric.nodes:
            wanted = asked if node.kind is NodeKind.HOST else ROUTER_SYSCTLS
            wanted = wanted | {"net.ipv6.conf.all.disable_ipv6": "1"}
            if node.kind is not NodeKind.HOST and net.seeds is not None:
                wanted = wanted | {HASH_SEED: str(net.seeds[node.name])}
            if has_sysctl(RPS_DEFAULT):
                wanted = wanted | {RPS_DEFAULT: "1"}
            assert net.node(node.name).namespace.read_sysctls(list(wanted)) == wanted


def test_a_sysctl_that_does_not_take_its_value_stops_the_start() -> None:
    with pytest.raises(SysctlError, match=r"[pd]0g[0-3]: sysctl net\.ipv4\.no_such_thing=1"):
        emulated(host_sysctls={"net.ipv4.no_such_thing": "1"})
    with pytest.raises(SysctlError, match=r"[pd]0g[0-3]: sysctl net\.ipv4\.tcp_congestion_control"):
        emulated(host_sysctls={"net.ipv4.tcp_congestion_control": "telepathy"})


def test_receive_steering_reaches_every_port_without_the_default_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topo.emulated.has_sysctl", lambda key: key != RPS_DEFAULT and has_sysctl(key))
    with emulated(steering=Steering(0, (0,))) as net:
        for name in ("p0g0", "leaf0", "spine1"):
            port = net.fabric.ports_of[name][0].name
            assert net.node(name).cmd(f"cat /sys/class/net/{port}/queues/rx-0/rps_cpus").strip().lstrip("0,") == "1"


@pytest.mark.parametrize(("mtu", "tso"), [(1500, False), (9000, True)])
def test_mtu_queue_length_and_offloads_are_as_asked(mtu: int, tso: bool) -> None:
    with emulated(mtu=mtu, offload={"tso": tso, "gso": tso, "gro": False}) as net:
        states = net.offloads()
        assert set(states) == {port.name for port in net.fabric.peer}
        assert all((state["tso"], state["gso"], state["gro"]) == (tso, tso, False) for state in states.values())
        for port in net.fabric.peer:
            node = net.node(port.node)
            assert links.link_state(node.namespace.netlink, node.index_of[port.name])[::2] == (True, mtu)
        shown = net.node("leaf0").cmd("ip link show")
        assert shown.count("qlen 123") == len(net.fabric.ports_of["leaf0"])


def test_interfaces_have_the_planned_macs() -> None:
    with emulated() as net:
        for port in net.fabric.peer:
            node = net.node(port.node)
            mac = links.link_state(node.namespace.netlink, node.index_of[port.name])[1]
            assert mac == net.fabric.by_name[port.node].mac(port.number)


@contextmanager
def listening(net: EmulatedFabric, host: str, port: int) -> Iterator[socket.socket]:
    with net.node(host).namespace.entered():
        server = socket.socket()
    with server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((net.address(host), port))
        server.listen(64)
        server.settimeout(5)
        yield server


def touch(net: EmulatedFabric, flow: FlowTuple, server: socket.socket) -> bytes:
    """Open the connection, let three bytes through, and reset it; what arrived."""
    with net.node(flow.source).namespace.entered():
        client = socket.socket()
    with client:
        client.settimeout(5)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        client.bind((net.address(flow.source), flow.sport))
        client.connect((net.address(flow.destination), flow.dport))
        served, _ = server.accept()
        with served:
            client.sendall(b"abc")
            served.settimeout(5)
            got = served.recv(3)
            served.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    return got


def random_flows(net: EmulatedFabric, count: int, seed: int, ports: tuple[int, ...] = (7000, 7001)) -> list[FlowTuple]:
    draw, hosts = random.Random(seed), [node.name for node in net.fabric.of_kind(NodeKind.HOST)]
    found: dict[FlowTuple, None] = {}
    while len(found) < count:
        source, destination = draw.sample(hosts, 2)
        found[FlowTuple(source, destination, draw.randrange(1024, 65536), draw.choice(ports))] = None
    return list(found)


def test_200_connections_take_the_path_that_was_predicted() -> None:
    with emulated(SIXTEEN, 4) as net, ExitStack() as stack:
        flows = random_flows(net, 200, 3)
        servers = {
            place: stack.enter_context(listening(net, *place)) for place in {(flow.destination, flow.dport) for flow in flows}
        }
        predicted = {flow: net.predict(flow) for flow in flows}
        assert all(touch(net, flow, servers[flow.destination, flow.dport]) == b"abc" for flow in flows)
        seen = net.observed()
        crossed = 0
        for flow, path in predicted.items():
            back = FlowTuple(flow.destination, flow.source, flow.dport, flow.sport)
            for one, way in ((flow, path), (back, net.predict(back))):
                key = (net.address(one.source), net.address(one.destination), one.sport, one.dport)
                spines = {port.node for port in way if net.fabric.by_name[port.node].kind is NodeKind.SPINE}
                assert set(seen.get(key, {})) == spines, f"{one}: predicted {spines}"
                crossed += len(spines)
            packets = [
                count.packets
                for count in seen.get(
                    (net.address(flow.source), net.address(flow.destination), flow.sport, flow.dport), {}
                ).values()
            ]
            assert all(number >= 3 for number in packets)
        assert crossed > 200, "hardly a flow crossed a spine: nothing was shown"


def test_a_tuple_takes_the_same_path_again_and_again() -> None:
    with emulated(uplinks=4) as net, listening(net, "d0g0", 7000) as server:
        flow = FlowTuple("p0g0", "d0g0", 40_000, 7000)
        for _ in range(12):
            assert touch(net, flow, server) == b"abc"
        key = (net.address("p0g0"), net.address("d0g0"), 40_000, 7000)
        (counted,) = net.observed()[key].items()
        assert counted[0] == net.predict(flow)[2].node
        assert counted[1].packets >= 36


@pytest.mark.parametrize("uplinks", [2, 4])
def test_hashed_tuples_share_the_uplinks_evenly(uplinks: int) -> None:
    """1,000 tuples from one leaf: each uplink's count within the binomial's 99.9 %."""
    count = 1_000
    with emulated(SIXTEEN, uplinks, queue=Queue.FIFO, observed=False) as net:
        draw, taken = random.Random(11), Counter[Port]()
        for _ in range(count):
            flow = FlowTuple(f"p0g{draw.randrange(4)}", f"d1g{draw.randrange(4)}", draw.randrange(1024, 65536), 7000)
            taken[net.predict(flow)[1]] += 1
        assert set(taken) == set(net.fabric.ports_of["leaf0"][4:])
        share = 1 / uplinks
        spread = 3.29 * math.sqrt(count * share * (1 - share))
        assert all(abs(times - count * share) <= spread for times in taken.values()), taken


def test_tiers_do_not_polarise() -> None:
    """What two leaves choose for the same ports is independent: a router's seed is its own."""
    with emulated(SIXTEEN, 4, queue=Queue.FIFO, observed=False) as net:
        if net.seeds is None:
            pytest.skip(f"this kernel has no {HASH_SEED}")
        same = sum(
            net.predict(FlowTuple("p0g0", "d0g0", sport, 7000))[1].number
            == net.predict(FlowTuple("p1g0", "d0g0", sport, 7000))[1].number
            for sport in range(20_000, 20_400)
        )
        assert abs(same - 100) <= 3.29 * math.sqrt(400 * 0.25 * 0.75)


def test_a_published_name_is_found_by_ip_netns_and_gone_after() -> None:
    place = Path("/run/netns")
    with emulated(publish=place):
        shown = subprocess.run(["ip", "netns", "exec", "leaf0", "ip", "-o", "link"], capture_output=True, text=True, check=True)
        assert "leaf0-eth0" in shown.stdout
        assert len(list(place.iterdir())) == 8 + 2 + 2
    assert list(place.iterdir()) == []
