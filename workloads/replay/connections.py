"""Connections between hosts: both ends in this process, each socket in the namespace of its host.

The pool is the network's edge for the engine: it opens a connection for a (source, destination, slot), hands the accepted
end to the flow it was opened for, and keeps idle connections for the next flow of that slot when they are to be reused.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from time import monotonic
from typing import Protocol

LISTEN_PORT = 7000
_FIRST_PORT = 8192
_PORTS = 48_000


class HostNamespace(Protocol):
    """What is needed of a host's namespace: to enter it for a moment."""

    def entered(self) -> AbstractContextManager[None]:
        """This thread is inside for the duration."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A host as the replay sees it."""

    name: str
    address: str
    namespace: HostNamespace


@dataclass(frozen=True, slots=True)
class SocketSettings:
    """How every connection is set up. Sizes in bytes.

    ``receive_window`` is asked of SO_RCVBUF before the listen, so that it holds from the first segment on;
    ``classes`` is the number of flow classes of the fair queue: a slot's source port lies in class slot mod classes.
    """

    congestion_control: str
    receive_window: int
    send_buffer: int = 131_072
    send_chunk: int = 30_000
    read_chunk: int = 9_000
    classes: int = 64
    reuse: bool = True


def source_port(slot: int, classes: int, turn: int = 0) -> int:
    """The source port of the ``turn``-th connection that a host opens for a slot: its flow class is slot mod classes."""
    return _FIRST_PORT + turn * classes + (slot - LISTEN_PORT - _FIRST_PORT) % classes


class Connection:
    """One TCP connection and the flow it serves now. ``opened_at`` is the monotonic second at which its SYN left."""

    __slots__ = (
        "accepted", "cold", "connected", "destination", "dport", "opened_at", "retransmissions", "rtos", "sender", "source",
        "sport",
    )  # fmt: skip

    def __init__(self, source: str, destination: str, sender: socket.socket, sport: int, opened_at: float) -> None:
        self.source = source
        self.destination = destination
        self.sender = sender
        self.accepted: socket.socket | None = None
        self.sport = sport
        self.opened_at = opened_at
        self.dport = LISTEN_PORT
        self.cold = True
        self.connected = False
        self.retransmissions = 0
        self.rtos = 0

    def close(self) -> None:
        self.sender.close()
        if self.accepted is not None:
            self.accepted.close()


class ConnectionPool:
    """Opens, keeps and closes connections. Raises OSError when the kernel refuses a socket or an option."""

    def __init__(self, endpoints: Mapping[str, Endpoint], settings: SocketSettings) -> None:
        self.settings = settings
        self._endpoints = endpoints
        self._at = {endpoint.address: name for name, endpoint in endpoints.items()}
        self._round: dict[tuple[str, int], int] = {}
        self._idle: dict[tuple[str, str, int], list[Connection]] = {}
        self._spares: dict[tuple[str, int], list[tuple[socket.socket, int]]] = {}
        self.listeners: dict[str, socket.socket] = {}

    def listen(self, host: str) -> socket.socket | None:
        """The listening socket of a host if it is made by this call; None when it already listens."""
        if host in self.listeners:
            return None
        endpoint = self._endpoints[host]
        with endpoint.namespace.entered():
            listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.settings.receive_window)
        self._control(listener)
        listener.bind((endpoint.address, LISTEN_PORT))
        listener.listen(4096)
        self.listeners[host] = listener
        return listener

    def take(self, source: str, destination: str, slot: int, *, any_slot: bool = False) -> Connection | None:
        """An idle connection of this slot, warm, or with ``any_slot`` of another; None when there is none."""
        classes = self.settings.classes
        waiting = self._idle.get((source, destination, slot % classes))
        if not waiting and any_slot:
            waiting = next((found for other in range(classes) if (found := self._idle.get((source, destination, other)))), None)
        return waiting.pop() if waiting else None

    def give_back(self, connection: Connection) -> bool:
        """Keep a connection whose flow is done, or close it when connections are not reused. True if it was kept."""
        if not self.settings.reuse:
            connection.close()
            return False
        connection.cold = False
        slot = (connection.sport + connection.dport) % self.settings.classes
        self._idle.setdefault((connection.source, connection.destination, slot), []).append(connection)
        return True

    def drop(self, connection: Connection) -> None:
        """Close a connection that died while it was idle."""
        for waiting in self._idle.values():
            if connection in waiting:
                waiting.remove(connection)
        connection.close()

    def open(self, source: str, destination: str, slot: int) -> Connection:
        """Begin to connect, from the next free source port of the slot's class."""
        spares = self._spares.get((source, slot % self.settings.classes))
        sender, sport = spares.pop() if spares else self._bound(source, slot)
        target = self._endpoints[destination]
        opened_at = monotonic()
        code = sender.connect_ex((target.address, LISTEN_PORT))
        if code not in (0, errno.EINPROGRESS):
            sender.close()
            raise OSError(code, f"{source} cannot connect to {destination}: {os.strerror(code)}")
        return Connection(source, destination, sender, sport, opened_at)

    def spare(self, source: str, slot: int) -> None:
        """Have a socket of this slot's class ready, bound and not connected, so that ``open`` only connects."""
        spares = self._spares.setdefault((source, slot % self.settings.classes), [])
        if not spares:
            spares.append(self._bound(source, slot))

    def _bound(self, source: str, slot: int) -> tuple[socket.socket, int]:
        origin = self._endpoints[source]
        with origin.namespace.entered():
            sender = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self.settings.send_buffer)
            sender.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._control(sender)
            return sender, self._bind(sender, origin, slot)
        except BaseException:
            sender.close()
            raise

    def _bind(self, sender: socket.socket, origin: Endpoint, slot: int) -> int:
        classes = self.settings.classes
        key = (origin.name, slot % classes)
        rounds = _PORTS // classes
        for _attempt in range(rounds):
            turn = self._round.get(key, 0)
            self._round[key] = (turn + 1) % rounds
            sport = source_port(slot, classes, turn)
            try:
                sender.bind((origin.address, sport))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                continue
            return sport
        raise OSError(errno.EADDRINUSE, f"{origin.name} has no free source port in flow class {slot % classes}")

    def _control(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, self.settings.congestion_control.encode())

    def source_of(self, address: str) -> str | None:
        """The host at an address; None for a stranger."""
        return self._at.get(address)

    def close(self) -> None:
        """Close the idle connections, the spare sockets and the listeners."""
        for spares in self._spares.values():
            for sender, _sport in spares:
                sender.close()
        self._spares.clear()
        for waiting in self._idle.values():
            for connection in waiting:
                connection.close()
        self._idle.clear()
        for listener in self.listeners.values():
            listener.close()
        self.listeners.clear()
