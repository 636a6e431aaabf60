"""From a trace to arrivals in a window: cut and warp absolute times, or pace the turns of live sessions by a Poisson process."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from workloads.turns import TraceTurn

Work = Callable[[int, int], float]
"""Seconds of unloaded prefill for (context, new)."""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Turns and when they arrive, seconds since the window's start, in order.

    ``time_factor`` is run seconds per trace second, None where times were synthesised; ``exhausted`` says that the trace
    ended before the work asked for was there.
    """

    turns: tuple[TraceTurn, ...]
    times_s: tuple[float, ...]
    time_factor: float | None
    exhausted: bool
    notes: tuple[str, ...]


def cut(
    turns: Sequence[TraceTurn],
    work: Work,
    window_s: float,
    target_s: float | None,
    start_s: float,
    duration_s: float | None,
) -> Arrivals:
    """The turns of [start_s, start_s + duration_s), by time. Without a target, times are kept and the window ends the cut.

    With one (seconds of unloaded prefill) the piece of the trace from ``start_s`` on that holds it, to the nearest turn, is
    stretched or shrunk to the window. Turns of one instant stay together, so that one factor fits all.
    """
    end_s = math.inf if duration_s is None else start_s + duration_s
    chosen = [turn for turn in turns if start_s <= turn.time_s < end_s]
    if target_s is None:
        kept = [turn for turn in chosen if turn.time_s - start_s < window_s]
        return Arrivals(tuple(kept), tuple(turn.time_s - start_s for turn in kept), 1.0, False, ())
    if not chosen:
        return Arrivals((), (), 1.0, True, ())
    count = _nearest_count(chosen, work, target_s)
    if count < len(chosen):
        span_s = chosen[count].time_s - start_s
    elif duration_s is not None:
        span_s = duration_s
    else:  # the trace's end is not in it: take it one mean gap after the last turn
        span_s = (chosen[-1].time_s - start_s) * (1 + 1 / len(chosen)) or window_s
    factor = window_s / span_s
    latest = math.nextafter(window_s, 0.0)  # rounding may put the last turn on the window's end, which is outside
    times_s = tuple(min((turn.time_s - start_s) * factor, latest) for turn in chosen[:count])
    reached = math.fsum(work(turn.context, turn.new) for turn in chosen[:count])
    exhausted = count == len(chosen) and reached < target_s
    notes = [f"{span_s:.4g} s of the trace take {window_s:.4g} s of the run (times × {factor:.4g})"]
    if exhausted:
        notes.append(
            f"the trace holds {reached:.4g} s of prefill from {start_s:g} s on, where the load takes {target_s:.4g} s"
        )
    return Arrivals(tuple(chosen[:count]), times_s, factor, exhausted, tuple(notes))


def _nearest_count(chosen: Sequence[TraceTurn], work: Work, target_s: float) -> int:
    """How many turns (at least one) come nearest to the target, ending where the time changes."""
    total_s, best, best_off = 0.0, len(chosen), math.inf
    for at, turn in enumerate(chosen, start=1):
        total_s += work(turn.context, turn.new)
        if at < len(chosen) and chosen[at].time_s == turn.time_s:
            continue
        if abs(total_s - target_s) < best_off:
            best, best_off = at, abs(total_s - target_s)
        if total_s >= target_s:
            break
    return best


def pace(
    turns: Sequence[TraceTurn], work: Work, window_s: float, target_s: float, live: int, rng: np.random.Generator
) -> Arrivals:
    """As many turns as come nearest to the target (seconds of unloaded prefill), at times of a Poisson process given their
    number, each the next turn of one of ``live`` sessions.

    The sessions live at the start are drawn in proportion to their length and met at a random turn: those before it are
    over. When one ends another, drawn at random from those not met, takes its place from its first turn.
    """
    order, choose, times = rng.spawn(3)
    picked, total_s, exhausted = [], 0.0, True
    for turn in _interleaved(turns, live, order, choose):
        work_s = work(turn.context, turn.new)
        if picked and total_s + work_s - target_s > target_s - total_s:
            exhausted = False
            break
        picked.append(turn)
        total_s += work_s
        if total_s >= target_s:
            exhausted = False
            break
    latest = math.nextafter(window_s, 0.0)
    times_s = tuple(min(float(time_s), latest) for time_s in np.sort(times.random(len(picked)) * window_s))
    notes = ["turns of live sessions arrive as a Poisson process (open loop, think times compressed)"]
    if exhausted:
        notes.append(f"the sessions left hold {total_s:.4g} s of prefill, where the load takes {target_s:.4g} s")
    return Arrivals(tuple(picked), times_s, None, exhausted, tuple(notes))


def _interleaved(
    turns: Sequence[TraceTurn], live: int, order: np.random.Generator, choose: np.random.Generator
) -> Iterator[TraceTurn]:
    sessions: dict[str, list[TraceTurn]] = {}
    for turn in turns:
        sessions.setdefault(turn.session, []).append(turn)
    queue = list(sessions.values())
    live = min(live, len(queue))
    # Exponential races: the smallest of E/length are a draw without replacement in proportion to length, and the order of
    # the others stays the same when more sessions are added behind them.
    race = order.exponential(size=len(queue)) / np.array([len(session) for session in queue])
    first = sorted(np.argsort(race, kind="stable")[:live].tolist())
    rest = [queue[at] for at in order.permutation(len(queue)).tolist() if at not in set(first)]
    running = [(queue[at], int(choose.integers(len(queue[at])))) for at in first]
    while running:
        slot = int(choose.integers(len(running)))
        session, at = running[slot]
        yield session[at]
        if at + 1 < len(session):
            running[slot] = (session, at + 1)
        elif rest:
            running[slot] = (rest.pop(), 0)
        else:
            running.pop(slot)
