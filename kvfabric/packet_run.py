"""The run of a scenario over packets: what an emulation asks of its network, answered by a leaf-spine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from time import monotonic

from kvfabric.evidence import CircuitEvidence
from kvfabric.flow_paths import RoutedPaths
from kvfabric.preflight import Preflight, host_pairs, preflight
from kvfabric.rows import CircuitRow
from kvfabric.scenario import Scenario
from kvfabric.testbed import build_testbed, endpoints
from kvfabric.workload import Workload, serving_model
from topo.cluster import Role
from topo.emulated import EmulatedFabric
from topo.leafspine import host_name
from topo.scale import Scale
from topo.steering import Steering
from workloads.replay.connections import Endpoint
from workloads.replay.engine import ReplayEngine
from workloads.replay.network import TransferNetwork
from workloads.serving import ServingModel

Stopped = Callable[[], object]
"""Whether somebody has asked the run to stop."""

TABLES = ("requests", "transfers", "flows", "links")
_PREPARE_S = 20.0
_MAX_PREPARED = 4096


class PacketRun:
    """To be closed, inside a sandbox. Raises OSError or ObserveError when the machine refuses any of it."""

    tables = TABLES

    def __init__(self, scenario: Scenario, workload: Workload, publish: Path | None, steering: Steering | None) -> None:
        self._scenario = scenario
        self._workload = workload
        self._fabric = build_testbed(scenario, publish, steering)
        self.paths = RoutedPaths(self._fabric, scenario.scale.rate)

    def close(self) -> None:
        """Take the network down."""
        self._fabric.close()

    @property
    def fabric(self) -> EmulatedFabric:
        return self._fabric

    def endpoints(self) -> Mapping[str, Endpoint]:
        """Every host as the replay sees it."""
        return endpoints(self._fabric)

    def facts(self) -> dict[str, object]:
        """For the manifest, what no other network has: nothing."""
        return {}

    def preflight(self, engine: ReplayEngine) -> Preflight:
        """Real transfers between one pair of each class, and one flow alone."""
        return preflight(engine, host_pairs(self._scenario.cluster_layout()), self._scenario.scale.rate)

    def prepare(self, engine: ReplayEngine, stopped: Stopped) -> None:
        """Before the window: connections that are reused are opened (an engine in service has them open too), for fresh ones
        the sockets are made, so that the first packet of a flow is not late for its own socket."""
        cluster, emulation = self._scenario.cluster, self._scenario.emulation
        pairs = cluster.prefill * cluster.decode
        if emulation.classes % cluster.tp or pairs * emulation.classes > _MAX_PREPARED:
            return
        ready = engine.dialer.prepare if emulation.connections == "reused" else engine.dialer.prepare_socket
        for prefill in range(cluster.prefill):
            for decode in range(cluster.decode):
                for connection in connections_of(prefill, decode, tp=cluster.tp, classes=emulation.classes):
                    ready(*connection)
        until_open(engine, stopped)

    def open(self, engine: ReplayEngine, scale: Scale, epoch: float, lookahead_s: float, *,
             rehearsal: bool = False) -> tuple[ServingModel, TransferNetwork | None]:  # fmt: skip
        """The serving model of a window that begins at ``epoch``, and what its transfers have to wait for: nothing."""
        del engine, scale, epoch, rehearsal
        return serving_model(self._scenario, self._workload, lookahead_s), None

    def rehearsed(self) -> None:
        """Between rehearsal and window: nothing is left of it."""

    def faults(self) -> tuple[str, ...]:
        """What is not as it should be, beyond shaping: nothing."""
        return ()

    def close_books(self) -> tuple[CircuitRow, ...]:
        """Rows of circuits: none."""
        return ()

    def evidence(self) -> CircuitEvidence | None:
        """What the verdict has to know of circuits: nothing."""
        return None


def connections_of(prefill: int, decode: int, *, tp: int, classes: int) -> Iterator[tuple[str, str, int]]:
    """Every connection between an instance pair: (source, destination, slot)."""
    for slot in range(classes):
        position = slot % tp
        yield host_name(Role.PREFILL, prefill, position), host_name(Role.DECODE, decode, position), slot


def until_open(engine: ReplayEngine, stopped: Stopped) -> None:
    """Let the loop run until every connection that was prepared is open; not for ever."""
    until = monotonic() + _PREPARE_S
    while engine.dialer.preparing and monotonic() < until and not stopped():
        engine.run(monotonic() + 0.05)
