"""The verdict: a good run is VALID, and every fault alone makes it INVALID with a reason that names it."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import pytest
from run_samples import CIRCUITS, CPU, GOOD, PORT

from kvfabric.verdict import CpuSample, Evidence, Limits, judge

pytestmark = pytest.mark.unit


def flow(**changes: Any) -> dict[str, Any]:
    return {"flows": (*GOOD.flows[:-1], replace(GOOD.flows[-1], **changes))}


def port(**changes: Any) -> dict[str, Any]:
    return {"ports": (PORT, replace(PORT, port="spine1-eth0", **changes))}


def second(idle: float) -> dict[str, Any]:
    return {"cpu": (*CPU[:16], CpuSample(17.0, 1.0, idle, ((0, 0.0), (1, 0.04))), *CPU[17:])}


def circuits(**changes: Any) -> dict[str, Any]:
    return {"circuits": replace(CIRCUITS, **changes)}


def test_a_good_run_is_valid_and_has_no_reasons() -> None:
    verdict = judge(GOOD)
    assert verdict.reasons == ()
    assert verdict.valid
    assert verdict.word == "VALID"


NAN = float("nan")
FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"interrupted": "SIGINT"}, "interrupted by SIGINT"),
    ({"observer_faults": ("leaf0-eth1: has no shaper at 3.0 s",)}, "leaf0-eth1: has no shaper"),
    ({"longest_gap_emu_s": 7.5}, "nothing was observed for 7.5 s (limit 3 s)"),
    ({"longest_gap_emu_s": NAN}, "nothing was observed"),
    ({"cpu": ()}, "the processors were not observed"),
    ({"ports": ()}, "no port was observed"),
    ({"preflight_failures": ("h0 to h1: no answer",)}, "preflight: h0 to h1: no answer"),
    ({"calibration_failures": ("one flow 3 % slow",)}, "calibration: one flow 3 % slow"),
    ({"missing_capabilities": ("fib_multipath_hash_seed",)}, "lacks fib_multipath_hash_seed"),
    ({"shaping_faults_start": ("leaf0-eth0: qdisc is none, planned htb",)}, "at the start: leaf0-eth0"),
    ({"shaping_faults_end": ("leaf0-eth0: qdisc is none, planned htb",)}, "at the end: leaf0-eth0"),
    ({"sysctl_faults": ("h0: tcp_rmem reads 1",)}, "sysctl: h0"),
    ({"offered": 0, "completed": 0, "request_rows": 0}, "no turn was offered"),
    ({"rows_in": 11}, "11 trace rows in, 10 accounted for"),
    ({"rows_accounted": 9}, "10 trace rows in, 9 accounted for"),
    ({"completed": 9}, "offered 10 turns ≠ 9 completed + 0 failed + 0 unfinished"),
    ({"request_rows": 9}, "9 are in the records"),
    ({"completed": 9, "failed": 1, "failure_reasons": ("connection reset",)}, "1 turn of 10 failed"),
    ({"completed": 9, "failed": 1, "failure_reasons": ("connection reset",)}, "failed: connection reset"),
    ({"completed": 8, "unfinished": 2}, "2 turns of 10 did not finish; percentiles are lower bounds"),
    (flow(content_ok=False), "flow 199: the received content differs"),
    (flow(content_ok=None), "flow 199: the content was to be checked"),
    (flow(path_realised=None), "flow 199: the realised path is unknown"),
    (flow(path_predicted=None), "flow 199: the predicted path is unknown"),
    (flow(path_realised="a>c"), "flow 199 took a>c, predicted a>b"),
    ({"softnet_drops": 5}, "the kernel dropped 5 packets"),
    (port(drops=2), "spine1-eth0: 2 packets dropped by a fair queue"),
    (second(0.02), "processors 2.0 % idle at 17 s (core 0 0.0 %; floor 5.0 %)"),
    (second(NAN), "idle at 17 s"),
    ({"flows": tuple(replace(item, lateness_emu_s=0.003) for item in GOOD.flows)}, "3.00 ms late at p99 (limit 2.00 ms)"),
    (flow(lateness_emu_s=0.080), "flow 199 left 80.00 ms late (limit 50.00 ms)"),
    (flow(lateness_emu_s=NAN), "late"),
    (flow(lateness_emu_s=-0.005), "flow 199 left 5.00 ms before it was planned"),
    (flow(lateness_emu_s=None), "flow 199: when it was sent is unknown"),
    (port(max_use=1.05), "spine1-eth0 carried 105.0 % of its rate at 4 s (limit 101.0 %)"),
    (port(max_use=NAN), "spine1-eth0 carried"),
    (port(saturated_use=0.90), "spine1-eth0 carried 90.0 % of its rate over 60 s in which packets waited 100.0 %"),
    (port(saturated_use=0.40, waiting=360), "spine1-eth0 carried 40.0 %"),
    (flow(slowdown=0.98), "flow 199 was faster than the same transfer alone: slowdown 0.9800 (limit 0.9990)"),
    (flow(slowdown=None), "flow 199: its slowdown is unknown"),
    (flow(slowdown=NAN), "flow 199: its slowdown is unknown"),
    (circuits(faults=("plane 2: the switch lost its controller",)), "circuits: plane 2: the switch lost its controller"),
    (circuits(lost_packets=3), "3 packets ran into the dark of a moving port"),
    (circuits(dark_errors_emu_s=(0.0006,) * 9), "ports were dark 0.60 ms off τ at the median (limit 0.50 ms, τ 125.00 ms)"),
    (circuits(dark_errors_emu_s=(0.0,) * 49 + (-0.05,)), "at p99 (limit 2.00 ms"),
    (circuits(dark_errors_emu_s=(NAN,)), "off τ at the median"),
    (circuits(dark_errors_emu_s=()), "no reconfiguration's dark time was measured"),
    (circuits(control_emu_s=(0.007,)), "circuits were commanded 7.00 ms late at p99 (limit 6.25 ms, 5.0 % of τ)"),
    (circuits(carried=(0.9,) * 20), "circuits carried 90.0 % of their rate"),
]


@pytest.mark.parametrize(("fault", "reason"), FAULTS, ids=[f"{index}-{reason[:40]}" for index, (_, reason) in enumerate(FAULTS)])
def test_each_fault_alone_is_invalid_and_named(fault: dict[str, Any], reason: str) -> None:
    verdict = judge(replace(GOOD, **fault))
    assert not verdict.valid
    assert verdict.word == "INVALID"
    assert any(reason in text for text in verdict.reasons), verdict.reasons
    assert all("\n" not in text for text in verdict.reasons)
    json.dumps(verdict.fidelity, allow_nan=False)


def test_every_field_of_the_evidence_counts() -> None:
    told = {name for fault, _ in FAULTS for name in fault}
    only_figures = {"time_squeeze", "empty_classes", "queue", "duration_emu_s"}
    assert told | only_figures == {item.name for item in fields(Evidence)}


HARMLESS: list[dict[str, Any]] = [
    flow(slowdown=0.9995),
    flow(status="failed", path_realised=None, slowdown=None, content_ok=None, lateness_emu_s=None),
    port(saturated_use=0.5, waiting=300),  # packets waited half of the time, and it carried half of its rate
    port(saturated_use=0.6, waiting=5, looks=5, saturated_s=0.5),  # five looks prove nothing
    port(saturated_use=None, waiting=0, looks=0, saturated_s=0.0),
    {"queue": "fifo", **port(drops=100)},
    {"time_squeeze": 1000},
    {"circuits": CIRCUITS},
    circuits(carried=()),
    circuits(reconfigurations=0, dark_errors_emu_s=(), control_emu_s=()),
]


@pytest.mark.parametrize("change", HARMLESS)
def test_what_proves_no_fault_is_none(change: dict[str, Any]) -> None:
    assert judge(replace(GOOD, **change)).reasons == ()


def test_many_of_a_kind_are_counted_not_listed() -> None:
    ports = tuple(replace(PORT, port=f"leaf{n}-eth0", drops=n + 1) for n in range(15))
    reasons = judge(replace(GOOD, ports=ports)).reasons
    assert len(reasons) == 4
    assert reasons[0].startswith("leaf14-eth0: 15 packets")  # the worst first
    assert reasons[-1] == "… and 12 more ports"


def test_the_gravest_reason_comes_first() -> None:
    reasons = judge(
        replace(GOOD, interrupted="SIGTERM", softnet_drops=1, shaping_faults_end=("x",), **flow(slowdown=0.5))
    ).reasons
    places = [
        next(place for place, text in enumerate(reasons) if word in text) for word in ("SIGTERM", "the end", "kernel", "faster")
    ]
    assert places == [0, 1, 2, 3]


def test_an_empty_class_is_a_note_and_no_reason() -> None:
    verdict = judge(replace(GOOD, empty_classes=("cross-rack migrations",)))
    assert verdict.valid
    notes = verdict.fidelity["notes"]
    assert isinstance(notes, list)
    assert "no flow in cross-rack migrations" in notes


def test_fidelity_has_the_same_keys_whatever_happened() -> None:
    nothing = replace(GOOD, flows=(), ports=(), cpu=(), offered=0, completed=0, request_rows=0)
    good, empty = judge(GOOD).fidelity, judge(nothing).fidelity
    assert list(good) == list(empty)
    assert good["lateness_p99_emu_s"] == {"value": pytest.approx(0.0005), "limit": 0.002}
    assert empty["lateness_p99_emu_s"] == {"value": None, "limit": 0.002}


def test_a_very_short_run_needs_no_samples() -> None:
    assert judge(replace(GOOD, cpu=(), ports=(), duration_emu_s=0.4)).valid


def test_limits_can_be_set() -> None:
    assert not judge(GOOD, Limits(cpu_idle=0.6)).valid
