"""The serving model on a circuit-switched network, on a virtual clock: the optical network's state machine drives a switch.

Every transfer has its circuit to itself, so its bytes move at the port's rate whenever they are released and its gate is
open (flowsim/gated.py). The switch is passed in: this module knows when a circuit is commanded, not how. At one instant
reports of the network come first, then the model's stimuli, then the timers of the state machine.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from controller.optical import OpticalNetwork
from controller.optical_events import CloseGate, Connect, GiveUp, OpenGate, OpticalInstruction, WindowRecord
from controller.optical_events import SetTimer as OpticalTimer
from flowsim.gated import GatedFlow, Sending
from workloads.events import (
    Arrival,
    HeadDelivered,
    ReleaseSchedule,
    SetTimer,
    StartTransfer,
    Stimulus,
    TimerFired,
    TransferDelivered,
    TransferFailed,
    TurnFinished,
    TurnQueued,
)
from workloads.serving import ServingModel
from workloads.turns import Turn


class Switch(Protocol):
    """Commands the circuit of an instance pair and returns the instant from which it carries light."""

    def __call__(self, *, prefill: int, decode: int, now_s: float, fresh: bool) -> float:
        """Raises CircuitError if it cannot."""
        ...  # pragma: no cover


class CircuitError(RuntimeError):
    """A circuit could not be set up; the message says why."""


def exactly(at_s: float) -> float:
    """No disturbance."""
    return at_s


@dataclass(frozen=True, slots=True)
class Disturbance:
    """What goes otherwise than planned, for tests: ``rate`` the share of the ports' rate that a transfer gets, ``fails_s``
    how long after its start it fails (None: never), ``late`` a report's or a timer's instant, never before the true one."""

    rate: Callable[[int], float] = lambda transfer: 1.0
    fails_s: Callable[[int], float | None] = lambda transfer: None
    late: Callable[[float], float] = exactly


@dataclass(slots=True)
class CircuitRun:
    """What came of a run. ``sendings`` says when bytes of a transfer left, ``gates`` when it was let send, and up to which byte,
    ``ended`` when its last byte arrived, ``said`` all that the state machine told."""

    finished: list[TurnFinished] = field(default_factory=list)
    windows: list[WindowRecord] = field(default_factory=list)
    starts: dict[int, StartTransfer] = field(default_factory=dict)
    schedules: dict[int, ReleaseSchedule] = field(default_factory=dict)
    gates: dict[int, list[tuple[float, int]]] = field(default_factory=dict)
    ended: dict[int, float] = field(default_factory=dict)
    sendings: dict[int, list[Sending]] = field(default_factory=dict)
    said: list[OpticalInstruction] = field(default_factory=list)
    end_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Failure:
    transfer: int
    reason: str


@dataclass(frozen=True, slots=True)
class _Arrives:
    """Byte ``upto`` arrives, unless the gate changes before: ``version`` tells."""

    transfer: int
    upto: int
    version: int


@dataclass(frozen=True, slots=True)
class _Drained:
    transfer: int
    delivered_bytes: float


@dataclass(frozen=True, slots=True)
class _Command:
    connect: Connect


@dataclass(frozen=True, slots=True)
class _OwnTimer:
    token: int


_Event = Stimulus | _Failure | _Arrives | _Drained | _Command | _OwnTimer
_REPORT, _MODEL, _NETWORK = range(3)


class CircuitSimulation:
    """One run. ``network`` is to ask ``left_bytes`` of this object. ``lookahead_s`` is how long before it is due a stimulus
    goes into the model, whose configuration has to allow it."""

    def __init__(
        self,
        model: ServingModel,
        network: OpticalNetwork,
        switch: Switch,
        disturbance: Disturbance | None = None,
        *,
        lookahead_s: float = 0.0,
    ) -> None:
        self._model = model
        self._network = network
        self._switch = switch
        self._disturbed = disturbance or Disturbance()
        self._lookahead_s = lookahead_s
        self._due: list[tuple[float, int, int, _Event]] = []
        self._order = itertools.count()
        self._now_s = float("-inf")
        self._flows: dict[int, GatedFlow] = {}
        self._versions: dict[int, int] = {}
        self._head_told: set[int] = set()
        self.run = CircuitRun()

    def left_bytes(self, transfer: int) -> float:
        """The undelivered bytes of a transfer."""
        flow = self._flows[transfer]
        return flow.size - flow.sent(self._now_s)

    def simulate(self, turns: Iterable[Turn], *, until_s: float = float("inf")) -> CircuitRun:
        """Run until nothing is due any more, or to ``until_s``; windows that are not over then have their records too."""
        for turn in turns:
            self._push(turn.arrival_s - self._lookahead_s, _MODEL, Arrival(turn))
        while self._due and self._due[0][0] <= until_s:
            at_s, _, _, event = heapq.heappop(self._due)
            self._now_s = max(self._now_s, at_s)
            self._take(event)
        if self._due:
            self._now_s = until_s
            for transfer, flow in self._flows.items():
                self.run.sendings[transfer] += flow.close(until_s)
            self.run.windows += self._network.held(until_s)
        self.run.end_s = self._now_s
        return self.run

    def _push(self, at_s: float, rank: int, event: _Event) -> None:
        heapq.heappush(self._due, (at_s, rank, next(self._order), event))

    def _take(self, event: _Event) -> None:
        now_s, network = self._now_s, self._network
        if isinstance(event, _OwnTimer):
            self._obey(network.timer_fired(event.token, now_s))
        elif isinstance(event, _Command):
            self._command(event.connect)
        elif isinstance(event, _Failure):
            if event.transfer in self._flows:
                self._stop(event.transfer)
                self._tell(TransferFailed(event.transfer, event.reason))
                self._obey(network.transfer_ended(event.transfer, now_s))
        elif isinstance(event, _Drained):
            self._obey(network.gate_drained(event.transfer, event.delivered_bytes, now_s))
        elif isinstance(event, _Arrives):
            self._arrives(event)
        else:
            self._tell(event)

    def _tell(self, stimulus: Stimulus) -> None:
        """Into the model, and what it says into the network."""
        for instruction in self._model.handle(stimulus, self._now_s):
            if isinstance(instruction, SetTimer):
                self._push(instruction.at_s - self._lookahead_s, _MODEL, TimerFired(instruction.token))
            elif isinstance(instruction, TurnQueued):
                self._obey(self._network.turn_queued(instruction, self._now_s))
            elif isinstance(instruction, StartTransfer):
                self.run.starts[instruction.transfer] = instruction
            elif isinstance(instruction, ReleaseSchedule):
                self._start(self.run.starts[instruction.transfer], instruction)
            else:
                self.run.finished.append(instruction)

    def _start(self, start: StartTransfer, schedule: ReleaseSchedule) -> None:
        transfer, rate_Bps = start.transfer, self._network.bookings.rate_Bps
        flow = GatedFlow(schedule.at_s, schedule.released_bytes, rate_Bps * self._disturbed.rate(transfer))
        self._flows[transfer], self._versions[transfer], self.run.sendings[transfer] = flow, 0, []
        self.run.schedules[transfer], self.run.gates[transfer] = schedule, []
        fails_s = self._disturbed.fails_s(transfer)
        if fails_s is not None:
            self._push(start.prefill_start_s + fails_s, _REPORT, _Failure(transfer, "reset"))
        self._obey(self._network.transfer_started(start, schedule, self._now_s))

    def _arrives(self, event: _Arrives) -> None:
        transfer, network = event.transfer, self._network
        if self._versions.get(transfer) != event.version or transfer not in self._flows:
            return
        if event.upto == self._flows[transfer].size:
            self._stop(transfer)
            self.run.ended[transfer] = self._now_s
            self._tell(TransferDelivered(transfer))
            self._obey(network.transfer_ended(transfer, self._now_s))
        else:
            self._head_told.add(transfer)
            self._tell(HeadDelivered(transfer))
            self._obey(network.head_delivered(transfer, self._now_s))

    def _stop(self, transfer: int) -> None:
        self.run.sendings[transfer] += self._flows.pop(transfer).close(self._now_s)

    def _command(self, connect: Connect) -> None:
        p, d, network = connect.prefill, connect.decode, self._network
        try:
            up_s = self._switch(prefill=p, decode=d, now_s=self._now_s, fresh=connect.fresh)
        except CircuitError as error:
            self._obey(network.circuit_failed(p, d, str(error), self._now_s))
            return
        self._obey(network.circuit_up(p, d, up_s, self._now_s))

    def _obey(self, instructions: tuple[OpticalInstruction, ...]) -> None:
        self.run.said += instructions
        for instruction in instructions:
            if isinstance(instruction, OpticalTimer):
                self._push(self._disturbed.late(instruction.at_s), _NETWORK, _OwnTimer(instruction.token))
            elif isinstance(instruction, Connect):
                self._push(max(instruction.at_s, self._now_s), _REPORT, _Command(instruction))
            elif isinstance(instruction, WindowRecord):
                self.run.windows.append(instruction)
            elif isinstance(instruction, GiveUp):
                self._push(self._now_s, _REPORT, _Failure(instruction.transfer, instruction.reason))
            elif instruction.transfer in self._flows:
                self._gate(instruction)

    def _gate(self, instruction: OpenGate | CloseGate) -> None:
        transfer = instruction.transfer
        flow, gates = self._flows[transfer], self.run.gates[transfer]
        if isinstance(instruction, OpenGate):
            at_s = max(instruction.at_s, self._now_s)
            flow.open(at_s, instruction.upto_bytes)
            if not gates or instruction.upto_bytes > gates[-1][1]:
                gates.append((at_s, instruction.upto_bytes))
        else:
            gates[:] = [gate for gate in gates if gate[0] <= self._now_s]
            self.run.sendings[transfer] += flow.close(self._now_s)
            self._push(self._disturbed.late(self._now_s), _REPORT, _Drained(transfer, flow.sent(self._now_s)))
        self._versions[transfer] += 1
        marks = {flow.size} if transfer in self._head_told else {flow.size, self.run.starts[transfer].head_bytes} - {0}
        for upto in sorted(marks):
            at_s = flow.arrival_s(upto)
            if at_s < float("inf"):
                self._push(
                    self._disturbed.late(max(at_s, self._now_s)), _REPORT, _Arrives(transfer, upto, self._versions[transfer])
                )
