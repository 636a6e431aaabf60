"""Variants of a scenario: what each becomes, and their summaries side by side."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console

from kvfabric.cli import main
from kvfabric.errors import EXIT_BAD_INPUT, BadInput
from kvfabric.run import run_emulation
from kvfabric.scenario import load_scenario, variants_of
from kvfabric.side_by_side import render, same_load
from kvfabric.summary import RunFacts, summarise
from kvfabric.verdict import Verdict

pytestmark = pytest.mark.unit


def test_a_scenario_without_variants_is_its_own() -> None:
    smoke = load_scenario("smoke")
    assert variants_of(smoke) == (("smoke", smoke),)


def test_what_is_set_on_the_scenario_holds_in_every_variant() -> None:
    demo = load_scenario("demo", ["workload.tenants.0.load=0.3", "seed=9"])
    for _, one in variants_of(demo):
        assert (one.workload.tenants[0].load, one.seed, one.variants) == (0.3, 9, ())


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[{name: a, set: []}, {name: a, set: []}]", "variants.1.name: a second variant named a"),
        ("[{name: ../a, set: []}]", "variants.0.name"),
        ("[{name: a}]", "variants.0.set: is missing"),
    ],
)
def test_variants_that_cannot_be_are_refused(text: str, problem: str) -> None:
    with pytest.raises(BadInput, match=problem):
        load_scenario("smoke", [f"variants={text}"])


def test_a_variant_with_a_wrong_key_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    smoke = load_scenario("smoke", ["variants=[{name: a, set: []}, {name: b, set: [fabric.kind=ring]}]"])
    with pytest.raises(BadInput, match=r"--set fabric\.kind=ring: fabric\.kind"):
        variants_of(smoke)
    assert main(["run", "smoke", "--variant", "a"]) == EXIT_BAD_INPUT
    assert "--variant a: scenario smoke has no such variant" in capsys.readouterr().err


def test_a_variant_that_is_not_there_is_refused_with_those_that_are(tmp_path: Any) -> None:
    with pytest.raises(BadInput, match="no such variant") as caught:
        run_emulation(load_scenario("demo"), out=tmp_path / "x", csv=False, as_json=False, debug=False, only="ring")
    assert caught.value.remedy == "it has ecmp, ocs, ocs-none, ocs-after"
    assert not (tmp_path / "x").exists()


def summary(fabric: str, digest: str = "d", reasons: tuple[str, ...] = ()) -> dict[str, Any]:
    facts = RunFacts(
        scenario="s", engine="emulation", fabric=fabric, offered_digest=digest, ended_s=1.0, time_scale=1.0, wall_s=1.0
    )  # fmt: skip
    return summarise(facts, Verdict(not reasons, reasons, {}), (), ())


def test_the_table_has_a_column_a_run_and_every_reason() -> None:
    summaries = {"ecmp": summary("leaf-spine"), "ocs": summary("ocs reservation", reasons=("a spine was lost",))}
    console = Console(width=120, force_terminal=False)
    with console.capture() as captured:
        console.print(render(summaries))
    text = captured.get()
    assert "VALID" in text
    assert "INVALID" in text
    assert "ocs: a spine was lost" in text
    assert "the same turns were offered to all of them" in text


def test_other_turns_are_noticed() -> None:
    assert same_load([summary("a"), summary("b")])
    other = [summary("a"), summary("b", digest="e")]
    assert not same_load(other)
    console = Console(width=120, force_terminal=False)
    with console.capture() as captured:
        console.print(render({"a": other[0], "b": other[1]}))
    assert "NOT the same turns" in captured.get()
