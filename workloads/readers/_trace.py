"""What every reader returns, and the bookkeeping that keeps rows in equal to turns plus skipped rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from workloads.errors import TraceError
from workloads.turns import TraceTurn


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace as read. ``rows == len(turns) + len(skipped)``, always.

    ``format`` is ``weka``, ``mooncake``, ``azure``, ``tracelab`` or ``synthetic:NAME``; ``session_relative`` says that
    ``time_s`` counts from each session's start, so that arrivals of sessions have to be synthesised; ``quantum_s`` is the
    step to which the file's timestamps are rounded (0 where none was found); ``notes`` are what a reader should know.
    """

    format: str
    path: str
    turns: tuple[TraceTurn, ...]
    rows: int
    skipped: tuple[TraceError, ...]
    session_relative: bool
    notes: tuple[str, ...]
    quantum_s: float = 0.0

    @property
    def synthetic(self) -> bool:
        """Whether the turns were generated, which every table made from them must say."""
        return self.format.startswith("synthetic")


class Collector:
    """Takes rows in, good and bad. With ``skip_bad`` a bad row is kept aside, without it the row's error is raised."""

    def __init__(self, path: str, *, skip_bad: bool) -> None:
        self.path = path
        self._skip_bad = skip_bad
        self.turns: list[TraceTurn] = []
        self.skipped: list[TraceError] = []
        self.notes: list[str] = []

    def bad(self, error: TraceError) -> None:
        """A row that cannot be used. Raises it unless bad rows are to be skipped."""
        if not self._skip_bad:
            raise error
        self.skipped.append(error)

    def trace(self, format: str, *, session_relative: bool, quantum_s: float = 0.0) -> Trace:
        """The finished trace. Raises TraceError when no turn is left."""
        rows = len(self.turns) + len(self.skipped)
        if not self.turns:
            if not self.skipped:
                raise TraceError(self.path, None, None, "holds no rows; give a trace with at least one")
            raise TraceError(self.path, None, None, f"all {rows} rows are bad, the first: {self.skipped[0]}")
        if self.skipped:
            self.notes.append(f"{len(self.skipped)} of {rows} rows skipped as bad")
        return Trace(
            format=format,
            path=self.path,
            turns=tuple(self.turns),
            rows=rows,
            skipped=tuple(self.skipped),
            session_relative=session_relative,
            notes=tuple(self.notes),
            quantum_s=quantum_s,
        )


def lines_of(path: Path) -> Iterator[tuple[int, bytes]]:
    """Line number (from 1) and content of every line that is not blank. Raises TraceError."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, line
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: OSError) -> TraceError:
    """A file that cannot be opened or read, in words."""
    if isinstance(error, FileNotFoundError):
        return TraceError(str(path), None, None, "no such file; check the path of the trace")
    return TraceError(str(path), None, None, f"cannot be read ({error.strerror or error}); check its permissions")
