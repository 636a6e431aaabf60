"""Which way a flow goes: predicted when its connection opens, and realised, from what the network itself has counted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kvfabric.rows import FlowRow
from topo.emulated import EmulatedFabric, FlowTuple, NoPathError
from topo.emulated_optical import EmulatedOptical
from topo.fabric import NodeKind, Port
from topo.links import LinkCounters
from topo.optical import KV_NIC, PlanePort
from topo.shaping import PortShape
from workloads.replay.paths import path_name, realised_path


class Paths(Protocol):
    """The paths of one kind of network. ``shape`` is that of the port at which a flow alone is limited."""

    shape: PortShape

    def address(self, host: str) -> str:
        """Of the NIC that KV leaves and enters by."""

    def predict(self, source: str, destination: str, sport: int, dport: int) -> str | None:
        """The path of a connection that is about to open; None if there is none."""

    def realised(self, rows: Sequence[FlowRow]) -> list[str | None]:
        """The path that every flow took, None where the network's own counters do not prove one."""


class RoutedPaths:
    """Over a leaf-spine: the kernel's own route lookup, and what every spine has counted of each 5-tuple."""

    def __init__(self, fabric: EmulatedFabric, rate_Bps: float) -> None:
        self.shape = fabric.settings.shape(rate_Bps)
        self._fabric = fabric
        peer, ports = fabric.fabric.peer, fabric.fabric.ports_of
        self._leaf_of = {host.name: peer[ports[host.name][0]].node for host in fabric.fabric.of_kind(NodeKind.HOST)}

    def address(self, host: str) -> str:
        """See Paths."""
        return self._fabric.address(host)

    def predict(self, source: str, destination: str, sport: int, dport: int) -> str | None:
        """See Paths."""
        try:
            return path_name([port.node for port in self._fabric.predict(FlowTuple(source, destination, sport, dport))[1:]])
        except NoPathError:
            return None

    def realised(self, rows: Sequence[FlowRow]) -> list[str | None]:
        """See Paths."""
        carried: dict[tuple[str, str, int, int], int] = {}
        for row in rows:
            if row.status == "completed" and row.sport is not None and row.dport is not None:
                key = (row.source_address, row.destination_address, row.sport, row.dport)
                carried[key] = carried.get(key, 0) + row.bytes_emu
        observed = self._fabric.observed()
        found: list[str | None] = []
        for row in rows:
            if row.sport is None or row.dport is None:
                found.append(None)
                continue
            key = (row.source_address, row.destination_address, row.sport, row.dport)
            counted = {spine: count.bytes for spine, count in observed.get(key, {}).items()}
            found.append(realised_path(self._leaf_of[row.source], self._leaf_of[row.destination], counted, carried.get(key, 0)))
        return found


class CircuitPaths:
    """Through an optical plane. A KV NIC leads nowhere else; that the flows came by it is proved by the bytes that the switch
    has received from every sender, and sent to every receiver, since ``begin``."""

    def __init__(self, fabric: EmulatedOptical) -> None:
        self.shape = fabric.kv_settings.shape(fabric.optical.rate_Bps)
        self._fabric = fabric
        self._place = {fabric.optical.name(gpu): place for place, gpu in fabric.optical.places()}
        self._before: dict[PlanePort, LinkCounters] = {}

    def begin(self) -> None:
        """What is counted from here on belongs to the window."""
        self._before = self._fabric.switch_counters()

    def address(self, host: str) -> str:
        """See Paths."""
        return self._fabric.kv_address(host)

    def predict(self, source: str, destination: str, sport: int, dport: int) -> str | None:
        """See Paths."""
        del sport, dport  # a circuit carries whatever its ports are given
        switch = self._fabric.optical.fabric.peer[Port(source, KV_NIC)].node
        return switch if self._fabric.optical.fabric.peer[Port(destination, KV_NIC)].node == switch else None

    def realised(self, rows: Sequence[FlowRow]) -> list[str | None]:
        """See Paths."""
        sent: dict[str, int] = {}
        received: dict[str, int] = {}
        for row in rows:
            if row.status == "completed":
                sent[row.source] = sent.get(row.source, 0) + row.bytes_emu
                received[row.destination] = received.get(row.destination, 0) + row.bytes_emu
        now = self._fabric.switch_counters()

        def carried(host: str, wanted: int, counter: str) -> bool:
            place = self._place[host]
            if place not in now or place not in self._before:
                return False
            counted: int = getattr(now[place], counter) - getattr(self._before[place], counter)
            return counted >= wanted

        into = {host for host, wanted in sent.items() if carried(host, wanted, "rx_bytes")}
        out = {host for host, wanted in received.items() if carried(host, wanted, "tx_bytes")}
        return [
            self.predict(row.source, row.destination, 0, 0) if row.source in into and row.destination in out else None
            for row in rows
        ]
