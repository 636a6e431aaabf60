"""What goes into the serving model and what comes out of it.

Stimuli go in, instructions come out (the shape of Dask's worker state machine): the model holds no clock and does no I/O,
so the testbed's real clock and the simulator's virtual one drive the very same code. Times are real-cluster seconds,
bytes are per GPU: a transfer is ``tp`` parallel flows of ``head_bytes + tail_bytes`` each, between equal GPU positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

from workloads.turns import Turn


@dataclass(frozen=True, slots=True)
class Arrival:
    """A turn reaches the cluster."""

    turn: Turn


@dataclass(frozen=True, slots=True)
class TimerFired:
    """A timer that was asked for by SetTimer has come due."""

    token: int


@dataclass(frozen=True, slots=True)
class HeadDelivered:
    """The last head byte of every flow of a transfer has been received (reported once, never for an empty head)."""

    transfer: int


@dataclass(frozen=True, slots=True)
class TransferDelivered:
    """The last byte of every flow of a transfer has been received and confirmed."""

    transfer: int


@dataclass(frozen=True, slots=True)
class TransferFailed:
    """The network gave a transfer up (a reset, an unreachable host)."""

    transfer: int
    reason: str


Stimulus = Union[Arrival, TimerFired, HeadDelivered, TransferDelivered, TransferFailed]


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Wake the model with TimerFired(token) at ``at_s``."""

    at_s: float
    token: int


@dataclass(frozen=True, slots=True)
class StartTransfer:
    """Open a transfer between two instances; no byte of it may leave before a Release.

    ``transfer`` equals the turn's id. The stream carries the head first, then the tail.
    """

    transfer: int
    turn: int
    prefill: int
    decode: int
    head_bytes: int
    tail_bytes: int


@dataclass(frozen=True, slots=True)
class Release:
    """Up to ``released_bytes`` of each flow (cumulative, head included) may leave from ``at_s`` on."""

    transfer: int
    at_s: float
    released_bytes: int


@dataclass(frozen=True, slots=True)
class TurnFinished:
    """A turn is done (or failed): everything the record of a request needs. Times in real-cluster seconds.

    ``last_byte_s`` is the arrival of the last KV byte (equal to ``prefill_end_s`` when the turn moved none),
    ``unloaded_prefill_s`` the prefill time that was expected, ``migrated`` whether the decode lacked the prefix.
    """

    turn: Turn
    prefill: int
    decode: int
    migrated: bool
    head_bytes: int
    tail_bytes: int
    prefill_start_s: float
    prefill_end_s: float
    last_byte_s: float
    unloaded_prefill_s: float
    failed: str | None

    @property
    def ttft_s(self) -> float:
        """max(prefill end, last KV byte) − arrival."""
        return max(self.prefill_end_s, self.last_byte_s) - self.turn.arrival_s

    @property
    def exposed_s(self) -> float:
        """max(0, last KV byte − prefill end)."""
        return max(0.0, self.last_byte_s - self.prefill_end_s)

    @property
    def hidden(self) -> bool:
        """Whether the exposed time is at most 10 % of the prefill's."""
        return self.exposed_s <= 0.1 * (self.prefill_end_s - self.prefill_start_s)


Instruction = Union[SetTimer, StartTransfer, Release, TurnFinished]
