"""A fluid network on a virtual clock: flows with release schedules share links max-min fairly.

Every flow sends at its max-min rate while it has bytes that are released and not sent, and is not there while it has none.
Rates are computed anew when the set of active flows, a path or a capacity changes; between those instants all is linear, so
finishing times are exact. No propagation delay. Source: fabrics.md of the design, "Fluid simulator".
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy.typing as npt

from flowsim.maxmin import Rates, max_min_rates

Solver = Callable[[npt.ArrayLike, Sequence[Sequence[int]]], Rates]
"""(capacities, paths) → rates: ``max_min_rates``, or a faster one that gives the same."""


@dataclass(frozen=True, slots=True)
class FluidFlow:
    """A flow over the links ``path`` (none: nothing limits it).

    From ``released_at[i]`` on up to ``released_bytes[i]`` (cumulative) may leave; times never fall, bytes rise, the last is
    the size. The arrival of the first ``head_bytes`` is reported by itself (0: no head). Raises ValueError otherwise.
    """

    id: int
    path: tuple[int, ...]
    released_at: tuple[float, ...]
    released_bytes: tuple[float, ...]
    head_bytes: float = 0

    def __post_init__(self) -> None:
        at, size = self.released_at, self.released_bytes
        if not 0 < len(at) == len(size) or any(a > b for a, b in pairwise(at)) or not -math.inf < at[0]:
            raise ValueError(f"flow {self.id}: release times {at} for {len(size)} releases")
        if any(a >= b for a, b in pairwise((0, *size))) or not at[-1] < math.inf > size[-1]:
            raise ValueError(f"flow {self.id}: the released bytes {size} do not rise from zero")
        if not 0 <= self.head_bytes <= size[-1]:
            raise ValueError(f"flow {self.id}: a head of {self.head_bytes} of {size[-1]} bytes")
        if len(set(self.path)) != len(self.path):
            raise ValueError(f"flow {self.id} crosses a link twice: {self.path}")


@dataclass(frozen=True, slots=True)
class Started:
    """A flow has its first byte released and begins to send."""

    at_s: float
    flow: int


@dataclass(frozen=True, slots=True)
class HeadArrived:
    """The last byte of a flow's head has arrived."""

    at_s: float
    flow: int


@dataclass(frozen=True, slots=True)
class Arrived:
    """A flow's last byte has arrived; ``fct_s`` seconds after its first release."""

    at_s: float
    flow: int
    fct_s: float


FluidEvent = Started | HeadArrived | Arrived


@dataclass(slots=True)
class _Live:
    """A flow under way. ``sent`` bytes had left at ``since_s``, and leave at ``rate_Bps`` since."""

    flow: FluidFlow
    path: tuple[int, ...]
    releases: int = 0  # how many have come
    sent: float = 0.0
    since_s: float = -math.inf
    rate_Bps: float = 0.0

    @property
    def released(self) -> float:
        return self.flow.released_bytes[self.releases - 1] if self.releases else 0.0

    @property
    def goal(self) -> float:
        """The next byte count at which something happens: the end of the head, or of what is released."""
        head = self.flow.head_bytes
        return head if self.sent < head < self.released else self.released

    def goal_s(self) -> float:
        """When the goal is reached if the rate stays."""
        left = self.goal - self.sent
        return self.since_s + left / self.rate_Bps if self.rate_Bps > 0 else math.inf

    def send(self, now_s: float) -> None:
        """Bring ``sent`` up to date, before the rate changes."""
        if now_s > self.since_s and self.rate_Bps > 0:
            # Never to the goal or past it: rounding must not send what is not released, or end a flow before its event.
            self.sent = min(self.sent + self.rate_Bps * (now_s - self.since_s), math.nextafter(self.goal, 0.0))
        self.since_s = now_s


class FluidNetwork:
    """Links of ``capacity_Bps`` bytes per second and the flows on them, from time minus infinity on.

    ``advance`` lets time pass; it never falls, and all other calls take effect at the instant reached. Raises ValueError for
    a flow whose id has been used or whose releases began before that instant, KeyError for one that is not under way.
    """

    def __init__(self, capacity_Bps: Sequence[float], solver: Solver = max_min_rates) -> None:
        self._capacity = list(capacity_Bps)
        self._solver = solver
        self._now_s = -math.inf
        self._live: dict[int, _Live] = {}
        self._ids: set[int] = set()
        self._releases: list[tuple[float, int]] = []  # heap: the next release of every flow that has one to come
        self._active: dict[int, _Live] = {}
        self._stale = False  # whether rates must be computed before they are used

    @property
    def now_s(self) -> float:
        return self._now_s

    def add(self, flow: FluidFlow) -> None:
        """Take a flow in; it starts at its first release. It may cross only links that are there."""
        if flow.id in self._ids:
            raise ValueError(f"flow {flow.id} is there already")
        if flow.released_at[0] < self._now_s:
            raise ValueError(f"flow {flow.id} of {flow.released_at[0]!r} s begins before the present, {self._now_s!r} s")
        if any(not 0 <= link < len(self._capacity) for link in flow.path):
            raise ValueError(f"flow {flow.id} crosses a link that is not among the {len(self._capacity)}: {flow.path}")
        self._ids.add(flow.id)
        self._live[flow.id] = _Live(flow, flow.path)
        heapq.heappush(self._releases, (flow.released_at[0], flow.id))

    def remove(self, flow: int) -> float:
        """Give a flow up; returns the bytes that had arrived."""
        live = self._live.pop(flow)
        live.send(self._now_s)
        if self._active.pop(flow, None) is not None:
            self._stale = True
        self._releases = [entry for entry in self._releases if entry[1] != flow]
        heapq.heapify(self._releases)
        return live.sent

    def repath(self, flow: int, path: Sequence[int]) -> None:
        """From now on the flow's remaining bytes take another path."""
        live = self._live[flow]
        if len(set(path)) != len(path) or any(not 0 <= link < len(self._capacity) for link in path):
            raise ValueError(f"flow {flow} cannot cross {tuple(path)}")
        live.path = tuple(path)
        self._stale = True

    def set_capacity(self, link: int, capacity_Bps: float) -> None:
        """From now on a link carries so much; 0 is dark, and what crosses it waits."""
        self._capacity[link] = capacity_Bps
        self._stale = True

    def rates(self) -> dict[int, float]:
        """The present rate of every flow that is sending, in bytes per second."""
        self._settle()
        return {flow: live.rate_Bps for flow, live in self._active.items()}

    def next_event_s(self) -> float:
        """The next instant at which something happens by itself; infinity if nothing will."""
        self._settle()
        goals = (live.goal_s() for live in self._active.values())
        return min(min(goals, default=math.inf), self._releases[0][0] if self._releases else math.inf)

    def advance(self, until_s: float) -> tuple[FluidEvent, ...]:
        """Let time pass to ``until_s``; what happened on the way, in the order of time, then of flows. Raises ValueError."""
        if not until_s >= self._now_s:
            raise ValueError(f"time went from {self._now_s!r} s back to {until_s!r} s")
        events: list[FluidEvent] = []
        while (at_s := self.next_event_s()) <= until_s and at_s < math.inf:
            self._now_s = max(self._now_s, at_s)
            for live in [live for live in self._active.values() if live.goal_s() <= at_s]:
                self._reach(live, events)
            while self._releases and self._releases[0][0] <= at_s:
                self._release(self._live[heapq.heappop(self._releases)[1]], events)
        self._now_s = until_s
        return tuple(events)

    def _settle(self) -> None:
        """Compute the rates anew if anything changed since; flows in the order of their ids, whatever came first."""
        if not self._stale:
            return
        self._stale = False
        self._active = dict(sorted(self._active.items()))
        rates = self._solver(self._capacity, [live.path for live in self._active.values()])
        for live, rate_Bps in zip(self._active.values(), rates.tolist(), strict=True):
            if rate_Bps != live.rate_Bps:
                live.send(self._now_s)
                live.rate_Bps = rate_Bps

    def _reach(self, live: _Live, events: list[FluidEvent]) -> None:
        flow, head = live.flow, live.flow.head_bytes
        had_head = live.sent >= head
        live.sent, live.since_s = live.goal, self._now_s
        if not had_head and live.sent >= head:
            events.append(HeadArrived(self._now_s, flow.id))
        if live.sent >= live.released:
            del self._active[flow.id]
            live.rate_Bps = 0.0
            self._stale = True
        if live.sent >= flow.released_bytes[-1]:
            del self._live[flow.id]
            events.append(Arrived(self._now_s, flow.id, self._now_s - flow.released_at[0]))

    def _release(self, live: _Live, events: list[FluidEvent]) -> None:
        flow = live.flow
        if live.releases == 0:
            events.append(Started(self._now_s, flow.id))
        live.releases += 1
        if live.releases < len(flow.released_at):
            heapq.heappush(self._releases, (flow.released_at[live.releases], flow.id))
        if flow.id not in self._active:
            live.since_s = self._now_s
            self._active[flow.id] = live
            self._stale = True


def arrivals(capacity_Bps: Sequence[float], flows: Iterable[FluidFlow], solver: Solver = max_min_rates) -> dict[int, Arrived]:
    """Run flows to their end; when each arrived, by id. One that never does, over a dark link, is left out."""
    network = FluidNetwork(capacity_Bps, solver)
    for flow in flows:
        network.add(flow)
    return {event.flow: event for event in network.advance(math.inf) if isinstance(event, Arrived)}
