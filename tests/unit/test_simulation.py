"""The simulation engine: every path policy and circuit policy, its records, its verdict, repeatable to the byte."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from serving_driver import chunk_times, chunk_tokens, turn

from controller.uplinks import Ecmp, FiveTuple, Given, Pinned
from flowsim.simulation import PacketSimulation
from flowsim.solver import FastNetwork
from kvfabric.cli import main
from kvfabric.records import read_json, read_rows
from kvfabric.rows import FlowRow, RequestRow
from kvfabric.scenario import Scenario, load_scenario
from kvfabric.simulated_network import Handed
from kvfabric.simulation import SimulatedRun, simulate
from kvfabric.workload import build_workload
from workloads.serving import ServingModel
from workloads.serving_config import ServingConfig

pytestmark = pytest.mark.unit

ROUTINGS = ("ecmp", "pinned", "adaptive", "srpt", "ceiling")
PACKETS = ("fabric.kind=leaf-spine", "fabric.ocs=null", "variants=[]")
CIRCUITS = ("fabric.kind=ocs", "variants=[]")
RATE_BPS = 1000.0


def demo(*changes: str) -> Scenario:
    return load_scenario("demo", [*PACKETS, *changes])


def run(scenario: Scenario, handed: Handed | None = None) -> SimulatedRun:
    return simulate(scenario, build_workload(scenario), handed or Handed())


def fcts(result: SimulatedRun) -> dict[int, float]:
    return {row.flow: row.fct_s for row in result.flows if row.fct_s is not None}


def two_turns(rate_Bps: float, *, shared: bool) -> PacketSimulation:
    """Two prefill instances of two GPUs, a link of their own for each flow or one for both flows of a position."""
    config = ServingConfig(prefill=2, decode=2, layers=4, bytes_per_token_per_gpu=1.0, mode="pull", lookahead_s=1e-9)
    network = FastNetwork([rate_Bps] * 4)
    return PacketSimulation(
        ServingModel(config, chunk_times, chunk_tokens),
        network,
        lambda start, position: (position if shared else 2 * start.prefill + position,),
        tp=2,
    )


@pytest.mark.parametrize(("shared", "takes_s"), [(False, 0.75), (True, 1.5)])
def test_transfers_take_their_bytes_over_their_share(shared: bool, takes_s: float) -> None:
    done = two_turns(RATE_BPS, shared=shared).simulate([turn(0, 0.0, "a"), turn(1, 0.0, "b")])
    assert [one.last_byte_s for one in done.finished] == pytest.approx([1.0 + takes_s] * 2, rel=1e-9)
    assert [one.ended_s for one in done.transfers.values()] == pytest.approx([1.0 + takes_s] * 2, rel=1e-9)


def test_half_the_rate_doubles_a_network_bound_transfer_and_the_end_of_the_run_is_kept() -> None:
    fast, slow = (two_turns(rate, shared=True).simulate([turn(0, 0.0, "a")]) for rate in (RATE_BPS, RATE_BPS / 2))
    assert slow.finished[0].last_byte_s - 1.0 == pytest.approx(2 * (fast.finished[0].last_byte_s - 1.0), rel=1e-9)
    cut = two_turns(RATE_BPS, shared=True).simulate([turn(0, 0.0, "a"), turn(1, 9.0, "b")], until_s=1.5)
    assert (cut.finished, cut.end_s, cut.transfers[0].ended_s) == ([], 1.5, None)


@pytest.mark.parametrize("routing", ROUTINGS)
def test_every_path_policy_gives_a_valid_run(routing: str) -> None:
    scenario = demo(f"fabric.routing={routing}")
    result = run(scenario)
    assert (result.verdict.word, result.verdict.reasons) == ("VALID", ())
    assert len(result.flows) == scenario.cluster.tp * len(result.transfers) > 0
    assert all(row.slowdown is not None and row.slowdown >= 1 for row in result.flows)
    ceiling = run(demo("fabric.routing=ceiling"))
    assert all(fct_s >= fcts(ceiling)[flow] - 1e-12 for flow, fct_s in fcts(result).items())


def test_without_a_limit_the_last_byte_comes_with_the_prefills_end() -> None:
    for row in run(demo("fabric.routing=ceiling")).requests:
        assert row.last_byte_s == row.prefill_end_s
        assert row.exposed_s == 0


@pytest.mark.parametrize("policy", ["reservation", "admission", "none", "after"])
def test_every_circuit_policy_gives_a_valid_run_with_its_windows(policy: str) -> None:
    scenario = load_scenario("demo", [*CIRCUITS, f"fabric.ocs.policy={policy}"])
    result = run(scenario)
    assert (result.verdict.word, result.verdict.reasons) == ("VALID", ())
    assert result.optical is not None
    began = [row for row in result.circuits if row.start_s is not None]
    assert len(began) == result.optical.reconfigurations + result.optical.reused > 0
    assert all(row.slowdown is not None and row.slowdown >= 1 for row in result.flows)
    assert {row.path_realised for row in result.flows} == {"ocs0", "ocs1", "ocs2", "ocs3"}


def test_a_run_that_is_cut_short_is_invalid_and_keeps_every_turn() -> None:
    for scenario in (demo("drain=0s"), load_scenario("demo", [*CIRCUITS, "drain=0s", "fabric.ocs.policy=after"])):
        result = run(scenario)
        assert result.verdict.word == "INVALID"
        assert "did not finish" in result.verdict.reasons[0]
        assert len(result.requests) == len(build_workload(scenario).offered.turns)
        assert {row.status for row in result.flows} == {"completed", "unfinished"}


def test_the_seed_moves_hashed_flows_and_given_paths_are_kept() -> None:
    first = run(demo())
    given = {row.flow: int((row.path_realised or "")[-7]) for row in first.flows}
    assert set(given.values()) == {0, 1}
    turned = Handed({flow: 1 - spine for flow, spine in given.items()})
    result = run(demo(), turned)
    assert [row.path_realised for row in result.flows] == [
        f"leaf{(row.path_realised or '')[4]}>spine{1 - given[row.flow]}>leaf{(row.path_realised or '')[-1]}"
        for row in first.flows
    ]


def test_given_decodes_are_taken_over_circuits() -> None:
    scenario = load_scenario("demo", [*CIRCUITS])
    first = run(scenario)
    decodes: dict[tuple[int, float], list[int]] = {}
    for row in first.requests:
        assert row.prefill is not None
        assert row.prefill_start_s is not None
        assert row.decode is not None
        decodes.setdefault((row.prefill, row.prefill_start_s), []).append(1 - row.decode)
    swapped = run(scenario, Handed({}, decodes))
    assert {row.turn: row.decode for row in swapped.requests} == {
        row.turn: None if row.decode is None else 1 - row.decode for row in first.requests
    }


def test_uplinks_by_hash_are_spread_and_last_and_those_in_turn_do_not_collide() -> None:
    ecmp, other_seed = Ecmp(4, 1), Ecmp(4, 2)
    tuples = [FiveTuple(f"p{n % 8}g0", f"d{n // 8}g0", 8192 + n, 7000) for n in range(4000)]
    chosen = [ecmp(n, tuple_, 0, 2) for n, tuple_ in enumerate(tuples)]
    assert chosen == [ecmp(-1, tuple_, 0, 3) for tuple_ in tuples]
    assert max(abs(count - 1000) for count in Counter(chosen).values()) < 4 * 1000**0.5
    assert chosen != [other_seed(0, tuple_, 0, 2) for tuple_ in tuples]
    assert chosen != [ecmp(0, tuple_, 1, 2) for tuple_ in tuples]
    pinned = Pinned(4)
    assert sorted(pinned(n, tuples[0], 0, 2) for n in range(4)) == [0, 1, 2, 3]
    assert Given({7: 3}, pinned)(7, tuples[0], 0, 2) == 3
    assert Given({7: 3}, pinned)(8, tuples[0], 0, 1) == 1


def summary_of(out: Path) -> dict[str, Any]:
    return {key: value for key, value in read_json(out / "summary.json").items() if key != "wall_s"}


@pytest.mark.parametrize("fabric", [PACKETS, CIRCUITS])
def test_the_command_writes_the_same_bytes_each_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], fabric: tuple[str, ...]
) -> None:
    changes = [part for change in fabric for part in ("--set", change)]
    for name in ("one", "two"):
        assert main(["run", "demo", "--engine", "simulation", "--csv", "--json", "--out", str(tmp_path / name), *changes]) == 0
        assert json.loads(capsys.readouterr().out)["engine"] == "simulation"
    one, two = tmp_path / "one", tmp_path / "two"
    assert summary_of(one) == summary_of(two)
    tables = sorted(path.name for path in one.iterdir() if path.suffix in (".parquet", ".csv"))
    assert len(tables) == (6 if fabric is PACKETS else 8)
    for name in tables:
        assert (one / name).read_bytes() == (two / name).read_bytes()
    manifest = read_json(one / "manifest.json")
    assert (manifest["status"], manifest["engine"]) == ("finished", "simulation")
    assert manifest["offered_digest"] == summary_of(one)["offered_digest"]
    scenario = load_scenario("demo", fabric)
    flow, request = next(read_rows(one, FlowRow)), next(read_rows(one, RequestRow))
    assert flow.fct_s is not None
    assert flow.fct_emu_s == pytest.approx(flow.fct_s * scenario.scale.time, rel=1e-12)
    assert request.ttft_s is not None


def test_variants_are_simulated_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "demo", "--engine", "simulation", "--json", "--out", str(tmp_path / "all")]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["same_load"] is True
    assert list(document["variants"]) == ["ecmp", "ocs", "ocs-none", "ocs-after"]
    assert all((tmp_path / "all" / name / "summary.json").is_file() for name in document["variants"])
    assert main(["run", "demo", "--engine", "simulation", "--out", str(tmp_path / "one"), "--variant", "ecmp"]) == 0
    assert summary_of(tmp_path / "one") == summary_of(tmp_path / "all" / "ecmp")
    assert capsys.readouterr().out.startswith("VALID")


def test_an_invalid_simulation_exits_with_1_and_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    cut = ["run", "demo", "--engine", "simulation", "--variant", "ecmp", "--set", "drain=0s", "--out", str(tmp_path / "x")]
    assert main(cut) == 1
    assert main(cut) == 2
