"""The planes in real namespaces: shaped as planned, dark until opened, light only along circuits, dark for τ while they move."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from ocs_switch.darkness import astray, lost, move
from ocs_switch.fence import Fence, FenceError
from ocs_switch.probes import PacedStreams, Probes, Station, build_frame, parse_frame
from ocs_switch.shutters import Shutters
from topo import links
from topo.cluster import Cluster
from topo.emulated import LinkSettings
from topo.emulated_optical import EmulatedOptical, SwitchSettings
from topo.fabric import Port
from topo.flowtext import circuit_rules
from topo.leafspine import LeafSpine
from topo.optical import KV_NIC, Optical, PlanePort

pytestmark = [pytest.mark.netns, pytest.mark.sealed]

CLUSTER = Cluster(2, 2, 2, 4)
RATE_BPS = 25e6
TSO = {"tso": True, "gso": True, "gro": False}


@contextmanager
def planes(directory: Path, cluster: Cluster = CLUSTER) -> Iterator[tuple[EmulatedOptical, Shutters]]:
    optical = Optical(cluster, RATE_BPS)
    leafspine = LeafSpine(cluster, 1, RATE_BPS).build()
    kv = LinkSettings(9000, classes=8, offload=TSO)
    settings = LinkSettings(1500, classes=8)
    with (
        EmulatedOptical(leafspine, settings, optical, kv, SwitchSettings(directory, datapath="user"), observed=False) as net,
        Shutters.attached_to(net.node("ocs0").namespace.netlink, net.switch_indices()) as shutters,
    ):
        yield net, shutters


def join(net: EmulatedOptical, plane: int, a: int, b: int) -> None:
    for one, other in ((a, b), (b, a)):
        net.switch.ofctl("add-flow", f"ocs{plane}", f"in_port={one + 1},actions=output:{other + 1}")


def stations(net: EmulatedOptical, plane: int) -> list[Station]:
    found = []
    for place, gpu in net.optical.places():
        if place.plane == plane:
            host = net.optical.name(gpu)
            mac = net.optical.fabric.by_name[host].mac(KV_NIC)
            found.append(Station(place.port, net.node(host).namespace, Port(host, KV_NIC).name, mac))
    return found


def connects(net: EmulatedOptical, source: str, destination: str, size: int = 300_000) -> bool:
    """Whether a TCP connection between KV NICs carries ``size`` bytes unharmed within a second."""
    payload = os.urandom(size)
    with net.node(destination).namespace.entered():
        server = socket.create_server((net.kv_address(destination), 7001))
    with net.node(source).namespace.entered():
        client = socket.socket()
    with server, client:
        client.settimeout(1)
        server.settimeout(1)
        client.bind((net.kv_address(source), 0))
        try:
            client.connect((net.kv_address(destination), 7001))
        except TimeoutError:
            return False
        served, _ = server.accept()
        with served:
            served.settimeout(1)
            got = bytearray()
            client.setblocking(False)
            sent = 0
            while len(got) < size:
                if sent < size:
                    with suppress(BlockingIOError):
                        sent += client.send(payload[sent:])
                got += served.recv(65536)
            return bytes(got) == payload


def test_planes_come_up_shaped_and_wired_as_planned(tmp_path: Path) -> None:
    with planes(tmp_path) as (net, shutters):
        assert net.shaping_faults() == []
        assert shutters.faults(net.node("ocs0").namespace.netlink) == []
        assert net.switch.buffer_faults() == []
        assert net.switch.bridges() == ("ocs0", "ocs1")
        assert set(net.counters()) == set(net.shapes)
        assert len(set(net.switch_indices().values())) == net.optical.planes * net.optical.ports
        assert set(net.switch_counters()) == set(net.switch_indices())
        assert net.kv_path("p1g1", "d0g1") == (Port("p1g1", 1), Port("ocs1", 2))
        assert {net.offloads()[port.name]["tso"] for port in net.optical.fabric.peer} == {True}


def test_a_queue_at_the_switchs_end_and_a_missing_one_at_the_hosts_are_named(tmp_path: Path) -> None:
    with planes(tmp_path) as (net, shutters):
        subprocess.run(["tc", "qdisc", "add", "dev", "ocs0-eth1", "root", "pfifo"], check=True)
        enter = net.node("d0g1").namespace.enter
        subprocess.run(["tc", "qdisc", "del", "dev", "d0g1-eth1", "root"], preexec_fn=enter, check=True)
        faults = net.shaping_faults()
        assert "ocs0-eth1: qdisc is pfifo, planned none" in faults
        assert len(faults) == 2
        assert any(fault.startswith("d0g1-eth1: qdisc is ") for fault in faults)
        netlink = net.node("ocs0").namespace.netlink
        index = shutters.indices[PlanePort(1, 3)]
        netlink.apply([links.delete_link(index, "ocs1-eth3")])
        assert shutters.faults(netlink) == [f"plane 1 port 3: no shutter of ours on interface {index}"]


def test_tcp_with_segmentation_offload_passes_unharmed_along_a_lit_circuit_only(tmp_path: Path) -> None:
    with planes(tmp_path) as (net, shutters):
        join(net, 0, 0, 2)
        ends = [PlanePort(0, 0), PlanePort(0, 2)]
        assert not connects(net, "p0g0", "d0g0")
        assert shutters.lost()[PlanePort(0, 0)].packets > 0
        shutters.open(ends)
        assert connects(net, "p0g0", "d0g0", 3_000_000)
        assert circuit_rules(net.switch.flows("ocs0")) == {(1, 3), (3, 1)}
        assert not connects(net, "p1g0", "d0g0")


def test_what_arrives_and_what_must_not_between_all_ports(tmp_path: Path) -> None:
    with planes(tmp_path) as (net, shutters), Fence(tmp_path / "ovs-vswitchd.ctl") as fence:
        shutters.open(shutters.indices)
        join(net, 1, 0, 3)
        with Probes(stations(net, 1)) as probes:
            assert astray(probes.reach(), [(0, 3)]) == []
            net.switch.ofctl("add-flow", "ocs1", "in_port=2,actions=output:4")  # a rule that should not be
            fence.raise_now()
            problems = astray(probes.reach(), [(0, 3)])
            assert len(problems) == 4
            assert all(problem.startswith("port 1: ") and "came out at 3" in problem for problem in problems)


def test_a_moved_circuit_is_dark_for_tau_and_the_other_loses_nothing(tmp_path: Path) -> None:
    """Rules are changed long before light comes back; the stream sees the shutters' window and nothing else."""
    tau_ns = 60_000_000
    with planes(tmp_path, Cluster(2, 3, 1, 3)) as (net, shutters), Fence(tmp_path / "ovs-vswitchd.ctl") as fence:
        for a, b in ((0, 2), (1, 4)):
            join(net, 0, a, b)
        shutters.open(PlanePort(0, port) for port in (0, 1, 2, 4))
        with Probes(stations(net, 0)) as probes, PacedStreams(probes, {0: 2, 1: 4}, rate=2000, seconds=5) as streams:
            time.sleep(0.1)
            began = time.monotonic_ns() + 1_000_000  # ahead, or the instant is past when it is written
            shutters.shut([PlanePort(0, 0), PlanePort(0, 2), PlanePort(0, 3)], began)
            time.sleep(0.002)
            net.switch.ofctl("del-flows", "ocs0", "in_port=3")
            net.switch.ofctl("mod-flows", "ocs0", "in_port=1,actions=output:4")
            fence.raise_now()
            shutters.shut([PlanePort(0, 0), PlanePort(0, 3)], began, max(began + tau_ns, time.monotonic_ns()))
            lit = shutters.state(PlanePort(0, 0)).until_ns
            time.sleep(max(0.0, (lit - time.monotonic_ns()) / 1e9) + 0.1)
            streams.stop()
            time.sleep(0.05)
            arrivals = probes.collect()
            by_port = {port: {one.number for one in arrivals if one.source == 0 and one.port == port} for port in range(5)}
            found = move(streams.sent_ns(0), by_port, 2, 3, range(streams.sent), (began, lit))
            assert found is not None
            assert (found.wrong, found.lost_besides) == (0, 0)
            assert found.gap.least_s <= (lit - began) / 1e9 <= found.gap.most_s
            assert lost(streams.sent, {one.number for one in arrivals if (one.source, one.port) == (1, 4)}) == 0
            assert shutters.lost()[PlanePort(0, 0)].packets == found.gap.lost


def test_twice_in_a_row_leaves_no_name_taken(tmp_path: Path) -> None:
    for _ in range(2):
        with planes(tmp_path) as (net, _shutters):
            assert net.shaping_faults() == []
    assert not [name for _, name in socket.if_nameindex() if name.startswith("ocs")]


def test_a_fence_without_a_switch_says_so(tmp_path: Path) -> None:
    with pytest.raises(FenceError):
        Fence(tmp_path / "nobody.ctl")
    with planes(tmp_path), Fence(tmp_path / "ovs-vswitchd.ctl") as fence, pytest.raises(FenceError, match="refused"):
        fence.raise_now("no/such-command")


def test_a_probe_says_who_sent_it() -> None:
    frame = build_frame("02:00:00:00:00:01", "02:00:00:00:00:02", 3, 5, 70_000)
    assert len(frame) == 60
    assert parse_frame(frame) == (3, 5, 70_000)
    assert parse_frame(frame[:-1].replace(b"kvfabric", b"kvfabriX")) is None
