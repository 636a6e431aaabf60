"""A flow to be replayed, and what became of it. Times are emulated seconds on the engine's clock, bytes are emulated bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Gate = tuple[float, int]
"""When a gate was to open, and up to which byte of the flow."""


@dataclass(frozen=True, slots=True)
class FlowSpec:
    """One flow between two hosts.

    ``released_at`` and ``released_bytes`` say how many bytes (cumulative) may leave from when on; the last entry is the
    flow's size. ``head_bytes`` marks the part whose arrival is reported separately (0: none). ``slot`` chooses the
    connection: the source port, and with it the flow class and the path, follow from it. ``check`` compares every byte. A
    ``gated`` flow sends nothing, released or not, before its gate is opened (``ReplayEngine.open_gate``).
    """

    id: int
    source: str
    destination: str
    slot: int
    released_at: tuple[float, ...]
    released_bytes: tuple[int, ...]
    head_bytes: int = 0
    check: bool = False
    gated: bool = False

    @property
    def bytes(self) -> int:
        return self.released_bytes[-1]


@dataclass(frozen=True, slots=True)
class FlowResult:
    """A flow's account. ``actual_send`` is its first packet (the SYN of a cold connection, data on a warm one).

    ``gates`` says of a gated flow when its gate was to open, and up to which byte, in their order. ``failed`` is None for a flow
    whose every byte was received; ``content_ok`` None when it was not compared.
    """

    spec: FlowSpec
    sport: int
    dport: int
    cold: bool
    actual_send: float
    head_delivered: float | None
    delivered: float
    received: int
    retransmissions: int
    rto_count: int | None
    snd_wnd: int | None
    busy_s: float
    content_ok: bool | None
    failed: str | None
    gates: tuple[Gate, ...] = ()

    @property
    def planned_send(self) -> float:
        """When the first byte was to leave: released, and let through by its gate."""
        return first_send(self.spec.released_at[0], self.gates)

    @property
    def lateness(self) -> float:
        """Seconds between the planned and the actual first packet."""
        return self.actual_send - self.planned_send

    @property
    def fct(self) -> float:
        """Seconds from the first packet to the last byte's arrival (what it was late before that is ``lateness``)."""
        return self.delivered - self.actual_send


def first_send(released_at: float, gates: Sequence[Gate]) -> float:
    """When the first byte is to leave: released, and let through by the first gate, if there are any."""
    return max(released_at, gates[0][0]) if gates else released_at


def ideal_fct(released_at: Sequence[float], released_bytes: Sequence[int], rate_Bps: float, gates: Sequence[Gate] = ()) -> float:
    """FCT of the same transfer alone at ``rate_Bps``: no byte leaves before its release and gate, none faster than the rate."""
    size = released_bytes[-1]
    first = first_send(released_at[0], gates)
    done, before, step, gate = first, 0, 0, 0
    marks = sorted({*released_bytes, *(upto for _, upto in gates if upto < size)}) if len(gates) > 1 else released_bytes
    for upto in marks:
        while released_bytes[step] < upto:
            step += 1
        while gate + 1 < len(gates) and gates[gate][1] < upto:
            gate += 1
        at = max(released_at[step], gates[gate][0]) if gates else released_at[step]
        done = max(done, at) + (upto - before) / rate_Bps
        before = upto
    return done - first
