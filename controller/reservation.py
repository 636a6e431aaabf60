"""The reservation scheduler (Algorithm 1): which part of a transfer is booked when, and what happens when it was wrong.

Events of the serving model go in as plain values, changes of the calendars come out (controller/bookings.py). Policies:
``reservation`` books the head when its prefill starts and the tail when the last chunk starts; ``admission`` books both when
the turn arrives, behind the predicted queue, and anew when the prediction was missed. Whoever calls predicts: durations
handed in may be wrong, instants given as ``now_s`` are true. Source: serving.md of the design; docs/reservation.md says what
was decided where it is silent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from controller.bookings import BookingError, Bookings, Change
from controller.calendar import Part, Window

Policy = Literal["reservation", "admission"]
Overrun = Literal["slide", "rebook"]
"""What a late transfer does: hold its ports while those behind slide, or give them back and book what is left anew."""


@dataclass(frozen=True, slots=True)
class Job:
    """A transfer whose decode is chosen. Bytes per port; ``pull``: nothing leaves before the prefill has ended."""

    transfer: int
    prefill: int
    decode: int
    head_bytes: float
    tail_bytes: float
    pull: bool = False


@dataclass(frozen=True, slots=True)
class LastChunk:
    """The last chunk of a prefill: when it starts, the seconds it is predicted to take, its share of the tail's bytes."""

    start_s: float
    duration_s: float
    bytes: float


def streaming_start(chunk: LastChunk, layers: int, tail_bytes: float, rate_Bps: float) -> float:
    """s*: the earliest start at which a continuous send of the tail at ``rate_Bps`` never starves.

    Layer i of the last chunk (i = 1 … L) leaves from start + i·T_ℓ on; before it come the tail of earlier chunks, released
    already, and i−1 layers of b bytes. The first and the last layer bind, so for a single chunk this is
    start + max(T_ℓ, L·T_ℓ − (L−1)·b/R). Never before the chunk starts. Source: serving.md of the design.
    """
    layer_s, layer_bytes, earlier = chunk.duration_s / layers, chunk.bytes / layers, tail_bytes - chunk.bytes
    first_s = layer_s - earlier / rate_Bps
    last_s = chunk.duration_s - (earlier + (layers - 1) * layer_bytes) / rate_Bps
    return chunk.start_s + max(0.0, first_s, last_s)


class ReservationScheduler:
    """Books the transfers of a cluster of ``layers``-layer models on ``bookings``.

    Every turn with bytes to move is to be taken through ``arrival`` (policy admission only), ``prefill_start``,
    ``last_chunk`` and ``transfer_end``, each once and in the order of time. Raises BookingError for a transfer that is unknown.
    """

    def __init__(self, bookings: Bookings, *, layers: int, policy: Policy = "reservation", overrun: Overrun = "slide") -> None:
        self.bookings = bookings
        self._layers = layers
        self._policy = policy
        self._overrun = overrun
        self._jobs: dict[int, Job] = {}

    def arrival(self, job: Job, *, start_s: float, last_chunk: LastChunk, now_s: float) -> tuple[Change, ...]:
        """ARRIVAL under ``admission``: book head and tail where the prefill is predicted (``start_s``, ``last_chunk``)."""
        if self._policy != "admission":
            return ()
        self._enter(job)
        if job.pull:
            return self._book(job, "all", last_chunk.start_s + last_chunk.duration_s, now_s)
        head = self._book(job, "head", start_s, now_s)
        return head + self._book(job, "tail", self._tail_ready_s(job, last_chunk), now_s)

    def prefill_start(self, job: Job, *, now_s: float) -> tuple[Change, ...]:
        """PREFILL_START: layer-wise, the head is booked, for its bytes are ready now. ``admission``: anew if it was missed."""
        if self._policy == "reservation":
            self._enter(job)
            return () if job.pull else self._book(job, "head", now_s, now_s)
        self._job(job.transfer)
        return self._correct(job, "head", now_s, now_s)

    def last_chunk(self, transfer: int, chunk: LastChunk, *, now_s: float) -> tuple[Change, ...]:
        """LAST_CHUNK: layer-wise, the tail is booked at max(s*, head end); pull, everything at the predicted prefill end."""
        job = self._job(transfer)
        part: Part = "all" if job.pull else "tail"
        ready_s = chunk.start_s + chunk.duration_s if job.pull else self._tail_ready_s(job, chunk)
        if self._policy == "reservation":
            return self._book(job, part, ready_s, now_s)
        return self._correct(job, part, ready_s, now_s)

    def head_end(self, transfer: int, *, now_s: float) -> tuple[Change, ...]:
        """TRANSFER_END of the head alone: its last byte has arrived. The tail keeps its window."""
        self._job(transfer)
        return self._end(transfer, "head", now_s)

    def transfer_end(self, transfer: int, *, now_s: float) -> tuple[Change, ...]:
        """TRANSFER_END: the last byte has arrived, or the network gave up. Early: trimmed. Late: extended to now first."""
        del self._jobs[self._job(transfer).transfer]
        held = self._held(transfer)
        # Only the last window can still hold the ports; what came before it was over when it began.
        changes: tuple[Change, ...] = self._end(transfer, held[-1].part, now_s) if held else ()
        for window in held[:-1]:
            changes += self.bookings.free(transfer, window.part, now_s)
        return changes

    def overrun(self, transfer: int, part: Part, left_bytes: float, *, now_s: float) -> tuple[Change, ...]:
        """A window ends and ``left_bytes`` (per port) of what it carries have not: slide or rebook, as the policy says."""
        self._job(transfer)
        if self._overrun == "rebook":
            return self.bookings.rebook(transfer, part, ready_s=now_s, size=left_bytes, now_s=now_s)
        return self.bookings.extend(transfer, part, now_s + left_bytes / self.bookings.rate_Bps, now_s)

    def miss(self, transfer: int, part: Part, ready_s: float, *, now_s: float) -> tuple[Change, ...]:
        """A window has come and its data will not be ready before ``ready_s``: book it anew for then."""
        window = self.bookings.window(transfer, part)
        if window is None:
            raise BookingError(f"the {part} of transfer {transfer} is not booked")
        return self.bookings.rebook(transfer, part, ready_s=ready_s, size=window.size, now_s=now_s)

    def _enter(self, job: Job) -> None:
        if job.transfer in self._jobs:
            raise BookingError(f"transfer {job.transfer} is under way already")
        self._jobs[job.transfer] = job

    def _job(self, transfer: int) -> Job:
        if transfer not in self._jobs:
            raise BookingError(f"transfer {transfer} is not under way")
        return self._jobs[transfer]

    def _held(self, transfer: int) -> list[Window]:
        parts: tuple[Part, ...] = ("head", "tail", "all")
        return [window for part in parts if (window := self.bookings.window(transfer, part)) is not None]

    def _tail_ready_s(self, job: Job, chunk: LastChunk) -> float:
        return streaming_start(chunk, self._layers, job.tail_bytes, self.bookings.rate_Bps)

    def _book(self, job: Job, part: Part, ready_s: float, now_s: float) -> tuple[Change, ...]:
        size = {"head": job.head_bytes, "tail": job.tail_bytes, "all": job.head_bytes + job.tail_bytes}[part]
        if size <= 0:
            return ()
        return self.bookings.book(job.transfer, part, job.prefill, job.decode, ready_s=ready_s, size=size, now_s=now_s)

    def _correct(self, job: Job, part: Part, ready_s: float, now_s: float) -> tuple[Change, ...]:
        """Book anew what begins before its data are ready. A window that comes later than it need stays."""
        window = self.bookings.window(job.transfer, part)
        if window is None or window.data_s >= ready_s:
            return ()
        return self.miss(job.transfer, part, ready_s, now_s=now_s)

    def _end(self, transfer: int, part: Part, now_s: float) -> tuple[Change, ...]:
        if self.bookings.window(transfer, part) is None:
            return ()
        return self.bookings.extend(transfer, part, now_s, now_s) + self.bookings.free(transfer, part, now_s)
