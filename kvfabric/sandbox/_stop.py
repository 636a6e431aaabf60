"""Ctrl-C once: an orderly stop. Twice: at once."""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import Any


class StopSignals:
    """Turns SIGINT, SIGTERM and SIGHUP into a request to stop that an event loop sees.

    The first one sets ``requested`` to its name and makes ``fileno()`` readable for good. After it SIGINT and SIGTERM do
    what they do by default: the next one ends the process, exit code 128 + n to whoever waits, and with it the
    sandbox, even if the orderly stop hangs. SIGHUP is then ignored, because one closed terminal sends it twice, from the
    shell and from the kernel. A SIGHUP that was ignored at the start (``nohup``) stays so.

    A context manager; on leaving, the previous handlers are back. Main thread only. Handlers run between Python
    instructions: one long call into C delays the first signal, not the second.
    """

    def __init__(self) -> None:
        self.requested: str | None = None
        self._wakeup = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopSignals:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            previous = signal.getsignal(number)
            if number == signal.SIGHUP and previous == signal.SIG_IGN:
                continue
            self._previous[number] = previous
            signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, previous in self._previous.items():
            # None: a handler that was installed from C, which Python cannot put back.
            signal.signal(number, signal.SIG_DFL if previous is None else previous)
        os.close(self._wakeup)

    def fileno(self) -> int:
        """Readable, for select, poll or epoll, from the first signal on. Not to be read from."""
        return self._wakeup

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self.requested is not None:  # two different signals, both before Python ran this for the first
            os._exit(128 + number)
        self.requested = signal.Signals(number).name
        for handled in self._previous:
            signal.signal(handled, signal.SIG_IGN if handled == signal.SIGHUP else signal.SIG_DFL)
        os.eventfd_write(self._wakeup, 1)
