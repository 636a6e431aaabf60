"""What single commands do with their arguments, without a network."""

from __future__ import annotations

import argparse
import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from kvfabric import _yaml
from kvfabric.cli import build_parser, main
from kvfabric.cli._options import scenario_of
from kvfabric.cli.run import default_out
from kvfabric.scenario import Scenario, scenario_text

pytestmark = pytest.mark.unit

MOONCAKE = '{{"timestamp": {ms}, "input_length": 1000, "output_length": 9, "hash_ids": [1, {ms}]}}\n'


def arguments(*words: str) -> argparse.Namespace:
    return build_parser().parse_args(words)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(MOONCAKE.format(ms=1000 * second) for second in range(1, 61)))
    return path


def test_seed_and_set_reach_the_scenario_and_set_wins() -> None:
    assert scenario_of(arguments("plan", "demo", "--seed", "7")).seed == 7
    assert scenario_of(arguments("plan", "demo", "--set", "seed=8", "--seed", "7")).seed == 8


def test_trace_takes_the_place_of_the_first_tenants_source_whatever_it_was(trace: Path) -> None:
    for name in ("demo", "weka"):
        tenant = scenario_of(arguments("plan", name, "--trace", str(trace))).workload.tenants[0]
        assert (tenant.trace, tenant.generator, tenant.format) == (str(trace), None, "auto")
        assert tenant.load == 0.6


def test_start_and_window_cut_the_first_tenants_trace(trace: Path) -> None:
    tenant = scenario_of(arguments("run", "weka", "--trace", str(trace), "--start", "5s", "--window", "10s")).workload.tenants[0]
    assert (tenant.start, tenant.window) == (5.0, 10.0)


def test_a_trace_whose_name_looks_like_a_number_is_still_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "123").touch()
    monkeypatch.chdir(tmp_path)
    assert scenario_of(arguments("plan", "weka", "--trace", "123")).workload.tenants[0].trace == str(tmp_path / "123")


def test_scenarios_lists_one_a_line_with_demo_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scenarios"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["demo", "azure", "mooncake", "policies", "smoke", "weka"]


def test_scenarios_show_prints_the_file_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scenarios", "show", "demo"]) == 0
    shown = capsys.readouterr().out
    assert shown == scenario_text("demo")[0]
    assert _yaml.parse(shown).value["name"] == "demo"


def test_json_may_stand_before_or_after_the_inner_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scenarios", "--json", "show", "demo"]) == 0
    before = json.loads(capsys.readouterr().out)
    assert main(["scenarios", "show", "demo", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == before


def test_plan_prints_the_same_sheet_as_text_and_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "smoke"]) == 0
    text = capsys.readouterr().out
    assert main(["plan", "smoke", "--json"]) == 0
    sheet = json.loads(capsys.readouterr().out)
    assert all(check["name"] in text for check in sheet["checks"])


def test_trace_inspect_counts_the_rows(capsys: pytest.CaptureFixture[str], trace: Path) -> None:
    assert main(["trace", "inspect", str(trace), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["format"], report["rows"], report["turns"], report["problems"]) == ("mooncake", 60, 60, [])
    assert main(["trace", "inspect", str(trace)]) == 0
    assert "mooncake" in capsys.readouterr().out


def test_trace_inspect_lists_bad_rows_by_line_when_asked_to_skip_them(capsys: pytest.CaptureFixture[str], trace: Path) -> None:
    with trace.open("a") as file:
        file.write('{"timestamp": oops}\n')
    assert main(["trace", "inspect", str(trace), "--skip-bad", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["rows"], report["turns"]) == (61, 60)
    assert report["problems"][0]["where"] == f"{trace}:61"
    assert main(["trace", "inspect", str(trace), "--skip-bad"]) == 0
    assert f"{trace}:61" in capsys.readouterr().out


def test_run_hands_the_scenario_and_its_options_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: dict[str, Any] = {}

    def run_emulation(scenario: Scenario, **options: Any) -> int:
        seen.update(options, scenario=scenario)
        return 1

    monkeypatch.setattr("kvfabric.run.run_emulation", run_emulation)
    assert main(["run", "smoke", "--out", str(tmp_path / "x"), "--csv", "--seed", "9"]) == 1
    assert seen["scenario"].seed == 9
    assert (seen["out"], seen["csv"], seen["as_json"], seen["debug"]) == (tmp_path / "x", True, False, False)


def test_runs_without_a_folder_get_one_each() -> None:
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
    assert default_out("demo", now, 17) == Path("runs/demo-20260102T030405Z-17")
    assert default_out("demo", now, 17) != default_out("demo", now, 18)
