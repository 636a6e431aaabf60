"""An Open vSwitch of one's own: as asked or refused, with its own sockets, and gone when it ends."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from topo import links, ovs
from topo.netns import Namespace
from topo.ovs import OvsError, PrivateOvs, choose_datapath, kernel_datapath

pytestmark = [pytest.mark.netns, pytest.mark.sealed]

DPID = 0x0400000000000001


@contextmanager
def ports(count: int) -> Iterator[list[tuple[str, int]]]:
    """Veth pairs s0-h0, s1-h1 ... in the test's own namespace; the switch's ends as ports 1, 2 ..."""
    here = Namespace.current("here")
    for place in range(count):
        ends = (links.VethEnd(here.fd, 100 + 2 * place + end, f"{'sh'[end]}{place}", None) for end in range(2))
        here.netlink.apply([links.veth(next(ends), next(ends), mtu=1500, queue_length=1000)])
        here.netlink.apply([links.set_link(100 + 2 * place + end, "port", up=True) for end in range(2)])
    yield [(f"s{place}", place + 1) for place in range(count)]
    here.close()


def test_a_bridge_is_what_was_asked(tmp_path: Path) -> None:
    with ports(3) as devices, PrivateOvs(tmp_path) as switch:
        wanted = list(zip([name for name, _ in devices], (7, 3, 5), strict=True))
        switch.add_bridge("ocs0", DPID, wanted, "tcp:127.0.0.1:6653")
        shown = switch.ofctl("show", "ocs0")
        assert f"dpid:{DPID:016x}" in shown
        assert all(f"{number}(" in shown or f" {number}:" in shown or f"{number}:" in shown for _, number in wanted)
        assert switch.controllers()["ocs0"] == ovs.ControllerState("tcp:127.0.0.1:6653", False)
        assert switch.flows("ocs0") == ()
        assert switch.bridges() == ("ocs0",)


def test_rules_are_read_as_they_were_put(tmp_path: Path) -> None:
    with ports(2) as devices, PrivateOvs(tmp_path) as switch:
        switch.add_bridge("ocs0", DPID, devices, None)
        switch.ofctl("add-flow", "ocs0", "priority=7,cookie=0x2a,in_port=1,actions=output:2")
        (flow,) = switch.flows("ocs0")
        assert (flow.priority, flow.cookie, flow.in_port, flow.output) == (7, 42, 1, 2)


def test_packet_sockets_have_room_and_a_small_one_is_named(tmp_path: Path) -> None:
    with ports(2) as devices, PrivateOvs(tmp_path, datapath="user") as switch:
        switch.add_bridge("ocs0", DPID, devices, None)
        assert ovs._grow_packet_sockets(switch.pids[-1], grow=False) == {0, 100, 102}
        assert switch.buffer_faults() == []
        switch._vsctl("del-port", "ocs0", "s1")
        switch._vsctl("add-port", "ocs0", "s1")  # its socket is made anew
        assert switch.buffer_faults() == ["interface 102: vswitchd reads it through a small buffer"]


def test_a_missing_device_is_named(tmp_path: Path) -> None:
    with PrivateOvs(tmp_path) as switch, pytest.raises(OvsError, match="nothere"):
        switch.add_bridge("ocs0", DPID, [("nothere", 1)], None)


def test_leaving_ends_both_daemons(tmp_path: Path) -> None:
    with PrivateOvs(tmp_path) as switch:
        pids = switch.pids
        assert len(pids) == 2
        assert all(os.path.exists(f"/proc/{pid}") for pid in pids)
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


def test_a_daemon_that_died_is_no_hang(tmp_path: Path) -> None:
    with PrivateOvs(tmp_path) as switch:
        os.kill(switch.pids[0], signal.SIGKILL)
        began = time.monotonic()
        with pytest.raises(OvsError):
            switch.flows("ocs0")
        assert time.monotonic() - began < ovs.START_S


def test_a_daemon_that_cannot_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "bin"
    fake.mkdir()
    (fake / "ovs-vswitchd").write_text("#!/bin/sh\necho no memory for that >&2\nexit 3\n")
    (fake / "ovs-vswitchd").chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake}:{os.environ['PATH']}")
    with pytest.raises(OvsError, match=r"ovs-vswitchd ended with 3: .*no memory for that"):
        PrivateOvs(tmp_path / "run")


def test_a_daemon_is_pinned_where_it_was_asked(tmp_path: Path) -> None:
    before = os.sched_getaffinity(0)
    cpu = min(before)
    with PrivateOvs(tmp_path, cpus={cpu}) as switch:
        assert {pid: os.sched_getaffinity(pid) for pid in switch.pids} == {pid: {cpu} for pid in switch.pids}
    assert os.sched_getaffinity(0) == before


def test_twice_in_a_row_in_one_directory(tmp_path: Path) -> None:
    for _ in range(2):
        with PrivateOvs(tmp_path) as switch:
            assert switch.bridges() == ()


def test_auto_is_what_the_kernel_has() -> None:
    assert choose_datapath("auto") == ("kernel" if kernel_datapath() else "user")
    assert choose_datapath("user") == "user"
    if not kernel_datapath():
        with pytest.raises(OvsError, match="no openvswitch module"):
            choose_datapath("kernel")


def test_a_path_too_long_for_a_socket_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OvsError, match="too long for a Unix socket"):
        PrivateOvs(tmp_path / ("d" * 90))
