"""Barriers that mean it: a rule change is confirmed once the data plane follows it, and not when the tables have changed.

One question at a time goes to the switch's control socket (``ocs_switch.fence``); its answer covers every barrier that had been
replied to before it was asked. The socket blocks only the green thread that waits here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from controller.openflow import hub
from ocs_switch.fence import Fence

Done = Callable[[], None]
Broken = Callable[[str], None]


class Fences:
    """``add`` is called with what to do once the data plane has caught up, and with what to do if that cannot be known."""

    def __init__(self, control: Path) -> None:
        self._control = control
        self._waiting: Any = hub.Queue()
        self._fence: Fence | None = None

    def add(self, done: Done, broken: Broken) -> None:
        """Have ``done`` called after the next answer that was asked for from now on, or ``broken`` with the reason."""
        self._waiting.put((done, broken))

    def serve(self) -> None:
        """Ask and tell, for ever: a green thread's body."""
        while True:
            covered: list[tuple[Done, Broken]] = [self._waiting.get()]
            while not self._waiting.empty():
                covered.append(self._waiting.get())
            try:
                if self._fence is None:
                    self._fence = Fence(self._control)
                self._fence.raise_now()
            except OSError as error:
                if self._fence is not None:
                    self._fence.close()
                    self._fence = None
                for _, broken in covered:
                    broken(f"the data plane could not be asked: {error}")
            else:
                for done, _ in covered:
                    done()
