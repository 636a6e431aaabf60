"""A turn: the unit of work of disaggregated serving, and what the readers and the generator produce."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TraceTurn:
    """One row of a trace, before it is placed in a run.

    ``time_s`` is the row's own time in the trace (for session traces: since the session's start), ``context`` the tokens
    of the prefix that is cached, ``new`` the tokens to be computed (≥ 1), ``output`` the tokens generated. ``source`` is
    "file:line" or "file#step", for error messages and records.
    """

    time_s: float
    session: str
    context: int
    new: int
    output: int
    source: str


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn offered to the cluster: real-cluster seconds since the start of the window.

    ``id`` counts from 0 in order of arrival over all tenants.
    """

    id: int
    tenant: str
    session: str
    arrival_s: float
    context: int
    new: int
    output: int
    source: str
