"""A client of the optical switch's controller for an event loop of one's own: it never waits and has no thread.

Two connections to the northbound: one for requests, answered in their order, and one for the stream of events. Watch ``filenos``
for reading and call ``receive``; what could not be sent at once goes out with the next call of anything (watch for writing while
``wants_write``). What arrives comes out as data.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from controller.northbound_http import Line, Response, ResponseParser, render_request
from controller.ocs_messages import (
    Answer,
    Event,
    MessageError,
    Order,
    PlaneState,
    Verb,
    answer_of,
    decode,
    event_of,
    orders_body,
    plane_state_of,
)

_RECEIVE = 1 << 16


class ControllerGone(OSError):  # noqa: N818 - the name says it where it is raised
    """The controller has ended, closed a connection, or dropped this reader of events for being too slow."""


@dataclass(frozen=True, slots=True)
class Answers:
    """To the request of that number: one answer for each order and plane, in their order."""

    request: int
    answers: tuple[Answer, ...]


@dataclass(frozen=True, slots=True)
class Planes:
    """All planes as they were at ``now_ns``."""

    request: int
    now_ns: int
    planes: tuple[PlaneState, ...]


@dataclass(frozen=True, slots=True)
class Rejected:
    """The controller did not understand that request. No order of it was carried out."""

    request: int
    status: int
    error: str


Received = Answers | Planes | Rejected | Event


class OcsClient:
    """Connected when made; ``address`` is the controller's ``northbound``. Raises OSError if nobody listens there."""

    def __init__(self, address: str) -> None:
        self._requests = 0
        self._expected: deque[tuple[int, str]] = deque()  # requests without a response: number, path
        self._out = bytearray()
        self._parsers = (ResponseParser(), ResponseParser())
        self._commands = _connect(address)
        try:
            self._events = _connect(address)
        except OSError:
            self._commands.close()
            raise
        self._events.send(render_request("GET", "/events"))

    @property
    def filenos(self) -> tuple[int, int]:
        """The descriptors to watch: requests, events."""
        return self._commands.fileno(), self._events.fileno()

    @property
    def wants_write(self) -> bool:
        """Whether something waits for the first descriptor to be writable."""
        return bool(self._out)

    def connect(self, *orders: Order) -> int:
        """Ask for circuits, all in one request; its number."""
        return self._ask("POST", "/circuits", orders_body(self._checked(orders, Verb.CONNECT)))

    def disconnect(self, *orders: Order) -> int:
        """Ask for circuits to be taken down (``verb`` DISCONNECT in each), all in one request; its number."""
        return self._ask("DELETE", "/circuits", orders_body(self._checked(orders, Verb.DISCONNECT)))

    def planes(self) -> int:
        """Ask for the state of all planes; the request's number."""
        return self._ask("GET", "/planes", b"")

    def _checked(self, orders: Iterable[Order], verb: Verb) -> Iterator[Order]:
        for order in orders:
            if order.verb is not verb:
                raise ValueError(f"{order} is not to {verb.value}")
            yield order

    def _ask(self, method: str, path: str, body: bytes) -> int:
        self._requests += 1
        self._expected.append((self._requests, path))
        self._out += render_request(method, path, body)
        self.flush()
        return self._requests

    def flush(self) -> None:
        """Send what waits, as far as the socket takes it. Raises ControllerGone."""
        try:
            while self._out:
                del self._out[: self._commands.send(self._out)]
        except BlockingIOError:
            pass
        except OSError as error:
            raise ControllerGone(error.errno, f"the controller takes no requests: {error}") from None

    def receive(self) -> tuple[Received, ...]:
        """What has arrived; nothing is an answer. Raises ControllerGone, after its last words were handed over, and MessageError
        for what no controller of ours says."""
        received: list[Received] = []
        gone: ControllerGone | None = None
        try:
            self.flush()
        except ControllerGone as error:
            gone = error
        for connection, parser in zip((self._commands, self._events), self._parsers, strict=True):
            try:
                for data in _available(connection):
                    received += [self._decoded(part) for part in parser.feed(data)]
            except ControllerGone as error:
                gone = error
        if gone is not None and not received:
            raise gone
        return tuple(received)

    def _decoded(self, part: Response | Line) -> Received:
        if isinstance(part, Line):
            return event_of(decode(part.text))
        if not self._expected:
            raise MessageError(f"a response to nothing that was asked: {part.body[:200]!r}")
        request, path = self._expected.popleft()
        document = decode(part.body)
        if part.status != 200:
            return Rejected(request, part.status, str(document.get("error", "")))
        if path == "/planes":
            return Planes(request, document["now_ns"], tuple(map(plane_state_of, document["planes"])))
        return Answers(request, tuple(map(answer_of, document["answers"])))

    def close(self) -> None:
        """Let go of both connections. Circuits stay."""
        self._commands.close()
        self._events.close()

    def __enter__(self) -> OcsClient:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


def _connect(address: str) -> socket.socket:
    """Connecting to this machine is over at once: it is waited for, and nothing afterwards."""
    host, colon, port = address.rpartition(":")
    if colon and port.isdigit() and "/" not in host:
        connection = socket.create_connection((host, int(port)))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    else:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(address)
        except OSError:
            connection.close()
            raise
    connection.setblocking(False)
    return connection


def _available(connection: socket.socket) -> Iterator[bytes]:
    while True:
        try:
            data = connection.recv(_RECEIVE)
        except BlockingIOError:
            return
        except OSError as error:
            raise ControllerGone(error.errno, f"the connection to the controller broke: {error}") from None
        if not data:
            raise ControllerGone(0, "the controller closed a connection")
        yield data
