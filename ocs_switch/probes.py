"""Frames sent through the planes to see what light does: between all ports of a plane, and as a paced stream.

Frames are built by scapy and sent and received through packet sockets inside the hosts' namespaces, on their KV NICs: what is
probed is the way of a KV byte. They carry the ethertype for local experiments, which no stack answers. What the arrivals mean is
worked out in ``ocs_switch.darkness``.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import socket
import struct
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from topo.netns import Namespace

ETHERTYPE = 0x88B5
BROADCAST = "ff:ff:ff:ff:ff:ff"
MIN_FRAME = 60
"""Bytes of the shortest Ethernet frame without its checksum."""

_MAGIC = b"kvfabric"
_BODY = struct.Struct("!8sHHI")  # magic, source port, addressee, number
_BODY_AT = 14
_BUFFER = 256 << 20
"""Bytes a socket may hold: a stream is collected when it is over, since reading meanwhile takes the CPU that keeps its pace."""

_SO_RCVBUFFORCE, _SO_TIMESTAMPNS = 33, 35
_PR_SET_TIMERSLACK = 29
_TO_ALL = 0xFFFF


@dataclass(frozen=True, slots=True)
class Station:
    """A host's KV NIC at a port of a plane."""

    port: int
    namespace: Namespace
    device: str
    mac: str


@dataclass(frozen=True, slots=True)
class Arrival:
    """A probe that came out: at which port, when (nanoseconds of CLOCK_MONOTONIC), and what it says of itself."""

    port: int
    at_ns: int
    source: int
    addressee: int
    number: int


def build_frame(source_mac: str, destination_mac: str, source: int, addressee: int, number: int = 0) -> bytes:
    """One probe."""
    from scapy.layers.l2 import Ether  # takes half a second to import, which only those who probe should pay
    from scapy.packet import Raw

    body = _BODY.pack(_MAGIC, source, addressee, number)
    frame = Ether(src=source_mac, dst=destination_mac, type=ETHERTYPE) / Raw(body.ljust(MIN_FRAME - _BODY_AT, b"\0"))
    return bytes(frame)


def parse_frame(frame: bytes) -> tuple[int, int, int] | None:
    """(source port, addressee, number) of a probe; None for any other frame."""
    if len(frame) < _BODY_AT + _BODY.size or frame[_BODY_AT : _BODY_AT + len(_MAGIC)] != _MAGIC:
        return None
    _magic, source, addressee, number = _BODY.unpack_from(frame, _BODY_AT)
    return source, addressee, number


class Probes:
    """Packet sockets on the KV NICs of a plane. A context manager. Raises OSError when the kernel refuses one."""

    def __init__(self, stations: Iterable[Station]) -> None:
        self.stations = {station.port: station for station in stations}
        self._sockets: dict[int, socket.socket] = {}
        try:
            for port, station in self.stations.items():
                with station.namespace.entered():
                    opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, 0)
                self._sockets[port] = opened
                opened.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER)
                opened.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
                opened.bind((station.device, ETHERTYPE))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Probes:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        for opened in self._sockets.values():
            opened.close()

    def send(self, port: int, frame: bytes) -> None:
        """Send a frame from the KV NIC behind a port. Raises OSError."""
        self._sockets[port].send(frame)

    def collect(self) -> list[Arrival]:
        """What has come out between the last call and this one, port by port."""
        found = []
        now = time.monotonic_ns()
        offset = time.time_ns() - now  # the kernel stamps with the time of day
        for port, opened in self._sockets.items():
            with suppress(BlockingIOError):
                while True:
                    frame, ancillary, _flags, address = opened.recvmsg(2048, 64)
                    said = parse_frame(frame)
                    if said is not None and address[2] != socket.PACKET_OUTGOING:
                        seconds, nanoseconds = struct.unpack_from("=qq", ancillary[0][2])
                        found.append(Arrival(port, seconds * 1_000_000_000 + nanoseconds - offset, *said))
                        if found[-1].at_ns > now:  # a stream that goes on would never let this end
                            break
        return found

    def reach(self, *, wait_s: float = 0.1) -> dict[int, dict[int, set[int]]]:
        """Send one frame from every port to every other port's address, and to all: where did each come out?

        The addressee is a port, or -1 for the broadcast.
        """
        self.collect()
        found: dict[int, dict[int, set[int]]] = {port: {} for port in self.stations}
        for source, station in self.stations.items():
            for addressee, mac in ((port, other.mac) for port, other in self.stations.items() if port != source):
                found[source][addressee] = set()
                self.send(source, build_frame(station.mac, mac, source, addressee))
            found[source][-1] = set()
            self.send(source, build_frame(station.mac, BROADCAST, source, _TO_ALL))
        time.sleep(wait_s)
        for arrival in self.collect():
            addressee = -1 if arrival.addressee == _TO_ALL else arrival.addressee
            found[arrival.source][addressee].add(arrival.port)
        return found


class PacedStreams:
    """Streams of numbered frames from several ports, ``rate`` frames a second each, sent by a process of their own.

    ``sent_ns`` tells of every frame when it was sent, on this process's clock. A context manager; leaving it ends the process.
    """

    def __init__(self, probes: Probes, pairs: Mapping[int, int], *, rate: float, seconds: float, nice: int = -10) -> None:
        self._ports = sorted(pairs)
        self._capacity = int(rate * seconds) + 1
        self._shared = mmap.mmap(-1, 8 * (1 + self._capacity * len(self._ports)))
        self._words = memoryview(self._shared).cast("Q")
        frames = {
            port: bytearray(build_frame(probes.stations[port].mac, probes.stations[to].mac, port, to))
            for port, to in pairs.items()
        }
        self._child = os.fork()
        if self._child == 0:
            with ExitStack() as undo:
                undo.callback(os._exit, 0)
                os.setpriority(os.PRIO_PROCESS, 0, nice)
                ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
                self._send_all(probes, frames, 1e9 / rate)

    def _send_all(self, probes: Probes, frames: Mapping[int, bytearray], interval_ns: float) -> None:
        """In the child: a frame of every stream at each instant. Instants that were missed are not made up for: a burst would
        fill the NIC's queue and be lost there, and not for want of light."""
        sockets = [probes._sockets[port] for port in self._ports]
        listed = [frames[port] for port in self._ports]
        words, place = self._words, 1
        began = float(time.monotonic_ns())
        for number in range(self._capacity):
            wait_ns = began + number * interval_ns - time.monotonic_ns()
            if wait_ns > 0:
                time.sleep(wait_ns / 1e9)
            else:
                began -= wait_ns
            for opened, frame in zip(sockets, listed, strict=True):
                struct.pack_into("!I", frame, _BODY_AT + _BODY.size - 4, number)
                words[place] = time.monotonic_ns()
                with suppress(BlockingIOError):
                    opened.send(frame)
                place += 1
            words[0] = number + 1

    def __enter__(self) -> PacedStreams:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stop()

    @property
    def sent(self) -> int:
        """How many frames of each stream have been sent."""
        return int(self._words[0])

    def sent_ns(self, port: int) -> Sequence[int]:
        """When each frame of a port's stream was sent, in nanoseconds of CLOCK_MONOTONIC."""
        place, step = self._ports.index(port), len(self._ports)
        return [self._words[1 + number * step + place] for number in range(self.sent)]

    def stop(self) -> None:
        """End the sender. What it has sent can still be read."""
        if self._child:
            with suppress(ProcessLookupError):
                os.kill(self._child, signal.SIGKILL)
            os.waitpid(self._child, 0)
            self._child = 0
