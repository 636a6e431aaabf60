"""As much of an OpenFlow 1.3 switch as a controller needs to believe in it, and no more than a test wants it to do."""

from __future__ import annotations

import select
import socket
import struct
import time
from dataclasses import dataclass, field

_HEADER = struct.Struct("!BBHI")
_VERSION = 4
_HELLO, _ECHO, _ECHO_REPLY, _FEATURES, _FEATURES_REPLY, _FLOW_MOD = 0, 2, 3, 5, 6, 14
_MULTIPART, _MULTIPART_REPLY, _BARRIER, _BARRIER_REPLY = 18, 19, 20, 21


@dataclass
class FakeSwitch:
    """Connects when made. ``pump`` lets it answer; barriers only while ``answers_barriers``, anything only while ``answers``."""

    dpid: int
    port: int
    answers: bool = True
    answers_barriers: bool = True
    flow_mods: int = 0
    closed: bool = False
    unanswered: list[int] = field(default_factory=list)
    received: bytearray = field(default_factory=bytearray)

    def __post_init__(self) -> None:
        until = time.monotonic() + 5
        while True:  # as a switch does: the controller may not listen yet
            try:
                self.socket = socket.create_connection(("127.0.0.1", self.port))
                break
            except ConnectionRefusedError:
                assert time.monotonic() < until
                time.sleep(0.02)
        self._send(_HELLO, 0)

    def _send(self, kind: int, xid: int, body: bytes = b"") -> None:
        self.socket.sendall(_HEADER.pack(_VERSION, kind, 8 + len(body), xid) + body)

    def pump(self, timeout_s: float = 0.01) -> None:
        while not self.closed and select.select([self.socket], [], [], timeout_s)[0]:
            data = self.socket.recv(65536)
            self.closed = not data
            self.received += data
            while len(self.received) >= 8:
                _, kind, length, xid = _HEADER.unpack_from(self.received)
                if len(self.received) < length:
                    break
                body = bytes(self.received[8:length])
                del self.received[:length]
                if self.answers:
                    self._answer(kind, xid, body)

    def _answer(self, kind: int, xid: int, body: bytes) -> None:
        if kind == _FEATURES:
            self._send(_FEATURES_REPLY, xid, struct.pack("!QIBBxxII", self.dpid, 0, 254, 0, 0, 0))
        elif kind == _ECHO:
            self._send(_ECHO_REPLY, xid, body)
        elif kind == _MULTIPART:
            self._send(_MULTIPART_REPLY, xid, body[:2] + bytes(6))  # no flows, no ports
        elif kind == _FLOW_MOD:
            self.flow_mods += 1
        elif kind == _BARRIER:
            self.unanswered.append(xid)
            if self.answers_barriers:
                self.confirm()

    def confirm(self) -> None:
        """Answer the barriers that were left unanswered."""
        for xid in self.unanswered:
            self._send(_BARRIER_REPLY, xid)
        self.unanswered.clear()

    def close(self) -> None:
        self.socket.close()
        self.closed = True
