"""How far a run is and how long it will still take: pure arithmetic, and the line that says so.

The remaining time is honest: until the last planned arrival it is known, and what is outstanding beyond it is estimated from
how turns have fared so far; without that, it is a lower bound and written as one.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a run is. Times are seconds as a person waits for them (emulated).

    ``arrivals_end_s`` is when the last turn is planned to arrive, ``offered`` how many will in all. ``ended`` turns have
    completed or failed, ``failed`` of them failed. ``turnaround_s`` is how long the turns that ended lately took from
    arrival to end (None: none has yet), ``recent_per_s`` how many end a second lately.
    """

    elapsed_s: float
    arrivals_end_s: float
    offered: int
    ended: int
    failed: int
    turnaround_s: float | None
    recent_per_s: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """``remaining_s``, a lower bound if ``at_least``; ``share`` of the expected whole, 0 to 1."""

    remaining_s: float
    at_least: bool
    share: float


def estimate(standing: Standing) -> Estimate:
    """What is left."""
    left = standing.offered - standing.ended
    if left <= 0:
        return Estimate(0.0, False, 1.0)
    until_last = max(0.0, standing.arrivals_end_s - standing.elapsed_s)
    if until_last > 0:
        at_least = standing.turnaround_s is None
        remaining = until_last + (standing.turnaround_s or 0.0)
    elif standing.recent_per_s > 0:
        at_least = False
        remaining = left / standing.recent_per_s
    else:
        at_least, remaining = True, 0.0
    whole = standing.elapsed_s + remaining
    # By time, and by turns: the slower of the two, so that the bar never stands at its end while turns are outstanding.
    by_time = standing.elapsed_s / whole if whole > 0 else 0.0
    by_turns = standing.ended / standing.offered
    share = by_time if until_last > 0 else min(by_time, by_turns)
    return Estimate(remaining, at_least, min(0.999, max(0.0, share)))


def clock(time_s: float) -> str:
    """``1:05``, ``1:02:03``."""
    whole = max(0, round(time_s))
    minutes, seconds = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


def remaining_words(found: Estimate) -> str:
    """``about 0:40 left``, ``at least 0:40 left``, ``how long is unknown``."""
    if found.at_least and found.remaining_s <= 0:
        return "how much longer is unknown"
    if found.remaining_s <= 0:
        return "done"
    return f"{'at least' if found.at_least else 'about'} {clock(found.remaining_s)} left"


def line(standing: Standing) -> str:
    """One line of plain text."""
    failed = f", {standing.failed} failed" if standing.failed else ""
    turns = f"{standing.ended} of {standing.offered} turns{failed}"
    return f"{clock(standing.elapsed_s)}  {turns}, {remaining_words(estimate(standing))}"
