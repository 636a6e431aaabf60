"""The serving model on the real clock: its timers become the engine's, its transfers become flows.

Nothing is decided here. Arrivals and timers go into the model when they are due, what it answers is put on the wire, and
deliveries go back. Real-cluster seconds and bytes on the model's side, emulated ones on the engine's; ``Scaling`` is the
only place where they meet.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import monotonic
from typing import Protocol

import numpy as np

from topo.cluster import Role
from topo.leafspine import host_name
from workloads.events import (
    Arrival,
    HeadDelivered,
    Instruction,
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
from workloads.replay.engine import ReplayEngine
from workloads.replay.flows import FlowResult, FlowSpec
from workloads.replay.network import TransferNetwork
from workloads.serving import ServingModel
from workloads.turns import Turn


class Scaling(Protocol):
    """Between the real cluster and the emulated one."""

    def to_emu_time(self, real_s: float, /) -> float:
        """Real seconds as emulated seconds."""

    def to_real_time(self, emu_s: float, /) -> float:
        """Emulated seconds as real seconds."""

    def to_emu_bytes(self, real_bytes: float, /) -> int:
        """Real bytes as emulated bytes, rounded once."""


@dataclass(slots=True)
class LiveTransfer:
    """A transfer on the wire: what was asked, and what has come of it."""

    start: StartTransfer
    schedule: ReleaseSchedule
    specs: tuple[FlowSpec, ...]
    waiting: int
    heads_waiting: int
    failed: str | None = None
    ended_s: float | None = None


class TurnReplay:
    """Drives one run. ``epoch`` is the monotonic second at which the window starts.

    ``on_turn``, ``on_transfer`` and ``on_flow`` receive what has ended, in the loop; ``checked`` says of a flow's id whether
    its bytes are compared. ``lookahead_emu_s`` is how long before it is due a stimulus goes into the model (whose
    configuration has to allow it), so that a transfer is ready when its first byte may leave. With a ``network`` flows are
    gated, and it says when they may send. ``run`` returns when every turn is finished, at ``give_up_s`` (real seconds), or when
    stopped.
    """

    def __init__(self, engine: ReplayEngine, model: ServingModel, scaling: Scaling, *, tp: int, epoch: float,
                 lookahead_emu_s: float = 0.0,
                 checked: Callable[[int], bool], on_turn: Callable[[TurnFinished], None],
                 on_transfer: Callable[[LiveTransfer], None], on_flow: Callable[[FlowResult], None],
                 network: TransferNetwork | None = None) -> None:  # fmt: skip
        self._engine = engine
        self._model = model
        self._scaling = scaling
        self._tp = tp
        self._epoch = epoch
        self._lookahead = lookahead_emu_s
        self._lookahead_s = scaling.to_real_time(lookahead_emu_s)
        self._checked = checked
        self._on_turn = on_turn
        self._on_transfer = on_transfer
        self._on_flow = on_flow
        self._network = network
        self._due: list[tuple[float, int, Stimulus]] = []
        self._order = itertools.count()
        self._next_call: float | None = None
        self._now_s = float("-inf")
        self._left = 0
        self.transfers: dict[int, LiveTransfer] = {}
        engine.on_head = self._head
        engine.on_done = self._flow_done

    def run(self, turns: Iterable[Turn], *, give_up_s: float) -> None:
        """Replay the turns."""
        for turn in turns:
            heapq.heappush(self._due, (turn.arrival_s, next(self._order), Arrival(turn)))
            self._left += 1
        if self._left:
            self._arm()
            self._engine.run(self._at(give_up_s))

    def _at(self, real_s: float) -> float:
        return self._epoch + self._scaling.to_emu_time(real_s)

    def _real(self, instant: float) -> float:
        return self._scaling.to_real_time(instant - self._epoch)

    def _arm(self) -> None:
        """One engine timer for the earliest stimulus that is due."""
        if self._due and (self._next_call is None or self._due[0][0] < self._next_call):
            self._next_call = self._due[0][0]
            self._engine.call_at(self._at(self._next_call) - self._lookahead, self._wake)

    def _wake(self) -> None:
        self._next_call = None
        now_s = self._real(monotonic())
        while self._due and self._due[0][0] <= now_s + self._lookahead_s + 1e-9:
            _due_s, _, stimulus = heapq.heappop(self._due)
            self._tell(stimulus, now_s)
            now_s = self._real(monotonic())
        if self._due and self._next_call is None:
            self._next_call = self._due[0][0]
            self._engine.call_at(max(self._at(self._next_call) - self._lookahead, monotonic() + 1e-6), self._wake)

    def _tell(self, stimulus: Stimulus, now_s: float) -> None:
        self._now_s = max(self._now_s, now_s)
        starting: StartTransfer | None = None
        for instruction in self._model.handle(stimulus, self._now_s):
            starting = self._obey(instruction, starting)
        if self._left == 0:
            self._engine.stop()

    def _obey(self, instruction: Instruction, starting: StartTransfer | None) -> StartTransfer | None:
        if isinstance(instruction, SetTimer):
            heapq.heappush(self._due, (instruction.at_s, next(self._order), TimerFired(instruction.token)))
            self._arm()
        elif isinstance(instruction, StartTransfer):
            return instruction
        elif isinstance(instruction, ReleaseSchedule):
            assert starting is not None
            self._start(starting, instruction)
        elif isinstance(instruction, TurnFinished):
            self._left -= 1
            self._on_turn(instruction)
        elif isinstance(instruction, TurnQueued) and self._network is not None:
            self._network.queued(instruction)
        return starting

    def _start(self, start: StartTransfer, schedule: ReleaseSchedule) -> None:
        released_at, released_bytes = self._emulated(schedule)
        head = round(start.head_bytes / schedule.released_bytes[-1] * released_bytes[-1])
        specs = tuple(
            FlowSpec(
                id=start.transfer * self._tp + position,
                source=host_name(Role.PREFILL, start.prefill, position),
                destination=host_name(Role.DECODE, start.decode, position),
                slot=(start.transfer * self._tp + position) % self._engine.settings.classes,
                released_at=released_at,
                released_bytes=released_bytes,
                head_bytes=head,
                check=self._checked(start.transfer * self._tp + position),
                gated=self._network is not None,
            )
            for position in range(self._tp)
        )
        self.transfers[start.transfer] = LiveTransfer(start, schedule, specs, len(specs), len(specs) if head else 0)
        if self._engine.settings.reuse:
            self._begin(specs)
            if self._network is not None:
                self._network.started(start, schedule, specs)
        else:  # a fresh connection is opened with the prefill: its handshake belongs to the transfer, not to the lookahead
            self._engine.call_at(self._at(start.prefill_start_s), lambda: self._begin(specs))

    def _begin(self, specs: tuple[FlowSpec, ...]) -> None:
        for spec in specs:
            self._engine.start(spec)

    def _emulated(self, schedule: ReleaseSchedule) -> tuple[tuple[float, ...], tuple[int, ...]]:
        """The schedule on the engine's clock; steps that round to no byte are dropped, the total is rounded once.

        As arrays: a long turn has thousands of steps, and its first flow waits for this.
        """
        total = self._scaling.to_emu_bytes(schedule.released_bytes[-1])
        share = np.asarray(schedule.released_bytes, dtype=np.float64) / schedule.released_bytes[-1]
        cumulative = np.rint(share * total).astype(np.int64)
        rises = np.diff(cumulative, prepend=0) > 0
        at = self._epoch + np.asarray(schedule.at_s) * self._scaling.to_emu_time(1.0)
        return tuple(at[rises].tolist()), tuple(cumulative[rises].tolist())

    def _head(self, spec: FlowSpec, now: float) -> None:
        transfer = self.transfers[spec.id // self._tp]
        transfer.heads_waiting -= 1
        if transfer.heads_waiting == 0 and transfer.failed is None:
            at_s = self._real(now)
            self._tell(HeadDelivered(transfer.start.transfer), at_s)
            if self._network is not None:
                self._network.head_delivered(transfer.start.transfer, at_s)

    def _flow_done(self, result: FlowResult) -> None:
        self._on_flow(result)
        transfer = self.transfers[result.spec.id // self._tp]
        transfer.waiting -= 1
        if result.failed is not None and transfer.failed is None:
            transfer.failed = result.failed
            self._tell(TransferFailed(transfer.start.transfer, result.failed), self._real(result.delivered))
        if self._network is not None:
            self._network.flow_ended(result)
        if transfer.waiting == 0:
            del self.transfers[transfer.start.transfer]
            transfer.ended_s = self._real(result.delivered)
            self._on_transfer(transfer)
            if transfer.failed is None:
                self._tell(TransferDelivered(transfer.start.transfer), transfer.ended_s)
            if self._network is not None:
                self._network.ended(transfer.start.transfer, transfer.ended_s)
