"""An instance's calendar: the windows booked on its optical ports, in order of time, and the peer each points to.

The tp ports of an instance are booked together, so one calendar stands for all of them. A window is the set-up of a circuit
(τ, or 0 where the circuit already stands) and the transfer over it. ``find_gap`` is GAP of Algorithm 1. Pure; times are
seconds on the caller's clock. Source: serving.md of the design, "Reservation scheduler".
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import Literal

Part = Literal["head", "tail", "all"]
"""What of a transfer a window carries: the context's KV, the new KV, or both."""


@dataclass(frozen=True, slots=True)
class Window:
    """One booking, the same object on the calendars of ``prefill`` and ``decode``; it holds [``start_s``, ``end_s``).

    The circuit is commanded at ``start_s`` and up ``setup_s`` later (0: it stands already). The data may leave from
    ``ready_s`` on: what was asked for, kept for when the window has to be moved. ``size`` is bytes per port.
    """

    transfer: int
    part: Part
    prefill: int
    decode: int
    size: float
    ready_s: float
    start_s: float
    setup_s: float
    end_s: float

    @property
    def data_s(self) -> float:
        """When its first byte is to leave."""
        return max(self.start_s + self.setup_s, self.ready_s)


@dataclass(frozen=True, slots=True)
class Gap:
    """Where a window fits: command the circuit at ``start_s``, up after ``setup_s``, free again at ``end_s``."""

    start_s: float
    setup_s: float
    end_s: float


class Calendar:
    """The windows of one instance (``instance`` counts within its role), never overlapping.

    ``starts`` and ``ends`` end with infinity, so that a search needs no bounds; ``windows`` and ``peers`` do not.
    Windows leave when they are freed, not when they end: one that has ended and is still here is late.
    """

    __slots__ = ("_standing", "_stood_s", "ends", "instance", "moving_until_s", "peers", "starts", "windows")

    def __init__(self, instance: int) -> None:
        self.instance = instance
        self.starts: list[float] = [math.inf]
        self.ends: list[float] = [math.inf]
        self.peers: list[int] = []
        self.windows: list[Window] = []
        self.moving_until_s = -math.inf
        self._standing: int | None = None
        self._stood_s = -math.inf

    def index(self, window: Window) -> int:
        """Its place. Raises KeyError if it is not booked here."""
        i = bisect_left(self.starts, window.start_s)
        if i == len(self.windows) or self.windows[i] is not window:
            raise KeyError(window)
        return i

    def add(self, window: Window, peer: int) -> None:
        """Book a window. Raises ValueError if it is empty or overlaps another: two circuits on one port."""
        i = bisect_left(self.starts, window.start_s)
        if not window.start_s < window.end_s <= self.starts[i] or (i > 0 and self.ends[i - 1] > window.start_s):
            raise ValueError(f"{window} does not fit the calendar of instance {self.instance}")
        self.starts.insert(i, window.start_s)
        self.ends.insert(i, window.end_s)
        self.peers.insert(i, peer)
        self.windows.insert(i, window)

    def remove(self, window: Window) -> None:
        """Take a window out; the circuit that stands is not changed. Raises KeyError."""
        i = self.index(window)
        del self.starts[i], self.ends[i], self.peers[i], self.windows[i]

    def stand(self, window: Window, peer: int) -> None:
        """The port was pointed at ``peer`` by a window that is gone; reports may come in any order.

        If it was given back while the port moved, the port is closed to all until the move is over.
        """
        if window.start_s >= self._stood_s:
            self._standing, self._stood_s = peer, window.start_s
        self.moving_until_s = max(self.moving_until_s, window.start_s + window.setup_s)

    def peer_before(self, i: int) -> int | None:
        """Whom the port points to when window ``i`` comes (``i`` = number of windows: after all of them)."""
        if i > 0 and self.starts[i - 1] >= self._stood_s:
            return self.peers[i - 1]
        return self._standing

    def peer_at(self, at_s: float) -> int | None:
        """Whom the port points to, or is being moved to, at an instant."""
        return self.peer_before(bisect_right(self.starts, at_s))


def find_gap(
    p: Calendar,
    d: Calendar,
    *,
    now_s: float,
    ready_s: float,
    duration_s: float,
    tau_s: float,
    reuse: bool = True,
    before_s: float = math.inf,
) -> Gap | None:
    """GAP: the earliest window on both calendars for ``duration_s`` of data that may leave from ``ready_s`` on.

    The set-up may precede the data, and is left out where the last window before on both calendars is p–d (never with
    ``reuse`` off). None if no gap ends before ``before_s``; with infinity there always is one.
    """
    now_s = max(now_s, p.moving_until_s, d.moving_until_s)
    first_s, last_s = max(now_s, ready_s - tau_s), before_s - duration_s
    p_starts, p_ends, d_starts, d_ends = p.starts, p.ends, d.starts, d.ends
    # Windows that ended earlier, or end too late for before_s, are not looked at.
    i, j = bisect_right(p_ends, first_s), bisect_right(d_ends, first_s)
    ends_s = p_ends[i : bisect_left(p_ends, last_s, i)] + d_ends[j : bisect_left(d_ends, last_s, j)]
    for t in sorted((first_s, max(now_s, ready_s), *ends_s)):
        while p_ends[i] <= t:
            i += 1
        while d_ends[j] <= t:
            j += 1
        # i and j are the next windows after t, or the ones t lies in.
        soonest_s = t + duration_s
        if soonest_s > p_starts[i] or soonest_s > d_starts[j]:
            continue
        stands = reuse and p.peer_before(i) == d.instance and d.peer_before(j) == p.instance
        setup_s = 0.0 if stands else tau_s
        start_s = max(t, ready_s - setup_s)
        end_s = max(start_s + setup_s, ready_s) + duration_s
        room_s = min(p_starts[i], d_starts[j])
        # What ends in the room has no window between t and its start either, so that the set-up found at t still holds.
        # A start beyond the room is met again as the end of a later window.
        if end_s <= room_s and not _breaks(p, i, d.instance, tau_s) and not _breaks(d, j, p.instance, tau_s):
            return Gap(start_s, setup_s, end_s) if end_s < before_s else None
    return None


def _breaks(calendar: Calendar, i: int, peer: int, tau_s: float) -> bool:
    """Whether window ``i`` counts on a circuit that one toward ``peer``, right before it, would take away."""
    return i < len(calendar.windows) and calendar.peers[i] != peer and calendar.windows[i].setup_s < tau_s
