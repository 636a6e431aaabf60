"""Whether a userspace switch has read what its ports received: else a frame that came before the dark meets the rules after it.

A frame that has passed a shutter waits in the packet socket by which vswitchd reads the port. The switch reads a batch, forwards
it, and only then looks at its controller again; so once the sockets of dark ports are empty, every frame of before has gone
where the old rules led. Source: /proc/net/packet, columns Iface and Rmem.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

SOCKETS = Path("/proc/net/packet")


def waiting(table: str, ifindexes: Collection[int]) -> int:
    """Bytes that wait in the packet sockets bound to these interfaces. ``table`` is the text of /proc/net/packet.

    Raises ValueError for a table of another form.
    """
    head, *lines = table.splitlines()
    names = head.split()
    try:
        iface, rmem = names.index("Iface"), names.index("Rmem")
    except ValueError:
        raise ValueError(f"not a table of packet sockets: {head!r}") from None
    rows = (line.split() for line in lines)
    return sum(int(row[rmem]) for row in rows if int(row[iface]) in ifindexes)


def backlog(ifindexes: Collection[int]) -> int:
    """The same of this network namespace, now. Raises OSError."""
    return waiting(SOCKETS.read_text(encoding="ascii"), ifindexes)
