"""A run that was disturbed says so: INVALID, with the reason named."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from sealed_run import Running, call, started_in_window

from kvfabric.errors import EXIT_MACHINE, EXIT_NO

pytestmark = pytest.mark.e2e

BUSY = """
import os, sys, time
os.sched_setaffinity(0, {int(sys.argv[1])})
os.setpriority(os.PRIO_PROCESS, 0, int(sys.argv[2]))
end = time.monotonic() + 8
while time.monotonic() < end:
    pass
"""


def remove_qdisc(run: Running) -> None:
    run.inside("ip", "netns", "exec", "leaf0", "tc", "qdisc", "del", "dev", "leaf0-eth2", "root")


def change_rate(run: Running) -> None:
    words = ["class", "change", "dev", "leaf1-eth0", "parent", "5:", "classid", "5:1", "htb", "rate", "50mbit", "ceil", "50mbit"]
    run.inside("ip", "netns", "exec", "leaf1", "tc", *words)


def change_sysctl(run: Running) -> None:
    run.inside("ip", "netns", "exec", "p1g0", "sh", "-c", "echo 1 >/proc/sys/net/ipv4/tcp_slow_start_after_idle")


def delete_nexthop(run: Running) -> None:
    """Every multipath route of a leaf loses one of its two ways: flows move to the other in the middle."""
    shown = run.inside("ip", "-n", "leaf0", "nexthop", "show").stdout
    first = re.search(r"^id (\d+) via", shown, re.MULTILINE)
    assert first is not None, shown
    run.inside("ip", "-n", "leaf0", "nexthop", "del", "id", first[1])


def delete_routes(run: Running) -> None:
    for line in run.inside("ip", "-n", "leaf0", "route", "show").stdout.splitlines():
        if "nhid" in line:
            run.inside("ip", "-n", "leaf0", "route", "del", line.split()[0])


def kill_observer(run: Running) -> None:
    observer = run.observer
    assert observer is not None
    os.kill(observer, signal.SIGKILL)


DISTURBANCES: dict[str, tuple[Callable[[Running], None], str]] = {
    "qdisc": (remove_qdisc, r"not shaped as planned at the end: leaf0-eth2: qdisc is noqueue|leaf0-eth2: has no shaper at \d"),
    "rate": (change_rate, r"not shaped as planned at the end: leaf1-eth0: class 5:1 has ceil 6250000 B/s"),
    "sysctl": (change_sysctl, r"p1g0: sysctl net.ipv4.tcp_slow_start_after_idle reads 1, was set to 0"),
    "nexthop": (delete_nexthop, r"took leaf0>spine(0\+spine1|[01])>leaf1, predicted leaf0>spine[01]>leaf1"),
    "routes": (delete_routes, r"\d+ turns? of \d+ (failed|did not finish)"),
    "observer": (kill_observer, r"the observer of the run failed"),
}


@pytest.fixture(scope="module")
def disturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Running, tuple[int, str, str]]]:
    """All of them, three at a time: what they are about does not depend on the machine being idle."""
    base = tmp_path_factory.mktemp("disturbed")

    def one(name: str) -> tuple[Running, tuple[int, str, str]]:
        with started_in_window(base / name) as run:
            DISTURBANCES[name][0](run)
            return run, run.result()

    with ThreadPoolExecutor(3) as pool:
        return dict(zip(DISTURBANCES, pool.map(one, DISTURBANCES), strict=True))


@pytest.mark.parametrize("name", [name for name in DISTURBANCES if name != "observer"])
def test_a_change_in_mid_run_is_invalid_and_named(disturbed: dict[str, tuple[Running, tuple[int, str, str]]], name: str) -> None:
    run, (code, out, error) = disturbed[name]
    assert code == EXIT_NO, error
    summary = run.summary()
    assert summary["verdict"] == "INVALID"
    assert any(re.search(DISTURBANCES[name][1], reason) for reason in summary["reasons"]), summary["reasons"]
    assert out.startswith("INVALID")
    assert run.status() == "finished"


def test_without_its_observer_a_run_ends_with_an_error(disturbed: dict[str, tuple[Running, tuple[int, str, str]]]) -> None:
    run, (code, out, error) = disturbed["observer"]
    assert (code, out) == (EXIT_MACHINE, "")
    assert DISTURBANCES["observer"][1] in error
    assert len(error.splitlines()) <= 2
    assert run.status() == "failed"
    assert not (run.out / "summary.json").exists()
    assert run.marked.pids() == set()


@contextmanager
def busy_cores(priority: int) -> Iterator[None]:
    """A busy loop on every core, each for 8 s at most."""
    loops = [subprocess.Popen([sys.executable, "-c", BUSY, str(core), str(priority)]) for core in sorted(os.sched_getaffinity(0))]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


@pytest.mark.parametrize("priority", [0, -20], ids=["normal", "raised"])
def test_a_busy_loop_on_every_core_is_invalid_and_the_processors_are_named(tmp_path: Path, priority: int) -> None:
    with started_in_window(tmp_path) as run, busy_cores(priority):
        code, _, error = run.result()
    assert code == EXIT_NO, error
    reasons = run.summary()["reasons"]
    assert any(re.search(r"^processors 0\.\d % idle|late at p99|left [\d.]+ ms late", reason) for reason in reasons), reasons
    assert run.summary()["fidelity"]["cpu_idle_min"]["value"] < 0.05


@pytest.mark.parametrize("rate", ["20Gb/s"])
def test_a_link_beyond_what_the_machine_carries_is_invalid_and_quickly_so(tmp_path: Path, rate: str) -> None:
    start = time.monotonic()
    out = tmp_path / "out"
    done = call("run", "smoke", "--out", str(out), "--set", f"scale.rate={rate}", "--json")
    assert done.returncode == EXIT_NO, done.stderr
    assert re.search(r"calibration: one flow alone from \S+ to \S+ got \S+ Gb/s of 20 Gb/s", done.stdout)
    assert time.monotonic() - start < 25
