"""What is due when, and the one timer that a state machine asks its driver for. Pure.

Things come out in the order of time, then of their kind, then of their entry. What has become void meanwhile is dropped,
so a timer that was set for it wakes the machine for nothing, and no more comes of it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from enum import IntEnum
from typing import Generic, TypeVar

Subject = TypeVar("Subject")


class Do(IntEnum):
    """What is due; of one instant in this order, so that what is over is over before what follows is commanded."""

    END = 0
    ASK = 1
    MISS = 2
    BEGIN = 3


class Agenda(Generic[Subject]):
    """Things due; ``is_void`` says of a subject that nothing is to be done about it any more."""

    def __init__(self, is_void: Callable[[Subject], bool]) -> None:
        self._is_void = is_void
        self._due: list[tuple[float, IntEnum, int, Subject]] = []
        self._timers: dict[int, float] = {}
        self._order = 0

    def push(self, at_s: float, what: IntEnum, subject: Subject) -> None:
        self._order += 1
        heapq.heappush(self._due, (at_s, what, self._order, subject))

    def pop(self, is_due: Callable[[float], bool]) -> tuple[IntEnum, Subject] | None:
        """The next thing that is due; None if nothing is."""
        while self._due and self._is_void(self._due[0][3]):
            heapq.heappop(self._due)
        if not self._due or not is_due(self._due[0][0]):
            return None
        _, what, _, subject = heapq.heappop(self._due)
        return what, subject

    def fired(self, token: int) -> None:
        """A timer has come: it is no longer waited for. A token that is not known is none of ours any more."""
        self._timers.pop(token, None)

    def timer(self) -> tuple[float, int] | None:
        """The instant and token of a timer that must be set; None if one that is set already comes early enough."""
        if not self._due or any(at_s <= self._due[0][0] for at_s in self._timers.values()):
            return None
        self._order += 1
        self._timers[self._order] = self._due[0][0]
        return self._due[0][0], self._order
