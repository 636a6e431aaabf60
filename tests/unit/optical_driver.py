"""Runs of the serving model on a crossbar, and what must hold of every one of them. No test in here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

from controller.optical import OpticalNetwork
from controller.optical_config import OpticalConfig
from controller.optical_events import OpticalInstruction
from controller.optical_plan import Errors
from flowsim.circuits import CircuitError, CircuitRun, CircuitSimulation, Disturbance
from ocs_switch.crossbar import Circuit, Crossbar, Down, Refused, Up
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
        broken = (prefill, decode) in self.broken
        events = list(self.crossbar.advance(now_s))
        for port in (a, b):
            peer = self.crossbar.peer(port)
            if broken and peer is not None:
                events += self.crossbar.disconnect(port, peer, now_s)
        if fresh:
            events += self.crossbar.disconnect(a, b, now_s)
        if not broken:
            events += self.crossbar.connect(a, b, now_s, replace=True)
        up_s = now_s
        for event in events:
            assert not isinstance(event, Refused), event
            pair = event.circuit.a, event.circuit.b - self.prefill
            if isinstance(event, Up):
                self.lit.setdefault(pair, []).append([event.at_s, float("inf")])
            elif isinstance(event, Down):
                self.lit[pair][-1][1] = event.at_s
            elif event.circuit == Circuit.of(a, b):
                up_s = event.until_s
        if broken:
            raise CircuitError("a mirror is stuck")
        return up_s

    def was_lit(self, prefill: int, decode: int, start_s: float, end_s: float) -> bool:
        """Whether the circuit carried light from one instant to the other without a stop."""
        for event in self.crossbar.advance(max(end_s, self.crossbar._now_s)):
            assert isinstance(event, Up)
            self.lit.setdefault((event.circuit.a, event.circuit.b - self.prefill), []).append([event.at_s, float("inf")])
        return any(up_s <= start_s and end_s <= down_s for up_s, down_s in self.lit.get((prefill, decode), []))


class Nagged(OpticalNetwork):
    """Gets every timer it ever set over and over again, which must change nothing."""

    def __init__(self, config: OpticalConfig, *, left_bytes: Callable[[int], float], errors: Errors | None) -> None:
        super().__init__(config, left_bytes=left_bytes, errors=errors)
        self._fired: list[int] = []

    def timer_fired(self, token: int, now_s: float) -> tuple[OpticalInstruction, ...]:
        out = super().timer_fired(token, now_s)
        self._fired.append(token)
        for old in self._fired[-3:]:
            assert super().timer_fired(old, now_s) == ()
        return out


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
    errors: Errors | None = None,
    disturbance: Disturbance | None = None,
    broken: frozenset[tuple[int, int]] = frozenset(),
    nagged: bool = False,
    lookahead_s: float = 0.0,
) -> Outcome:
    def left_bytes(transfer: int) -> float:
        return simulation.left_bytes(transfer)

    network = (Nagged if nagged else OpticalNetwork)(optical, left_bytes=left_bytes, errors=errors)
    model = ServingModel(serving, times, tokens, network.decode_choice("circuit" if circuit_aware else "load"))
    plane = Plane(Crossbar(serving.prefill + serving.decode, optical.tau_s), serving.prefill, broken)
    simulation = CircuitSimulation(model, network, plane, disturbance, lookahead_s=lookahead_s)
    return Outcome(simulation.simulate(turns), network, plane)


def check(outcome: Outcome, turns: list[Turn]) -> None:
    """What holds of every run, however it went."""
    run, network, config = outcome.run, outcome.network, outcome.network.config
    assert sorted(done.turn.id for done in run.finished) == [turn.id for turn in turns]
    # Nothing is left of it.
    assert network.bookings.windows() == ()
    assert network.held(run.end_s) == ()
    assert not network._flows
    assert not network._doomed
    # Every window has one record, and every one that began has moved the ports or found them there.
    began = [one for one in run.windows if one.start_s is not None]
    counts = network.counts
    assert counts.booked == len(run.windows)
    assert (counts.reconfigurations, counts.reused) == (sum(not w.reused for w in began), sum(w.reused for w in began))
    assert counts.reconfigurations == len(outcome.plane.commands)
    assert config.reuse or counts.reused == 0
    # A port is in one window at a time, and has τ to move where it moved.
    for side in ("prefill", "decode"):
        for instance in range(getattr(config, side)):
            mine = sorted((w.start_s, w.end_s) for w in began if getattr(w, side) == instance and w.start_s is not None)
            assert all(end_s <= start_s for (_, end_s), (start_s, _) in pairwise(mine)), mine
    for one in began:
        if one.data_s is not None and one.start_s is not None:
            assert one.up_s is not None
            assert one.data_s >= one.up_s
            assert one.reused or one.data_s >= one.start_s + config.tau_s * (1 - 1e-9)
    # Bytes leave in the transfer's own windows, over light that does not stop.
    for transfer, sendings in run.sendings.items():
        start = run.starts[transfer]
        windows = [(one.data_s, one.end_s) for one in began if one.transfer == transfer and one.data_s is not None]
        for sending in sendings:
            assert outcome.plane.was_lit(start.prefill, start.decode, sending.start_s, sending.end_s), (start, sending)
            within = any(data_s <= sending.start_s and sending.end_s <= end_s + 1e-9 for data_s, end_s in windows)
            assert within, (sending, windows)
    moved = {done.turn.id: done for done in run.finished if done.failed is None}
    for transfer, done in moved.items():
        total = done.head_bytes + done.tail_bytes
        sent_s = sum(sending.end_s - sending.start_s for sending in run.sendings.get(transfer, []))
        assert (total == 0) == (sent_s == 0)
