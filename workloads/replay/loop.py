"""An event loop that is on time: one thread, one epoll, timers to the microsecond, and work in small pieces between them."""

from __future__ import annotations

import heapq
import itertools
import math
import select
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Generic, TypeVar

from workloads.replay.timer import TimerFd

Work = TypeVar("Work")

_AWAKE_S = 250e-6
"""How long before something is due the loop stops sleeping: waking an idle CPU takes part of that, more in a virtual machine."""
SLACK_S = 20e-6
"""What is due within this many seconds is done together with what is due now: the timer's own precision."""
_PIECES = 8


class EventLoop(Generic[Work]):
    """Calls ``serve`` for the pieces of work in ``ready``, handlers for descriptors, and actions at their times.

    Times are ``time.monotonic`` seconds. Between any two of them what is due is done, so that no send waits for a batch of
    others.
    """

    def __init__(self, serve: Callable[[Work], None]) -> None:
        self.ready: deque[Work] = deque()
        self._serve = serve
        self._epoll = select.epoll()
        self._timer = TimerFd()
        self._epoll.register(self._timer.fd, select.EPOLLIN)
        self._handlers: dict[int, Callable[[int], None]] = {self._timer.fd: lambda _events: self._timer.acknowledge()}
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._stopped = False

    def call_at(self, at: float, action: Callable[[], None]) -> None:
        """Call ``action`` once the clock reaches ``at``; in order of ``at``, then of the calls."""
        heapq.heappush(self._due, (at, next(self._order), action))

    def watch(self, fd: int, action: Callable[[], None]) -> None:
        """Call ``action`` whenever a foreign descriptor is readable."""
        self.handle(fd, select.EPOLLIN, lambda _events: action())

    def handle(self, fd: int, events: int, handler: Callable[[int], None]) -> None:
        """Call ``handler`` with the epoll events of a descriptor."""
        self._handlers[fd] = handler
        self._epoll.register(fd, events)

    def expect(self, fd: int, events: int) -> None:
        """Change the epoll events that a descriptor is handled for (errors always are)."""
        self._epoll.modify(fd, events)

    def forget(self, fd: int) -> None:
        """Handle a descriptor no longer; nothing if it was not handled."""
        if self._handlers.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def stop(self) -> None:
        """Leave ``run`` after the present step."""
        self._stopped = True

    def run(self, until: float = math.inf) -> None:
        """Loop until ``stop``, or until the clock reaches ``until``."""
        self._stopped = False
        handlers, ready, serve = self._handlers, self.ready, self._serve
        while True:
            self._run_due()
            if self._stopped or monotonic() >= until:
                return
            for _ in range(min(len(ready), _PIECES)):
                serve(ready.popleft())
                self._run_due()
            timeout = 0 if ready or self._stopped else None
            if timeout is None:
                wake = min(self._due[0][0] if self._due else math.inf, until)
                if wake <= monotonic() + _AWAKE_S:
                    timeout = 0
                elif wake < math.inf:
                    self._timer.arm(wake - _AWAKE_S)
            for fd, events in self._epoll.poll(timeout, 16):
                handler = handlers.get(fd)
                if handler is not None:
                    handler(events)
                    self._run_due()

    def drop_timers(self) -> None:
        """Forget what was to be called, and the work that was ready."""
        self.ready.clear()
        self._due.clear()

    def close(self) -> None:
        """Close the loop's own descriptors."""
        self._timer.close()
        self._epoll.close()

    def _run_due(self) -> None:
        due = self._due
        while due and due[0][0] <= monotonic() + SLACK_S:
            heapq.heappop(due)[2]()
