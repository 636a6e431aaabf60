"""Reading the ports of an emulated fabric from another process than the one that built it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack
from typing import Protocol

from kvfabric.ports import PortPlan, Reading
from topo import tc
from topo.emulated import EmulatedFabric
from topo.fabric import Port
from topo.netlink import NetlinkSocket


class PortReader(Protocol):
    """Reads the counters of the ports of the named nodes, or of all."""

    def __call__(self, nodes: Collection[str] | None) -> Iterable[Reading]: ...


def port_plans(fabric: EmulatedFabric) -> tuple[PortPlan, ...]:
    """Every port of a fabric as planned."""
    found = []
    for port, shape in fabric.shapes.items():
        found.append(PortPlan(port.name, fabric.peer(port).name, shape.rate_Bps, shape.wire_Bps, shape.burst))
    return tuple(found)


class FabricReader:
    """Opens a netlink socket in every namespace of the fabric. A socket shared over a fork would mix up its answers, so
    this is made in the process that reads. Raises OSError."""

    def __init__(self, fabric: EmulatedFabric, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._nodes: dict[str, tuple[NetlinkSocket, dict[int, str]]] = {}
        with ExitStack() as undo:
            ports_of: dict[str, list[Port]] = {}
            for port in fabric.shapes:
                ports_of.setdefault(port.node, []).append(port)
            for name, ports in ports_of.items():
                node = fabric.node(name)
                with node.namespace.entered():
                    netlink = NetlinkSocket()
                undo.callback(netlink.close)
                self._nodes[name] = netlink, {node.index_of[port.name]: port.name for port in ports if port.name in node.index_of}
            undo.pop_all()

    def __call__(self, nodes: Collection[str] | None) -> Iterator[Reading]:
        for name, (netlink, port_of) in self._nodes.items():
            if nodes is not None and name not in nodes:
                continue
            before = self._clock()
            found = tc.counters(netlink)
            after = self._clock()
            counters = {port_of[index]: counted for index, counted in found.items() if index in port_of}
            yield Reading(name, (before + after) / 2, (after - before) / 2, counters)
