"""The event loop that moves flows: senders, receivers and timers of every host in one thread and one epoll.

A flow's bytes leave when they are released and not before; they are taken from the pattern by sendfile and thrown away by
recv with MSG_TRUNC, so Python touches no payload except on flows that are checked. A flow is done when its receiver has
counted every byte.
"""

from __future__ import annotations

import heapq
import itertools
import math
import os
import select
import socket
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from time import monotonic

from workloads.replay.connections import LISTEN_PORT, Connection, ConnectionPool, Endpoint, SocketSettings
from workloads.replay.flows import FlowResult, FlowSpec
from workloads.replay.pattern import Pattern
from workloads.replay.tcpinfo import read_tcp_info
from workloads.replay.timer import TimerFd

_READ = 1 << 16
_IN, _OUT, _ERR = select.EPOLLIN, select.EPOLLOUT, select.EPOLLERR | select.EPOLLHUP
_SPARE_DELAY_S = 5e-3
_AWAKE_S = 250e-6
"""How long before something is due the loop stops sleeping: waking an idle CPU takes part of that, more in a virtual machine."""
_RELEASE_SLACK = 20e-6
"""Releases due within this many seconds are done together with the one that is due: the timer's own precision."""


class _Live:
    """A flow in progress."""

    __slots__ = (
        "actual_send", "blocked", "busy_before", "connection", "content_ok", "done", "head_at", "queued", "received",
        "released", "sent", "spec", "step",
    )  # fmt: skip

    def __init__(self, spec: FlowSpec, connection: Connection) -> None:
        self.spec = spec
        self.connection = connection
        self.released = 0
        self.sent = 0
        self.received = 0
        self.step = 0
        self.queued = False
        self.blocked = False
        self.actual_send: float | None = None
        self.head_at: float | None = None
        self.content_ok: bool | None = True if spec.check else None
        self.done = False
        self.busy_before = 0.0

    @property
    def mark(self) -> int:
        """The next count of received bytes that somebody is to be told of: the head's end, then the flow's."""
        spec = self.spec
        return spec.head_bytes if self.received < spec.head_bytes else spec.bytes


class ReplayEngine:
    """Drives flows between endpoints. ``on_head`` and ``on_done`` are called in the loop, so they must be quick; ``on_open``
    hears (source, destination, sport, dport) of every connection as it opens.

    Times are ``time.monotonic`` seconds. Raises OSError when sockets cannot be made.
    """

    def __init__(self, endpoints: Mapping[str, Endpoint], settings: SocketSettings, pattern: Pattern, *,
                 on_head: Callable[[FlowSpec, float], None] | None = None,
                 on_done: Callable[[FlowResult], None] | None = None,
                 on_open: Callable[[str, str, int, int], None] | None = None) -> None:  # fmt: skip
        self.pool = ConnectionPool(endpoints, settings)
        self.settings = settings
        self.pattern = pattern
        self.on_head = on_head
        self.on_done = on_done
        self._on_open = on_open
        self._epoll = select.epoll()
        self._timer = TimerFd()
        self._epoll.register(self._timer.fd, _IN)
        self._handlers: dict[int, Callable[[int], None]] = {self._timer.fd: lambda _events: self._timer.acknowledge()}
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._ready: deque[_Live] = deque()
        self._live: dict[Connection, _Live] = {}
        self._opening: dict[tuple[str, int, str], Connection] = {}
        self._buffer = bytearray(_READ)
        self._view = memoryview(self._buffer)
        self._stopped = False
        self.concurrent_peak = 0

    # Timers

    def call_at(self, at: float, action: Callable[[], None]) -> None:
        """Call ``action`` once the clock reaches ``at``; in order of ``at``, then of the calls."""
        heapq.heappush(self._due, (at, next(self._order), action))

    def watch(self, fd: int, action: Callable[[], None]) -> None:
        """Call ``action`` whenever a foreign descriptor is readable."""
        self._handlers[fd] = lambda _events: action()
        self._epoll.register(fd, _IN)

    def stop(self) -> None:
        """Leave ``run`` after the present step."""
        self._stopped = True

    @property
    def live(self) -> tuple[FlowSpec, ...]:
        """Flows that were started and are not done."""
        return tuple(flow.spec for flow in self._live.values())

    def run(self, until: float = math.inf) -> None:
        """Loop until ``stop``, or until the clock reaches ``until``."""
        self._stopped = False
        handlers, ready = self._handlers, self._ready
        while True:
            self._run_due()
            if self._stopped or monotonic() >= until:
                return
            for _ in range(min(len(ready), 8)):
                self._send(ready.popleft())
                self._run_due()
            timeout = 0 if ready or self._stopped else None
            if timeout is None:
                wake = min(self._due[0][0] if self._due else math.inf, until)
                if wake <= monotonic() + _AWAKE_S:
                    timeout = 0
                elif wake < math.inf:
                    self._timer.arm(wake - _AWAKE_S)
            for fd, events in self._epoll.poll(timeout, 16):
                handler = handlers.get(fd)
                if handler is not None:
                    handler(events)
                    self._run_due()

    def _run_due(self) -> None:
        """Do what is due. Called between any two packets' worth of work, so that no send waits for a batch of others."""
        due = self._due
        while due and due[0][0] <= monotonic() + _RELEASE_SLACK:
            heapq.heappop(due)[2]()

    # Flows

    def prepare(self, source: str, destination: str, slot: int) -> None:
        """Open a connection ahead, to be found warm by the first flow of its slot."""
        self._listen(destination)
        connection = self.pool.open(source, destination, slot)
        self._expect(connection, slot)

    def prepare_socket(self, source: str, destination: str, slot: int) -> None:
        """Have everything ready for a connection that is to be opened later, cold."""
        self._listen(destination)
        self.pool.spare(source, slot)

    @property
    def preparing(self) -> int:
        """Connections of which one end is still missing."""
        return len(self._opening)

    def start(self, spec: FlowSpec) -> None:
        """Begin a flow: connect now (or take a warm connection), send as it is released."""
        self._listen(spec.destination)
        connection = self.pool.take(spec.source, spec.destination, spec.slot)
        cold = connection is None
        if connection is None:
            try:
                connection = self.pool.open(spec.source, spec.destination, spec.slot)
            except OSError as error:
                self._refused(spec, error.strerror or str(error))
                return
            self._expect(connection, spec.slot)
        flow = _Live(spec, connection)
        self._live[connection] = flow
        self.concurrent_peak = max(self.concurrent_peak, len(self._live))
        if cold:
            # The SYN has left, and predicting the path took longer since than it did. One sent before the first release
            # belongs to no byte: then the flow begins with its data.
            if connection.opened_at >= spec.released_at[0] - _RELEASE_SLACK:
                flow.actual_send = connection.opened_at
        else:
            flow.busy_before = read_tcp_info(connection.sender).busy_s
            self._aim(flow)
        self._release(flow)

    def _refused(self, spec: FlowSpec, reason: str) -> None:
        """Report a flow that got no connection: from the loop, because whoever starts flows is not done starting them."""
        now = monotonic()
        result = FlowResult(spec, 0, LISTEN_PORT, True, now, None, now, 0, 0, None, None, 0.0, None, reason)
        self.call_at(now, lambda: self.on_done(result) if self.on_done is not None else None)

    def _release(self, flow: _Live) -> None:
        spec = flow.spec
        now = monotonic() + _RELEASE_SLACK
        step = flow.step
        while step < len(spec.released_at) and spec.released_at[step] <= now:
            flow.released = spec.released_bytes[step]
            step += 1
        flow.step = step
        if step < len(spec.released_at):
            self.call_at(spec.released_at[step], lambda: self._release(flow))
        if not flow.done:
            self._offer(flow)

    def _offer(self, flow: _Live) -> None:
        if flow.sent < flow.released and flow.connection.connected and not flow.queued and not flow.blocked:
            flow.queued = True
            if flow.actual_send is None:  # a first chunk goes before the others' next: it is what can be late
                self._ready.appendleft(flow)
            else:
                self._ready.append(flow)

    def _send(self, flow: _Live) -> None:
        flow.queued = False
        if flow.done:
            return
        spec, connection = flow.spec, flow.connection
        if flow.actual_send is None:
            flow.actual_send = monotonic()
        count = min(flow.released - flow.sent, self.settings.send_chunk)
        try:
            sent = os.sendfile(connection.sender.fileno(), self.pattern.fd, self.pattern.offset(spec.id, flow.sent), count)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self._fail(flow, error.strerror or str(error))
            return
        flow.sent += sent
        if sent < count:
            flow.blocked = True
            self._epoll.modify(connection.sender.fileno(), _OUT)
        else:
            self._offer(flow)

    # Sockets

    def _listen(self, host: str) -> None:
        listener = self.pool.listen(host)
        if listener is not None:
            self._handlers[listener.fileno()] = lambda _events: self._accept(listener, host)
            self._epoll.register(listener.fileno(), _IN)

    def _expect(self, connection: Connection, slot: int) -> None:
        self._opening[connection.source, connection.sport, connection.destination] = connection
        # What can wait until the flows that are due have started, and takes a system call or more.
        source, destination = connection.source, connection.destination
        if self._on_open is not None:
            hear = self._on_open
            self.call_at(monotonic(), lambda: hear(source, destination, connection.sport, connection.dport))
        if not self.settings.reuse:
            self.call_at(monotonic() + _SPARE_DELAY_S, lambda: self.pool.spare(source, slot))
        fd = connection.sender.fileno()
        self._handlers[fd] = lambda events: self._on_sender(connection, slot, events)
        self._epoll.register(fd, _OUT)

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
            fd = accepted.fileno()
            self._handlers[fd] = lambda _events, found=connection: self._on_receiver(found)  # type: ignore[misc]
            self._epoll.register(fd, _IN)
            flow = self._live.get(connection)
            if flow is not None:
                self._aim(flow)
            elif connection.connected:
                self._prepared(connection)

    def _prepared(self, connection: Connection) -> None:
        self.pool.give_back(connection, (connection.sport + connection.dport) % self.settings.classes)

    def _on_sender(self, connection: Connection, slot: int, events: int) -> None:
        flow = self._live.get(connection)
        if events & _ERR:
            code = connection.sender.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            reason = os.strerror(code) if code else "connection closed"
            if flow is None:
                self._discard(connection)
            else:
                self._fail(flow, reason)
            return
        self._epoll.modify(connection.sender.fileno(), 0)
        if not connection.connected:
            connection.connected = True
            if flow is None and connection.accepted is not None:
                self._prepared(connection)
        if flow is not None:
            flow.blocked = False
            self._offer(flow)

    def _aim(self, flow: _Live) -> None:
        """Have the receiver woken when the next mark can be reached: a frame, the head's end or the flow's."""
        accepted = flow.connection.accepted
        assert accepted is not None
        wanted = min(self.settings.read_chunk, flow.mark - flow.received)
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, max(1, wanted))

    def _on_receiver(self, connection: Connection) -> None:
        flow = self._live.get(connection)
        accepted = connection.accepted
        assert accepted is not None
        if flow is None:
            self._discard(connection)
            return
        spec = flow.spec
        mark = flow.mark
        wanted = min(_READ, mark - flow.received)
        try:
            if spec.check:
                count = accepted.recv_into(self._view, wanted)
                if count and not self.pattern.matches(spec.id, flow.received, self._view[:count]):
                    flow.content_ok = False
            else:
                count = accepted.recv_into(self._view, wanted, socket.MSG_TRUNC)
        except BlockingIOError:
            return
        except OSError as error:
            self._fail(flow, error.strerror or str(error))
            return
        if count == 0:
            self._fail(flow, "connection closed by the receiver's peer")
            return
        flow.received += count
        if flow.received == mark or mark - flow.received < self.settings.read_chunk:
            now = monotonic()
            if flow.received == spec.bytes:
                if spec.head_bytes == spec.bytes:
                    self._head(flow, now)
                self._done(flow, now, None)
                return
            if flow.received == spec.head_bytes:
                self._head(flow, now)
            self._aim(flow)

    def _discard(self, connection: Connection) -> None:
        """One end of an idle connection was closed, or has bytes nobody sent: no flow must be given it."""
        self._forget(connection)
        self.pool.drop(connection)

    def _head(self, flow: _Live, now: float) -> None:
        flow.head_at = now
        if self.on_head is not None:
            self.on_head(flow.spec, now)

    def _forget(self, connection: Connection) -> None:
        self._opening.pop((connection.source, connection.sport, connection.destination), None)
        for sock in (connection.sender, connection.accepted):
            if sock is not None and sock.fileno() >= 0:
                self._handlers.pop(sock.fileno(), None)
                try:
                    self._epoll.unregister(sock.fileno())
                except FileNotFoundError:
                    continue

    def _fail(self, flow: _Live, reason: str) -> None:
        if not flow.done:
            self._done(flow, monotonic(), reason)

    def _done(self, flow: _Live, now: float, failed: str | None) -> None:
        flow.done = True
        spec, connection = flow.spec, flow.connection
        del self._live[connection]
        retransmissions, rtos, snd_wnd, busy = 0, None, None, 0.0
        try:
            info = read_tcp_info(connection.sender)
        except OSError:
            pass
        else:
            retransmissions = info.total_retrans - connection.retransmissions
            connection.retransmissions = info.total_retrans
            if info.rto_count is not None:
                rtos = info.rto_count - connection.rtos
                connection.rtos = info.rto_count
            snd_wnd, busy = info.snd_wnd, info.busy_s - flow.busy_before
        result = FlowResult(
            spec=spec,
            sport=connection.sport,
            dport=connection.dport,
            cold=connection.cold,
            actual_send=now if flow.actual_send is None else flow.actual_send,
            head_delivered=flow.head_at,
            delivered=now,
            received=flow.received,
            retransmissions=retransmissions,
            rto_count=rtos,
            snd_wnd=snd_wnd,
            busy_s=busy,
            content_ok=flow.content_ok,
            failed=failed,
        )
        if failed is None:
            if not self.settings.reuse:
                self._forget(connection)
            self.pool.give_back(connection, spec.slot)
        else:
            self._forget(connection)
            connection.close()
        if self.on_done is not None:
            self.on_done(result)

    def abandon(self) -> None:
        """Forget every flow in progress with its connection, and every timer: nobody is told how they would have ended."""
        for connection, flow in list(self._live.items()):
            flow.done = True
            self._forget(connection)
            connection.close()
        self._live.clear()
        self._ready.clear()
        self._due.clear()

    def close(self) -> None:
        """Close every socket; flows in progress end unfinished."""
        for connection in (*self._live, *self._opening.values()):
            connection.close()
        self._live.clear()
        self.pool.close()
        self._timer.close()
        self._epoll.close()


def run_flows(engine: ReplayEngine, specs: Iterable[FlowSpec], *, give_up_at: float) -> list[FlowResult]:
    """Start every flow at its first release and return the results once all are done or ``give_up_at`` is past.

    Flows that are not done then are abandoned, lest they end in what the engine does next.
    """
    waiting = list(specs)
    results: list[FlowResult] = []

    def done(result: FlowResult) -> None:
        results.append(result)
        if len(results) == len(waiting):
            engine.stop()

    previous, engine.on_done = engine.on_done, done
    for spec in waiting:
        engine.call_at(spec.released_at[0], lambda spec=spec: engine.start(spec))  # type: ignore[misc]
    try:
        if waiting:
            engine.run(give_up_at)
    finally:
        engine.on_done = previous
        if len(results) < len(waiting):
            engine.abandon()
    return results
