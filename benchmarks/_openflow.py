"""The five OpenFlow 1.3 messages that move circuits, over a bridge's management socket: for benchmarks without a controller."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

_HEADER = struct.Struct("!BBHI")
_VERSION = 4
_HELLO, _ERROR, _ECHO, _FLOW_MOD, _BARRIER, _BARRIER_REPLY = 0, 1, 2, 14, 20, 21
_COMMANDS = {"add": 0, "delete": 4}
_ANY = 0xFFFFFFFF


class OpenFlowError(OSError):
    """The switch refused a message or did not answer."""


class Connection:
    """A connection to one bridge. Rules are (in port, out port), as OpenFlow counts them."""

    def __init__(self, socket_path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(5)
        self._socket.connect(str(socket_path))
        self._number = 0
        self._send(_HELLO, b"")
        if self._receive()[0] != _HELLO:
            raise OpenFlowError(0, f"{socket_path}: no hello")

    def close(self) -> None:
        self._socket.close()

    def _packed(self, kind: int, body: bytes) -> bytes:
        self._number += 1
        return _HEADER.pack(_VERSION, kind, 8 + len(body), self._number) + body

    def _send(self, kind: int, body: bytes) -> None:
        self._socket.sendall(self._packed(kind, body))

    def _receive(self) -> tuple[int, bytes]:
        head = self._exactly(8)
        _version, kind, length, _number = _HEADER.unpack(head)
        return kind, self._exactly(length - 8)

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self._socket.recv(count - len(data))
            if not more:
                raise OpenFlowError(0, "the switch closed the connection")
            data += more
        return data

    def change(self, remove: Iterable[tuple[int, int]], add: Iterable[tuple[int, int]]) -> None:
        """Remove rules, add rules, and wait for the barrier behind them. Raises OpenFlowError."""
        message = b"".join(self._flow_mod("delete", *rule) for rule in remove)
        message += b"".join(self._flow_mod("add", *rule) for rule in add)
        self._socket.sendall(message + self._packed(_BARRIER, b""))
        while True:
            kind, body = self._receive()
            if kind == _ERROR:
                raise OpenFlowError(0, f"the switch refused a rule: error {body[:4].hex()}")
            if kind == _BARRIER_REPLY:
                return

    def _flow_mod(self, command: Literal["add", "delete"], in_port: int, out_port: int) -> bytes:
        head = struct.pack("!QQBBHHHIIIHH", 0, 0, 0, _COMMANDS[command], 0, 0, 100, _ANY, _ANY, _ANY, 0, 0)
        match = struct.pack("!HHHBBI4x", 1, 12, 0x8000, 0, 4, in_port)
        output = struct.pack("!HHIH6x", 0, 16, out_port, 0)
        apply = struct.pack("!HHI", 4, 8 + len(output), 0) + output if command == "add" else b""
        return self._packed(_FLOW_MOD, head + match + apply)
