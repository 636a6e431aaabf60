"""The rows of a run's records: one frozen class a table, which is the only place that knows its columns.

Units are in the names: ``_emu_s`` are emulated seconds and ``_emu`` emulated bytes, both as the machine saw them; all else
is the real cluster's. Instants count from the start of the window. ``X | None`` is null where it is not known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, Literal

from controller.optical_events import WindowRecord
from workloads.events import StartTransfer, TurnFinished
from workloads.turns import Turn

Status = Literal["completed", "failed", "unfinished"]


@dataclass(frozen=True, slots=True)
class RequestRow:
    """A turn offered to the cluster. Bytes are per GPU. What had not happened when the run ended is null.

    ``ttft_s``, ``exposed_s`` and ``hidden`` are null unless it completed: a turn whose KV never came has no TTFT.
    """

    turn: int
    tenant: str
    session: str
    source: str
    arrival_s: float
    context: int
    new: int
    output: int
    prefill: int | None
    decode: int | None
    migrated: bool | None
    head_bytes: int | None
    tail_bytes: int | None
    prefill_start_s: float | None
    prefill_end_s: float | None
    unloaded_prefill_s: float
    head_last_byte_s: float | None
    last_byte_s: float | None
    ttft_s: float | None
    exposed_s: float | None
    hidden: bool | None
    status: str
    reason: str | None

    @classmethod
    def finished(cls, end: TurnFinished) -> RequestRow:
        """The row of a turn that completed or failed."""
        ok = end.failed is None
        turn = end.turn
        return cls(
            turn.id, turn.tenant, turn.session, turn.source, turn.arrival_s, turn.context, turn.new, turn.output,
            end.prefill, end.decode, end.migrated, end.head_bytes, end.tail_bytes, end.prefill_start_s, end.prefill_end_s,
            end.unloaded_prefill_s, end.head_last_byte_s, end.last_byte_s if ok else None, end.ttft_s if ok else None,
            end.exposed_s if ok else None, end.hidden if ok else None, "completed" if ok else "failed", end.failed,
        )  # fmt: skip

    @classmethod
    def unfinished(cls, turn: Turn, unloaded_prefill_s: float, start: StartTransfer | None, reason: str) -> RequestRow:
        """The row of a turn that the run ended without finishing; ``start`` once its prefill had begun."""
        return cls(
            turn=turn.id,
            tenant=turn.tenant,
            session=turn.session,
            source=turn.source,
            arrival_s=turn.arrival_s,
            context=turn.context,
            new=turn.new,
            output=turn.output,
            prefill=start.prefill if start else None,
            decode=start.decode if start else None,
            migrated=start.head_bytes > 0 if start else None,
            head_bytes=start.head_bytes if start else None,
            tail_bytes=start.tail_bytes if start else None,
            prefill_start_s=start.prefill_start_s if start else None,
            prefill_end_s=start.prefill_end_s if start else None,
            unloaded_prefill_s=unloaded_prefill_s,
            head_last_byte_s=None,
            last_byte_s=None,
            ttft_s=None,
            exposed_s=None,
            hidden=None,
            status="unfinished",
            reason=reason,
        )


@dataclass(frozen=True, slots=True)
class TransferRow:
    """The KV transfer of a turn: ``flows`` parallel flows of ``head_bytes + tail_bytes`` each.

    ``planned_start_s`` is its first release, ``fct_s`` counts from there to the last byte of the last flow.
    """

    transfer: int
    turn: int
    prefill: int
    decode: int
    mode: str
    head_bytes: int
    tail_bytes: int
    flows: int
    planned_start_s: float
    end_s: float | None
    fct_s: float | None
    ideal_fct_s: float
    slowdown: float | None
    status: str


@dataclass(frozen=True, slots=True)
class FlowRow:
    """One TCP flow. Paths are node names joined by ``>``; ``rto_count`` is null where the kernel does not tell."""

    flow: int
    transfer: int
    position: int
    source: str
    destination: str
    source_address: str
    destination_address: str
    sport: int | None
    dport: int | None
    cold: bool | None
    bytes_emu: int
    planned_send_emu_s: float
    actual_send_emu_s: float | None
    lateness_emu_s: float | None
    delivered_emu_s: float | None
    fct_emu_s: float | None
    fct_s: float | None
    ideal_fct_emu_s: float
    slowdown: float | None
    path_predicted: str | None
    path_realised: str | None
    retransmissions: int | None
    rto_count: int | None
    snd_wnd_bytes: int | None
    content_checked: bool
    content_ok: bool | None
    sender_limited: bool | None
    status: str


@dataclass(frozen=True, slots=True)
class LinkRow:
    """One egress port over one interval. ``use`` is ``sent_bytes / (wire_Bps · interval_emu_s)``; rates are emulated.

    ``rate_Bps`` is the planned goodput, ``wire_Bps`` the shaper's rate, headers included. ``backlog_bytes`` waited at the
    end of the interval; ``drops`` are packets dropped within it. Segments that passed beside the
    shaper are not among ``sent_bytes``.
    """

    time_emu_s: float
    interval_emu_s: float
    port: str
    peer: str
    rate_Bps: float
    wire_Bps: float
    sent_bytes: int
    use: float
    backlog_bytes: int
    drops: int


@dataclass(frozen=True, slots=True)
class CircuitRow:
    """One window of a circuit between a prefill and a decode instance, all planes together. ``bytes`` are per port.

    ``booked_s`` is when it was booked (without reservation: asked for), ``start_s`` the instant for which its circuit was
    commanded, or found standing (``reused``); null for a window that was given back before. ``setup_s`` is the set-up that
    was planned, ``up_s`` from when on the circuit carried light, ``data_s`` when its first byte could leave, ``end_s`` when its
    ports were free. ``moved`` and ``extended`` count bookings anew and overruns. ``control_emu_s`` is how much later than
    ``start_s`` the ports went dark, ``dark_emu_s`` how long the slowest plane was dark, ``dark_error_emu_s`` by how much that is
    not τ.
    """

    window: int
    transfer: int
    part: str
    prefill: int
    decode: int
    bytes: int
    booked_s: float
    start_s: float | None
    setup_s: float
    up_s: float | None
    data_s: float | None
    end_s: float
    moved: int
    extended: int
    reused: bool
    control_emu_s: float | None
    dark_emu_s: float | None
    dark_error_emu_s: float | None
    status: str

    @classmethod
    def over(cls, number: int, record: WindowRecord, *, failed: bool = False, control_emu_s: float | None = None,
             dark_emu_s: float | None = None, dark_error_emu_s: float | None = None) -> CircuitRow:  # fmt: skip
        """The row of a window that is over; of one that was given back before its start, cancelled."""
        status = "cancelled" if record.start_s is None else "failed" if failed else "completed"
        return cls(
            number, record.transfer, record.part, record.prefill, record.decode, round(record.size), record.booked_s,
            record.start_s, record.setup_s, record.up_s, record.data_s, record.end_s, record.moved, record.extended,
            record.reused, control_emu_s, dark_emu_s, dark_error_emu_s, status,
        )  # fmt: skip


Row = RequestRow | TransferRow | FlowRow | LinkRow | CircuitRow

TABLES: Mapping[str, type[Row]] = {
    "requests": RequestRow,
    "transfers": TransferRow,
    "flows": FlowRow,
    "links": LinkRow,
    "circuits": CircuitRow,
}
TABLE_OF: Mapping[type[Row], str] = {kind: name for name, kind in TABLES.items()}
_VALUES = {kind: attrgetter(*(item.name for item in fields(kind))) for kind in TABLE_OF}


def values(row: Row) -> tuple[Any, ...]:
    """A row's values in the order of its columns."""
    found: tuple[Any, ...] = _VALUES[type(row)](row)
    return found
