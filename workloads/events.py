"""What goes into the serving model and what comes out of it.

Stimuli go in, instructions come out (the shape of Dask's worker state machine): the model holds no clock and does no
I/O, so the testbed's real clock and the simulator's virtual one drive the very same code. Times are real-cluster
seconds, bytes are per GPU: a transfer is ``tp`` parallel flows of ``head_bytes + tail_bytes`` each, between equal GPU
positions.

An instruction's ``at_s`` is the exact planned instant, which lies before the present by as much as the driver is late:
then it is done at once. A network policy (a reservation scheduler, say) sits between the model and the network as a
filter over the instructions: StartTransfer and ReleaseSchedule hold all that is known when a prefill starts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from workloads.turns import Turn

Mode = Literal["layerwise", "pull"]
"""When a turn's KV leaves: as each layer is computed, or all of it once the prefill has ended."""


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


Stimulus = Arrival | TimerFired | HeadDelivered | TransferDelivered | TransferFailed


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Wake the model with TimerFired(token) at ``at_s``; exactly once, and never before."""

    at_s: float
    token: int


@dataclass(frozen=True, slots=True)
class StartTransfer:
    """A prefill has started and its decode is chosen: open a transfer. No byte leaves before its ReleaseSchedule.

    ``transfer`` equals the turn's id. The stream carries the head (the context's KV, 0 unless the turn migrates) first,
    then the tail (the new KV). ``prefill_start_s`` and ``chunk_ends_s`` (one a chunk, never falling) are exact: a
    prefill that has started runs undisturbed.
    """

    transfer: int
    turn: int
    prefill: int
    decode: int
    head_bytes: int
    tail_bytes: int
    mode: Mode
    prefill_start_s: float
    chunk_ends_s: tuple[float, ...]

    @property
    def prefill_end_s(self) -> float:
        """The end of the last chunk."""
        return self.chunk_ends_s[-1]

    @property
    def last_chunk_start_s(self) -> float:
        """The start of the last chunk: from here on only one chunk's KV is still to be computed."""
        return self.chunk_ends_s[-2] if len(self.chunk_ends_s) > 1 else self.prefill_start_s


@dataclass(frozen=True, slots=True)
class TurnQueued:
    """A turn has arrived and its decode is chosen, before its prefill starts (``ServingConfig.choose_decode_at: arrival``).

    The fields of the StartTransfer that will follow; all instants are planned, ``last_chunk_bytes`` is the last chunk's
    share of the tail. Only for turns that will have a transfer. A policy that books behind the queue needs it.
    """

    transfer: int
    prefill: int
    decode: int
    head_bytes: int
    tail_bytes: int
    mode: Mode
    prefill_start_s: float
    chunk_ends_s: tuple[float, ...]
    last_chunk_bytes: int

    @property
    def prefill_end_s(self) -> float:
        """The planned end of the last chunk."""
        return self.chunk_ends_s[-1]

    @property
    def last_chunk_start_s(self) -> float:
        """The planned start of the last chunk."""
        return self.chunk_ends_s[-2] if len(self.chunk_ends_s) > 1 else self.prefill_start_s


@dataclass(frozen=True, slots=True)
class ReleaseSchedule:
    """When the bytes of a transfer may leave; one a transfer, right after its StartTransfer.

    From ``at_s[i]`` on, up to ``released_bytes[i]`` of each flow (cumulative, head included) may leave. Both tuples
    have the same length (≥ 1); ``at_s`` never falls, ``released_bytes`` rises and ends at exactly ``head_bytes +
    tail_bytes``.
    """

    transfer: int
    at_s: tuple[float, ...]
    released_bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TurnFinished:
    """A turn is done (or failed): everything the record of a request needs. Times in real-cluster seconds.

    ``last_byte_s`` is the arrival of the last KV byte (equal to ``prefill_end_s`` when the turn moved none; of a failed
    turn the instant of the failure), ``head_last_byte_s`` that of the last head byte, where there was a head and the
    network reported it. ``unloaded_prefill_s`` is the prefill time that was expected, ``migrated`` says whether the
    decode lacked the prefix, ``failed`` why the network gave the transfer up.
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
    head_last_byte_s: float | None = None

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


Instruction = SetTimer | TurnQueued | StartTransfer | ReleaseSchedule | TurnFinished
