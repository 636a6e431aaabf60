"""A timer an epoll loop can wait for with microseconds, where poll's own timeout has milliseconds.

Python gets timerfd only in 3.13, so libc is called.
"""

from __future__ import annotations

import contextlib
import ctypes
import os

_CLOCK_MONOTONIC = 1
_TFD_TIMER_ABSTIME = 1
_libc = ctypes.CDLL(None, use_errno=True)


class _Timespec(ctypes.Structure):
    _fields_ = (("sec", ctypes.c_long), ("nsec", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


class TimerFd:
    """One timer on CLOCK_MONOTONIC (the clock of ``time.monotonic``). Readable once due."""

    def __init__(self) -> None:
        self.fd = _libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._spec = _Itimerspec()
        self._armed: float | None = None

    def arm(self, at: float) -> None:
        """Be readable from ``at`` (monotonic seconds) on; replaces what was armed, and clears readability."""
        if at == self._armed:
            return
        self._armed = at
        nanoseconds = max(1, int(at * 1e9))
        self._spec.value.sec, self._spec.value.nsec = divmod(nanoseconds, 1_000_000_000)
        if _libc.timerfd_settime(self.fd, _TFD_TIMER_ABSTIME, ctypes.byref(self._spec), None) != 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def acknowledge(self) -> None:
        """After it was found readable."""
        self._armed = None
        with contextlib.suppress(BlockingIOError):
            os.read(self.fd, 8)

    def close(self) -> None:
        os.close(self.fd)
