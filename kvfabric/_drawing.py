"""Progress on standard error: a bar on a terminal, a line every ten seconds elsewhere."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from kvfabric.progress import Standing, estimate, line
from kvfabric.rows import RequestRow

_LINE_EVERY_S = 10.0
_RECENT_S = 10.0
_STATUS = RequestRow.__slots__.index("status")
_TTFT = RequestRow.__slots__.index("ttft_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressPlan:
    """What the progress of a run is measured against: turns offered in all, the last planned arrival in emulated seconds,
    and emulated seconds per real one."""

    offered: int
    arrivals_end_emu_s: float
    time_scale: float


def wants_progress(*, as_json: bool, stderr_is_tty: bool) -> bool:
    """With ``--json`` only a terminal gets to see progress: whoever reads a document wants nothing else."""
    return stderr_is_tty or not as_json


class Drawing:
    """Counts the turns that end and draws. ``say`` writes a line of plain text; ``console`` is a terminal or None."""

    def __init__(self, plan: ProgressPlan, *, console: Console | None, say: Callable[[str], None]) -> None:
        self._plan = plan
        self._say = say
        self._ended = self._failed = 0
        self._recent: deque[tuple[float, float | None]] = deque()
        self._now_s = 0.0
        self._next_line_s = _LINE_EVERY_S
        self._bar: Progress | None = None
        if console is not None:
            columns = (BarColumn(bar_width=24), TextColumn("{task.description}"))
            self._bar = Progress(*columns, console=console, auto_refresh=False, transient=True)
            self._task = self._bar.add_task("", total=1.0)
            self._bar.start()

    @classmethod
    def on_stderr(cls, plan: ProgressPlan) -> Drawing:
        tty = sys.stderr.isatty()
        return cls(plan, console=Console(stderr=True) if tty else None, say=_say_on_stderr)

    def count(self, request: tuple[object, ...]) -> None:
        """A row of ``requests`` (as ``rows.values`` gives it)."""
        status, ttft_s = request[_STATUS], request[_TTFT]
        if status == "unfinished":
            return
        self._ended += 1
        self._failed += status == "failed"
        self._recent.append((self._now_s, ttft_s * self._plan.time_scale if isinstance(ttft_s, float) else None))

    def standing(self, elapsed_s: float) -> Standing:
        while self._recent and self._recent[0][0] < elapsed_s - _RECENT_S:
            self._recent.popleft()
        turnarounds = [time_s for _, time_s in self._recent if time_s is not None]
        return Standing(
            elapsed_s=elapsed_s,
            arrivals_end_s=self._plan.arrivals_end_emu_s,
            offered=self._plan.offered,
            ended=self._ended,
            failed=self._failed,
            turnaround_s=sum(turnarounds) / len(turnarounds) if turnarounds else None,
            recent_per_s=len(self._recent) / min(_RECENT_S, elapsed_s) if elapsed_s > 0 else 0.0,
        )

    def draw(self, elapsed_s: float) -> None:
        self._now_s = elapsed_s
        standing = self.standing(elapsed_s)
        if self._bar is not None:
            self._bar.update(self._task, completed=estimate(standing).share, description=line(standing), refresh=True)
        elif elapsed_s >= self._next_line_s:
            self._next_line_s = elapsed_s - elapsed_s % _LINE_EVERY_S + _LINE_EVERY_S
            self._say(line(standing))

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def _say_on_stderr(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
