"""However a run ends, nothing of it is left, and nothing that was there before is gone."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from sealed_run import BOUND_S, LONGER, Running, held_namespaces, known_namespaces, started, until

from kvfabric.records import TABLES, read_table

pytestmark = pytest.mark.e2e

INSTANTS = 20
BACK_TO_BACK = int(os.environ.get("KVFABRIC_TEST_RUNS", "6"))
"""Runs one after the other; 20 of them show a slow leak, and take three minutes."""


@contextmanager
def foreign_things(tmp_path: Path) -> Iterator[None]:
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


def test_killed_at_twenty_instants_nothing_is_left(tmp_path: Path) -> None:
    """Spread over start-up, bring-up, preflight, window and close; the process of the user, and those inside, in turn."""
    draw = random.Random(20)
    plans = []
    for place in range(INSTANTS):
        # The longer run lasts about 16 s beside three others; a fifth of the instants lie beyond the first flush.
        at_s = (place + draw.random()) * 11.0 / INSTANTS
        plans.append((place, at_s, ("user", "user", "init", "replay", "observer")[place % 5]))
    draw.shuffle(plans)
    before, kernel_before = interfaces(), kernel_namespaces()

    def kill_one(plan: tuple[int, float, str]) -> tuple[str, str, int]:
        place, at_s, victim = plan
        with started(tmp_path / f"run{place}", *LONGER) as run:
            time.sleep(at_s)
            pid = {"user": run.process.pid, "init": run.init, "replay": run.replay, "observer": run.observer}[victim]
            replay = run.replay
            namespaces = held_namespaces(replay) if replay else set()
            namespaces -= {os.readlink("/proc/self/ns/net")}
            pid = pid or run.process.pid
            os.kill(pid, signal.SIGKILL)
            code, _, error = run.result()
            check_nothing_left(run, namespaces)
            status = check_records_readable(run.out)
            flushed = len(list(run.out.glob("*.parts/*.parquet")))
            assert code != 0, (victim, at_s)
            if pid == run.process.pid:
                assert code == -signal.SIGKILL
                assert status in ("running", "no manifest"), status
            elif victim == "observer":
                assert (code, status) == (3, "failed"), error
                assert len(error.splitlines()) <= 2
            return victim, status, flushed

    with foreign_things(tmp_path), ThreadPoolExecutor(4) as pool:
        ends = list(pool.map(kill_one, plans))
    assert until(lambda: interfaces() <= before)
    states = Counter(status for _, status, _ in ends)
    assert states["no manifest"] >= 2, states  # killed before the network
    assert states["running"] >= 6, states
    assert any(flushed for _, _, flushed in ends), ends
    if kernel_before is not None:
        # A run has 9 namespaces. Others on this machine come and go, so the bound is loose: a tenth of a leak of all.
        assert until(lambda: (kernel_namespaces() or 0) < kernel_before + 9 * INSTANTS // 4)


def test_runs_back_to_back_half_of_them_interrupted_leave_nothing(tmp_path: Path) -> None:
    draw = random.Random(BACK_TO_BACK)
    before, kernel_before = interfaces(), kernel_namespaces()
    with foreign_things(tmp_path):
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
