"""However a run ends, nothing of it is left, and nothing that was there before is gone."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from sealed_run import BOUND_S, LONGER, Running, held_namespaces, known_namespaces, started, until

from kvfabric.errors import EXIT_MACHINE
from kvfabric.records import TABLES, read_table

pytestmark = pytest.mark.e2e

INSTANTS = 20
BACK_TO_BACK = int(os.environ.get("KVFABRIC_TEST_RUNS", "6"))
"""Runs one after the other; 20 of them show a slow leak, and take three minutes."""


@contextmanager
def foreign_things() -> Iterator[None]:
    """A namespace with a bridge in it and a file, as a neighbour may have them; all must be there in the end."""
    name = f"kvt{uuid.uuid4().hex[:8]}"
    file = Path("/tmp", f"{name}.txt")
    file.write_text("mine")
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        subprocess.run(["ip", "-n", name, "link", "add", "br0", "type", "bridge"], check=True)
        yield
        shown = subprocess.run(["ip", "-n", name, "link", "show", "br0"], capture_output=True, text=True, check=True)
        assert "br0" in shown.stdout
        assert file.read_text() == "mine"
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=True)
        file.unlink()


def kernel_namespaces() -> int | None:
    """Network namespaces that the kernel still has memory for, to within a few; None where it does not tell."""
    try:
        lines = Path("/proc/slabinfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("net_namespace ")), None)


def interfaces() -> set[str]:
    return set(os.listdir("/sys/class/net"))


def check_nothing_left(run: Running, namespaces: set[str]) -> None:
    assert until(lambda: run.marked.pids() == set()), run.marked.pids()
    assert until(lambda: not namespaces & known_namespaces()), namespaces & known_namespaces()
    assert not list(run.out.parent.glob(f".{run.out.name}*"))


def check_records_readable(out: Path) -> str:
    """The manifest's status, after a look at every table that there is."""
    if not (out / "manifest.json").exists():
        return "no manifest"
    for table in ("requests", "transfers", "flows", "links"):
        if (out / f"{table}.parts").is_dir() or (out / f"{table}.parquet").exists():
            columns = read_table(out, table).column_names
            assert columns == [field.name for field in TABLES[table].__dataclass_fields__.values()]
    return str(json.loads((out / "manifest.json").read_text())["status"])


def reach(run: Running, phase: str) -> bool:
    """Wait for a phase of a run to begin; False if the run has ended before (a loaded machine fails its calibration)."""
    marks: dict[str, Callable[[], bool]] = {
        "start": lambda: True,
        "sandbox": lambda: run.replay is not None,
        "bring-up": (run.out / "manifest.json").exists,
        "preflight": lambda: run.observer is not None,
        "window": lambda: run.observer is not None,
        "flushed": lambda: any(run.out.glob("*.parts/*.parquet")),
        "close": lambda: any(run.out.glob("*.parquet")) or any(run.out.glob(".*.tmp")),
    }
    reached = marks[phase]
    if phase == "close":
        run.await_observer()
        run.process.send_signal(signal.SIGINT)
    return until(lambda: reached() or run.process.poll() is not None, 60, 0.002) and run.process.poll() is None


PHASES = {"start": (4, 1.0), "sandbox": (3, 0.8), "bring-up": (3, 0.4), "preflight": (3, 1.2), "window": (3, 5.0),
          "flushed": (2, 1.0), "close": (2, 0.05)}  # fmt: skip
"""Phase: how many runs are killed in it, and within how many seconds of its beginning."""


def test_killed_at_twenty_instants_nothing_is_left(tmp_path: Path) -> None:
    """At random instants of every phase: the process of the user, and those inside, in turn."""
    draw = random.Random(20)
    plans = [(phase, draw.uniform(0, span_s)) for phase, (count, span_s) in PHASES.items() for _ in range(count)]
    victims = ["user", "init", "user", "replay", "observer"] * 4
    assert len(plans) == INSTANTS
    before, kernel_before = interfaces(), kernel_namespaces()

    def kill_one(place: int) -> tuple[str, str, bool]:
        phase, delay_s = plans[place]
        for attempt in range(3):
            with started(tmp_path / f"run{place}-{attempt}", *LONGER) as run:
                if not reach(run, phase):
                    continue
                time.sleep(delay_s)
                pid, replay = getattr(run, victims[place]) or run.user, run.replay
                namespaces = held_namespaces(replay) if replay else set()
                if run.process.poll() is not None:
                    continue
                os.kill(pid, signal.SIGKILL)
                code, _, error = run.result()
                check_nothing_left(run, namespaces - {os.readlink("/proc/self/ns/net")})
                status = check_records_readable(run.out)
                assert "Traceback" not in error
                if pid == run.user:
                    assert code == -signal.SIGKILL
                elif phase != "close":  # where what was killed may have been done already
                    assert code == (EXIT_MACHINE if victims[place] == "observer" else 128 + signal.SIGKILL), error
                return phase, status, any(run.out.glob("*.parts/*.parquet"))
        pytest.fail(f"three runs ended before they could be killed in phase {phase}")

    with foreign_things(), ThreadPoolExecutor(3) as pool:
        ends = list(pool.map(kill_one, range(INSTANTS)))
    assert until(lambda: interfaces() <= before)
    assert any(flushed for phase, _, flushed in ends if phase == "flushed")
    for phase, status, _ in ends:
        # A run that was about to end when it was killed may just have done so.
        allowed = (
            {"running", "no manifest"} if phase in ("start", "sandbox") else {"running", "failed", "finished", "interrupted"}
        )
        assert status in allowed, ends
    assert sum(status == "running" for _, status, _ in ends) >= INSTANTS // 4, ends
    if kernel_before is not None:
        # A run has 9 namespaces. Others on this machine come and go, so the bound is loose: a quarter of all of them.
        assert until(lambda: (kernel_namespaces() or 0) < kernel_before + 9 * INSTANTS // 4)


def test_runs_back_to_back_half_of_them_interrupted_leave_nothing(tmp_path: Path) -> None:
    draw = random.Random(BACK_TO_BACK)
    before, kernel_before = interfaces(), kernel_namespaces()
    with foreign_things():
        for place in range(BACK_TO_BACK):
            with started(tmp_path / f"run{place}", "--set", "window=1s") as run:
                if place % 2:
                    time.sleep(draw.uniform(0.3, 4.0))
                    run.process.send_signal(signal.SIGINT)
                code, _, error = run.result()
                assert "Traceback" not in error
                assert code in ((0, 1) if place % 2 == 0 else (0, 1, 130)), (code, error)
                check_nothing_left(run, set())
    assert until(lambda: interfaces() <= before)
    if kernel_before is not None:
        assert until(lambda: (kernel_namespaces() or 0) < kernel_before + 9 * BACK_TO_BACK // 4 + 18, 3 * BOUND_S)


def test_a_run_that_ends_by_itself_leaves_its_records_and_nothing_else(tmp_path: Path) -> None:
    with started(tmp_path / "out") as run:
        run.await_observer()
        replay = run.replay
        assert replay is not None
        namespaces = held_namespaces(replay) - {os.readlink("/proc/self/ns/net")}
        assert len(namespaces) >= 8
        run.result()
        check_nothing_left(run, namespaces)
    names = sorted(path.name for path in run.out.iterdir())
    assert names == ["flows.parquet", "links.parquet", "manifest.json", "requests.parquet", "summary.json", "transfers.parquet"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]
