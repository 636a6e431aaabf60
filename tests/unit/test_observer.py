"""The observer: what it measures, and how its process lives and dies."""

from __future__ import annotations

import gc
import io
import os
import select
import signal
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from run_samples import FLOW_ROW, LINK, REQUEST, TRANSFER

from kvfabric._drawing import Drawing, ProgressPlan, wants_progress
from kvfabric._watch import Watch
from kvfabric.machine import CoreTimes, CpuTimes
from kvfabric.observer import Observer, ObserverFailed, ObserverSettings
from kvfabric.ports import PortPlan, PortTally, Reading
from kvfabric.progress import Standing, clock, estimate, line, remaining_words
from kvfabric.records import RecordWriter, read_rows
from kvfabric.rows import FlowRow, LinkRow, values
from topo.tc import PortCounters

pytestmark = pytest.mark.unit

PLAN = PortPlan("leaf0-eth0", "h0-eth0", 0.9e6, 1e6, burst=3028)


def counted(sent: int, *, drops: int = 0, backlog: int = 0) -> PortCounters:
    return PortCounters(sent, sent // 1500, drops, backlog)


# Ports


def test_an_interval_becomes_a_row() -> None:
    tally = PortTally(PLAN, 100.0, 0.0, counted(1000, drops=1))
    row = tally.tick(102.0, 0.0, counted(1_001_000, drops=4, backlog=3000), epoch_s=99.0)
    assert row == LinkRow(3.0, 2.0, "leaf0-eth0", "h0-eth0", 0.9e6, 1e6, 1_000_000, 0.5, 3000, 3)


def test_segments_that_pass_beside_the_shaper_are_no_use_of_the_link() -> None:
    tally = PortTally(PLAN, 0.0, 0.0, PortCounters(0, 0, 0, 0))
    row = tally.tick(1.0, 0.0, PortCounters(500_000 + 100 * 66, 600, 0, 0, free_packets=100), epoch_s=0.0)
    assert isinstance(row, LinkRow)
    assert row.sent_bytes == 500_000
    # The kernel counts a free packet a moment before its bytes: no fault, and nothing was sent.
    row = tally.tick(2.0, 0.0, PortCounters(500_000 + 100 * 66, 600, 0, 0, free_packets=101), epoch_s=0.0)
    assert isinstance(row, LinkRow)
    assert row.sent_bytes == 0


def test_peak_use_leaves_out_what_credit_and_the_doubt_of_the_reading_explain() -> None:
    tally = PortTally(PLAN, 0.0, 0.005, counted(0))
    tally.tick(1.0, 0.005, counted(1_010_000 + 3028), epoch_s=0.0)
    assert tally.evidence().max_use == pytest.approx(1.0)
    tally.tick(2.0, 0.0, counted(2_500_000), epoch_s=0.0)
    assert tally.evidence().max_use > 1.4
    assert tally.evidence().max_use_at_s == 2.0


def test_only_intervals_that_began_with_packets_waiting_are_judged() -> None:
    tally = PortTally(PLAN, 0.0, 0.0, counted(0))
    tally.tick(1.0, 0.0, counted(100_000, backlog=1500), epoch_s=0.0)
    for backlog in (1500, 0, 1500):
        tally.look(backlog)
    tally.tick(2.0, 0.0, counted(850_000), epoch_s=0.0)
    tally.tick(3.0, 0.0, counted(850_000), epoch_s=0.0)
    found = tally.evidence()
    assert (found.saturated_s, found.waiting, found.looks) == (1.0, 2, 4)
    assert found.saturated_use == pytest.approx(0.75)


def test_counters_that_fall_are_a_fault_and_no_row() -> None:
    tally = PortTally(PLAN, 0.0, 0.0, counted(1000))
    found = tally.tick(1.0, 0.0, counted(0), epoch_s=0.0)
    assert isinstance(found, str)
    assert "leaf0-eth0" in found


# Watching


class FakeMachine:
    """Counters that grow with a clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 100.0
        self.ports = {"leaf0-eth0": counted(0)}
        self.idle = 0.5
        self.asked: list[Collection[str] | None] = []
        self.soft = ((0, 5, 5),)

    def read(self, nodes: Collection[str] | None) -> Iterator[Reading]:
        self.asked.append(nodes)
        yield Reading("leaf0", self.now, 0.0, dict(self.ports))

    def cpu(self) -> CpuTimes:
        ticks = int((self.now - 100) * 100)
        core = CoreTimes(int(ticks * self.idle), ticks)
        return CpuTimes(core, {0: core})

    def watch(self, *plans: PortPlan) -> Watch:
        return Watch(plans or (PLAN,), self.read, 1.0, read_cpu=self.cpu, read_soft=lambda: self.soft)


def test_a_watch_counts_from_its_beginning_to_its_last_tick() -> None:
    machine = FakeMachine()
    watch = machine.watch()
    watch.begin(100.0, 99.5)
    for second in (1, 2, 4):
        machine.now = 100.0 + second
        machine.ports["leaf0-eth0"] = counted(second * 500_000)
        assert len(watch.tick(machine.now)) == 1
    machine.soft = ((0, 7, 9),)
    found = watch.observation({"links": 3})
    assert [sample.time_s for sample in found.cpu] == [1.5, 2.5, 4.5]
    assert all(sample.idle == pytest.approx(0.5) for sample in found.cpu)
    assert (found.softnet_drops, found.time_squeeze) == (2, 4)
    assert (found.duration_emu_s, found.longest_gap_emu_s) == (4.0, 2.0)
    assert found.ports[0].sent_bytes == 2_000_000
    assert found.rows == {"links": 3}
    assert found.faults == ()


def test_a_short_last_interval_says_nothing_of_the_processors() -> None:
    machine = FakeMachine()
    watch = machine.watch()
    watch.begin(100.0, 100.0)
    machine.now = 100.2
    assert len(watch.tick(machine.now)) == 1
    assert watch.observation({}).cpu == ()


def test_a_port_without_its_shaper_is_a_fault_once() -> None:
    machine = FakeMachine()
    watch = machine.watch(PLAN, replace(PLAN, port="leaf0-eth1"))
    watch.begin(100.0, 100.0)
    machine.now = 103.0
    machine.ports.clear()
    watch.tick(machine.now)
    assert watch.observation({}).faults == (
        "leaf0-eth1: has no shaper at 0.0 s",
        "leaf0-eth0: has no shaper at 3.0 s",
    )


def test_looks_go_only_where_packets_waited() -> None:
    machine = FakeMachine()
    watch = machine.watch()
    watch.begin(100.0, 100.0)
    watch.look()
    assert machine.asked == [None]
    machine.now, machine.ports["leaf0-eth0"] = 101.0, counted(1, backlog=1500)
    watch.tick(machine.now)
    watch.look()
    assert machine.asked == [None, None, {"leaf0"}]


def test_a_watch_that_never_began_has_seen_nothing() -> None:
    found = FakeMachine().watch().observation({})
    assert (found.cpu, found.softnet_drops, found.duration_emu_s) == ((), 0, 0.0)


# Progress

STANDING = Standing(elapsed_s=30.0, arrivals_end_s=60.0, offered=100, ended=40, failed=0, turnaround_s=5.0, recent_per_s=2.0)


def test_the_remaining_time_is_until_the_last_arrival_and_what_is_outstanding_then() -> None:
    assert estimate(STANDING).remaining_s == pytest.approx(35.0)
    after = estimate(replace(STANDING, elapsed_s=70.0, ended=90))
    assert (after.remaining_s, after.at_least) == (5.0, False)
    assert estimate(replace(STANDING, ended=100)).share == 1.0


def test_what_is_not_known_is_not_claimed() -> None:
    early = replace(STANDING, ended=0, turnaround_s=None, recent_per_s=0.0)
    assert remaining_words(estimate(early)) == "at least 0:30 left"
    assert remaining_words(estimate(replace(early, elapsed_s=90.0))) == "how much longer is unknown"
    assert estimate(replace(STANDING, elapsed_s=1e6)).share < 1.0


def test_a_line_of_progress_reads_well() -> None:
    assert line(replace(STANDING, failed=2)) == "0:30  40 of 100 turns, 2 failed, about 0:35 left"
    assert clock(3725) == "1:02:05"


def test_a_document_is_never_mixed_with_progress() -> None:
    assert not wants_progress(as_json=True, stderr_is_tty=False)
    assert wants_progress(as_json=True, stderr_is_tty=True)
    assert wants_progress(as_json=False, stderr_is_tty=False)


def test_plain_progress_is_a_line_each_ten_seconds() -> None:
    said: list[str] = []
    drawing = Drawing(ProgressPlan(offered=4, arrivals_end_emu_s=30.0, time_scale=10.0), console=None, say=said.append)
    for second in range(1, 26):
        drawing.draw(float(second))
        if second == 12:
            drawing.count(values(REQUEST))
    assert said == ["0:10  0 of 4 turns, at least 0:20 left", "0:20  1 of 4 turns, about 0:15 left"]


def test_a_terminal_gets_a_bar() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    drawing = Drawing(ProgressPlan(offered=4, arrivals_end_emu_s=30.0, time_scale=10.0), console=console, say=print)
    drawing.draw(3.0)
    drawing.close()
    assert isinstance(console.file, io.StringIO)
    assert "0 of 4 turns" in console.file.getvalue()


# The process

FAST = ObserverSettings(interval_s=0.1, looks=5, flush_s=0.05)


class FakeReader:
    """A port that carries a megabyte a second."""

    def __call__(self, nodes: Collection[str] | None) -> Iterable[Reading]:
        now = time.monotonic()
        return [Reading("leaf0", now, 0.0, {"leaf0-eth0": counted(int(now * 1e6), backlog=1500)})]


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., Observer]]:
    started: list[Observer] = []

    def start(open_reader: Callable[[], FakeReader] = FakeReader, settings: ObserverSettings = FAST) -> Observer:
        started.append(Observer.start(RecordWriter(tmp_path / "run"), [PLAN], open_reader, settings))
        return started[-1]

    yield start
    for observer in started:
        observer.kill()


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_rows_and_readings_come_back_at_the_end(launch: Callable[..., Observer], tmp_path: Path) -> None:
    observer = launch()
    observer.begin(time.monotonic())
    observer.send(REQUEST, TRANSFER, FLOW_ROW)
    time.sleep(0.45)
    observer.end()
    observer.send(replace(FLOW_ROW, flow=2))
    found = observer.stop()
    assert gone(observer.pid)
    assert [row.flow for row in read_rows(tmp_path / "run", FlowRow)] == [1, 2]
    links = list(read_rows(tmp_path / "run", LinkRow))
    assert found.rows == {"requests": 1, "transfers": 1, "flows": 2, "links": len(links)}
    assert len(links) >= 3
    assert all(row.use == pytest.approx(1.0, abs=0.01) for row in links if row.interval_emu_s > 0.05)
    assert found.faults == ()
    assert found.ports[0].waiting == found.ports[0].looks > len(links)
    assert 0.3 < found.duration_emu_s < 1.5


def test_nothing_is_measured_before_the_beginning_or_after_the_end(launch: Callable[..., Observer]) -> None:
    observer = launch()
    time.sleep(0.2)
    observer.begin(time.monotonic() + 0.1)
    time.sleep(0.3)
    observer.end()
    time.sleep(0.2)
    assert observer.stop().duration_emu_s < 0.3


def test_sending_does_not_wait_for_an_observer_that_is_held_up(launch: Callable[..., Observer], tmp_path: Path) -> None:
    observer = launch()
    observer.begin(time.monotonic())
    os.kill(observer.pid, signal.SIGSTOP)
    worst = 0.0
    gc.disable()  # a collection of all that the suite has imported takes as long, and is not what is waited for here
    try:
        for number in range(15_000):
            before = time.monotonic()
            observer.send(replace(LINK, sent_bytes=number))
            worst = max(worst, time.monotonic() - before)
    finally:
        gc.enable()
    assert worst < 0.2
    os.kill(observer.pid, signal.SIGCONT)
    assert observer.stop().rows["links"] >= 15_000
    sent = [
        row.sent_bytes for row in read_rows(tmp_path / "run", LinkRow) if row.port == LINK.port and row.wire_Bps == LINK.wire_Bps
    ]
    assert sent == list(range(15_000))


def test_the_death_of_the_observer_is_noticed(launch: Callable[..., Observer], tmp_path: Path) -> None:
    observer = launch()
    observer.begin(time.monotonic())
    observer.send(FLOW_ROW)
    time.sleep(0.3)
    os.kill(observer.pid, signal.SIGKILL)
    assert select.select([observer], [], [], 5)[0] == [observer]
    with pytest.raises(ObserverFailed, match="has gone"):
        observer.check()
    with pytest.raises(ObserverFailed, match="has gone"):
        observer.send(FLOW_ROW)
    assert list(read_rows(tmp_path / "run", FlowRow)) == [FLOW_ROW]


def test_what_the_observer_died_of_is_told(launch: Callable[..., Observer], tmp_path: Path) -> None:
    observer = launch()
    (tmp_path / "run/flows.parts").rmdir()
    observer.begin(time.monotonic())
    observer.send(FLOW_ROW)
    with pytest.raises(ObserverFailed, match="FileNotFoundError"):
        observer.stop()
    assert gone(observer.pid)


def test_ports_that_cannot_be_read_stop_the_start(launch: Callable[..., Observer]) -> None:
    def broken() -> FakeReader:
        raise OSError("no such namespace")

    with pytest.raises(ObserverFailed, match="no such namespace"):
        launch(broken)


def test_ctrl_c_does_not_end_it(launch: Callable[..., Observer]) -> None:
    observer = launch()
    observer.begin(time.monotonic())
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(observer.pid, number)
    observer.send(FLOW_ROW)
    assert observer.stop().rows["flows"] == 1


def test_it_dies_with_the_replay_and_what_was_flushed_stays(tmp_path: Path) -> None:
    out, into = os.pipe()
    parent = os.fork()
    if parent == 0:
        observer = Observer.start(RecordWriter(tmp_path / "run"), [PLAN], FakeReader, FAST)
        observer.begin(time.monotonic())
        observer.send(FLOW_ROW)
        time.sleep(0.4)
        os.write(into, str(observer.pid).encode())
        time.sleep(60)
        os._exit(0)
    child = int(os.read(out, 32))
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    until = time.monotonic() + 5
    while time.monotonic() < until and not gone(child) and "Z" not in Path(f"/proc/{child}/stat").read_text().split(")")[1][:3]:
        time.sleep(0.02)
    os.close(out)
    os.close(into)
    assert gone(child) or "Z" in Path(f"/proc/{child}/stat").read_text().split(")")[1][:3]
    assert list(read_rows(tmp_path / "run", FlowRow)) == [FLOW_ROW]


def test_it_holds_none_of_the_replays_descriptors(launch: Callable[..., Observer]) -> None:
    out, into = os.pipe()
    observer = launch()
    os.close(into)
    assert select.select([out], [], [], 5)[0] == [out]  # end of file: nobody else holds the other end
    os.close(out)
    observer.stop()
