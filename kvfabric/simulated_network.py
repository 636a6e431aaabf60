"""What a scenario's network is to the simulator: links, paths and rules of a leaf-spine; the optical network and its crossbar."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from controller.uplinks import Ecmp, FiveTuple, Given, Pinned, UplinkChoice
from flowsim.circuits import CircuitError, CircuitRun, CircuitSimulation
from flowsim.leafspine import LeafSpineLinks
from flowsim.simulation import PacketRun, PacketSimulation
from flowsim.solver import Effort, FastNetwork
from kvfabric.optical_policy import choice_of_decode, chosen_at, optical_network
from kvfabric.scenario import Scenario
from kvfabric.workload import Workload, serving_model
from ocs_switch.crossbar import Crossbar, Dark, Refused
from topo.cluster import Role
from topo.leafspine import LeafSpine, host_name
from topo.scale import Scale
from workloads.decode_choice import DecodeChoice, named_choice
from workloads.events import StartTransfer
from workloads.replay.connections import LISTEN_PORT, source_port
from workloads.replay.paths import path_name

_FRESH_PORTS = 48_000


@dataclass(frozen=True, slots=True)
class Handed:
    """What a run was given of another: the spine of each flow, and the decodes chosen by each prefill instance, by instant."""

    spine_of: Mapping[int, int] = field(default_factory=dict)
    decodes: Mapping[tuple[int, float], Sequence[int]] = field(default_factory=dict)


class GivenDecodes:
    """The decodes that another run chose, by prefill instance and instant; what it does not know is for ``otherwise``."""

    def __init__(self, decodes: Mapping[tuple[int, float], Sequence[int]], otherwise: DecodeChoice) -> None:
        self._left = {key: list(chosen) for key, chosen in decodes.items()}
        self._otherwise = otherwise

    def __call__(self, *, prefill: int, holder: int | None, loads: Sequence[int], head_bytes: int, now_s: float) -> int:
        left = self._left.get((prefill, now_s))
        if left:
            return left.pop(0)
        return self._otherwise(prefill=prefill, holder=holder, loads=loads, head_bytes=head_bytes, now_s=now_s)


class SimulatedPackets:
    """A leaf-spine as a fluid, by the scenario's routing."""

    def __init__(self, scenario: Scenario, workload: Workload, handed: Handed) -> None:
        self._scenario = scenario
        self._workload = workload
        self._cluster = scenario.cluster_layout()
        self._leafspine = LeafSpine(self._cluster, scenario.uplinks, scenario.fabric.rate)
        routing = scenario.fabric.routing
        self._pooled = routing in ("adaptive", "srpt")
        self._limited = routing != "ceiling"
        self._links = LeafSpineLinks(self._leafspine, pooled=self._pooled)
        chosen: UplinkChoice = Pinned(scenario.uplinks) if routing == "pinned" else Ecmp(scenario.uplinks, scenario.seed)
        self._choose = Given(handed.spine_of, chosen) if handed.spine_of else chosen
        self._network = FastNetwork(self._links.capacity_Bps, rule="srpt" if routing == "srpt" else "fair")
        self.path_of: dict[int, str] = {}

    def run(self, until_s: float) -> PacketRun:
        """Simulate it."""
        model = serving_model(self._scenario, self._workload)
        simulation = PacketSimulation(model, self._network, self._path, tp=self._cluster.tp)
        return simulation.simulate(self._workload.offered.turns, until_s=until_s)

    @property
    def effort(self) -> Effort:
        """What it took."""
        return self._network.effort

    def five_tuple(self, start: StartTransfer, position: int) -> FiveTuple:
        """Of a flow: as the emulation has it where connections are reused and no two flows of a slot overlap."""
        flow, classes = start.transfer * self._cluster.tp + position, self._scenario.emulation.classes
        turn = 0 if self._scenario.emulation.connections == "reused" else flow // classes % (_FRESH_PORTS // classes)
        sport = source_port(flow % classes, classes, turn)
        source, destination = host_name(Role.PREFILL, start.prefill, position), host_name(Role.DECODE, start.decode, position)
        return FiveTuple(source, destination, sport, LISTEN_PORT)

    def _path(self, start: StartTransfer, position: int) -> tuple[int, ...]:
        source = self._cluster.gpu(Role.PREFILL, start.prefill, position)
        destination = self._cluster.gpu(Role.DECODE, start.decode, position)
        flow, leaf, other = start.transfer * self._cluster.tp + position, source.rack, destination.rack
        spine = 0
        if leaf == other:
            self.path_of[flow] = path_name([f"leaf{leaf}"])
        elif self._pooled or not self._limited:
            self.path_of[flow] = path_name([f"leaf{leaf}", "spines", f"leaf{other}"])
        else:
            spine = self._choose(flow, self.five_tuple(start, position), leaf, other)
            self.path_of[flow] = path_name([f"leaf{leaf}", f"spine{spine}", f"leaf{other}"])
        return self._links.path(source, destination, spine) if self._limited else ()


class _Switch:
    """All planes as one crossbar: they move together. Ports are the prefill instances, then the decodes."""

    def __init__(self, prefill: int, decode: int, tau_s: float) -> None:
        self._prefill = prefill
        self._crossbar = Crossbar(prefill + decode, tau_s)

    def __call__(self, *, prefill: int, decode: int, now_s: float, fresh: bool) -> float:
        a, b = prefill, self._prefill + decode
        events = [*self._crossbar.advance(now_s), *(self._crossbar.disconnect(a, b, now_s) if fresh else ())]
        events += self._crossbar.connect(a, b, now_s, replace=True)
        for event in events:
            if isinstance(event, Refused):
                raise CircuitError(str(event))
        return max((event.until_s for event in events if isinstance(event, Dark)), default=now_s)


class SimulatedCircuits:
    """An optical circuit switch, exact, by the scenario's policy."""

    def __init__(self, scenario: Scenario, workload: Workload, handed: Handed) -> None:
        ocs = scenario.fabric.optical_switch()
        cluster, scale = scenario.cluster, Scale(scenario.fabric.rate, scenario.scale.rate, scenario.scale.time)
        self.network = optical_network(scenario, workload, scale, scale.to_emu_time(ocs.tau), self._left_bytes)
        self._workload = workload
        choose = choice_of_decode(scenario, self.network)
        if handed.decodes:
            choose = GivenDecodes(handed.decodes, choose or named_choice(scenario.workload.decode))
        model = serving_model(scenario, workload, choose=choose, choose_at=chosen_at(scenario))
        self._simulation = CircuitSimulation(model, self.network, _Switch(cluster.prefill, cluster.decode, ocs.tau))

    def run(self, until_s: float) -> CircuitRun:
        """Simulate it."""
        return self._simulation.simulate(self._workload.offered.turns, until_s=until_s)

    def _left_bytes(self, transfer: int) -> float:
        return self._simulation.left_bytes(transfer)
