"""How one port is shaped: an HTB whose leaves are one per-flow fair queue, or one FIFO.

Pure arithmetic; ``topo.tc`` puts it on a port and reads it back. A rate is a goodput: what the payload of one TCP flow
gets. The shaper's own rate is that goodput divided by the header efficiency, a declared constant that is never fitted.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

ETHERNET_HEADER = 14
"""Bytes the shaper counts beyond the IP packet (HTB sees the frame without preamble, FCS and gap)."""
TCP_IP_HEADERS = 52
"""IPv4 20 + TCP 20 + timestamps option 12."""


class Queue(enum.Enum):
    """``fair`` gives each flow its share at every port, as an RDMA fabric with per-flow control does; ``fifo`` is plain."""

    FAIR = "fair"
    FIFO = "fifo"


@dataclass(frozen=True, slots=True)
class PortShape:
    """The shaping of one port.

    ``rate_Bps`` goodput; ``mtu`` bytes of an IP packet; ``classes`` flow classes of the fair queue (a power of two);
    ``limit`` packets that wait in one class (fair) or in the port (fifo).
    """

    rate_Bps: float
    mtu: int
    queue: Queue = Queue.FAIR
    classes: int = 64
    limit: int = 200

    def __post_init__(self) -> None:
        if not 0 < self.rate_Bps < 2**63:
            raise ValueError(f"a port's rate of {self.rate_Bps} B/s is out of range")
        if not 576 <= self.mtu <= 65535:
            raise ValueError(f"an MTU of {self.mtu} is out of range (576 to 65535)")
        if self.classes < 2 or self.classes > 4096 or self.classes & (self.classes - 1):
            raise ValueError(f"{self.classes} flow classes: it must be a power of two from 2 to 4096")
        if self.limit < 1:
            raise ValueError(f"a queue of {self.limit} packets holds nothing")

    @property
    def frame(self) -> int:
        """Bytes of a full frame as HTB counts it: the burst, so credit follows the rate (one frame's time)."""
        return self.mtu + ETHERNET_HEADER

    @property
    def wire_Bps(self) -> int:
        """The shaper's rate: goodput divided by (MTU − 52)/(MTU + 14), rounded to whole bytes per second."""
        return round(self.rate_Bps / header_efficiency(self.mtu))


def header_efficiency(mtu: int) -> float:
    """Payload share of a full frame of TCP with timestamps."""
    return (mtu - TCP_IP_HEADERS) / (mtu + ETHERNET_HEADER)
