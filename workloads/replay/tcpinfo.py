"""The kernel's own account of a connection (TCP_INFO), by the offsets of ``struct tcp_info`` in linux/tcp.h."""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass

_SIZE = 256


@dataclass(frozen=True, slots=True)
class TcpInfo:
    """Totals since the connection was made. ``rto_count`` is None on kernels before 6.7, which do not tell.

    ``busy_s`` is the time with data outstanding, ``rwnd_limited_s`` the part of it that waited for the receiver's window.
    """

    total_retrans: int
    min_rtt_s: float
    busy_s: float
    rwnd_limited_s: float
    snd_wnd: int | None
    snd_cwnd: int
    snd_mss: int
    rto_count: int | None


def read_tcp_info(connection: socket.socket) -> TcpInfo:
    """Raises OSError when the socket is gone."""
    raw = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _SIZE)

    def at(offset: int, code: str) -> int | None:
        return struct.unpack_from(f"={code}", raw, offset)[0] if len(raw) >= offset + struct.calcsize(code) else None

    return TcpInfo(
        total_retrans=at(100, "I") or 0,
        min_rtt_s=(at(148, "I") or 0) / 1e6,
        busy_s=(at(168, "Q") or 0) / 1e6,
        rwnd_limited_s=(at(176, "Q") or 0) / 1e6,
        snd_wnd=at(228, "I"),
        snd_cwnd=at(80, "I") or 0,
        snd_mss=at(16, "I") or 0,
        rto_count=at(240, "H"),
    )
