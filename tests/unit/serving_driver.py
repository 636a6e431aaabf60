"""A tiny virtual-clock driver for the serving model, and a prefill model with round numbers. No test in here."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count

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
)
from workloads.serving import ServingModel
from workloads.turns import Turn

CHUNK = 2048
SECONDS_PER_TOKEN = 1e-3
FIXED_S = 0.25  # a chunk of n tokens takes 0.25 s + n ms, whatever the context


def chunk_tokens(new: int) -> tuple[int, ...]:
    full, rest = divmod(new, CHUNK)
    return (CHUNK,) * full + ((rest,) if rest else ())


def chunk_times(context: int, new: int) -> tuple[float, ...]:
    return tuple(FIXED_S + SECONDS_PER_TOKEN * tokens for tokens in chunk_tokens(new))


def turn(id: int, arrival_s: float, session: str = "s", context: int = 0, new: int = 750, tenant: str = "t") -> Turn:
    """750 new tokens are a prefill of exactly one second."""
    return Turn(id, tenant, session, arrival_s, context, new, output=0, source="test")


def delivery_s(schedule: ReleaseSchedule, upto: int, rate_Bps: float) -> float:
    """When byte ``upto`` of a transfer alone on a link of ``rate_Bps`` arrives."""
    done_s, before = 0.0, 0
    for at_s, released in zip(schedule.at_s, schedule.released_bytes, strict=True):
        part = min(released, upto) - before
        if part <= 0:
            break
        done_s = max(done_s, at_s) + part / rate_Bps
        before += part
    return done_s


@dataclass
class Trace:
    """All that a run put in and got out."""

    said: list[tuple[float, Instruction]] = field(default_factory=list)
    given: list[tuple[float, Stimulus]] = field(default_factory=list)

    @property
    def finished(self) -> dict[int, TurnFinished]:
        return {one.turn.id: one for _, one in self.said if isinstance(one, TurnFinished)}

    @property
    def transfers(self) -> dict[int, StartTransfer]:
        """In the order of their start."""
        return {one.transfer: one for _, one in self.said if isinstance(one, StartTransfer)}

    @property
    def schedules(self) -> dict[int, ReleaseSchedule]:
        return {one.transfer: one for _, one in self.said if isinstance(one, ReleaseSchedule)}


def drive(
    model: ServingModel,
    turns: Iterable[Turn],
    rate_Bps: float = float("inf"),
    *,
    until_s: float = float("inf"),
    fails: Callable[[int], bool] = lambda transfer: False,
    late_s: Callable[[Stimulus], float] = lambda stimulus: 0.0,
) -> Trace:
    """Run until nothing is due (or ``until_s``). Each transfer has a link of its own; ``fails`` ones fail instead of ending.

    ``late_s`` delays a stimulus behind its due time, and with it those behind it that come in order.
    """
    trace, order = Trace(), count()
    due: list[tuple[float, int, Stimulus]] = []
    starts: dict[int, StartTransfer] = {}

    def push(at_s: float, stimulus: Stimulus) -> None:
        heapq.heappush(due, (at_s + late_s(stimulus), next(order), stimulus))

    def obey(instruction: Instruction) -> None:
        if isinstance(instruction, SetTimer):
            push(instruction.at_s, TimerFired(instruction.token))
        elif isinstance(instruction, StartTransfer):
            starts[instruction.transfer] = instruction
        elif isinstance(instruction, ReleaseSchedule):
            transfer, start = instruction.transfer, starts[instruction.transfer]
            end_s = delivery_s(instruction, start.head_bytes + start.tail_bytes, rate_Bps)
            if start.head_bytes:
                push(delivery_s(instruction, start.head_bytes, rate_Bps), HeadDelivered(transfer))
            push(end_s, TransferFailed(transfer, "reset") if fails(transfer) else TransferDelivered(transfer))

    for one in turns:
        push(one.arrival_s, Arrival(one))
    now_s = 0.0
    while due and due[0][0] <= until_s:
        at_s, _, stimulus = heapq.heappop(due)
        now_s = max(now_s, at_s)
        trace.given.append((now_s, stimulus))
        for instruction in model.handle(stimulus, now_s):
            trace.said.append((now_s, instruction))
            obey(instruction)
    return trace
