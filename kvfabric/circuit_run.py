"""The run of a scenario over circuits: what an emulation asks of its network, answered by planes, shutters and the controller."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from controller.optical import OpticalNetwork
from controller.optical_events import WindowRecord
from kvfabric.circuit_driver import CircuitDriver, Command
from kvfabric.evidence import CircuitEvidence
from kvfabric.flow_paths import CircuitPaths
from kvfabric.optical_policy import choice_of_decode, chosen_at, optical_network
from kvfabric.optical_testbed import OpticalTestbed
from kvfabric.packet_run import Stopped, connections_of, until_open
from kvfabric.preflight import Preflight, preflight
from kvfabric.rows import CircuitRow
from kvfabric.scenario import Scenario
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

TABLES = ("requests", "transfers", "flows", "links", "circuits")
_LONG_EMU_S = 0.05


class CircuitRun:
    """To be closed. See PacketRun, which answers the same questions. Raises what OpticalTestbed raises."""

    tables = TABLES

    def __init__(self, scenario: Scenario, workload: Workload, publish: Path | None, steering: Steering | None) -> None:
        self._scenario = scenario
        self._workload = workload
        self._ocs = scenario.fabric.optical_switch()
        self._testbed = OpticalTestbed(scenario, publish, steering)
        self.paths = CircuitPaths(self._testbed.fabric)
        self.rows: list[CircuitRow] = []
        self._faults: list[str] = []
        self._carried: list[float] = []
        self._driver: CircuitDriver | None = None
        self._network: OpticalNetwork | None = None
        self._lost_before = self._lost()
        self._in_window = False

    def close(self) -> None:
        """Take the network down."""
        self._testbed.close()

    @property
    def fabric(self) -> EmulatedFabric:
        return self._testbed.fabric

    def endpoints(self) -> Mapping[str, Endpoint]:
        """Every host by its KV NIC."""
        return self._testbed.endpoints()

    def facts(self) -> dict[str, object]:
        """For the manifest: the switch as it is."""
        return {
            "planes": self._testbed.optical.planes,
            "ports": self._testbed.optical.ports,
            "datapath": self._testbed.fabric.switch.datapath,
            "tau_emu_s": self._testbed.tau_emu_s,
        }

    def preflight(self, engine: ReplayEngine) -> Preflight:
        """One circuit on every plane, then as over packets."""
        engine.watch(self._testbed.controller.client.filenos[0], self._receive)
        engine.watch(self._testbed.controller.client.filenos[1], self._receive)
        self._testbed.join({0: 0})
        pairs = tuple(
            (
                f"plane {position % self._testbed.optical.planes}",
                host_name(Role.PREFILL, 0, position),
                host_name(Role.DECODE, 0, position),
            )
            for position in range(self._scenario.cluster.tp)
        )
        return preflight(engine, pairs, self._scenario.scale.rate)

    def prepare(self, engine: ReplayEngine, stopped: Stopped) -> None:
        """Open every connection there will be, a matching of instances at a time: a handshake needs its circuit."""
        cluster, classes = self._scenario.cluster, self._scenario.emulation.classes
        for shift in range(max(cluster.prefill, cluster.decode)):
            pairs = matching(cluster.prefill, cluster.decode, shift)
            self._testbed.join(pairs)
            for prefill, decode in pairs.items():
                for connection in connections_of(prefill, decode, tp=cluster.tp, classes=classes):
                    engine.dialer.prepare(*connection)
            until_open(engine, stopped)
        self._testbed.controller.part()

    def open(self, engine: ReplayEngine, scale: Scale, epoch: float, lookahead_s: float, *,
             rehearsal: bool = False) -> tuple[ServingModel, TransferNetwork | None]:  # fmt: skip
        """The serving model of a window that begins at ``epoch``, and what its transfers have to wait for."""
        network = optical_network(
            self._scenario, self._workload, scale, self._testbed.tau_emu_s,
            lambda transfer: driver.left_bytes(transfer),  # noqa: PLW0108 - made next
        )  # fmt: skip
        driver = CircuitDriver(
            network, engine, self._testbed.controller.client, self._testbed.optical, scale,
            epoch=epoch,
            on_window=(lambda _record, _command: None) if rehearsal else self._window_over,
            on_fault=self._faults.append,
        )  # fmt: skip
        self._driver, self._network, self._in_window = driver, network, not rehearsal
        choose, at = choice_of_decode(self._scenario, network), chosen_at(self._scenario)
        return serving_model(self._scenario, self._workload, lookahead_s, choose=choose, choose_at=at), driver

    def rehearsed(self) -> None:
        """Between rehearsal and window: no circuit stands, and what was noticed is forgotten."""
        self._driver = None
        self._testbed.controller.part()
        self._faults.clear()
        self._testbed.controller.noticed.clear()
        self._lost_before = self._lost()
        self.paths.begin()

    def _receive(self) -> None:
        if self._driver is None:
            self._testbed.controller.client.receive()  # of what was before: nobody waits for it
            return
        self._driver.receive()

    def _window_over(self, record: WindowRecord, command: Command | None) -> None:
        if record.start_s is None:  # given back before it came to a command
            command = None
        ideal_s = record.size / self._scenario.fabric.rate
        # A head is released whole before its window, and so is all after the prefill; one this long does not measure how long its
        # end took to be noticed.
        whole = record.part == "head" or self._ocs.policy == "after"
        if whole and record.data_s is not None and ideal_s * self._scenario.scale.time >= _LONG_EMU_S:
            self._carried.append(ideal_s / (record.end_s - record.data_s))
        measured: dict[str, float] = {}
        if command is not None and command.waiting == 0 and command.dark_times_ns:
            dark_ns = max(command.dark_times_ns)
            measured = {
                "control_emu_s": (command.dark_ns - command.planned_ns) / 1e9,
                "dark_emu_s": dark_ns / 1e9,
                "dark_error_emu_s": (dark_ns - self._testbed.tau_emu_s * 1e9) / 1e9,
            }
        failed = command is not None and command.failed is not None
        self.rows.append(CircuitRow.over(len(self.rows), record, failed=failed, **measured))

    def _lost(self) -> int:
        return sum(lost.packets for lost in self._testbed.shutters.lost().values())

    def faults(self) -> tuple[str, ...]:
        """What is not as it should be, now, while nothing moves."""
        return tuple(self._testbed.faults())

    def close_books(self) -> tuple[CircuitRow, ...]:
        """The window is over: rows of circuits, those included that still stand booked."""
        if self._driver is not None and self._in_window:
            self._driver.close_books()
        return tuple(self.rows)

    def evidence(self) -> CircuitEvidence | None:
        """What the verdict has to know of the circuits."""
        counts = self._network.counts if self._network is not None and self._in_window else None
        return CircuitEvidence(
            faults=(*self._faults, *self._testbed.controller.noticed),
            lost_packets=self._lost() - self._lost_before,
            tau_emu_s=self._testbed.tau_emu_s,
            dark_errors_emu_s=tuple(row.dark_error_emu_s for row in self.rows if row.dark_error_emu_s is not None),
            carried=tuple(self._carried),
            control_emu_s=tuple(row.control_emu_s for row in self.rows if row.control_emu_s is not None),
            booked=counts.booked if counts else 0,
            reconfigurations=counts.reconfigurations if counts else 0,
            reused=counts.reused if counts else 0,
        )


def matching(prefill: int, decode: int, shift: int) -> dict[int, int]:
    """Of ``max(prefill, decode)`` matchings that together have every pair once, number ``shift``: prefill → decode."""
    size = max(prefill, decode)
    pairs = ((place, (place + shift) % size) for place in range(size))
    return {p: d for p, d in pairs if p < prefill and d < decode}
