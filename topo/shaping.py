"""How one port is shaped: an HTB whose leaves are one per-flow fair queue, or one FIFO.

Pure arithmetic; ``topo.tc`` puts it on a port and reads it back. A rate is a goodput: what the payload of one TCP flow
gets. The shaper's own rate is that goodput divided by the header efficiency, a declared constant that is never fitted.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

ETHERNET_HEADER = 14
"""Bytes the shaper counts beyond the IP packet (HTB sees the frame without preamble, FCS and gap)."""
TCP_IP_HEADERS = 52
"""IPv4 20 + TCP 20 + timestamps option 12."""


TIMER_SLACK_S = 150e-6
"""How late a shaper's timer may be before its port loses throughput. In a small VM whose CPUs are kept awake, 99 of 100 timers
are late by less than this (benchmarks/README.md). It is also what every transfer gets for nothing, so it is no larger."""


class Queue(enum.Enum):
    """``fair`` gives each flow its share at every port, as an RDMA fabric with per-flow control does; ``fifo`` is plain."""

    FAIR = "fair"
    FIFO = "fifo"


@dataclass(frozen=True, slots=True)
class PortShape:
    """The shaping of one port.

    ``rate_Bps`` goodput; ``mtu`` bytes of an IP packet; ``classes`` flow classes of the fair queue (a power of two);
    ``limit`` packets that wait in one class (fair) or in the port (fifo); ``timer_slack_s`` see TIMER_SLACK_S.

    ``free_acks``: TCP segments without payload pass a fair port at once and do not count against its rate. The header
    efficiency does not know them: with data both ways they would cost each direction 66 bytes in two frames (2.2 % at an MTU
    of 1500, 0.4 % at 9000). And where they wait a frame's time at every port, a small window is used up before they are
    back. A fabric of RDMA NICs has few of them and does not queue them behind data. A FIFO treats all packets alike.
    """

    rate_Bps: float
    mtu: int
    queue: Queue = Queue.FAIR
    classes: int = 64
    limit: int = 200
    timer_slack_s: float = TIMER_SLACK_S
    free_acks: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.rate_Bps < 2**63:
            raise ValueError(f"a port's rate of {self.rate_Bps} B/s is out of range")
        if not 576 <= self.mtu <= 65535:
            raise ValueError(f"an MTU of {self.mtu} is out of range (576 to 65535)")
        if self.classes < 2 or self.classes > 4096 or self.classes & (self.classes - 1):
            raise ValueError(f"{self.classes} flow classes: it must be a power of two from 2 to 4096")
        if self.limit < 1:
            raise ValueError(f"a queue of {self.limit} packets holds nothing")
        if not 0 <= self.timer_slack_s <= 0.01:
            raise ValueError(f"a timer slack of {self.timer_slack_s} s is out of range (0 to 10 ms)")

    @property
    def frame(self) -> int:
        """Bytes of a full frame as HTB counts it."""
        return self.mtu + ETHERNET_HEADER

    @property
    def buffer(self) -> int:
        """Bytes of HTB's bucket: what the rate earns while a timer is late. It follows the rate, and may be under a frame."""
        return max(1, math.ceil(self.wire_Bps * self.timer_slack_s))

    @property
    def burst(self) -> int:
        """Bytes that leave at once after an idle while: the bucket, the frame by which HTB lets it be overdrawn, and in a fair
        queue the frame that a flow class may send by its own right.

        A transfer takes at least (its wire bytes − burst)/wire rate; shapers in a row do not add up."""
        return self.buffer + (2 if self.queue is Queue.FAIR else 1) * self.frame

    @property
    def wire_Bps(self) -> int:
        """The shaper's rate: goodput divided by (MTU − 52)/(MTU + 14), rounded to whole bytes per second."""
        return round(self.rate_Bps / header_efficiency(self.mtu))


def header_efficiency(mtu: int) -> float:
    """Payload share of a full frame of TCP with timestamps."""
    return (mtu - TCP_IP_HEADERS) / (mtu + ETHERNET_HEADER)
