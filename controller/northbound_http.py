"""As much of HTTP/1.1 as the controller's northbound needs, without a socket: bytes in, requests or responses out.

Bodies have a Content-Length. A response without one goes on until its connection ends and is handed over line by line: the
stream of events.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

MAX_HEAD = 16 << 10
MAX_BODY = 1 << 20

_REASONS = {
    200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 413: "Content Too Large",
    431: "Request Header Fields Too Large", 501: "Not Implemented", 503: "Service Unavailable",
}  # fmt: skip


class HttpError(ValueError):
    """What was received is not HTTP as it is spoken here; ``status`` is the answer to give."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    body: bytes = b""
    close: bool = False


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a response that goes on."""

    text: bytes


def render_request(method: str, path: str, body: bytes = b"") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: ocs\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def render_response(status: int, body: bytes, *, close: bool = False) -> bytes:
    head = f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + (b"Connection: close\r\n\r\n" if close else b"\r\n") + body


STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nConnection: close\r\n\r\n"


class RequestParser:
    """The server's side: ``feed`` what was received, iterate over the requests that are whole. Raises HttpError."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Request]:
        self._buffer += data
        while (found := _head(self._buffer)) is not None:
            first, headers, length = found
            words = first.split(" ")
            if len(words) != 3 or not words[2].startswith("HTTP/1."):
                raise HttpError(400, f"not a request: {first[:80]!r}")
            if "transfer-encoding" in headers:
                raise HttpError(501, "a body needs a Content-Length")
            end = length + _content_length(headers)
            if len(self._buffer) < end:
                return
            close = headers.get("connection", "").lower() == "close" or words[2] == "HTTP/1.0"
            body = bytes(self._buffer[length:end])
            del self._buffer[:end]
            yield Request(words[0], words[1], body, close)


class ResponseParser:
    """The client's side: responses, and the lines of one that goes on. Raises HttpError."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._streaming = False

    def feed(self, data: bytes) -> Iterator[Response | Line]:
        self._buffer += data
        while True:
            if self._streaming:
                *lines, rest = bytes(self._buffer).split(b"\n")
                self._buffer[:] = rest
                yield from (Line(line) for line in lines)
                return
            found = _head(self._buffer)
            if found is None:
                return
            first, headers, length = found
            words = first.split(" ")
            if len(words) < 2 or not words[1].isdigit():
                raise HttpError(400, f"not a response: {first[:80]!r}")
            if "content-length" not in headers:
                del self._buffer[:length]
                self._streaming = True
                continue
            end = length + _content_length(headers)
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[length:end])
            del self._buffer[:end]
            yield Response(int(words[1]), body)


def _head(buffer: bytearray) -> tuple[str, dict[str, str], int] | None:
    """First line, headers by lower-case name, and where the body begins; None while the head is not whole."""
    end = buffer.find(b"\r\n\r\n")
    if end > MAX_HEAD or (end < 0 and len(buffer) > MAX_HEAD):
        raise HttpError(431, f"a head of more than {MAX_HEAD} bytes")
    if end < 0:
        return None
    first, *lines = buffer[:end].decode("latin-1").split("\r\n")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return first, headers, end + 4


def _content_length(headers: dict[str, str]) -> int:
    text = headers.get("content-length", "0")
    if not text.isascii() or not text.isdigit():
        raise HttpError(400, f"not a Content-Length: {text[:80]!r}")
    if int(text) > MAX_BODY:
        raise HttpError(413, f"a body of more than {MAX_BODY} bytes")
    return int(text)
