"""A turn that is in the serving model: what is known of it so far, and how it looks at the end of a run."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from workloads.events import Mode, StartTransfer, TurnFinished, TurnQueued
from workloads.turns import Turn


class TurnState(enum.Enum):
    """Where a turn that has not finished stands."""

    QUEUED = "queued"
    PREFILLING = "prefilling"
    TRANSFERRING = "transferring"


@dataclass(frozen=True, slots=True)
class UnfinishedTurn:
    """A turn that has arrived and not finished, for the accounting at the end of a run.

    ``decode`` is None until it is chosen: when the prefill starts, unless the configuration chooses it at the arrival.
    ``prefill_start_s`` and ``prefill_end_s`` are the exact planned instants, of a queued turn too.
    """

    turn: Turn
    state: TurnState
    prefill: int
    decode: int | None
    migrated: bool
    head_bytes: int
    tail_bytes: int
    prefill_start_s: float
    prefill_end_s: float


@dataclass(slots=True)
class SessionPlace:
    """Which instances hold a session's prefix.

    ``chain`` counts the transfers that brought a whole prefix; a failure in an older chain says nothing of the holder.
    """

    prefill: int
    decode: int | None = None
    chain: int = 0


@dataclass(slots=True)
class LiveTurn:
    """The mutable state of a turn between its arrival and its end. Bytes per GPU, seconds of the real cluster."""

    turn: Turn
    place: SessionPlace
    mode: Mode
    start_s: float
    chunk_ends_s: tuple[float, ...]
    chunk_tokens: tuple[int, ...]
    unloaded_prefill_s: float
    prefill: int
    state: TurnState = TurnState.QUEUED
    decode: int | None = None
    migrated: bool = False
    chain: int = 0
    head_bytes: int = 0
    tail_bytes: int = 0
    head_last_byte_s: float | None = None
    last_byte_s: float | None = None
    failed: str | None = None

    @property
    def end_s(self) -> float:
        """The end of the prefill."""
        return self.chunk_ends_s[-1]

    def queued(self) -> TurnQueued:
        """The notice of a transfer to come, once the decode is chosen."""
        assert self.decode is not None
        earlier = sum(self.chunk_tokens[:-1])
        return TurnQueued(
            transfer=self.turn.id,
            prefill=self.prefill,
            decode=self.decode,
            head_bytes=self.head_bytes,
            tail_bytes=self.tail_bytes,
            mode=self.mode,
            prefill_start_s=self.start_s,
            chunk_ends_s=self.chunk_ends_s,
            last_chunk_bytes=self.tail_bytes - earlier * self.tail_bytes // self.turn.new,
        )

    def transfer(self) -> StartTransfer:
        """The instruction that opens the transfer, once the decode is chosen."""
        assert self.decode is not None
        return StartTransfer(
            transfer=self.turn.id,
            turn=self.turn.id,
            prefill=self.prefill,
            decode=self.decode,
            head_bytes=self.head_bytes,
            tail_bytes=self.tail_bytes,
            mode=self.mode,
            prefill_start_s=self.start_s,
            chunk_ends_s=self.chunk_ends_s,
        )

    def finished(self) -> TurnFinished:
        """The record of the turn, once the prefill and the transfer have ended."""
        assert self.decode is not None
        return TurnFinished(
            turn=self.turn,
            prefill=self.prefill,
            decode=self.decode,
            migrated=self.migrated,
            head_bytes=self.head_bytes,
            tail_bytes=self.tail_bytes,
            prefill_start_s=self.start_s,
            prefill_end_s=self.end_s,
            last_byte_s=self.end_s if self.last_byte_s is None else self.last_byte_s,
            unloaded_prefill_s=self.unloaded_prefill_s,
            failed=self.failed,
            head_last_byte_s=self.head_last_byte_s,
        )

    def unfinished(self) -> UnfinishedTurn:
        """How the turn stands now."""
        return UnfinishedTurn(
            turn=self.turn,
            state=self.state,
            prefill=self.prefill,
            decode=self.decode,
            migrated=self.migrated,
            head_bytes=self.head_bytes,
            tail_bytes=self.tail_bytes,
            prefill_start_s=self.start_s,
            prefill_end_s=self.end_s,
        )
