"""Connections as they open: listeners, both ends brought together, those opened ahead kept warm."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any, Protocol

from workloads.replay.connections import Connection, ConnectionPool, Endpoint, SocketSettings
from workloads.replay.loop import EventLoop

_IN, _OUT, _ERR = select.EPOLLIN, select.EPOLLOUT, select.EPOLLERR | select.EPOLLHUP
_SPARE_DELAY_S = 5e-3


class ConnectionUser(Protocol):
    """Who hears of connections. Each call says whether a flow is on the connection, or does something for that flow."""

    def accepted(self, connection: Connection) -> bool:
        """The receiver's end is there."""

    def writable(self, connection: Connection) -> bool:
        """The sender's end is connected and takes bytes."""

    def readable(self, connection: Connection) -> None:
        """Bytes have arrived, or the end of them."""

    def broken(self, connection: Connection, reason: str) -> bool:
        """The sender's end has failed."""


class Dialer:
    """Opens connections for ``user`` on ``loop``; ``on_open`` hears (source, destination, sport, dport) of each.

    Raises OSError when the kernel refuses a socket.
    """

    def __init__(self, loop: EventLoop[Any], endpoints: Mapping[str, Endpoint], settings: SocketSettings, user: ConnectionUser,
                 on_open: Callable[[str, str, int, int], None] | None) -> None:  # fmt: skip
        self.pool = ConnectionPool(endpoints, settings)
        self._settings = settings
        self._loop = loop
        self._user = user
        self._on_open = on_open
        self._opening: dict[tuple[str, int, str], Connection] = {}

    @property
    def preparing(self) -> int:
        """Connections of which one end is still missing."""
        return len(self._opening)

    def prepare(self, source: str, destination: str, slot: int) -> None:
        """Open a connection ahead, to be found warm by the first flow of its slot."""
        self.listen(destination)
        self.dial(source, destination, slot)

    def prepare_socket(self, source: str, destination: str, slot: int) -> None:
        """Have everything ready for a connection that is to be opened later, cold."""
        self.listen(destination)
        self.pool.spare(source, slot)

    def listen(self, host: str) -> None:
        """Have a host listen, if it does not."""
        listener = self.pool.listen(host)
        if listener is not None:
            self._loop.handle(listener.fileno(), _IN, lambda _events: self._accept(listener, host))

    def dial(self, source: str, destination: str, slot: int) -> Connection:
        """Begin to connect two hosts."""
        connection = self.pool.open(source, destination, slot)
        self._opening[source, connection.sport, destination] = connection
        # What can wait until the flows that are due have started, and takes a system call or more.
        if self._on_open is not None:
            hear = self._on_open
            self._loop.call_at(monotonic(), lambda: hear(source, destination, connection.sport, connection.dport))
        if not self._settings.reuse:
            self._loop.call_at(monotonic() + _SPARE_DELAY_S, lambda: self.pool.spare(source, slot))
        self._loop.handle(connection.sender.fileno(), _OUT, lambda events: self._on_sender(connection, events))
        return connection

    def discard(self, connection: Connection) -> None:
        """One end of an idle connection was closed, or has bytes nobody sent: no flow must be given it."""
        self.forget(connection)
        self.pool.drop(connection)

    def forget(self, connection: Connection) -> None:
        """Handle the connection's sockets no longer."""
        self._opening.pop((connection.source, connection.sport, connection.destination), None)
        for sock in (connection.sender, connection.accepted):
            if sock is not None and sock.fileno() >= 0:
                self._loop.forget(sock.fileno())

    def close(self) -> None:
        """Close every connection that is idle or opening, and the listeners."""
        for connection in self._opening.values():
            connection.close()
        self.pool.close()

    def _accept(self, listener: socket.socket, host: str) -> None:
        while True:
            try:
                accepted, (address, sport) = listener.accept()
            except BlockingIOError:
                return
            source = self.pool.source_of(address)
            connection = self._opening.pop((source, sport, host), None) if source else None
            if connection is None:
                accepted.close()
                continue
            accepted.setblocking(False)
            connection.accepted = accepted
            self._loop.handle(accepted.fileno(), _IN, lambda _events, found=connection: self._user.readable(found))  # type: ignore[misc]
            if not self._user.accepted(connection) and connection.connected:
                self.pool.give_back(connection)

    def _on_sender(self, connection: Connection, events: int) -> None:
        if events & _ERR:
            code = connection.sender.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if not self._user.broken(connection, os.strerror(code) if code else "connection closed"):
                self.discard(connection)
            return
        self._loop.expect(connection.sender.fileno(), 0)
        fresh, connection.connected = not connection.connected, True
        if not self._user.writable(connection) and fresh and connection.accepted is not None:
            self.pool.give_back(connection)
