"""The serving model on a packet fabric taken as a fluid, on a virtual clock.

A transfer is one flow for every GPU position, released layer by layer; the network (flowsim/solver.py) divides the links. At one
instant reports of the network come first, then the model's stimuli, in the order in which they were asked for. Nothing here
decides: the same model drives the emulation (workloads/replay/driver.py).
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from flowsim.solver import Report
from workloads.events import (
    Arrival,
    HeadDelivered,
    ReleaseSchedule,
    SetTimer,
    StartTransfer,
    Stimulus,
    TimerFired,
    TransferDelivered,
    TurnFinished,
)
from workloads.serving import ServingModel
from workloads.turns import Turn


class FlowNetwork(Protocol):
    """What a fluid network has to answer: FastNetwork does."""

    def add(self, group: int, flows: range, paths: Sequence[Sequence[int]], released_at: Sequence[float],
            released_bytes: Sequence[float], head_bytes: float = 0.0) -> None:  # fmt: skip
        """Take in the flows of a transfer."""
        ...  # pragma: no cover

    def advance(self, until_s: float) -> tuple[Report, ...]:
        """Let time pass, or only to the first instant at which something is to be told."""
        ...  # pragma: no cover


@dataclass(slots=True)
class SimulatedTransfer:
    """A transfer: what was asked, and when each of its flows had arrived (seconds, None: it has not)."""

    start: StartTransfer
    schedule: ReleaseSchedule
    arrived_s: list[float | None]
    heads_waiting: int
    ended_s: float | None = None


@dataclass(slots=True)
class PacketRun:
    """What came of a run; ``transfers`` in the order of their starts."""

    finished: list[TurnFinished] = field(default_factory=list)
    transfers: dict[int, SimulatedTransfer] = field(default_factory=dict)
    end_s: float = 0.0


Paths = Callable[[StartTransfer, int], Sequence[int]]
"""(transfer, GPU position) → the links of that flow."""


class PacketSimulation:
    """One run. Flow ``transfer · tp + position`` takes the links that ``paths`` names for it when its transfer starts."""

    def __init__(self, model: ServingModel, network: FlowNetwork, paths: Paths, *, tp: int) -> None:
        self._model = model
        self._network = network
        self._paths = paths
        self._tp = tp
        self._due: list[tuple[float, int, Stimulus]] = []
        self._order = itertools.count()
        self._starting: StartTransfer | None = None
        self.run = PacketRun()

    def simulate(self, turns: Iterable[Turn], *, until_s: float = math.inf) -> PacketRun:
        """Run until every turn is finished, or to ``until_s``."""
        for turn in turns:
            self._push(turn.arrival_s, Arrival(turn))
        left = len(self._due)
        while len(self.run.finished) < left:
            due_s = self._due[0][0] if self._due else math.inf
            reports = self._network.advance(min(due_s, until_s))
            if reports:
                self._hear(reports)
            elif self._due and due_s <= until_s:
                self._tell(heapq.heappop(self._due)[2], due_s)
            else:
                self.run.end_s = until_s
                break
        return self.run

    def _push(self, at_s: float, stimulus: Stimulus) -> None:
        heapq.heappush(self._due, (at_s, next(self._order), stimulus))

    def _tell(self, stimulus: Stimulus, now_s: float) -> None:
        self.run.end_s = now_s
        for instruction in self._model.handle(stimulus, now_s):
            if isinstance(instruction, SetTimer):
                self._push(instruction.at_s, TimerFired(instruction.token))
            elif isinstance(instruction, StartTransfer):
                self._starting = instruction
            elif isinstance(instruction, ReleaseSchedule):
                assert self._starting is not None
                self._start(self._starting, instruction)
            elif isinstance(instruction, TurnFinished):
                self.run.finished.append(instruction)

    def _start(self, start: StartTransfer, schedule: ReleaseSchedule) -> None:
        transfer, tp = start.transfer, self._tp
        flows = range(transfer * tp, (transfer + 1) * tp)
        paths = [self._paths(start, position) for position in range(tp)]
        self._network.add(transfer, flows, paths, schedule.at_s, schedule.released_bytes, start.head_bytes)
        waiting = tp if start.head_bytes else 0
        self.run.transfers[transfer] = SimulatedTransfer(start, schedule, [None] * tp, waiting)

    def _hear(self, reports: tuple[Report, ...]) -> None:
        for report in reports:
            transfer, position = divmod(report.flow, self._tp)
            one = self.run.transfers[transfer]
            if report.head:
                one.heads_waiting -= 1
                if one.heads_waiting == 0:
                    self._tell(HeadDelivered(transfer), report.at_s)
            if report.all:
                one.arrived_s[position] = report.at_s
                if all(at_s is not None for at_s in one.arrived_s):
                    one.ended_s = report.at_s
                    self._tell(TransferDelivered(transfer), report.at_s)
