"""A flow in progress: how much of it may leave, has left and has arrived."""

from __future__ import annotations

from workloads.replay.connections import Connection
from workloads.replay.flows import FlowResult, FlowSpec, Gate
from workloads.replay.tcpinfo import read_tcp_info


class LiveFlow:
    """A byte leaves once it is released (``released_at`` of the flow) and the gate lets it through.

    ``gate`` counts bytes from the flow's start; a flow that is not gated has it open from the beginning. ``closing``: nothing
    leaves any more, and somebody waits for what has left to arrive.
    """

    __slots__ = (
        "actual_send", "blocked", "busy_before", "closing", "connection", "content_ok", "done", "gate", "gates", "head_arrived",
        "head_at", "queued", "received", "released", "sent", "spec", "step",
    )  # fmt: skip

    def __init__(self, spec: FlowSpec, connection: Connection) -> None:
        self.spec = spec
        self.connection = connection
        self.released = 0
        self.gate = 0 if spec.gated else spec.bytes
        self.gates: list[Gate] = []
        self.closing = False
        self.sent = 0
        self.received = 0
        self.step = 0
        self.queued = False
        self.blocked = False
        self.actual_send: float | None = None
        self.head_arrived: float | None = None
        self.head_at: float | None = None
        self.content_ok: bool | None = True if spec.check else None
        self.done = False
        self.busy_before = 0.0

    def release(self, now: float) -> float | None:
        """Take the releases that are due; when the next one is, None after the last."""
        at, step = self.spec.released_at, self.step
        while step < len(at) and at[step] <= now:
            self.released = self.spec.released_bytes[step]
            step += 1
        self.step = step
        return at[step] if step < len(at) else None

    @property
    def allowed(self) -> int:
        """Bytes, from the flow's start, that may have left by now."""
        return min(self.released, self.gate)

    @property
    def mark(self) -> int:
        """The next count of received bytes that somebody is to be told of: the head's end, a closed gate, the flow's end."""
        spec = self.spec
        end = spec.head_bytes if self.received < spec.head_bytes else spec.bytes
        return min(end, self.sent) if self.closing and self.received < self.sent else end

    def account(self, now: float, failed: str | None) -> FlowResult:
        """The flow's account as it ends, with what the kernel says of its connection since the flow before."""
        connection = self.connection
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
            snd_wnd, busy = info.snd_wnd, info.busy_s - self.busy_before
        return FlowResult(
            spec=self.spec,
            sport=connection.sport,
            dport=connection.dport,
            cold=connection.cold,
            actual_send=now if self.actual_send is None else self.actual_send,
            head_delivered=self.head_at,
            delivered=now,
            received=self.received,
            retransmissions=retransmissions,
            rto_count=rtos,
            snd_wnd=snd_wnd,
            busy_s=busy,
            content_ok=self.content_ok,
            failed=failed,
            gates=tuple(self.gates),
        )
