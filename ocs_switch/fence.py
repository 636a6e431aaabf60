"""Until when does a switch still follow rules that were changed? A barrier's reply does not say; this does.

Open vSwitch answers a barrier when its tables have changed; what it has cached for the data path follows up to 5 ms
later, and more on a busy machine. Its control socket can be told to throw the cached away, and answers when that is done: the
next packet of every port is then decided by the rules as they are.
"""

from __future__ import annotations

import json
import socket
from pathlib import Path

PURGE = "revalidator/purge"
TIMEOUT_S = 2.0


class FenceError(OSError):
    """The switch did not answer in time, or did not know the command."""


class Fence:
    """A connection to vswitchd's control socket. A context manager. Raises FenceError."""

    def __init__(self, control: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(TIMEOUT_S)
        self._number = 0
        try:
            self._socket.connect(str(control))
        except OSError as error:
            self._socket.close()
            raise FenceError(error.errno, f"{control}: {error.strerror or error}") from None

    def __enter__(self) -> Fence:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def fileno(self) -> int:
        """For those who wait for the answer in a loop of their own: ``ask``, and ``answer`` once it is readable."""
        return self._socket.fileno()

    def ask(self, command: str = PURGE) -> None:
        """Send the command and do not wait."""
        self._number += 1
        self._socket.sendall(json.dumps({"id": self._number, "method": command, "params": []}).encode())

    def answer(self) -> None:
        """Wait for the answer to the last ``ask``."""
        text = ""
        decoder = json.JSONDecoder()
        while True:
            try:
                data = self._socket.recv(65536)
            except TimeoutError:
                raise FenceError(0, f"the switch did not answer within {TIMEOUT_S:g} s") from None
            if not data:
                raise FenceError(0, "the switch closed its control socket")
            text += data.decode()
            try:
                reply, _ = decoder.raw_decode(text)
            except ValueError:
                continue
            if reply.get("error") is not None:
                raise FenceError(0, f"the switch refused: {reply['error']}")
            return

    def raise_now(self, command: str = PURGE) -> None:
        """``ask`` and ``answer``: once this returns, every packet follows the rules as they were when it was called."""
        self.ask(command)
        self.answer()
