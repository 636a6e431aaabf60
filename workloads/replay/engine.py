"""The event loop that moves flows: senders, receivers and timers of every host in one thread and one epoll.

A flow's bytes leave when they are released and not before; they are taken from the pattern by sendfile and thrown away by
recv with MSG_TRUNC, so Python touches no payload except on flows that are checked. A flow is done when its receiver has
counted every byte.
"""

from __future__ import annotations

import fcntl
import os
import select
import socket
import struct
from collections.abc import Callable, Iterable, Mapping
from time import monotonic

from workloads.replay.connections import LISTEN_PORT, Connection, Endpoint, SocketSettings
from workloads.replay.dialer import Dialer
from workloads.replay.flows import FlowResult, FlowSpec
from workloads.replay.live import LiveFlow
from workloads.replay.loop import SLACK_S, EventLoop
from workloads.replay.pattern import Pattern
from workloads.replay.tcpinfo import read_tcp_info

_READ = 1 << 16
_SETTLE_S = 100e-6
_TIOCOUTQ = 0x5411
"""Bytes of a socket that its peer has not acknowledged (SIOCOUTQ of tcp(7))."""


class ReplayEngine(EventLoop[LiveFlow]):
    """Drives flows between endpoints. ``on_head`` and ``on_done`` are called in the loop, so they must be quick; ``on_open``
    hears (source, destination, sport, dport) of every connection as it opens.

    ``on_drained`` hears (spec, bytes received) of a gated flow once all that left before ``close_gate`` has arrived. What a
    gated flow reports (head, drained, done) it reports when nothing of it is on the wire any more, acknowledgements included.
    Times are ``time.monotonic`` seconds. Raises OSError when sockets cannot be made.
    """

    def __init__(self, endpoints: Mapping[str, Endpoint], settings: SocketSettings, pattern: Pattern, *,
                 on_head: Callable[[FlowSpec, float], None] | None = None,
                 on_done: Callable[[FlowResult], None] | None = None,
                 on_open: Callable[[str, str, int, int], None] | None = None) -> None:  # fmt: skip
        super().__init__(self._send)
        self.dialer = Dialer(self, endpoints, settings, self, on_open)
        self.settings = settings
        self.pattern = pattern
        self.on_head = on_head
        self.on_done = on_done
        self.on_drained: Callable[[FlowSpec, int], None] | None = None
        self._live: dict[Connection, LiveFlow] = {}
        self._gated: dict[int, LiveFlow] = {}
        self._buffer = bytearray(_READ)
        self._view = memoryview(self._buffer)
        self.concurrent_peak = 0

    @property
    def live(self) -> tuple[FlowSpec, ...]:
        """Flows that were started and are not done."""
        return tuple(flow.spec for flow in self._live.values())

    # Flows

    def start(self, spec: FlowSpec) -> None:
        """Begin a flow: connect now (or take a warm connection), send as it is released."""
        self.dialer.listen(spec.destination)
        connection = self.dialer.pool.take(spec.source, spec.destination, spec.slot, any_slot=spec.gated)
        cold = connection is None
        if connection is None and spec.gated:
            self._refused(spec, f"no open connection from {spec.source} to {spec.destination} is left; raise emulation.classes")
            return
        if connection is None:
            try:
                connection = self.dialer.dial(spec.source, spec.destination, spec.slot)
            except OSError as error:
                self._refused(spec, error.strerror or str(error))
                return
        flow = LiveFlow(spec, connection)
        self._live[connection] = flow
        if spec.gated:
            self._gated[spec.id] = flow
        self.concurrent_peak = max(self.concurrent_peak, len(self._live))
        if cold:
            # The SYN has left, and predicting the path took longer since than it did. One sent before the first release
            # belongs to no byte: then the flow begins with its data.
            if connection.opened_at >= spec.released_at[0] - SLACK_S:
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

    def _release(self, flow: LiveFlow) -> None:
        due = flow.release(monotonic() + SLACK_S)
        if due is not None:
            self.call_at(due, lambda: self._release(flow))
        if not flow.done:
            self._offer(flow)

    def open_gate(self, flow_id: int, upto_bytes: int, planned: float | None = None) -> None:
        """Let the bytes of a gated flow below ``upto_bytes`` leave as they are released. Nothing if the flow has ended.

        ``planned`` is when this was to happen, for the account of what was late; now by default.
        """
        flow = self._gated.get(flow_id)
        if flow is not None:
            if upto_bytes > flow.gate:
                flow.gates.append((monotonic() if planned is None else planned, upto_bytes))
            flow.gate, flow.closing = max(flow.gate, upto_bytes), False
            self._offer(flow)

    def close_gate(self, flow_id: int) -> None:
        """Let nothing more of a gated flow leave; ``on_drained`` hears when what has left has arrived, unless
        that was all: then the flow is done."""
        flow = self._gated.get(flow_id)
        if flow is None:
            return
        flow.gate, flow.closing = flow.sent, True
        if flow.received == flow.sent:
            self._settle(flow, lambda: self._drained(flow))
        else:
            self._aim(flow)

    def give_up(self, flow_id: int, reason: str) -> None:
        """End a gated flow that is not done, as failed."""
        flow = self._gated.get(flow_id)
        if flow is not None:
            self._fail(flow, reason)

    def is_gated(self, flow_id: int) -> bool:
        """Whether this is a gated flow that has not ended."""
        return flow_id in self._gated

    def outstanding(self, flow_id: int) -> int:
        """Bytes of a gated flow that have not arrived; 0 once it has ended."""
        flow = self._gated.get(flow_id)
        return 0 if flow is None else flow.spec.bytes - flow.received

    def _drained(self, flow: LiveFlow) -> None:
        if flow.closing and not flow.done and self.on_drained is not None:
            self.on_drained(flow.spec, flow.received)

    def _settle(self, flow: LiveFlow, report: Callable[[], None]) -> None:
        """Report once the sender knows that everything has arrived: an acknowledgement sent into the dark would be lost, and
        the bytes sent again on whatever circuit comes next."""
        connection = flow.connection
        if not flow.spec.gated or connection.accepted is None:
            report()
            return
        try:
            connection.accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
            left = struct.unpack("i", fcntl.ioctl(connection.sender.fileno(), _TIOCOUTQ, bytes(4)))[0]
        except OSError:
            left = 0  # the connection is gone, and with it what could be waited for
        if left == 0:
            report()
        else:
            self.call_at(monotonic() + _SETTLE_S, lambda: self._settle(flow, report))

    def _offer(self, flow: LiveFlow) -> None:
        if flow.sent < flow.allowed and flow.connection.connected and not flow.queued and not flow.blocked:
            flow.queued = True
            if flow.actual_send is None:  # a first chunk goes before the others' next: it is what can be late
                self.ready.appendleft(flow)
            else:
                self.ready.append(flow)

    def _send(self, flow: LiveFlow) -> None:
        flow.queued = False
        if flow.done or flow.sent >= flow.allowed:  # done, or its gate was closed meanwhile
            return
        spec, connection = flow.spec, flow.connection
        if flow.actual_send is None:
            flow.actual_send = monotonic()
        count = min(flow.allowed - flow.sent, self.settings.send_chunk)
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
            self.expect(connection.sender.fileno(), select.EPOLLOUT)
        else:
            self._offer(flow)

    # Sockets: what the dialer tells

    def accepted(self, connection: Connection) -> bool:
        """See ConnectionUser."""
        flow = self._live.get(connection)
        if flow is not None:
            self._aim(flow)
        return flow is not None

    def writable(self, connection: Connection) -> bool:
        """See ConnectionUser."""
        flow = self._live.get(connection)
        if flow is not None:
            flow.blocked = False
            self._offer(flow)
        return flow is not None

    def broken(self, connection: Connection, reason: str) -> bool:
        """See ConnectionUser."""
        flow = self._live.get(connection)
        if flow is not None:
            self._fail(flow, reason)
        return flow is not None

    def _aim(self, flow: LiveFlow) -> None:
        """Have the receiver woken when the next mark can be reached: a frame, the head's end or the flow's."""
        accepted = flow.connection.accepted
        assert accepted is not None
        wanted = min(self.settings.read_chunk, flow.mark - flow.received)
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, max(1, wanted))

    def readable(self, connection: Connection) -> None:
        """See ConnectionUser."""
        flow = self._live.get(connection)
        accepted = connection.accepted
        assert accepted is not None
        if flow is None:
            self.dialer.discard(connection)
            return
        if flow.done:
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
                flow.done = True  # whatever fails from here on changes nothing
                self._settle(flow, lambda: self._complete(flow, now))
                return
            if flow.received == spec.head_bytes:
                flow.head_arrived = now
                self._settle(flow, lambda: self._head(flow))
            if flow.closing and flow.received == flow.sent:
                self._settle(flow, lambda: self._drained(flow))
            self._aim(flow)

    def _complete(self, flow: LiveFlow, now: float) -> None:
        if flow.spec.head_bytes == flow.spec.bytes:
            flow.head_arrived = now
        self._head(flow)  # where the tail followed at once nothing settled in between
        self._done(flow, now, None)

    def _head(self, flow: LiveFlow) -> None:
        """Tell of the head, once, while the flow is known."""
        if flow.head_arrived is None or flow.head_at is not None or self._live.get(flow.connection) is not flow:
            return
        flow.head_at = flow.head_arrived
        if self.on_head is not None:
            self.on_head(flow.spec, flow.head_arrived)

    def _fail(self, flow: LiveFlow, reason: str) -> None:
        if not flow.done:
            self._done(flow, monotonic(), reason)

    def _done(self, flow: LiveFlow, now: float, failed: str | None) -> None:
        flow.done = True
        spec, connection = flow.spec, flow.connection
        del self._live[connection]
        self._gated.pop(spec.id, None)
        result = flow.account(now, failed)
        if failed is None:
            if not self.settings.reuse:
                self.dialer.forget(connection)
            self.dialer.pool.give_back(connection)
        else:
            self.dialer.forget(connection)
            connection.close()
        if self.on_done is not None:
            self.on_done(result)

    def abandon(self) -> None:
        """Forget every flow in progress with its connection, and every timer: nobody is told how they would have ended."""
        for connection, flow in list(self._live.items()):
            flow.done = True
            self.dialer.forget(connection)
            connection.close()
        self._live.clear()
        self._gated.clear()
        self.drop_timers()

    def close(self) -> None:
        """Close every socket; flows in progress end unfinished."""
        for connection in self._live:
            connection.close()
        self._live.clear()
        self.dialer.close()
        super().close()


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
