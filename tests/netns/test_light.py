"""The shutter: dark while it should be and lit otherwise, in the kernel, with every frame accounted for."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ocs_switch import bpf, light
from ocs_switch.light import FOR_EVER, Light, LightError, Lost, Window
from topo import links
from topo.netns import Namespace
from topo.ovs import PrivateOvs

pytestmark = [pytest.mark.netns, pytest.mark.sealed]

NEAR, FAR = 101, 102
"""Interface indices: the shutter's end, and the host's."""
FRAME = 64
EDGE_NS = 500_000
ETHERTYPE = 0x88B5
SO_RCVBUFFORCE = 33


@contextmanager
def link(mtu: int = 1500) -> Iterator[tuple[Namespace, Light, socket.socket, socket.socket]]:
    """A link with a shutter at one end; a sender at the other, and a tap behind the shutter."""
    here = Namespace.current("here")
    here.sysctl({"net.ipv6.conf.default.disable_ipv6": "1"})  # else it sends of its own accord, and is counted
    near, far = links.VethEnd(here.fd, NEAR, "near", None), links.VethEnd(here.fd, FAR, "far", None)
    here.netlink.apply([links.veth(near, far, mtu=mtu, queue_length=1000)])
    here.netlink.apply([links.set_link(index, "end", up=True) for index in (NEAR, FAR)])
    with Light.create(256) as shutter, packet_socket("far") as sender, packet_socket("near") as tap:
        shutter.attach(here.netlink, NEAR)
        yield here, shutter, sender, tap
    here.close()


def packet_socket(device: str) -> socket.socket:
    opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETHERTYPE))
    opened.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 32 << 20)  # a tap that loses frames itself proves nothing
    opened.bind((device, ETHERTYPE))
    opened.settimeout(0.2)
    return opened


def frame(number: int, size: int = FRAME) -> bytes:
    head = b"\x02" * 6 + b"\x04" * 6 + ETHERTYPE.to_bytes(2, "big") + number.to_bytes(4, "big")
    return head + bytes(size - len(head))


def arrived(tap: socket.socket) -> list[int]:
    found = []
    tap.setblocking(False)
    while True:
        try:
            found.append(int.from_bytes(tap.recv(65536)[14:18], "big"))
        except BlockingIOError:
            return found


def test_this_kernel_takes_the_shutter() -> None:
    assert light.supported() is None


def test_a_port_never_opened_is_dark_and_counts() -> None:
    with link() as (_, shutter, sender, tap):
        for number in range(5):
            sender.send(frame(number))
        assert arrived(tap) == []
        assert shutter.lost(NEAR) == Lost(5, 5 * FRAME)
        assert shutter.state(NEAR) == Window(0, FOR_EVER)


def test_an_open_port_passes_everything() -> None:
    with link() as (_, shutter, sender, tap):
        shutter.open(NEAR)
        for number in range(5):
            sender.send(frame(number))
        assert arrived(tap) == [0, 1, 2, 3, 4]
        assert shutter.lost(NEAR) == Lost(0, 0)


def test_a_window_begins_and_ends_by_itself_and_to_the_instant() -> None:
    """Every frame sent before or after the window arrives, every one inside is lost: one clock, no command.

    Only frames on their way within half a millisecond of an edge may be either."""
    with link() as (_, shutter, sender, tap):
        shutter.open(NEAR)
        begin = time.monotonic_ns() + 5_000_000
        end = begin + 10_000_000
        shutter.shut(NEAR, begin, end)
        sure: dict[int, bool] = {}
        number = 0
        while time.monotonic_ns() < end + 5_000_000:
            before = time.monotonic_ns()
            sender.send(frame(number))
            after = time.monotonic_ns()
            if after + EDGE_NS < begin or before >= end:
                sure[number] = True
            elif begin <= before and after + EDGE_NS < end:
                sure[number] = False
            number += 1
        got = set(arrived(tap))
        assert min(sum(sure.values()), len(sure) - sum(sure.values())) > 50
        assert {one for one, lit in sure.items() if (one in got) is not lit} == set()
        assert shutter.lost(NEAR).packets == number - len(got)


def test_a_dark_port_stays_dark_when_its_window_is_moved() -> None:
    with link() as (_, shutter, sender, tap):
        now = time.monotonic_ns()
        shutter.shut(NEAR, now + 10**12, now + 2 * 10**12)
        sender.send(frame(0))
        assert arrived(tap) == []
        assert shutter.state(NEAR).dark(time.monotonic_ns())


def test_counters_survive_every_change() -> None:
    with link() as (_, shutter, sender, tap):
        sender.send(frame(0))
        shutter.open(NEAR)
        shutter.shut(NEAR, 0)
        sender.send(frame(1))
        shutter.open(NEAR)
        sender.send(frame(2))
        assert arrived(tap) == [2]
        assert shutter.lost(NEAR) == Lost(2, 2 * FRAME)


def test_another_process_opens_and_reads_through_the_descriptor() -> None:
    with link() as (_, shutter, sender, tap):
        child = os.fork()
        if child == 0:
            with Light(os.dup(shutter.fd)) as inherited:
                inherited.open(NEAR)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        sender.send(frame(9))
        assert arrived(tap) == [9]


def test_ports_do_not_touch_each_other() -> None:
    with link() as (_, shutter, _sender, _tap):
        shutter.open(7)
        assert shutter.state(NEAR) == Window(0, FOR_EVER)
        assert not shutter.state(7).dark(time.monotonic_ns())


def test_an_interface_beyond_the_array_is_refused() -> None:
    with Light.create(8) as shutter, pytest.raises(IndexError, match="interface 8 is beyond"):
        shutter.open(8)


def test_a_shutter_that_was_taken_off_is_noticed() -> None:
    with link() as (here, shutter, sender, tap):
        assert shutter.attached(here.netlink, NEAR)
        with Light.create(256) as other:
            other.attach(here.netlink, NEAR)
            other.open(NEAR)
            assert not shutter.attached(here.netlink, NEAR)
            sender.send(frame(0))
            assert arrived(tap) == [0]


def test_a_descriptor_of_something_else_is_refused() -> None:
    reader, writer = os.pipe()
    with pytest.raises(OSError, match="no bpf map"):
        Light(reader)
    os.close(reader)
    os.close(writer)
    fd = bpf.create_array(4, 8, "other")
    with pytest.raises(LightError, match="other values"):
        Light(fd)
    os.close(fd)


def test_the_verifier_says_what_it_does_not_like() -> None:
    with pytest.raises(bpf.BpfError, match="R0"):
        bpf.load_xdp(bpf.instruction(0x95), "empty")


def test_old_kernels_program_is_taken_too_and_counts_alike() -> None:
    """The one without frames in pieces: not what this kernel would use."""
    with Light.create(16) as shutter:
        os.close(bpf.load_xdp(light._program(shutter.fd, whole=False), "old"))
        assert shutter.size == 16


def test_a_userspace_switch_sees_nothing_of_a_dark_port(tmp_path: Path) -> None:
    """The shutter comes before the tap by which Open vSwitch reads, and an open port reaches the right port behind it."""
    with link() as (here, shutter, sender, _tap), PrivateOvs(tmp_path, datapath="user") as switch:
        out, sink = links.VethEnd(here.fd, 103, "out", None), links.VethEnd(here.fd, 104, "sink", None)
        here.netlink.apply([links.veth(out, sink, mtu=1500, queue_length=1000)])
        here.netlink.apply([links.set_link(index, "end", up=True) for index in (103, 104)])
        switch.add_bridge("ocs0", 1, [("near", 1), ("out", 2)], None)
        switch.ofctl("add-flow", "ocs0", "in_port=1,actions=output:2")
        with packet_socket("sink") as receiver:
            sender.send(frame(1))
            with pytest.raises(TimeoutError):
                receiver.recv(FRAME)
            shutter.open(NEAR)
            sender.send(frame(2))
            assert receiver.recv(FRAME)[14:18] == (2).to_bytes(4, "big")
        assert switch.flows("ocs0")[0].packets == 1
