"""Route netlink in batches: many requests in one send, every one acknowledged, errors with the request's own words.

pyroute2 encodes the rarer messages; its socket is not used, because a round trip and a task per message is what bring-up of
hundreds of hosts cannot afford. A socket stays in the namespace in which it was opened.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

NLM_F_REQUEST, NLM_F_ACK = 0x1, 0x4
NLM_F_DUMP = 0x300
NLM_F_REPLACE, NLM_F_EXCL, NLM_F_CREATE = 0x100, 0x200, 0x400
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_HEADER = struct.Struct("=IHHII")
_BATCH = 32_000
"""Bytes in one send: the acknowledgements of a batch have to fit the receive buffer."""


class NetlinkError(OSError):
    """The kernel refused a request; the message says which."""


@dataclass(frozen=True, slots=True)
class Request:
    """One encoded message and what it is for (for the error if the kernel refuses it)."""

    data: bytes
    what: str


def request(message: Any, kind: int, what: str, *, create: bool = False, replace: bool = False) -> Request:
    """Encode a pyroute2 message object as an acknowledged request of message type ``kind``."""
    flags = NLM_F_REQUEST | NLM_F_ACK
    if create:
        flags |= NLM_F_CREATE | (NLM_F_REPLACE if replace else NLM_F_EXCL)
    message["header"]["type"] = kind
    message["header"]["flags"] = flags
    message.encode()
    return Request(bytes(message.data), what)


def raw_request(kind: int, body: bytes, what: str, *, flags: int = NLM_F_ACK) -> Request:
    """A request from an already encoded body (family header and attributes)."""
    return Request(_HEADER.pack(16 + len(body), kind, NLM_F_REQUEST | flags, 0, 0) + body, what)


def attribute(kind: int, payload: bytes) -> bytes:
    """One netlink attribute, padded to 4 bytes."""
    return struct.pack("=HH", 4 + len(payload), kind) + payload + b"\0" * (-len(payload) % 4)


def attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The attributes in a block, one level deep: (type without flags, payload)."""
    offset = 0
    while offset + 4 <= len(data):
        length, kind = struct.unpack_from("=HH", data, offset)
        if length < 4:
            return
        yield kind & 0x3FFF, data[offset + 4 : offset + length]
        offset += (length + 3) & ~3


class NetlinkSocket:
    """A NETLINK_ROUTE socket in the current namespace."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)
        self._socket.bind((0, 0))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        self._socket.settimeout(30)
        self._sequence = 0

    def close(self) -> None:
        self._socket.close()

    def apply(self, requests: Iterable[Request]) -> None:
        """Send all, wait for every acknowledgement. Raises NetlinkError for the first that was refused."""
        batch: list[Request] = []
        size = 0
        for item in requests:
            if batch and size + len(item.data) > _BATCH:
                self._exchange(batch)
                batch, size = [], 0
            batch.append(item)
            size += len(item.data)
        if batch:
            self._exchange(batch)

    def _exchange(self, batch: list[Request]) -> None:
        first = self._sequence + 1
        parts = []
        for item in batch:
            self._sequence += 1
            parts.append(item.data[:8] + struct.pack("=I", self._sequence) + item.data[12:])
        self._socket.send(b"".join(parts))
        waiting = len(batch)
        failed: NetlinkError | None = None
        while waiting:
            for kind, sequence, body in self._messages():
                if kind != _NLMSG_ERROR or not first <= sequence <= self._sequence:
                    continue
                waiting -= 1
                code = -struct.unpack_from("=i", body)[0]
                if code and failed is None:
                    failed = NetlinkError(code, f"{batch[sequence - first].what}: {os.strerror(code)}")
        if failed is not None:
            raise failed

    def dump(self, kind: int, body: bytes) -> list[bytes]:
        """The bodies of a dump's answers. Raises NetlinkError."""
        return self._ask(raw_request(kind, body, f"dump {kind}", flags=NLM_F_DUMP), many=True)

    def get(self, item: Request) -> bytes:
        """The body of the one answer to a request that asks (no acknowledgement flag). Raises NetlinkError."""
        return self._ask(item, many=False)[0]

    def _ask(self, item: Request, *, many: bool) -> list[bytes]:
        self._sequence += 1
        self._socket.send(item.data[:8] + struct.pack("=I", self._sequence) + item.data[12:])
        answers: list[bytes] = []
        while True:
            for kind, sequence, body in self._messages():
                if sequence != self._sequence:
                    continue
                if kind == _NLMSG_ERROR:
                    code = -struct.unpack_from("=i", body)[0]
                    raise NetlinkError(code, f"{item.what}: {os.strerror(code)}")
                if kind == _NLMSG_DONE:
                    return answers
                answers.append(body)
            if answers and not many:
                return answers

    def _messages(self) -> Iterator[tuple[int, int, bytes]]:
        data = self._socket.recv(1 << 18)
        offset = 0
        while offset + 16 <= len(data):
            length, kind, _flags, sequence, _pid = _HEADER.unpack_from(data, offset)
            yield kind, sequence, data[offset + 16 : offset + length]
            offset += (length + 3) & ~3
