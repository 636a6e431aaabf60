"""``kvfabric run`` over circuits: the same turns as over packets, what is recorded of the circuits, and what disturbs them."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sealed_run import Running, call, started_in_window, until

from kvfabric.errors import EXIT_NO, EXIT_OK
from kvfabric.records import read_rows
from kvfabric.rows import CircuitRow, FlowRow, RequestRow

pytestmark = pytest.mark.e2e

OVER_CIRCUITS = ("--set", "fabric.kind=ocs")
ATTEMPTS = 4
"""A run is VALID on a machine that is left alone for a moment; this one runs other tests."""


def valid_run(base: Path, *arguments: str) -> tuple[Path, dict[str, Any]]:
    for attempt in range(ATTEMPTS):
        out = base / f"out{attempt}"
        done = call("run", "smoke", "--out", str(out), "--json", *OVER_CIRCUITS, *arguments)
        assert done.returncode in (EXIT_OK, EXIT_NO), done.stderr
        summary = json.loads(done.stdout)
        if summary["verdict"] == "VALID":
            return out, summary
    raise AssertionError(summary["reasons"])


def test_a_run_over_circuits_is_valid_and_its_circuits_are_on_record(tmp_path: Path) -> None:
    out, summary = valid_run(tmp_path)
    packets = call("run", "smoke", "--out", str(tmp_path / "packets"), "--json")
    assert json.loads(packets.stdout)["offered_digest"] == summary["offered_digest"]
    requests, flows, windows = list(read_rows(out, RequestRow)), list(read_rows(out, FlowRow)), list(read_rows(out, CircuitRow))
    assert {row.path_realised for row in flows} == {"ocs0"}
    assert all(row.path_predicted == row.path_realised and not row.retransmissions for row in flows)
    assert all(row.lateness_emu_s is not None and row.lateness_emu_s > -1e-3 for row in flows)
    begun = [row for row in windows if row.start_s is not None]
    assert {row.transfer for row in begun} == {row.turn for row in requests if (row.head_bytes or 0) + (row.tail_bytes or 0)}
    counts = summary["circuits"]
    assert counts["booked"] >= len(begun) == counts["reconfigurations"] + counts["reused"]
    manifest = json.loads((out / "manifest.json").read_text())
    tau_s = manifest["network"]["tau_emu_s"]
    for row in begun:
        assert row.up_s is not None
        if not row.reused:
            assert row.dark_emu_s == pytest.approx(tau_s, abs=1e-6)
            assert row.control_emu_s is not None
    for port in "prefill", "decode":  # one circuit at a time on any port
        for instance in (0, 1):
            held = sorted((row.start_s, row.end_s) for row in begun if getattr(row, port) == instance and row.start_s is not None)
            assert all(end <= start + 1e-3 for (_, end), (start, _) in itertools.pairwise(held))


@pytest.mark.parametrize("policy", ["admission", "none", "after"])
def test_every_policy_serves_every_turn(tmp_path: Path, policy: str) -> None:
    out = tmp_path / "out"
    done = call("run", "smoke", "--out", str(out), "--json", *OVER_CIRCUITS, "--set", f"fabric.ocs.policy={policy}")
    assert done.returncode in (EXIT_OK, EXIT_NO), done.stderr
    requests = json.loads(done.stdout)["requests"]
    assert requests["completed"] == requests["offered"] > 0
    rows = [row for row in read_rows(out, RequestRow) if row.exposed_s is not None and row.prefill_end_s is not None]
    if policy == "after":
        tau_s = 0.025
        windows = [row for row in read_rows(out, CircuitRow) if not row.reused and row.up_s is not None]
        by_turn = {row.turn: row for row in rows}
        assert all(row.up_s is not None and row.up_s >= (by_turn[row.transfer].prefill_end_s or 0) + tau_s for row in windows)


def process_of(run: Running, word: str) -> int | None:
    for pid in run.marked.pids():
        with contextlib.suppress(OSError):
            if word.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
    return None


def killed(word: str) -> Callable[[Running], None]:
    def kill(run: Running) -> None:
        pid = process_of(run, word)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

    return kill


def foreign_rule(run: Running) -> None:
    switch = "unix:/run/kvfabric-ocs/ocs0.mgmt"
    run.inside("ovs-ofctl", "-O", "OpenFlow13", "add-flow", switch, "priority=7,in_port=2,actions=output:1")


DISTURBANCES: dict[str, tuple[Callable[[Running], None], str]] = {
    "controller killed": (killed("controller.ocs_app"), r"circuits: the controller is gone|the controller has ended"),
    "switch killed": (killed("ovs-vswitchd"), r"circuits: plane 0: the switch lost its controller|its switch is disconnected"),
    "foreign rule": (foreign_rule, r"plane 0: the switch has rules .* too many"),
}


@pytest.mark.parametrize("name", DISTURBANCES)
def test_what_happens_to_the_switch_in_mid_run_is_named_within_a_bound(tmp_path: Path, name: str) -> None:
    disturb, words = DISTURBANCES[name]
    with started_in_window(tmp_path, *OVER_CIRCUITS) as run:
        disturb(run)
        asked = time.monotonic()
        code, out, error = run.result()
        took_s = time.monotonic() - asked
        assert code == EXIT_NO, error
        assert out.startswith("INVALID")
        reasons = run.summary()["reasons"]
        assert any(re.search(words, reason) for reason in reasons), reasons
        assert took_s < 60
        assert until(lambda: run.marked.pids() == set()), "something is left"
        counts = run.summary()["requests"]
        assert counts["offered"] == counts["completed"] + counts["failed"] + counts["unfinished"]


def test_a_killed_run_over_circuits_leaves_nothing(tmp_path: Path) -> None:
    with started_in_window(tmp_path, *OVER_CIRCUITS) as run:
        run.process.kill()
        assert until(lambda: run.marked.pids() == set()), "something is left"
