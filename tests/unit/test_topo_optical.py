"""The planes of a cluster: every GPU in one, at a port of its own, with names, addresses and MACs nobody else has."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topo.cluster import Cluster, Role
from topo.fabric import IFNAMSIZ, FabricError, NodeKind, Port
from topo.leafspine import LeafSpine
from topo.optical import KV_NIC, Optical, PlaneCircuit, PlanePort, switch_mac
from topo.routing import layer3

pytestmark = pytest.mark.unit

RATE_BPS = 25e6
SMALL = Cluster(2, 2, 4, 4)


@st.composite
def opticals(draw: st.DrawFn) -> Optical:
    planes = draw(st.integers(1, 4))
    cluster = Cluster(draw(st.integers(1, 5)), draw(st.integers(1, 5)), planes * draw(st.integers(1, 3)), 8)
    return Optical(cluster, RATE_BPS, planes)


@settings(max_examples=50, deadline=None)
@given(opticals())
def test_every_gpu_has_one_port_and_every_port_one_gpu(optical: Optical) -> None:
    places = [optical.at(gpu.role, gpu.instance, gpu.position) for gpu in optical.cluster.gpus()]
    assert sorted(places) == [place for place, _ in optical.places()]
    assert [optical.gpu_at(place) for place in places] == list(optical.cluster.gpus())
    assert optical.planes * optical.ports == optical.cluster.size


@settings(max_examples=50, deadline=None)
@given(opticals(), st.data())
def test_two_instances_are_joined_position_by_position(optical: Optical, data: st.DataObject) -> None:
    prefill = data.draw(st.integers(0, optical.cluster.prefill - 1))
    decode = data.draw(st.integers(0, optical.cluster.decode - 1))
    circuits = optical.circuits(prefill, decode)
    assert len(circuits) == optical.cluster.tp
    for position, circuit in enumerate(circuits):
        source = optical.gpu_at(PlanePort(circuit.plane, circuit.prefill_port))
        sink = optical.gpu_at(PlanePort(circuit.plane, circuit.decode_port))
        assert (source.role, source.instance, source.position) == (Role.PREFILL, prefill, position)
        assert (sink.role, sink.instance, sink.position) == (Role.DECODE, decode, position)


def test_a_plane_is_a_gpu_position_and_prefill_comes_first() -> None:
    optical = Optical(SMALL, RATE_BPS)
    assert (optical.planes, optical.ports) == (4, 4)
    assert optical.at(Role.PREFILL, 1, 3) == PlanePort(3, 1)
    assert optical.at(Role.DECODE, 0, 3) == PlanePort(3, 2)
    assert optical.at(Role.DECODE, 0, 3).openflow == 3
    assert optical.circuits(1, 0)[2] == PlaneCircuit(2, 1, 2)


def test_fewer_planes_carry_several_positions() -> None:
    optical = Optical(SMALL, RATE_BPS, planes=2)
    assert optical.ports == 8
    assert optical.at(Role.PREFILL, 0, 3) == PlanePort(1, 4)
    assert {circuit.plane for circuit in optical.circuits(0, 0)} == {0, 1}


def test_names_addresses_and_macs_are_unique_for_512_gpus() -> None:
    optical = Optical(Cluster(32, 32, 8, 32), RATE_BPS)
    gpus = optical.cluster.gpus()
    leafspine = LeafSpine(optical.cluster, 16, RATE_BPS).build()
    addresses = {optical.address(gpu) for gpu in gpus}
    assert len(addresses) == len(gpus) == 512
    assert all(len(port.name.encode()) <= IFNAMSIZ for link in optical.fabric.links for port in link.ports)
    macs = [leafspine.by_name[port.node].mac(port.number) for port in leafspine.peer]
    macs += [optical.fabric.by_name[optical.name(gpu)].mac(KV_NIC) for gpu in gpus]
    macs += [switch_mac(place) for place, _ in optical.places()]
    assert len(set(macs)) == len(macs)
    dpids = [node.dpid for node in (*leafspine.nodes, *optical.fabric.of_kind(NodeKind.OCS))]
    assert len(set(dpids)) == len(dpids)


def test_kv_addresses_are_disjoint_from_the_leaf_spines() -> None:
    optical = Optical(Cluster(8, 8, 8, 32), RATE_BPS)
    plan = layer3(LeafSpine(optical.cluster, 16, RATE_BPS).build())
    networks = {IPv4Network(cidr, strict=False) for config in optical.configs().values() for cidr in config.addresses.values()}
    taken = [cidr for config in plan.nodes.values() for cidr in config.addresses.values()]
    taken += [config.loopback for config in plan.nodes.values() if config.loopback]
    assert len(networks) == 8
    assert not any(IPv4Address(cidr.partition("/")[0]) in network for cidr in taken for network in networks)


def test_neighbours_are_the_gpus_a_circuit_can_join() -> None:
    optical = Optical(SMALL, RATE_BPS)
    config = optical.configs()["p1g2"]
    by_address = {optical.address(gpu): gpu for gpu in SMALL.gpus()}
    peers = [by_address[entry.address] for entry in config.neighbours]
    assert [(gpu.role, gpu.instance, gpu.position) for gpu in peers] == [(Role.DECODE, 0, 2), (Role.DECODE, 1, 2)]
    assert [entry.mac for entry in config.neighbours] == [optical.fabric.by_name[optical.name(gpu)].mac(KV_NIC) for gpu in peers]
    assert {entry.port for entry in config.neighbours} == {Port("p1g2", KV_NIC)}


def test_hosts_are_those_of_the_leaf_spine() -> None:
    optical = Optical(SMALL, RATE_BPS)
    leafspine = LeafSpine(SMALL, 2, RATE_BPS).build()
    assert optical.fabric.of_kind(NodeKind.HOST) == leafspine.of_kind(NodeKind.HOST)
    assert not set(optical.fabric.peer) & set(leafspine.peer)


@pytest.mark.parametrize("planes", [3, 8, -1])
def test_planes_that_do_not_divide_the_positions_are_refused(planes: int) -> None:
    with pytest.raises(FabricError, match="do not divide"):
        Optical(SMALL, RATE_BPS, planes)


def test_a_gpu_or_port_outside_is_refused() -> None:
    optical = Optical(SMALL, RATE_BPS)
    with pytest.raises(IndexError):
        optical.at(Role.PREFILL, 2, 0)
    with pytest.raises(IndexError, match="no port 4 of plane 0"):
        optical.gpu_at(PlanePort(0, 4))
