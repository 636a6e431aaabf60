"""What the doctor concludes from what was found, on machines that are made up here."""

from __future__ import annotations

import json

import pytest

from kvfabric import probes
from kvfabric.cli import main
from kvfabric.doctor import NEEDS, Finding, Report, examine, missing_for, need_named, needs_of, require
from kvfabric.errors import EXIT_MACHINE, MachineCannot
from kvfabric.probes import congestion_findings, kernel_finding
from kvfabric.scenario import load_scenario

pytestmark = pytest.mark.unit

OPTIONAL = ("ovs-module", "netem", "fq", "fq_codel", "cake", "red", "multipath-seed", "tcp-rto-min")


def machine(**lacks: bool | None) -> tuple[Finding, ...]:
    """A machine that has everything but ``lacks`` (names with _ for - and :)."""
    names = [*(need.name for need in NEEDS), "congestion-control:cubic", "congestion-control:bbr"]
    return tuple(Finding(name, lacks.get(name.replace("-", "_").replace(":", "_"), True)) for name in names)


def runs(report: Report) -> dict[str, bool]:
    return {verdict.scenario: verdict.runs for verdict in report.verdicts}


def test_a_machine_with_everything_runs_every_built_in_scenario() -> None:
    report = examine(machine())
    assert report.ok
    assert runs(report) == dict.fromkeys(("demo", "azure", "mooncake", "policies", "smoke", "weka"), True)


def test_scenarios_that_need_a_trace_say_so() -> None:
    notes = {verdict.scenario: verdict.note for verdict in examine(machine()).verdicts}
    assert notes["weka"] == "needs --trace PATH"
    assert notes["demo"] == ""


@pytest.mark.parametrize("name", [need.name for need in NEEDS if need.required] + ["tc-bpf"])
def test_a_machine_without_a_thing_the_demo_needs_cannot_run_it(name: str) -> None:
    report = examine(machine(**{name.replace("-", "_"): False}))
    assert not report.ok
    demo = next(verdict for verdict in report.verdicts if verdict.scenario == "demo")
    assert demo.missing == (name,)


def test_what_could_not_be_tried_counts_as_missing() -> None:
    assert not examine(machine(root=False, veth=None)).ok


def test_a_finding_that_is_not_there_counts_as_missing() -> None:
    assert missing_for(load_scenario("demo"), ()) == needs_of(load_scenario("demo"))


@pytest.mark.parametrize("name", OPTIONAL)
def test_what_this_version_does_not_use_is_not_asked_for(name: str) -> None:
    assert examine(machine(**{name.replace("-", "_"): False})).ok


@pytest.mark.parametrize("name", ["ovs", "openflow-library", "shutter"])
def test_what_circuits_need_only_scenarios_with_circuits_lack(name: str) -> None:
    report = examine(machine(**{name.replace("-", "_"): False}))
    assert runs(report) == {"demo": False, "azure": True, "mooncake": True, "policies": False, "smoke": True, "weka": True}
    assert missing_for(load_scenario("smoke", ["fabric.kind=ocs"]), machine(ovs_module=False)) == ()
    kernel = load_scenario("smoke", ["fabric.kind=ocs", "fabric.ocs.datapath=kernel"])
    assert missing_for(kernel, machine(ovs_module=False)) == ("ovs-module",)


def test_needs_follow_the_scenario() -> None:
    fifo = load_scenario("demo", ["emulation.queue=fifo", "emulation.congestion_control=bbr", "emulation.rto_min=20ms"])
    assert "tc-bpf" not in needs_of(fifo)
    assert {"tcp-rto-min", "congestion-control:bbr"} <= set(needs_of(fifo))
    assert missing_for(fifo, machine(congestion_control_bbr=False)) == ("congestion-control:bbr",)


def test_require_names_the_first_missing_thing_and_the_remedy() -> None:
    demo = load_scenario("demo")
    require(demo, machine())
    with pytest.raises(MachineCannot, match=r"lacks nftables, needed by .* \(and 1 more: kvfabric doctor\)") as caught:
        require(demo, machine(nftables=False, mnexec=False))
    assert "bootstrap install" in caught.value.remedy
    assert caught.value.exit_code == EXIT_MACHINE


def test_every_need_says_what_needs_it_and_what_to_do() -> None:
    assert all(need.needed_by and need.remedy for need in NEEDS)
    assert len({need.name for need in NEEDS}) == len(NEEDS)
    assert "modprobe tcp_dctcp" in need_named("congestion-control:dctcp").remedy


def test_the_report_is_plain_data_with_a_remedy_only_where_something_is_missing() -> None:
    document = json.loads(json.dumps(examine(machine(veth=False), {"cores": 2}).to_json()))
    assert document["ok"] is False
    assert document["machine"] == {"cores": 2}
    by_name = {probe["name"]: probe for probe in document["probes"]}
    assert "modprobe veth" in by_name["veth"]["remedy"]
    assert by_name["htb"]["remedy"] is None


def test_little_memory_is_noted_and_refuses_nothing() -> None:
    report = examine(machine(memory=False), {"memory_bytes": 64 << 20})
    assert report.ok
    assert all("may run out of memory" in verdict.note for verdict in report.verdicts)


@pytest.mark.parametrize(
    ("release", "found"),
    [("6.1.0-18-amd64", True), ("5.12", True), ("5.11.22-generic", False), ("4.19.0", False), ("odd", False)],
)
def test_the_kernel_must_be_new_enough(release: str, found: bool) -> None:
    assert kernel_finding(release) == Finding("kernel", found, release)


def test_congestion_controls_are_found_by_name() -> None:
    found = {finding.name: finding.found for finding in congestion_findings("reno cubic vegas\n")}
    assert found["congestion-control:cubic"]
    assert found["congestion-control:vegas"]
    assert found["congestion-control:dctcp"] is False


@pytest.mark.parametrize(("found", "code"), [(machine(), 0), (machine(htb=False), 3)])
def test_the_command_exits_by_whether_the_demo_can_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, found: tuple[Finding, ...], code: int
) -> None:
    monkeypatch.setattr(probes, "probe_machine", lambda _facts: found)
    assert main(["doctor"]) == code
    text = capsys.readouterr().out
    assert ("The demo can run here." in text) is (code == 0)
    assert main(["doctor", "--json"]) == code
    assert json.loads(capsys.readouterr().out)["ok"] is (code == 0)


def test_without_root_what_needs_it_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    found = {finding.name: finding for finding in probes.probe_machine({"cores_usable": 2, "memory_bytes": 1 << 33})}
    assert found["root"].found is False
    assert found["veth"] == Finding("veth", None, "not tried without root")
    assert set(found) >= {need.name for need in NEEDS}
