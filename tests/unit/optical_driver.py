"""Runs of the serving model on a crossbar, and what must hold of every one of them. No test in here."""

from __future__ import annotations

from dataclasses import dataclass, field

from controller.optical import OpticalNetwork
from controller.optical_config import OpticalConfig
from controller.prediction import LaplaceError
from flowsim.circuits import CircuitError, CircuitRun, CircuitSimulation, Disturbance
from ocs_switch.crossbar import Circuit, Crossbar, Dark, Down, Refused, Up
from workloads.serving import ChunkTimes, ChunkTokens, ServingModel
from workloads.serving_config import ServingConfig
from workloads.turns import Turn


@dataclass
class Plane:
    """A crossbar whose ports are the prefill instances, then the decodes; it notes when each circuit was lit."""

    crossbar: Crossbar
    prefill: int
    broken: frozenset[tuple[int, int]] = frozenset()
    lit: dict[tuple[int, int], list[list[float]]] = field(default_factory=dict)
    commands: list[tuple[float, int, int]] = field(default_factory=list)

    def __call__(self, *, prefill: int, decode: int, now_s: float, fresh: bool) -> float:
        a, b = prefill, self.prefill + decode
        self.commands.append((now_s, prefill, decode))
        events = list(self.crossbar.advance(now_s))
        if fresh:
            events += self.crossbar.disconnect(a, b, now_s)
        events += self.crossbar.connect(a, b, now_s, replace=True)
        up_s = now_s
        for event in events:
            assert not isinstance(event, Refused), event
            pair = event.circuit.a, event.circuit.b - self.prefill
            if isinstance(event, Up):
                self.lit.setdefault(pair, []).append([event.at_s, float("inf")])
            elif isinstance(event, Down):
                self.lit[pair][-1][1] = event.at_s
            elif isinstance(event, Dark) and event.circuit == Circuit.of(a, b):
                up_s = event.until_s
        if (prefill, decode) in self.broken:
            raise CircuitError("a mirror is stuck")
        return up_s

    def was_lit(self, prefill: int, decode: int, start_s: float, end_s: float) -> bool:
        """Whether the circuit carried light from one instant to the other without a stop."""
        for event in self.crossbar.advance(max(end_s, self.crossbar._now_s)):
            assert isinstance(event, Up)
            self.lit.setdefault((event.circuit.a, event.circuit.b - self.prefill), []).append([event.at_s, float("inf")])
        return any(up_s <= start_s and end_s <= down_s for up_s, down_s in self.lit.get((prefill, decode), []))


@dataclass
class Outcome:
    run: CircuitRun
    network: OpticalNetwork
    plane: Plane


def simulate(
    serving: ServingConfig,
    optical: OpticalConfig,
    times: ChunkTimes,
    tokens: ChunkTokens,
    turns: list[Turn],
    *,
    circuit_aware: bool = False,
    slack: float = 0.1,
    error: LaplaceError | None = None,
    disturbance: Disturbance | None = None,
    broken: frozenset[tuple[int, int]] = frozenset(),
) -> Outcome:
    network = OpticalNetwork(optical, left_bytes=lambda transfer: simulation.left_bytes(transfer), error=error)
    choose = network.decode_choice("circuit" if circuit_aware else "load", slack=slack)
    model = ServingModel(serving, times, tokens, choose)
    plane = Plane(Crossbar(serving.prefill + serving.decode, optical.tau_s), serving.prefill, broken)
    simulation = CircuitSimulation(model, network, plane, disturbance)
    return Outcome(simulation.simulate(turns), network, plane)
