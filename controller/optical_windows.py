"""The windows that are booked or held, what has become of each so far, and the records of those that are over. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import get_args

from controller.bookings import Booked, Change, Moved
from controller.calendar import Part, Window
from controller.optical_events import WindowRecord

Key = tuple[int, Part]


@dataclass(slots=True)
class Held:
    """A window and its life: ``began_s`` is when its circuit was commanded or found standing, ``gate_s`` when its gate opens.

    ``holds`` counts how often it was held for the grace, or while its last bytes drained.
    """

    window: Window
    booked_s: float
    moved: int = 0
    extended: int = 0
    began_s: float | None = None
    reused: bool = False
    up_s: float | None = None
    gate_s: float | None = None
    data_s: float | None = None
    draining: bool = False
    holds: int = 0

    def record(self, at_s: float) -> WindowRecord:
        """The window is over at ``at_s``, or was at its start if that is later: a report may be older than what it ends."""
        w, end_s = self.window, at_s if self.began_s is None else max(at_s, self.began_s)
        up_s = self.up_s if self.up_s is not None and self.up_s <= end_s else None
        data_s = self.data_s if self.data_s is not None and self.data_s <= end_s else None
        return WindowRecord(
            w.transfer, w.part, w.prefill, w.decode, w.size, self.booked_s, self.began_s, w.setup_s, up_s, data_s, end_s,
            self.moved, self.extended, self.reused,
        )  # fmt: skip


class Windows:
    """Takes the changes of the calendars in. ``planned`` is called for every window that is new or is another than before,
    ``over`` with the record of every one that is over."""

    def __init__(self, planned: Callable[[Held], None], over: Callable[[WindowRecord], None]) -> None:
        self._planned = planned
        self._over = over
        self._held: dict[Key, Held] = {}
        self.booked = 0

    def get(self, key: Key) -> Held | None:
        return self._held.get(key)

    def of(self, window: Window) -> Held | None:
        """What is held for exactly this window; None if it was moved or is over."""
        held = self._held.get((window.transfer, window.part))
        return held if held is not None and held.window is window else None

    def of_transfer(self, transfer: int) -> tuple[Held, ...]:
        return tuple(held for part in get_args(Part) if (held := self._held.get((transfer, part))) is not None)

    def all(self) -> tuple[Held, ...]:
        return tuple(self._held.values())

    def apply(self, changes: tuple[Change, ...], now_s: float, ended_s: float) -> None:
        """``ended_s`` is the instant of what the changes answer to, at most ``now_s``."""
        for change in changes:
            key = change.window.transfer, change.window.part
            if isinstance(change, Booked):
                self._book(key, change.window, now_s)
            elif not isinstance(change, Moved):
                self._over(self._held.pop(key).record(ended_s))
            elif self._held[key].began_s is not None and change.window.start_s != change.was.start_s:
                over = self._held.pop(key)
                self._over(over.record(now_s))
                self._book(key, change.window, now_s)
                self._held[key].moved = over.moved + 1
            else:
                self._move(self._held[key], change.window)

    def _book(self, key: Key, window: Window, now_s: float) -> None:
        # Without reservation a window is booked as it is granted; it was asked for when its data were ready.
        asked_s = window.ready_s if window.end_s == float("inf") else now_s
        held = self._held[key] = Held(window, asked_s)
        self.booked += 1
        self._planned(held)

    def _move(self, held: Held, window: Window) -> None:
        if window.start_s == held.window.start_s and window.end_s > held.window.end_s:
            held.extended += 1
        else:
            held.moved += 1
        held.window = window
        self._planned(held)
