"""All calendars of a cluster together: what is booked on a prefill and a decode stays the same on both.

A change is told as Booked, Moved or Freed, in the order in which it is to be carried out. Invariants, whatever is called in
whatever order: windows on a port never overlap; one whose predecessor on either port points elsewhere carries τ; a window
is on both its calendars or on none; nothing is booked to start in the past. Source: serving.md of the design.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from controller.calendar import Calendar, Gap, Part, Window, find_gap


class BookingError(RuntimeError):
    """A booking that exists already, or one that does not: a bug in whatever drives the calendars."""


@dataclass(frozen=True, slots=True)
class Booked:
    """A new window."""

    window: Window


@dataclass(frozen=True, slots=True)
class Moved:
    """A window was booked anew or extended: ``was`` no longer holds, ``window`` does."""

    was: Window
    window: Window


@dataclass(frozen=True, slots=True)
class Freed:
    """A window was given back at ``at_s``. If it had started, its circuit stays, pointing at its peer."""

    window: Window
    at_s: float


Change = Booked | Moved | Freed


class Bookings:
    """Calendars of ``prefill`` and ``decode`` instances whose ports carry ``rate_Bps`` each and move in ``tau_s``.

    ``reuse`` off sets every circuit up anew. Events of an instant come before its commands: at ``now_s`` the windows that
    began earlier have been commanded, one that begins just then has not. Methods raise BookingError for a window that is
    not booked, or is twice.
    """

    def __init__(self, prefill: int, decode: int, *, rate_Bps: float, tau_s: float, reuse: bool = True) -> None:
        if not 0 < rate_Bps < math.inf or not 0 <= tau_s < math.inf:
            raise ValueError(f"a rate of {rate_Bps} B/s and a reconfiguration delay of {tau_s} s are no switch")
        self.rate_Bps = rate_Bps
        self.tau_s = tau_s
        self.reuse = reuse
        self.prefill = tuple(Calendar(i) for i in range(prefill))
        self.decode = tuple(Calendar(i) for i in range(decode))
        self._windows: dict[tuple[int, Part], Window] = {}

    def window(self, transfer: int, part: Part) -> Window | None:
        """The window that a part of a transfer has now."""
        return self._windows.get((transfer, part))

    def windows(self) -> tuple[Window, ...]:
        """Every window that is booked and not freed."""
        return tuple(self._windows.values())

    def gap(
        self, prefill: int, decode: int, *, ready_s: float, size: float, now_s: float, before_s: float = math.inf
    ) -> Gap | None:
        """The earliest common gap of two instances for ``size`` bytes per port; None if it would not end before ``before_s``."""
        return find_gap(
            self.prefill[prefill],
            self.decode[decode],
            now_s=now_s,
            ready_s=ready_s,
            duration_s=size / self.rate_Bps,
            tau_s=self.tau_s,
            reuse=self.reuse,
            before_s=before_s,
        )

    def book(
        self, transfer: int, part: Part, prefill: int, decode: int, *, ready_s: float, size: float, now_s: float
    ) -> tuple[Change, ...]:
        """Book the earliest common gap. A tail goes behind its head, wherever that is."""
        if (transfer, part) in self._windows:
            raise BookingError(f"the {part} of transfer {transfer} is booked already")
        asked = Window(transfer, part, prefill, decode, size, ready_s, math.inf, 0.0, math.inf)
        return (Booked(self._place(asked, now_s)),)

    def free(self, transfer: int, part: Part, now_s: float) -> tuple[Change, ...]:
        """Give a window back: cancelled if it has not started, else cut short, and its circuit stays.

        Windows that counted on a circuit that now never comes are moved.
        """
        window = self._get(transfer, part)
        orphans = self._take(window, stays=window.start_s < now_s)
        return (Freed(window, now_s), *self._move(orphans, now_s))

    def extend(self, transfer: int, part: Part, until_s: float, now_s: float) -> tuple[Change, ...]:
        """Let a window that is late hold its ports until ``until_s``. If one behind it is in the way, all those behind it slide,
        in the order of their starts."""
        window = self._get(transfer, part)
        if not until_s > window.end_s:
            return ()
        behind = [w for c in self._calendars(window) for w in c.windows[c.index(window) + 1 :]]
        # All of them, or a short one would go behind a long one that is not in the way yet, and both would pay for a circuit.
        removed = self._remove(behind if any(w.start_s < until_s for w in behind) else ())
        longer = replace(window, end_s=until_s)
        self._take(window, stays=False)
        self._put(longer)
        return (Moved(window, longer), *self._replace(removed, now_s))

    def rebook(self, transfer: int, part: Part, *, ready_s: float, size: float, now_s: float) -> tuple[Change, ...]:
        """Give a window back and book the earliest gap for ``size`` bytes that are ready at ``ready_s`` in its place."""
        window = self._get(transfer, part)
        orphans = self._take(window, stays=window.start_s < now_s)
        behind = [w for w in (self.window(transfer, "tail"),) if w is not None and part == "head"]
        removed = self._remove([*orphans, *behind])
        moved = Moved(window, self._place(replace(window, ready_s=ready_s, size=size), now_s))
        return (moved, *self._replace(removed, now_s))

    def _get(self, transfer: int, part: Part) -> Window:
        window = self._windows.get((transfer, part))
        if window is None:
            raise BookingError(f"the {part} of transfer {transfer} is not booked")
        return window

    def _calendars(self, window: Window) -> tuple[Calendar, Calendar]:
        return self.prefill[window.prefill], self.decode[window.decode]

    def _put(self, window: Window) -> None:
        p, d = self._calendars(window)
        p.add(window, window.decode)
        d.add(window, window.prefill)
        self._windows[window.transfer, window.part] = window

    def _take(self, window: Window, *, stays: bool) -> list[Window]:
        """Take a window off both calendars; return the windows right behind it that have lost their circuit by that."""
        p, d = self._calendars(window)
        places = p.index(window), d.index(window)
        del self._windows[window.transfer, window.part]
        for calendar, peer in ((p, window.decode), (d, window.prefill)):
            calendar.remove(window)
            if stays:
                calendar.stand(window, peer)
        behind = [c.windows[i] for c, i in zip((p, d), places, strict=True) if i < len(c.windows)]
        return [w for w in behind if not self._has_its_circuit(w)]

    def _has_its_circuit(self, window: Window) -> bool:
        if window.setup_s >= self.tau_s:
            return True
        p, d = self._calendars(window)
        return p.peer_before(p.index(window)) == window.decode and d.peer_before(d.index(window)) == window.prefill

    def _move(self, windows: Iterable[Window], now_s: float) -> tuple[Moved, ...]:
        return self._replace(self._remove(windows), now_s)

    def _remove(self, windows: Iterable[Window]) -> list[Window]:
        """Take out windows and all that cannot stay without them: orphans of their circuits, and the tails of heads."""
        waiting, removed = list(windows), list[Window]()
        while waiting:
            window = waiting.pop()
            key = window.transfer, window.part
            if self._windows.get(key) is not window:
                continue  # taken out before: it stood behind two others
            waiting += self._take(window, stays=False)
            removed.append(window)
            tail = self._windows.get((window.transfer, "tail"))
            if window.part == "head" and tail is not None:
                waiting.append(tail)
        return removed

    def _replace(self, removed: list[Window], now_s: float) -> tuple[Moved, ...]:
        """Book removed windows anew, in the order of their starts; tell of those that have come elsewhere."""
        order = sorted(removed, key=lambda w: (w.start_s, w.end_s, w.transfer))
        moved = [Moved(was, self._place(was, now_s)) for was in order]
        return tuple(one for one in moved if one.was != one.window)

    def _place(self, asked: Window, now_s: float) -> Window:
        head = self._windows.get((asked.transfer, "head")) if asked.part == "tail" else None
        ready_s = asked.ready_s if head is None else max(asked.ready_s, head.end_s)
        found = self.gap(asked.prefill, asked.decode, ready_s=ready_s, size=asked.size, now_s=now_s)
        assert found is not None
        window = replace(asked, start_s=found.start_s, setup_s=found.setup_s, end_s=found.end_s)
        self._put(window)
        return window
