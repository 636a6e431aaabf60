"""What the flows carry: bytes that say where in which flow they belong, without being built per flow.

A pool of seeded random bytes lies in memory once. A flow starts somewhere in it and goes round; so a receiver can compare any
stretch of any flow with the pool, and a sender lets the kernel take pages of it (sendfile) without copying.
"""

from __future__ import annotations

import os
import random

_POOL = 4 << 20
_SLACK = 1 << 18
_STRIDE = 7_919
"""Bytes between the starts of consecutive flows: a prime, so that no two of the first half million start alike."""


class Pattern:
    """The pool, in memory and as a file descriptor. ``SLACK`` bytes of its start are repeated at its end."""

    SLACK = _SLACK

    def __init__(self, seed: int) -> None:
        pool = random.Random(f"pattern {seed}").randbytes(_POOL)
        self._view = memoryview(pool + pool[:_SLACK])
        self.fd = os.memfd_create("kvfabric-pattern", os.MFD_CLOEXEC)
        os.write(self.fd, self._view)

    def offset(self, flow: int, position: int) -> int:
        """Where in the pool the byte at ``position`` of a flow lies; at least SLACK bytes follow it there."""
        return (flow * _STRIDE + position) % _POOL

    def matches(self, flow: int, position: int, data: memoryview) -> bool:
        """Whether ``data`` (at most SLACK bytes) is what the flow carries at ``position``."""
        start = self.offset(flow, position)
        return self._view[start : start + len(data)] == data

    def close(self) -> None:
        os.close(self.fd)
