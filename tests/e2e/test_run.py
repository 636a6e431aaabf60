"""``kvfabric run`` end to end: what it prints and writes, how it is stopped, and that every row of a trace is accounted for."""

from __future__ import annotations

import json
import random
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sealed_run import call, started, started_in_window

from kvfabric.cpu_claim import claimed_cpu
from kvfabric.errors import EXIT_INTERRUPTED, EXIT_NO, EXIT_OK
from kvfabric.records import read_rows
from kvfabric.rows import FlowRow, LinkRow, RequestRow, TransferRow

pytestmark = pytest.mark.e2e


def test_a_smoke_run_is_valid_and_its_records_agree_with_its_summary(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = call("run", "smoke", "--out", str(out), "--json")
    summary = json.loads(done.stdout)
    assert (done.returncode, summary["verdict"], summary["reasons"], done.stderr) == (EXIT_OK, "VALID", [], "")
    assert json.loads((out / "summary.json").read_text()) == summary
    requests, flows = list(read_rows(out, RequestRow)), list(read_rows(out, FlowRow))
    transfers, links = list(read_rows(out, TransferRow)), list(read_rows(out, LinkRow))
    assert len(requests) == summary["requests"]["offered"] == summary["requests"]["completed"] > 0
    assert len(flows) == len(transfers) == len(requests)  # one GPU an instance
    assert {row.turn for row in requests} == {row.turn for row in transfers}
    assert all(row.path_realised == row.path_predicted is not None for row in flows)
    assert all(row.slowdown is not None and row.slowdown > 0.99 for row in flows)
    assert {row.port for row in links} >= {"leaf0-eth2", "p0g0-eth0"}
    manifest = json.loads((out / "manifest.json").read_text())
    assert (manifest["status"], manifest["offered_digest"]) == ("finished", summary["offered_digest"])


def test_two_runs_side_by_side_are_both_valid(tmp_path: Path) -> None:
    """They keep off each other's CPU. Other work on the machine makes both late, and says so; hence three attempts."""
    for attempt in range(3):
        with started(tmp_path / f"one{attempt}") as one, started(tmp_path / f"two{attempt}") as two:
            ends = [one.result(), two.result()]
        reasons = [run.summary()["reasons"] for run in (one, two)]
        assert one.summary()["offered_digest"] == two.summary()["offered_digest"]
        if not any(reasons):
            break
    assert [code for code, _, _ in ends] == [EXIT_OK, EXIT_OK], reasons


def test_runs_take_different_cpus_and_give_them_back() -> None:
    idle = {90000: 0.9, 90001: 0.5}  # CPUs that no run of somebody else's can hold
    with claimed_cpu(idle) as first, claimed_cpu(idle) as second, claimed_cpu(idle) as third:
        assert {first, second} == set(idle)
        assert third == 90000
    with claimed_cpu({90000: 0.2, 90001: 0.5}) as again:
        assert again == 90001


# Stopped by its user


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_stops_a_run_in_order(tmp_path: Path, name: str) -> None:
    with started_in_window(tmp_path) as run:
        asked = time.monotonic()
        run.process.send_signal(signal.Signals[name])
        code, out, error = run.result()
        took_s = time.monotonic() - asked
    summary = run.summary()
    assert (code, error) == (EXIT_NO, "")
    assert took_s < 5
    assert summary["verdict"] == "INVALID"
    assert summary["reasons"][0] == f"the run was interrupted by {name}"
    assert not any("preflight" in reason for reason in summary["reasons"])
    assert out.startswith("INVALID")
    assert run.status() == "interrupted"
    requests = list(read_rows(run.out, RequestRow))
    counts = summary["requests"]
    assert len(requests) == counts["offered"] == counts["completed"] + counts["failed"] + counts["unfinished"]
    assert not list(run.out.glob("*.parts"))


def test_a_second_signal_stops_a_run_at_once(tmp_path: Path) -> None:
    """The second is sent while the first is being obeyed; there is no waiting for the records then."""
    with started_in_window(tmp_path) as run:
        replay = run.replay
        assert replay is not None
        run.process.send_signal(signal.SIGTERM)
        time.sleep(0.06)  # the sandbox looks for so long whether it was sent to the whole group
        run.process.send_signal(signal.SIGTERM)
        code, _, error = run.result()
    assert code in (128 + signal.SIGTERM, EXIT_NO)  # or it was quicker to end in order
    assert "Traceback" not in error


def test_ctrl_c_at_any_time_during_the_start_is_never_a_traceback(tmp_path: Path) -> None:
    draw = random.Random(7)

    def interrupted(place: int) -> tuple[int, str]:
        with started(tmp_path / f"run{place}") as run:
            time.sleep(0.35 + 0.25 * place + draw.uniform(0, 0.2))
            run.process.send_signal(signal.SIGINT)
            code, _, error = run.result()
            return code, error

    with ThreadPoolExecutor(2) as pool:
        ends = list(pool.map(interrupted, range(10)))
    for code, error in ends:
        assert code in (EXIT_NO, EXIT_INTERRUPTED, -signal.SIGINT), (code, error)
        assert "Traceback" not in error
        assert len(error.splitlines()) <= 2


# Every row of a trace is accounted for


def mooncake_file(path: Path, rows: int) -> Path:
    draw = random.Random(3)
    lines = []
    for row in range(rows):
        blocks = draw.randint(1, 30)
        ids = [0, *range(1000 * row + 1, 1000 * row + blocks)]
        length = 512 * len(ids) - draw.randint(0, 511)
        lines.append({"timestamp": 250 * row, "input_length": length, "output_length": draw.randint(1, 300), "hash_ids": ids})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def weka_folder(path: Path, sessions: int, steps: int) -> Path:
    path.mkdir()
    draw = random.Random(4)
    for session in range(sessions):
        ids: list[int] = []
        requests: list[dict[str, Any]] = []
        for step in range(steps):
            ids = [*ids, *range(len(ids), len(ids) + draw.randint(4, 60))]
            requests.append({"t": 6.0 * step, "type": "n", "in": 64 * len(ids), "out": 50, "hash_ids": list(ids)})
        nested = {"t": 6.0 * steps, "type": "subagent", "agent_id": "a1", "requests": [{**requests[0], "t": 0.5}]}
        document = {"id": f"s{session}", "block_size": 64, "hash_id_scope": "local", "requests": [*requests, nested]}
        (path / f"s{session}.json").write_text(json.dumps(document))
    return path


def azure_file(path: Path, rows: int) -> Path:
    draw = random.Random(5)
    lines = [
        f"2030-01-01 00:00:{row // 4:02d}.{row % 4 * 25:02d}00000,{draw.randint(500, 9000)},{draw.randint(1, 200)}"
        for row in range(rows)
    ]
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines]) + "\n")
    return path


def accounted(scenario: str, trace: Path, out: Path, *more: str) -> int:
    """Run a few seconds of a trace, check that every row went somewhere, and say how many there were."""
    short = ("--set", "window=1s", "--set", "drain=1s", "--set", "scale.time=4")
    done = call("run", scenario, "--trace", str(trace), "--out", str(out), "--json", *short, *more)
    assert done.returncode in (EXIT_OK, EXIT_NO), done.stderr
    summary, manifest = json.loads(done.stdout), json.loads((out / "manifest.json").read_text())
    rows = summary["fidelity"]["trace_rows_accounted"]
    assert rows["value"] == rows["limit"]
    assert not any(re.search("trace rows in|offered .* turns", reason) for reason in summary["reasons"]), summary["reasons"]
    requests = list(read_rows(out, RequestRow))
    counts = summary["requests"]
    assert len({row.turn for row in requests}) == len(requests) == counts["offered"] == manifest["workload"]["turns"] > 0
    assert counts["offered"] == counts["completed"] + counts["failed"] + counts["unfinished"]
    assert len(manifest["workload"]["tenants"]) == 1
    return int(rows["limit"])


def test_every_row_of_a_trace_is_accounted_for_skipped_ones_too(tmp_path: Path) -> None:
    """Three at a time: what is accounted for does not depend on how busy the machine is."""
    bad = mooncake_file(tmp_path / "bad.jsonl", 60)
    lines = bad.read_text().splitlines()
    lines[10] = lines[10][:-5]
    lines[20] = lines[20].replace('"output_length"', '"output"')
    bad.write_text("\n".join(lines) + "\n")
    cases: dict[str, tuple[str, Path, int, tuple[str, ...]]] = {
        "mooncake": ("mooncake", mooncake_file(tmp_path / "t.jsonl", 200), 200, ()),
        "weka": ("weka", weka_folder(tmp_path / "sessions", 6, 12), 6 * 13, ()),
        "azure": ("azure", azure_file(tmp_path / "t.csv", 100), 100, ()),
        "malformed": ("mooncake", bad, 60, ("--set", "workload.tenants.0.skip_bad=true")),
    }
    with ThreadPoolExecutor(3) as pool:
        found = pool.map(lambda name: accounted(cases[name][0], cases[name][1], tmp_path / name, *cases[name][3]), cases)
        assert dict(zip(cases, found, strict=True)) == {name: case[2] for name, case in cases.items()}


def test_every_row_of_a_public_trace_is_accounted_for(shared_data: Path, tmp_path: Path) -> None:
    names = {
        "mooncake": "mooncake/conversation_trace.jsonl",
        "weka": "weka/sessions",
        "azure": "azure/AzureLLMInferenceTrace_conv.csv",
    }
    there = [scenario for scenario, name in names.items() if (shared_data / name).exists()]
    if not there:
        pytest.skip(f"none of {', '.join(names.values())} is among the sample traces")

    def rows(scenario: str) -> tuple[int, int]:
        trace = shared_data / names[scenario]
        inspected = json.loads(call("trace", "inspect", str(trace), "--json").stdout)
        return accounted(scenario, trace, tmp_path / scenario), int(inspected["rows"])

    with ThreadPoolExecutor(3) as pool:
        for accounted_for, there_are in pool.map(rows, there):
            assert accounted_for == there_are > 1000
