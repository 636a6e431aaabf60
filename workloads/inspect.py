"""What is in a trace: rows, sessions, span, sizes, rates and problems, as data. The command line renders it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

import numpy as np

from workloads.readers import Trace


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Of a number of tokens; linear between ranks."""

    p50: float
    p90: float
    p99: float


@dataclass(frozen=True, slots=True)
class Problem:
    """A row that was skipped: where ("file:line" or "file#step"), which field, what is wrong and what to do."""

    where: str
    field: str | None
    message: str


@dataclass(frozen=True, slots=True)
class TraceReport:
    """``rows == turns + len(problems)``. ``span_s`` is the time between the first and the last turn, of absolute traces; of
    others the longest session's. ``arrival_rate_per_s`` is None where times are relative to sessions or all the same.
    ``cached_share`` is the share of turns with a cached prefix; ``quantum_s`` the step the file's timestamps are rounded to, 0
    where none was found."""

    format: str
    path: str
    synthetic: bool
    rows: int
    turns: int
    sessions: int
    session_relative: bool
    span_s: float
    arrival_rate_per_s: float | None
    context: Percentiles
    new: Percentiles
    output: Percentiles
    cached_share: float
    quantum_s: float
    notes: tuple[str, ...]
    problems: tuple[Problem, ...]

    def to_json(self) -> dict[str, object]:
        """A dictionary of plain values, for ``json.dumps``."""
        return asdict(self)


def inspect_trace(trace: Trace) -> TraceReport:
    """Sum a trace up."""
    times = [turn.time_s for turn in trace.turns]
    if trace.session_relative:
        first: dict[str, float] = {}
        span_s = max(turn.time_s - first.setdefault(turn.session, turn.time_s) for turn in trace.turns)
    else:
        span_s = max(times) - min(times)
    rate = None if trace.session_relative or span_s <= 0 else (len(times) - 1) / span_s
    return TraceReport(
        format=trace.format,
        path=trace.path,
        synthetic=trace.synthetic,
        rows=trace.rows,
        turns=len(trace.turns),
        sessions=len({turn.session for turn in trace.turns}),
        session_relative=trace.session_relative,
        span_s=span_s,
        arrival_rate_per_s=rate,
        context=_percentiles(turn.context for turn in trace.turns),
        new=_percentiles(turn.new for turn in trace.turns),
        output=_percentiles(turn.output for turn in trace.turns),
        cached_share=sum(turn.context > 0 for turn in trace.turns) / len(trace.turns),
        quantum_s=trace.quantum_s,
        notes=trace.notes,
        problems=tuple(Problem(error.where, error.field, error.message) for error in trace.skipped),
    )


def _percentiles(values: Iterable[int]) -> Percentiles:
    p50, p90, p99 = np.percentile(list(values), [50, 90, 99])
    return Percentiles(float(p50), float(p90), float(p99))
