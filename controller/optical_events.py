"""What goes into the optical network's state machine and what comes out of it, apart from plain numbers.

Instants are real-cluster seconds, bytes are per GPU port. An instruction's ``at_s`` may lie before the present by as much as
the driver is late (then it is done at once) or after it (then it is done at that instant, and not before).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from controller.calendar import Part


class TransferNotice(Protocol):
    """What is told of a transfer: the fields of the serving model's StartTransfer and TurnQueued (workloads/events.py)."""

    @property
    def transfer(self) -> int: ...  # pragma: no cover
    @property
    def prefill(self) -> int: ...  # pragma: no cover
    @property
    def decode(self) -> int: ...  # pragma: no cover
    @property
    def head_bytes(self) -> int: ...  # pragma: no cover
    @property
    def tail_bytes(self) -> int: ...  # pragma: no cover
    @property
    def mode(self) -> Literal["layerwise", "pull"]: ...  # pragma: no cover
    @property
    def prefill_start_s(self) -> float: ...  # pragma: no cover
    @property
    def last_chunk_start_s(self) -> float: ...  # pragma: no cover
    @property
    def prefill_end_s(self) -> float: ...  # pragma: no cover


class QueuedNotice(TransferNotice, Protocol):
    """The same at a turn's arrival, all instants planned; ``last_chunk_bytes`` is the last chunk's share of the tail."""

    @property
    def last_chunk_bytes(self) -> int: ...  # pragma: no cover


class Releases(Protocol):
    """The serving model's ReleaseSchedule: from ``at_s[i]`` on up to ``released_bytes[i]`` of each flow may leave."""

    @property
    def at_s(self) -> tuple[float, ...]: ...  # pragma: no cover
    @property
    def released_bytes(self) -> tuple[int, ...]: ...  # pragma: no cover


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Call ``timer_fired(token)`` at ``at_s``; once. Tokens are this machine's own, apart from the serving model's."""

    at_s: float
    token: int


@dataclass(frozen=True, slots=True)
class Connect:
    """Command the circuit of an instance pair on all its planes at ``at_s``, letting standing circuits of its ports go.

    ``fresh``: set it up anew even if it stands. Answered by ``circuit_up`` as soon as the instant of light is known, at once
    if it stands and is not ``fresh``, or by ``circuit_failed``.
    """

    prefill: int
    decode: int
    at_s: float
    fresh: bool


@dataclass(frozen=True, slots=True)
class OpenGate:
    """From ``at_s`` on the bytes of each flow up to ``upto_bytes`` (cumulative, of the whole transfer) may leave, as far as
    they are released."""

    transfer: int
    at_s: float
    upto_bytes: int


@dataclass(frozen=True, slots=True)
class CloseGate:
    """No more bytes of the transfer may leave; an OpenGate whose instant is to come is void.

    Answered by ``gate_drained`` once all that had left has arrived: every CloseGate, once, unless the transfer ends before.
    """

    transfer: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The network cannot carry the transfer: the driver is to fail it. Its windows are freed already."""

    transfer: int
    reason: str


@dataclass(frozen=True, slots=True)
class WindowRecord:
    """A window that is over.

    ``booked_s`` is when it was booked (without reservation: asked for), ``start_s`` when its circuit was commanded or found
    standing (``reused``), with the driver's lateness; None if it never came to that. ``setup_s`` is the set-up that was
    planned, ``up_s`` from when on the circuit carried light, ``data_s`` when its first byte could leave: its gate was open
    and the byte released. ``end_s`` is when the ports were given back. ``moved`` counts how often it was booked anew since
    it was first booked, ``extended`` how often it was late. A part that is booked anew after its window began has one record
    for each.
    """

    transfer: int
    part: Part
    prefill: int
    decode: int
    size: float
    booked_s: float
    start_s: float | None
    setup_s: float
    up_s: float | None
    data_s: float | None
    end_s: float
    moved: int
    extended: int
    reused: bool


OpticalInstruction = SetTimer | Connect | OpenGate | CloseGate | GiveUp | WindowRecord


@dataclass(frozen=True, slots=True)
class OpticalCounts:
    """``booked`` windows (or grants), ``reconfigurations`` commanded, windows that ``reused`` a standing circuit.

    Every window that began is one of the last two. ``misses`` are windows that came before their data, ``overruns``
    extensions and new bookings of late ones that lacked more than the grace: less is rounding.
    """

    booked: int = 0
    reconfigurations: int = 0
    reused: int = 0
    misses: int = 0
    overruns: int = 0
