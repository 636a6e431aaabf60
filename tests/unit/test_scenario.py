"""Scenarios: what is accepted, what it becomes, and that everything else is refused by file, line and key."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfabric import _yaml
from kvfabric._quantities import exact_rate, exact_size, exact_time
from kvfabric.errors import EXIT_BAD_INPUT, BadInput
from kvfabric.scenario import (
    Scenario,
    built_in_scenarios,
    json_schema,
    load_scenario,
    parse_scenario,
    parse_set,
    scenario_text,
    variants_of,
)
from topo.cluster import Cluster
from topo.units import parse_rate, parse_size, parse_time

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[2]
LEAST = """\
name: least
cluster: {model: llama-3.1-70b, tp: 4, prefill: 2, decode: 2, rack: 4}
fabric:
  ratio: 2:1
  rate: 45GB/s
workload:
  tenants:
    - {name: agents, generator: agentic, load: 0.6}
scale: {rate: 200Mb/s, time: 5}
window: 12s
"""


def refusal(text: str, *overrides: str, folder: Path | None = None) -> BadInput:
    with pytest.raises(BadInput) as caught:
        parse_scenario(text, source="x.yaml", folder=folder, overrides=overrides)
    error = caught.value
    assert error.exit_code == EXIT_BAD_INPUT
    assert 1 <= len(error.lines()) <= 2
    assert not any("\n" in line for line in error.lines())
    return error


def changed(old: str, new: str) -> str:
    assert old in LEAST
    return LEAST.replace(old, new)


def test_quantities_become_seconds_bytes_and_bytes_per_second() -> None:
    scenario = parse_scenario(LEAST, source="x.yaml")
    assert (scenario.fabric.rate, scenario.scale.rate, scenario.window) == (45e9, 25e6, 12.0)
    assert (scenario.emulation.receive_window, scenario.receive_window) == ("auto", 32768)


def test_what_is_derived_follows_from_the_keys() -> None:
    scenario = parse_scenario(LEAST, source="x.yaml")
    assert scenario.cluster_layout() == Cluster(prefill=2, decode=2, tp=4, rack=4)
    assert scenario.uplinks == 2
    assert float(scenario.oversubscription) == 2
    assert scenario.rate_factor == pytest.approx(1 / 1800)
    assert scenario.byte_factor == pytest.approx(1 / 360)


def test_three_to_one_is_built_as_32_hosts_on_11_uplinks() -> None:
    scenario = parse_scenario(LEAST, source="x", overrides=["cluster.rack=32", "cluster.tp=16", "fabric.ratio=3:1"])
    assert scenario.uplinks == 11


def test_an_unquoted_ratio_is_text_and_not_the_number_121() -> None:
    assert parse_scenario(LEAST, source="x.yaml").fabric.ratio == "2:1"


def test_a_scenario_cannot_be_changed() -> None:
    scenario = parse_scenario(LEAST, source="x.yaml")
    with pytest.raises(ValueError, match="frozen"):
        scenario.seed = 2  # type: ignore[misc]


@pytest.mark.parametrize("name", ["demo", "smoke"])
def test_resolved_reads_back_as_the_same_scenario(name: str) -> None:
    scenario = load_scenario(name)
    assert parse_scenario(json.dumps(scenario.resolved()), source="manifest") == scenario


def test_resolved_reads_back_with_uplinks_and_with_a_trace(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.touch()
    scenario = load_scenario(
        "mooncake", [f"workload.tenants.0.trace={trace}", "fabric.ratio=null", "fabric.uplinks=3", "emulation.rto_min=20ms"]
    )
    assert parse_scenario(json.dumps(scenario.resolved()), source="manifest") == scenario


# What is wrong, by line and key.


@pytest.mark.parametrize(
    ("old", "new", "spot", "remedy"),
    [
        ("  ratio:", "  ratoi:", "x.yaml:4: fabric.ratoi: unknown key", "did you mean ratio?"),
        ("window:", "wnidow:", "x.yaml:10: wnidow: unknown key", "did you mean window?"),
        ("load: 0.6", "lod: 0.6", "x.yaml:8: workload.tenants.0.lod: unknown key", "did you mean load?"),
        ("45GB/s", "45", "x.yaml:5: fabric.rate: 45 is not a rate", "45GB/s"),
        ("45GB/s", "45GB", "x.yaml:5: fabric.rate: '45GB' is not a rate", "45GB/s"),
        ("45GB/s", "45ms", "x.yaml:5: fabric.rate: '45ms' is not a rate", "45GB/s"),
        ("45GB/s", "-45GB/s", "x.yaml:5: fabric.rate: '-45GB/s' is not above zero", "rate:"),
        ("45GB/s", "0GB/s", "x.yaml:5: fabric.rate: '0GB/s' is not above zero", "rate:"),
        ("45GB/s", "1e999GB/s", "x.yaml:5: fabric.rate:", "rate:"),
        ("200Mb/s", "-200Mb/s", "x.yaml:9: scale.rate: '-200Mb/s' is not above zero", "rate:"),
        ("12s", "12", "x.yaml:10: window: 12 is not a time", "25ms"),
        ("12s", "-1s", "x.yaml:10: window: '-1s' is negative", "window:"),
        ("12s", "0s", "x.yaml:10: window: '0s' is not above zero", "window:"),
        ("time: 5", "time: 0.5", "x.yaml:9: scale.time: is 0.5; it must be at least 1", "time:"),
        ("time: 5", "time: .inf", "x.yaml:9: scale.time: '.inf' is not a number", "time:"),
        ("tp: 4", "tp: 0", "x.yaml:2: cluster.tp: is 0; it must be at least 1", "tp:"),
        ("tp: 4", "tp: 1.5", "x.yaml:2: cluster.tp: 1.5 is not a whole number", "tp:"),
        ("tp: 4", "tp: true", "x.yaml:2: cluster.tp: true is not a whole number", "tp:"),
        ("tp: 4", 'tp: "4"', "x.yaml:2: cluster.tp: '4' is not a whole number", "tp:"),
        ("tp: 4", "tp:", "x.yaml:2: cluster.tp: has no value", "tp:"),
        (", rack: 4", "", "x.yaml:2: cluster.rack: is missing", "rack:"),
        ("window: 12s\n", "", "x.yaml:1: window: is missing", "window:"),
        ("llama-3.1-70b", "llama-3.1-70x", "x.yaml:2: cluster.model: no model 'llama-3.1-70x'", "Llama-3.1-70B"),
        ("rack: 4", "rack: 4, gpu: h1000", "x.yaml:2: cluster.gpu: 'h1000' is not one of", "did you mean h100?"),
        ("rack: 4", "rack: 4, gpus: 17", "x.yaml:2: cluster.gpus: is 17, but", "16"),
        ("rack: 4", "rack: 4, dtype: bf61", "x.yaml:2: cluster.dtype: 'bf61' is not one of", "did you mean bf16?"),
        ("ratio: 2:1", "ratio: 2to1", "x.yaml:4: fabric.ratio: '2to1' is not an oversubscription", "2:1"),
        ("ratio: 2:1", "ratio: 3:1", "x.yaml:4: fabric.ratio: 4 hosts on a leaf cannot be 2.91:1", "fabric.uplinks"),
        ("ratio: 2:1", "ratio: 2:1\n  uplinks: 2", "x.yaml:5: fabric.uplinks: is given beside ratio", "remove one"),
        ("  ratio: 2:1\n", "", "x.yaml:3: fabric.ratio: is missing", "ratio:"),
        ("ratio: 2:1", "ratio: 2:1\n  ocs: {tau: 25ms}", "x.yaml:5: fabric.ocs: means nothing to kind: leaf-spine", "kind: ocs"),
        ("ratio: 2:1", "ratio: 2:1\n  kind: ocs\n  ocs: {tau: 1s}", "x.yaml:6: fabric.ocs.tau: is 1000 ms", "25ms"),
        (
            "ratio: 2:1",
            "ratio: 2:1\n  kind: ocs\n  ocs: {policy: none, decode: circuit}",
            "x.yaml:6: fabric.ocs.decode: is circuit, but policy none books no circuit",
            "decode: load",
        ),
        (
            "ratio: 2:1",
            "ratio: 2:1\n  kind: ocs\n  ocs: {planes: 3}",
            "x.yaml:6: fabric.ocs.planes: is 3, which does not divide",
            "divisor",
        ),
        ("ratio: 2:1", "ratio: 2:1\n  kind: leafspine", "x.yaml:5: fabric.kind: 'leafspine' is not", "leaf-spine"),
        ("200Mb/s", "400Gb/s", "x.yaml:9: scale.rate: is above fabric.rate", "200Mb/s"),
        ("load: 0.6", "load: -0.6", "x.yaml:8: workload.tenants.0.load: is -0.6; it must be above 0", "load:"),
        ("load: 0.6", "load: high", "x.yaml:8: workload.tenants.0.load:", "load:"),
        (", load: 0.6", "", "x.yaml:8: workload.tenants.0.load: a generator has no recorded times", "0.6"),
        ("load: 0.6", "load: 0.6, start: 3s", "x.yaml:8: workload.tenants.0.start: means nothing to a generator", "remove"),
        ("generator: agentic, ", "", "x.yaml:8: workload.tenants.0.trace: tenant agents replays a trace", "--trace PATH"),
        ("name: agents", "name: a/../b", "x.yaml:8: workload.tenants.0.name: 'a/../b' is not a name", "letters"),
        ("name: agents", "name: all", "x.yaml:8: workload.tenants.0.name: 'all' is the name of the total", "something"),
        ("name: least", "name: $(reboot)", "x.yaml:1: name: '$(reboot)' is not a name", "letters"),
        ("name: least", f"name: {'a' * 41}", "x.yaml:1: name:", "40"),
        ("name: least", "name: ..", "x.yaml:1: name: '..' is not a name", "letters"),
        ("name: least", 'name: "least\\n"', "x.yaml:1: name:", "letters"),
    ],
)
def test_a_mistake_is_named_by_line_and_key_with_what_to_write(old: str, new: str, spot: str, remedy: str) -> None:
    error = refusal(changed(old, new))
    assert error.problem.startswith(spot)
    assert remedy in error.remedy


@pytest.mark.parametrize(
    ("extra", "spot"),
    [
        ("emulation: {classes: 63}", "x.yaml:11: emulation.classes: is 63, not a power of two"),
        ("emulation: {mtu: 100}", "x.yaml:11: emulation.mtu: is 100; it must be at least 576"),
        ("emulation: {queue: fare}", "x.yaml:11: emulation.queue: 'fare' is not one of fair, fifo"),
        ("emulation: {congestion_control: 'cubic; reboot'}", "x.yaml:11: emulation.congestion_control:"),
        ("emulation:\n  offload: {tso: off}", "x.yaml:12: emulation.offload.tso: 'off' is not true or false"),
        ("emulation: {receive_window: 16}", "x.yaml:11: emulation.receive_window: 16 is not a size"),
        ("slo: 5", "x.yaml:11: slo: 5 is not a section of keys"),
        ("slo: {ttft_over_prefil: 5}", "x.yaml:11: slo.ttft_over_prefil: unknown key"),
        ("window: 13s", "x.yaml:11: window: given twice (first on line 10)"),
        ("seed: -1", "x.yaml:11: seed: is -1; it must be at least 0"),
        ("drain: .nan", "x.yaml:11: drain: '.nan' is not a time"),
        ("? [a]\n: 1", "x.yaml:11: a key must be text"),
        ("about: 'x", "x.yaml:12: not YAML:"),
        ("about: \tx: y: z", "x.yaml:11: not YAML:"),
        ("about: &a x\nseed: *a", "x.yaml:12: the alias *a is not supported"),
        ("<<: {seed: 1}", "x.yaml:11: merge keys"),
        ("about: !!python/object:os.system x", "x.yaml:11: the tag"),
        ("---\nname: two", "x.yaml:11: a second document"),
        (f"about: {'[' * 500}", "x.yaml:11: nested more than 20 deep"),
        ("about: \x00", "x.yaml:11: not text"),
    ],
)
def test_what_is_no_acceptable_yaml_or_setting_is_refused_by_line(extra: str, spot: str) -> None:
    assert refusal(f"{LEAST}{extra}\n").problem.startswith(spot)


@pytest.mark.parametrize("text", ["", "# nothing\n", "[]", "- a", "text", "null"])
def test_a_file_without_keys_is_no_scenario(text: str) -> None:
    assert refusal(text).problem.startswith("x.yaml:1:")


def test_duplicate_keys_are_refused_at_every_depth() -> None:
    error = refusal(changed("  rate: 45GB/s", "  rate: 45GB/s\n  rate: 90GB/s"))
    assert error.problem == "x.yaml:6: fabric.rate: given twice (first on line 5)"


def test_tenants_have_names_of_their_own_and_share_one_cluster() -> None:
    two = "    - {name: agents, generator: agentic, load: 0.6, share: 0.5}\n"
    twice = LEAST.replace("    - {name: agents, generator: agentic, load: 0.6}\n", two + two)
    assert refusal(twice).problem.startswith("x.yaml:9: workload.tenants.1.name: a second tenant named agents")
    more = twice.replace("name: agents", "name: others", 1).replace("share: 0.5", "share: 0.6")
    assert "the shares add up to 1.2" in refusal(more).problem
    fine = twice.replace("name: agents", "name: others", 1)
    assert [tenant.name for tenant in parse_scenario(fine, source="x").workload.tenants] == ["others", "agents"]


def test_an_error_never_breaks_out_of_its_line() -> None:
    error = refusal(changed("name: least", 'name: "a\\nkvfabric: VALID\\u001b[2J"'))
    assert all(line.isprintable() for line in error.lines())


# --set


def test_options_change_keys_and_the_last_one_wins() -> None:
    options = ["workload.tenants.0.load=0.7", "fabric.ratio=1:1", "seed=3", "seed=4", "emulation.queue=fifo"]
    scenario = parse_scenario(LEAST, source="x.yaml", overrides=options)
    assert scenario.workload.tenants[0].load == 0.7
    assert (scenario.uplinks, scenario.seed, scenario.emulation.queue) == (4, 4, "fifo")


def test_an_option_can_add_a_tenant() -> None:
    options = ["workload.tenants.0.share=0.5", "workload.tenants.1={name: b, generator: agentic, load: 0.3, share: 0.5}"]
    scenario = parse_scenario(LEAST, source="x.yaml", overrides=options)
    assert [tenant.name for tenant in scenario.workload.tenants] == ["agents", "b"]


@pytest.mark.parametrize(
    ("option", "problem"),
    [
        ("fabrc.ratio=1:1", "fabrc: unknown key"),
        ("fabric.ratoi=1:1", "fabric.ratoi: unknown key"),
        ("fabric.rate=200", "fabric.rate: 200 is not a rate"),
        ("fabric.rate=-1GB/s", "fabric.rate: '-1GB/s' is not above zero"),
        ("fabric.rate=10Mb/s", "scale.rate: is above fabric.rate"),
        ("cluster.rack=3", "fabric.ratio: 3 hosts on a leaf"),
        ("fabric.uplinks=2", "fabric.uplinks: is given beside ratio"),
        ("workload.tenants.0.load=x", "workload.tenants.0.load:"),
        ("workload.tenants.3.load=1", "workload.tenants ends at item 0"),
        ("workload.tenants.first.load=1", "workload.tenants is a list"),
        ("workload.tenants.1.name=b", "workload.tenants.1.trace: tenant b replays a trace"),
        ("workload.0=1", "workload.0: unknown key"),
        ("cluster.tp.x=1", "cluster.tp is a value"),
        ("seed=", "seed: has no value"),
        ("seed", "not a key and a value"),
        ("=3", "not a key and a value"),
        ("a..b=3", "not a key and a value"),
        ("name=[1", "not YAML"),
        ("cluster={model: llama-3.1-70b}", "cluster.tp: is missing"),
        ("emulation=null", "emulation: has no value"),
    ],
)
def test_a_mistake_in_an_option_names_the_option(option: str, problem: str) -> None:
    assert refusal(LEAST, option).problem.startswith(f"--set {option}: {problem}")


def test_a_key_of_the_file_keeps_its_line_when_options_are_given() -> None:
    error = refusal(changed("tp: 4", "tp: 0"), "seed=3", "fabric.ratio=1:1")
    assert error.problem.startswith("x.yaml:2: cluster.tp:")


@given(st.text(max_size=40))
def test_any_option_is_applied_or_refused_in_two_lines(text: str) -> None:
    lines: tuple[str, ...] = ()
    try:
        parse_scenario(LEAST, source="x.yaml", overrides=[text])
    except BadInput as error:
        lines = error.lines()
    assert lines or "=" in text
    assert all(line.isprintable() and line for line in lines)


@given(st.text(max_size=200))
def test_any_text_is_a_scenario_or_refused_with_a_line(text: str) -> None:
    assert refusal(text).problem.startswith("x.yaml:")


def test_an_option_path_is_dots_and_numbers() -> None:
    assert parse_set("workload.tenants.0.load= 0.7 ").path == ("workload", "tenants", 0, "load")
    assert parse_set("a=b=c").value == "b=c"


# Files


def test_a_trace_belongs_to_the_folder_of_its_scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "t.jsonl").touch()
    scenario = changed("generator: agentic", "trace: t.jsonl")
    (tmp_path / "here" / "s.yaml").write_text(scenario)
    monkeypatch.chdir(tmp_path)
    assert load_scenario("here/s.yaml").workload.tenants[0].trace == str(tmp_path / "here" / "t.jsonl")


def test_a_trace_given_as_an_option_belongs_to_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t.jsonl").touch()
    monkeypatch.chdir(tmp_path)
    for option in ("workload.tenants.0.trace=t.jsonl", "workload.tenants.0={name: a, trace: t.jsonl, load: 0.5}"):
        assert load_scenario("weka", [option]).workload.tenants[0].trace == str(tmp_path / "t.jsonl")


def test_a_missing_trace_is_named_with_line_and_key(tmp_path: Path) -> None:
    error = refusal(changed("generator: agentic", "trace: t.jsonl"), folder=tmp_path)
    assert error.problem == f"x.yaml:8: workload.tenants.0.trace: no such file: {tmp_path / 't.jsonl'}"


def test_a_missing_model_file_is_named_with_line_and_key(tmp_path: Path) -> None:
    error = refusal(changed("llama-3.1-70b", "./config.json"), folder=tmp_path)
    assert error.problem.startswith("x.yaml:2: cluster.model: no such file:")


def test_an_unset_trace_says_how_to_set_it() -> None:
    with pytest.raises(BadInput) as caught:
        load_scenario("weka")
    assert "workload.tenants.0.trace: tenant agents replays a trace and none is set" in caught.value.problem
    assert "--trace PATH" in caught.value.remedy


@pytest.mark.parametrize("name", ["dmeo", "no/such.yaml", "", "a\0b"])
def test_a_missing_scenario_is_refused_with_the_names_there_are(name: str) -> None:
    with pytest.raises(BadInput) as caught:
        scenario_text(name)
    assert len(caught.value.lines()) == 2
    if name == "dmeo":
        assert "did you mean demo?" in caught.value.remedy


def test_a_folder_a_large_file_and_a_binary_are_no_scenarios(tmp_path: Path) -> None:
    large, binary = tmp_path / "large.yaml", tmp_path / "binary.yaml"
    large.write_text("x" * 300_000)
    binary.write_bytes(b"name: a\nabout: \xff\xfe\n")
    for path, words in ((tmp_path, "a folder"), (large, "too large"), (binary, "binary.yaml:2: not UTF-8")):
        with pytest.raises(BadInput, match=words):
            load_scenario(str(path))


def test_a_file_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + LEAST.encode())
    assert load_scenario(str(path)).name == "least"


# Built-in scenarios, the schema and the page


def test_the_built_in_scenarios_are_there_demo_first() -> None:
    found = built_in_scenarios()
    assert [item.name for item in found] == ["demo", "azure", "mooncake", "policies", "smoke", "weka"]
    assert {item.name for item in found if item.needs_trace} == {"azure", "mooncake", "policies", "weka"}
    assert all(item.about for item in found)


def test_every_built_in_scenario_is_named_like_its_file_and_loads() -> None:
    for item in built_in_scenarios():
        overrides = ["workload.tenants.0.trace=/dev/null"] if item.needs_trace else []
        assert load_scenario(item.name, overrides).name == item.name


def test_the_demo_is_16_gpus_on_a_two_to_one_leaf_spine_and_on_circuits() -> None:
    demo = load_scenario("demo")
    layout = demo.cluster_layout()
    assert (layout.size, layout.racks, layout.rack, demo.uplinks) == (16, 4, 4, 2)
    assert demo.fabric.routing == "ecmp"
    assert demo.workload.tenants[0].load == 0.6
    assert [(name, one.fabric.kind) for name, one in variants_of(demo)] == [
        ("ecmp", "leaf-spine"), ("ocs", "ocs"), ("ocs-none", "ocs"), ("ocs-after", "ocs")
    ]  # fmt: skip
    policies = [one.fabric.circuits.policy for _, one in variants_of(demo) if one.fabric.circuits is not None]
    assert policies == ["reservation", "none", "after"]
    assert all(one.workload == demo.workload and one.seed == demo.seed for _, one in variants_of(demo))
    assert len(demo.variants) * demo.window * demo.scale.time <= 80


def keys_of(schema: dict[str, Any]) -> set[str]:
    parts = [schema, *schema["$defs"].values()]
    return {key for part in parts for key in part.get("properties", {})}


def test_the_schema_accepts_the_built_in_scenarios_and_refuses_unknown_keys() -> None:
    schema = json_schema()
    validator = jsonschema.Draft202012Validator(schema)
    for item in built_in_scenarios():
        validator.validate(_yaml.parse(scenario_text(item.name)[0]).value)
    tree = _yaml.parse(LEAST).value
    tree["fabric"]["ratoi"] = "1:1"
    assert not validator.is_valid(tree)


def test_every_key_is_described_in_the_schema_and_on_the_page() -> None:
    schema = json_schema()
    page = (ROOT / "docs" / "scenario.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"^\| `([a-z_]+)`", page, re.MULTILINE))
    assert documented == keys_of(schema)
    for part in (schema, *schema["$defs"].values()):
        assert all("description" in value for value in part.get("properties", {}).values())


@given(st.floats(min_value=1e-3, max_value=1e15))
def test_quantities_are_written_so_that_they_read_back_exactly(value: float) -> None:
    assert parse_rate(exact_rate(value)) == value
    assert parse_size(exact_size(value)) == value
    assert parse_time(exact_time(value)) == value


def test_quantities_are_written_short() -> None:
    assert (exact_rate(45e9), exact_size(16384), exact_time(0.025), exact_time(0)) == ("45GB/s", "16KiB", "25ms", "0s")


def test_scenarios_are_equal_and_hash_by_value() -> None:
    one, two = parse_scenario(LEAST, source="a"), parse_scenario(LEAST, source="b")
    assert isinstance(one, Scenario)
    assert one == two
    assert hash(one) == hash(two)
