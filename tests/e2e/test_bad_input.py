"""Bad input, as a user meets it: two lines, the right exit code, and nothing left behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sealed_run import Marked, call

pytestmark = pytest.mark.e2e

AS_NOBODY = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups")
ROW = {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}


def refused(*arguments: str, code: int, prefix: tuple[str, ...] = ()) -> str:
    """What is said, after a look at its shape: at most two lines on stderr, nothing on stdout, nobody left."""
    marked = Marked()
    done = call(*arguments, prefix=prefix, env=marked.env)
    lines = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (code, ""), done
    assert 1 <= len(lines) <= 2, done.stderr
    assert lines[0].startswith("kvfabric: ")
    assert all(line.startswith("  ") for line in lines[1:])
    assert marked.pids() == set()
    return done.stderr


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("windw=2s", "windw"),
        ("scale.rate=200MB", "200MB"),
        ("scale.rate=25ms", "25ms"),
        ("scale.rate=-200Mb/s", "-200Mb/s"),
    ],
)
def test_a_bad_setting_is_refused_by_name(tmp_path: Path, setting: str, named: str) -> None:
    out = tmp_path / "out"
    assert named in refused("run", "smoke", "--set", setting, "--out", str(out), code=2)
    assert not out.exists()


@pytest.mark.parametrize(
    ("name", "text", "named"),
    [
        ("empty.jsonl", "", "empty.jsonl"),
        ("broken.jsonl", json.dumps(ROW) + "\n" + json.dumps({**ROW, "timestamp": 9})[:-4] + "\n", "broken.jsonl:2"),
        ("nan.jsonl", json.dumps(ROW) + "\n" + json.dumps({**ROW, "timestamp": float("nan")}) + "\n", "nan.jsonl:2"),
        ("back.jsonl", json.dumps({**ROW, "timestamp": 9}) + "\n" + json.dumps(ROW) + "\n", "back.jsonl:2"),
    ],
)
def test_a_bad_trace_is_refused_with_its_line(tmp_path: Path, name: str, text: str, named: str) -> None:
    trace, out = tmp_path / name, tmp_path / "out"
    trace.write_text(text)
    assert named in refused("run", "mooncake", "--trace", str(trace), "--out", str(out), code=2)
    assert not out.exists()


def test_a_missing_trace_and_a_missing_scenario_are_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    missing = tmp_path / "no.jsonl"
    assert "no.jsonl" in refused("run", "mooncake", "--trace", str(missing), "--out", str(out), code=2)
    assert "no.yaml" in refused("run", str(tmp_path / "no.yaml"), "--out", str(out), code=2)
    assert not out.exists()


def test_a_folder_that_is_not_empty_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    assert "not empty" in refused("run", "smoke", "--out", str(tmp_path), code=2)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("mine", "mine")]


def test_a_folder_that_the_sandbox_would_swallow_is_refused() -> None:
    assert "/run" in refused("run", "smoke", "--out", "/run/kvfabric-test-out", code=2)
    assert not Path("/run/kvfabric-test-out").exists()


def test_without_root_the_machine_cannot_do_it(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    out = tmp_path / "out"
    assert "root" in refused("run", "smoke", "--out", str(out), code=3, prefix=AS_NOBODY)
    assert not out.exists()


def test_a_bad_scenario_file_is_refused_with_its_line(tmp_path: Path) -> None:
    file, out = tmp_path / "mine.yaml", tmp_path / "out"
    file.write_text(call("scenarios", "show", "smoke").stdout.replace("window: 2s", "window: 2"))
    line = next(number for number, text in enumerate(file.read_text().splitlines(), 1) if text.startswith("window"))
    assert f"mine.yaml:{line}" in refused("run", str(file), "--out", str(out), code=2)
    assert not out.exists()
