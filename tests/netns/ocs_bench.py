"""An optical switch to test with, inside a sealed test: a private Open vSwitch, its controller's process, and taps as hosts."""

from __future__ import annotations

import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from controller.client import Answers, OcsClient, Received
from controller.ocs_config import OcsConfig, PlaneConfig, Timing, to_text
from controller.ocs_messages import Event, EventKind, Order
from ocs_switch.light import Light
from topo import links
from topo.netns import Namespace
from topo.ovs import PrivateOvs

ROOT = Path(__file__).resolve().parents[2]
ETHERTYPE = 0x88B6
OPENFLOW_PORT = 6653
NORTHBOUND = "/run/ocs.sock"
BOUND_S = 10.0
_SO_RCVBUFFORCE = 33
DEFAULT_TIMING = Timing()


def python_of(library: str) -> str:
    """The interpreter that has a library; skips where the Ryu environment was not made."""
    if library == "os-ken":
        return sys.executable
    python = ROOT / ".venv-ryu" / "bin" / "python"
    if not python.exists():
        pytest.skip(f"no environment with Ryu at {python.parents[1].name}; ./bootstrap test makes it")
    return str(python)


def dpid(plane: int) -> int:
    return 0x0C5_0000 + plane + 1


class Bench:
    """Planes with taps. ``frames[plane][port]`` counts nothing by itself: see ``send`` and ``arrivals``."""

    def __init__(self, library: str, *, planes: int = 1, ports: int = 4, tau_s: float = 0.02, light: bool = True,
                 timing: Timing = DEFAULT_TIMING, switches: bool = True) -> None:  # fmt: skip
        self.python, self.ports, self.plane_count, self.timing = python_of(library), ports, planes, timing
        self._stack = ExitStack()
        self.received: list[Received] = []
        self.sent = 0
        here = Namespace.current("here")
        self._stack.callback(here.close)
        here.sysctl({"net.ipv6.conf.default.disable_ipv6": "1"})
        here.netlink.apply([links.set_link(1, "lo", up=True)])
        self.light = self._stack.enter_context(Light.create(1024)) if light else None
        self.ovs: PrivateOvs | None = None
        configs = []
        self.taps: list[list[socket.socket]] = []
        for plane in range(planes):
            near = [100 + 100 * plane + 2 * port for port in range(ports)]
            for port, index in enumerate(near):
                ends = (links.VethEnd(here.fd, index, f"s{plane}p{port}", None),
                        links.VethEnd(here.fd, index + 1, f"h{plane}p{port}", None))  # fmt: skip
                here.netlink.apply([links.veth(*ends, mtu=1500, queue_length=1000)])
                here.netlink.apply([links.set_link(i, "end", up=True) for i in (index, index + 1)])
                if self.light is not None:
                    self.light.attach(here.netlink, index)
            self.taps.append([self._stack.enter_context(_tap(f"h{plane}p{port}")) for port in range(ports)])
            configs.append(PlaneConfig(dpid(plane), tau_s, tuple(range(11, 11 + ports)), tuple(near) if light else ()))
        light_fd = None if self.light is None else self.light.fd
        self.config = OcsConfig(tuple(configs), NORTHBOUND, OPENFLOW_PORT, light_fd=light_fd, timing=timing)
        if switches:
            self.ovs = self._stack.enter_context(PrivateOvs(Path("/run/ovs"), userspace_tso=False))
        self.start_controller()
        if self.ovs is not None:
            for plane in range(planes):
                numbered = [(f"s{plane}p{port}", 11 + port) for port in range(ports)]
                self.ovs.add_bridge(f"ocs{plane}", dpid(plane), numbered, f"tcp:127.0.0.1:{OPENFLOW_PORT}")
            for plane in range(planes):
                self.wait(lambda e, p=plane: e.kind is EventKind.READY and e.plane == p)  # type: ignore[misc]

    def start_controller(self) -> None:
        """Start it and connect; returns once it listens."""
        path = Path("/run/ocs.json")
        path.write_text(to_text(self.config), encoding="utf-8")
        fds = () if self.light is None else (self.light.fd,)
        self.controller = subprocess.Popen([self.python, "-m", "controller.ocs_app", str(path)], cwd=ROOT, pass_fds=fds)
        self._stack.callback(self.controller.wait)
        self._stack.callback(self.controller.kill)
        until = time.monotonic() + BOUND_S
        while True:
            try:
                self.client = self._stack.enter_context(OcsClient(NORTHBOUND))
                return
            except OSError:
                assert self.controller.poll() is None, "the controller has ended"
                assert time.monotonic() < until, "the controller does not listen"
                time.sleep(0.02)

    def pump(self, timeout_s: float) -> tuple[Received, ...]:
        """What the controller says next; nothing after ``timeout_s``."""
        select.select(self.client.filenos, [], [], timeout_s)
        found = self.client.receive()
        self.received += found
        return found

    def wait(self, wanted: Callable[[Event], bool], timeout_s: float = BOUND_S) -> Event:
        """The first event that is wanted, of those not looked at yet."""
        until = time.monotonic() + timeout_s
        while True:
            for index, one in enumerate(self.received):
                if isinstance(one, Event) and wanted(one):
                    del self.received[: index + 1]
                    return one
            left = until - time.monotonic()
            assert left > 0, f"did not come; there was {self.received}"
            self.pump(left)

    def answers(self, request: int) -> Answers:
        """The answers to a request; events that come meanwhile are kept."""
        until = time.monotonic() + BOUND_S
        while True:
            for one in self.received:
                if isinstance(one, Answers) and one.request == request:
                    self.received.remove(one)
                    return one
            left = until - time.monotonic()
            assert left > 0, f"no answer; there was {self.received}"
            self.pump(left)

    def send(self, plane: int, port: int) -> int:
        """Send a frame into a port; its number."""
        self.sent += 1
        head = b"\x02" * 6 + b"\x04" * 6 + ETHERTYPE.to_bytes(2, "big") + self.sent.to_bytes(4, "big")
        self.taps[plane][port].send(head + bytes(64 - len(head)))
        return self.sent

    def arrivals(self, wait_s: float = 0.05) -> set[tuple[int, int, int]]:
        """(plane, port, frame) of all that has arrived and arrives within ``wait_s`` of the last."""
        by_socket = {tap: (plane, port) for plane, taps in enumerate(self.taps) for port, tap in enumerate(taps)}
        found: list[tuple[int, int, int]] = []
        while ready := select.select(list(by_socket), [], [], wait_s)[0]:
            for tap in ready:
                found.append((*by_socket[tap], int.from_bytes(tap.recv(2048)[14:18], "big")))
        assert len(set(found)) == len(found), "a frame arrived twice"
        return set(found)

    def flows(self, plane: int = 0) -> set[str]:
        assert self.ovs is not None
        text = self.ovs.ofctl("dump-flows", f"ocs{plane}", "--no-stats")
        return {line.strip() for line in text.splitlines() if "actions=" in line}

    def close(self) -> None:
        self._stack.close()


def _tap(device: str) -> socket.socket:
    opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETHERTYPE))
    opened.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 8 << 20)
    opened.setsockopt(263, 23, 1)  # SOL_PACKET, PACKET_IGNORE_OUTGOING: what it sends itself has not arrived
    opened.bind((device, ETHERTYPE))
    return opened


@contextmanager
def bench(library: str, **settings: object) -> Iterator[Bench]:
    one = Bench(library, **settings)  # type: ignore[arg-type]
    try:
        yield one
    finally:
        one.close()


def armed(one: Bench, count: int) -> list[Event]:
    """The next ``count`` circuits whose instant is fixed. A refusal or an error fails, but for being late."""
    wanted = (EventKind.ARMED, EventKind.REFUSED, EventKind.ERROR)
    found: list[Event] = []
    while len(found) < count:
        event = one.wait(lambda e: e.kind in wanted and e.a is not None and not (e.kind is EventKind.ERROR and e.late_ns))
        assert event.kind is EventKind.ARMED, event
        found.append(event)
    return found


def wait_until(instant_ns: int) -> None:
    while time.monotonic_ns() < instant_ns:
        pass


def join(one: Bench, *orders: Order) -> list[Event]:
    """Circuits, up when this returns."""
    one.client.connect(*orders)
    events = armed(one, sum(len(order.planes) or one.plane_count for order in orders))
    wait_until(max(event.up_ns or 0 for event in events))
    return events


def check_reaches(one: Bench, pairs: dict[tuple[int, int], int | None]) -> None:
    """A frame into each (plane, port) arrives at that port of the plane, or nowhere, and nothing else arrives anywhere."""
    sent = {(plane, port): one.send(plane, port) for plane, port in pairs}
    expected = {(plane, out, sent[plane, port]) for (plane, port), out in pairs.items() if out is not None}
    assert one.arrivals() == expected
