"""The shutter: light on the ports of an emulated optical switch, kept or cut in the data plane to the nanosecond.

An XDP program at the switch's end of each link drops what arrives while its port is dark, whatever the switch behind it
believes: generic XDP comes before the taps by which a userspace Open vSwitch reads and before the kernel's own datapath. When a
port is dark stands in an array that user space maps, so turning light on or off is one store, no system call, and any process
that holds the array's descriptor can do it. Times are nanoseconds of CLOCK_MONOTONIC, which is ``time.monotonic_ns()``.

A port that was never opened is dark: a crossbar without circuits carries nothing.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from dataclasses import dataclass

from ocs_switch import bpf
from topo.netlink import NetlinkSocket, attribute, attributes, raw_request

FOR_EVER = (1 << 64) - 1
"""``until_ns`` of a port that stays dark until it is opened."""

MAX_INDEX = 4096
"""Interface indices an array has room for. A sandbox counts its interfaces from 1."""

_FROM, _UNTIL, _PACKETS, _BYTES = 0, 1, 2, 3
_WORDS = 4
_RTM_NEWLINK, _RTM_GETLINK = 16, 18
_IFLA_XDP, _NESTED = 43, 0x8000
_XDP_FD, _XDP_ATTACHED, _XDP_FLAGS, _XDP_PROG_ID = 1, 2, 3, 4
_SKB_MODE, _ATTACHED_SKB = 2, 2
_DROP, _PASS = 1, 2
_LOOKUP, _KTIME, _BUFF_LEN = 1, 5, 188


@dataclass(frozen=True, slots=True)
class Lost:
    """What a port has swallowed in the dark since the array was made: frames and their bytes, Ethernet headers included.

    A frame that TCP segmentation left whole counts as one."""

    packets: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Window:
    """The port is dark while from ≤ now < until, in nanoseconds of CLOCK_MONOTONIC."""

    from_ns: int
    until_ns: int

    def dark(self, now_ns: int) -> bool:
        return self.from_ns <= now_ns < self.until_ns


class LightError(OSError):
    """The kernel took no program, or attached another one than asked."""


class Light:
    """The shutters of all ports, by interface index. Made once with ``create``, elsewhere from the inherited ``fd``.

    Raises BpfError. Closing it takes neither the program off a port nor the array from others that hold it.
    """

    def __init__(self, fd: int) -> None:
        facts = bpf.map_facts(fd)
        if facts["value_size"] != 8 * _WORDS:
            raise LightError(0, f"descriptor {fd} is a map of other values than a port's")
        self.fd = fd
        self.size = facts["max_entries"]
        self._memory = mmap.mmap(fd, self.size * 8 * _WORDS)
        self._words = memoryview(self._memory).cast("Q")  # a store through it is one aligned 64-bit store
        self._program = -1
        self._program_id = 0

    @classmethod
    def create(cls, max_index: int = MAX_INDEX) -> Light:
        """A new array for interface indices below ``max_index``, every port dark."""
        light = cls(bpf.create_array(max_index, 8 * _WORDS, "kvfabric_light"))
        for index in range(max_index):
            light._words[index * _WORDS + _UNTIL] = FOR_EVER
        return light

    def __enter__(self) -> Light:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of array and program."""
        if self.fd < 0:
            return
        self._words.release()
        self._memory.close()
        for fd in (self.fd, self._program):
            if fd >= 0:
                os.close(fd)
        self.fd = self._program = -1

    def attach(self, netlink: NetlinkSocket, ifindex: int) -> None:
        """Put the shutter on an interface, in place of any other program. Raises LightError or NetlinkError."""
        self._at(ifindex, 0)
        if self._program < 0:
            self._program = _load(self.fd)
            self._program_id = bpf.program_id(self._program)
        wanted = attribute(_XDP_FD, struct.pack("=i", self._program)) + attribute(_XDP_FLAGS, struct.pack("=I", _SKB_MODE))
        body = struct.pack("=BBHiII", 0, 0, 0, ifindex, 0, 0) + attribute(_IFLA_XDP | _NESTED, wanted)
        netlink.apply([raw_request(_RTM_NEWLINK, body, f"shutter on interface {ifindex}")])
        if not self.attached(netlink, ifindex):
            raise LightError(0, f"interface {ifindex}: another program than the shutter was attached")

    def attached(self, netlink: NetlinkSocket, ifindex: int) -> bool:
        """Whether this shutter is on the interface, now. Only the object that attached it can say. Raises NetlinkError."""
        asked = raw_request(_RTM_GETLINK, struct.pack("=BBHiII", 0, 0, 0, ifindex, 0, 0), f"interface {ifindex}", flags=0)
        xdp = dict(attributes(dict(attributes(netlink.get(asked)[16:])).get(_IFLA_XDP, b"")))
        number = struct.unpack("=I", xdp[_XDP_PROG_ID])[0] if _XDP_PROG_ID in xdp else 0
        return xdp.get(_XDP_ATTACHED, b"\0")[0] == _ATTACHED_SKB and number == self._program_id

    def shut(self, ifindex: int, from_ns: int, until_ns: int = FOR_EVER) -> None:
        """The port is dark from ``from_ns`` (which may be past or to come) until ``until_ns``; by itself lit from then on.

        A port that is dark now stays so: its new window begins with the old one. Raises IndexError.
        """
        first = self._at(ifindex, _FROM)
        words = self._words
        if words[first] <= time.monotonic_ns() < words[first + _UNTIL]:
            # Each store is seen by itself. In this order every mixture of old and new is dark.
            words[first + _UNTIL] = FOR_EVER
            words[first] = min(words[first], from_ns)
        else:
            words[first] = from_ns  # the old end is past: still lit, whatever the new beginning
        words[first + _UNTIL] = until_ns

    def open(self, ifindex: int) -> None:
        """The port is lit from now on. Raises IndexError."""
        self._words[self._at(ifindex, _UNTIL)] = 0

    def state(self, ifindex: int) -> Window:
        """The port's window; one whose end is past is a port that is lit. Raises IndexError."""
        first = self._at(ifindex, _FROM)
        return Window(self._words[first], self._words[first + _UNTIL])

    def lost(self, ifindex: int) -> Lost:
        """What the port has swallowed so far. Raises IndexError."""
        first = self._at(ifindex, _PACKETS)
        return Lost(self._words[first], self._words[first + 1])

    def _at(self, ifindex: int, word: int) -> int:
        if not 0 < ifindex < self.size:
            raise IndexError(f"interface {ifindex} is beyond the {self.size} that the shutter has room for")
        return ifindex * _WORDS + word


def _program(map_fd: int, *, whole: bool) -> bytes:
    """Drop and count while dark, pass otherwise; drop on an interface the array has no place for.

    ``whole``: the length of a frame in pieces is asked of the kernel, which old ones cannot tell (nor have such frames).
    """
    length = (
        [bpf.instruction(0xBF, 1, 6), bpf.instruction(0x85, immediate=_BUFF_LEN)]
        if whole
        else [
            bpf.instruction(0x61, 0, 6, 4),  # r0 = data_end
            bpf.instruction(0x61, 1, 6, 0),  # r1 = data
            bpf.instruction(0x1F, 0, 1),  # r0 -= r1
        ]
    )
    return bpf.assemble(
        [
            bpf.instruction(0xBF, 6, 1),  # r6 = context
            bpf.instruction(0x61, 2, 6, 12),  # r2 = ingress_ifindex
            bpf.instruction(0x63, 10, 2, -4),  # the key, on the stack
            bpf.load_map(1, map_fd),
            bpf.instruction(0xBF, 2, 10),
            bpf.instruction(0x07, 2, immediate=-4),
            bpf.instruction(0x85, immediate=_LOOKUP),
            ("drop", 0x15, 0, 0, 0),  # no such port
            bpf.instruction(0xBF, 7, 0),
            bpf.instruction(0x85, immediate=_KTIME),
            bpf.instruction(0x79, 1, 7, 8 * _FROM),
            bpf.instruction(0x79, 2, 7, 8 * _UNTIL),
            ("pass", 0xAD, 0, 1, 0),  # now < from
            ("pass", 0x3D, 0, 2, 0),  # now >= until
            bpf.instruction(0xB7, 1, immediate=1),
            bpf.instruction(0xDB, 7, 1, 8 * _PACKETS, 0),  # atomic add
            *length,
            bpf.instruction(0xDB, 7, 0, 8 * _BYTES, 0),
            "drop",
            bpf.instruction(0xB7, 0, immediate=_DROP),
            bpf.instruction(0x95),
            "pass",
            bpf.instruction(0xB7, 0, immediate=_PASS),
            bpf.instruction(0x95),
        ]
    )


def _load(map_fd: int) -> int:
    try:
        return bpf.load_xdp(_program(map_fd, whole=True), "kvfabric_light", flags=bpf.F_XDP_HAS_FRAGS)
    except bpf.BpfError:  # before Linux 5.18 a frame comes in one piece always
        return bpf.load_xdp(_program(map_fd, whole=False), "kvfabric_light")


def supported() -> str | None:
    """None where the shutter works; else why not."""
    try:
        with Light.create(2) as light:
            os.close(_load(light.fd))
    except (OSError, ValueError) as error:
        return f"the kernel takes no XDP shutter: {error}"
    return None
