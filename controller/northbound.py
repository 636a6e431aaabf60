"""The controller's northbound: HTTP on a Unix socket or the loopback, and a stream of events that never holds anyone up."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from collections.abc import Callable
from typing import Any, Protocol

from controller.northbound_http import STREAM_HEAD, HttpError, Request, RequestParser, render_response
from controller.ocs_messages import Event, MessageError, Order, Verb, encode, orders_of, to_json
from controller.openflow import hub

_RECEIVE = 1 << 16


class Service(Protocol):
    """What the northbound speaks for. Each method returns a JSON document."""

    def planes(self) -> dict[str, object]: ...

    def health(self) -> tuple[bool, dict[str, object]]: ...

    def order(self, orders: tuple[Order, ...]) -> dict[str, object]: ...

    def greeting(self) -> list[Event]: ...


class _Reader:
    """One reader of events: its queue, and its socket, to be cut when it does not read."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.waiting: Any = hub.Queue()


class Northbound:
    """The server. ``address``: a Unix socket's path, or HOST:PORT. A reader more than ``limit`` events behind is dropped."""

    def __init__(self, address: str, service: Service, limit: int, dropped: Callable[[str], None]) -> None:
        self._service = service
        self._limit = limit
        self._dropped = dropped
        self._readers: list[_Reader] = []
        self._listener = _listen(address)

    def serve(self) -> None:
        """Take connections for ever."""
        while True:
            connection, _ = self._listener.accept()
            hub.spawn(self._talk, connection)

    def emit(self, event: Event) -> None:
        """Tell all readers. Never waits."""
        if not self._readers:
            return
        line = encode(to_json(event)) + b"\n"
        for reader in list(self._readers):
            if reader.waiting.qsize() >= self._limit:
                self._readers.remove(reader)
                with contextlib.suppress(OSError):
                    reader.connection.shutdown(socket.SHUT_RDWR)  # wakes its writer, which then lets go of it
                self._dropped(f"a reader of events was {self._limit} behind and was dropped")
            else:
                reader.waiting.put(line)

    def _talk(self, connection: Any) -> None:
        parser = RequestParser()
        with contextlib.closing(connection), contextlib.suppress(OSError):
            if connection.family != socket.AF_UNIX:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while data := connection.recv(_RECEIVE):
                try:
                    for request in parser.feed(data):
                        if request.method == "GET" and request.path == "/events":
                            self._stream(connection)
                            return
                        connection.sendall(self._answer(request))
                        if request.close:
                            return
                except HttpError as error:
                    connection.sendall(_failure(error.status, str(error), close=True))
                    return

    def _answer(self, request: Request) -> bytes:
        key = request.method, request.path
        if key == ("GET", "/planes"):
            return render_response(200, encode(self._service.planes()), close=request.close)
        if key == ("GET", "/health"):
            healthy, document = self._service.health()
            return render_response(200 if healthy else 503, encode(document), close=request.close)
        if request.path == "/circuits" and request.method in ("POST", "DELETE"):
            try:
                orders = orders_of(request.body, Verb.CONNECT if request.method == "POST" else Verb.DISCONNECT)
                document = self._service.order(orders)
            except MessageError as error:
                return _failure(400, str(error), close=request.close)
            hub.sleep(0)  # the switches' connections send now; the answer comes after the rules
            return render_response(200, encode(document), close=request.close)
        if request.path in ("/planes", "/health", "/circuits", "/events"):
            return _failure(405, f"{request.path} has no {request.method}", close=request.close)
        return _failure(404, "there are /planes, /health, /circuits and /events", close=request.close)

    def _stream(self, connection: Any) -> None:
        reader = _Reader(connection)
        for event in self._service.greeting():
            reader.waiting.put(encode(to_json(event)) + b"\n")
        self._readers.append(reader)
        try:
            connection.sendall(STREAM_HEAD)
            while True:
                lines = [reader.waiting.get()]
                while reader.waiting.qsize():
                    lines.append(reader.waiting.get())
                connection.sendall(b"".join(lines))
        finally:
            if reader in self._readers:
                self._readers.remove(reader)


def _failure(status: int, text: str, *, close: bool) -> bytes:
    return render_response(status, encode({"error": text}), close=close)


def _listen(address: str) -> Any:
    """Only this user's processes may connect to the socket, of mode 0600. Raises OSError, also where another listens already."""
    host, colon, port = address.rpartition(":")
    if colon and port.isdigit() and "/" not in host:
        return hub.listen((host, int(port)), reuse_port=False)
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISSOCK(os.stat(address).st_mode):
            _check_abandoned(address)
            os.unlink(address)
    before = os.umask(0o177)
    try:
        return hub.listen(address, family=socket.AF_UNIX)
    finally:
        os.umask(before)


def _check_abandoned(address: str) -> None:
    with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(ConnectionRefusedError):
        probe.connect(address)
        raise OSError(errno.EADDRINUSE, "another controller listens there", address)
