"""What a machine needs for kvfabric, and the judgement of what was found. ``probes`` looks, this module only judges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvfabric.errors import MachineCannot
from kvfabric.scenario import Scenario, built_in_scenarios, load_scenario, variants_of

MIN_KERNEL = (5, 12)
"""The first kernel with fib_multipath_hash_fields (policy 3), on which repeatable paths rest."""
BYTES_PER_HOST = 2 << 20
"""Kernel memory of one emulated host with its links, sockets and queues, generously."""
BASE_BYTES = 512 << 20
"""Memory of the run itself: Python, records, the trace."""


@dataclass(frozen=True, slots=True)
class Need:
    """One thing that may be there or not: ``needed_by`` what, and the ``remedy`` where it is missing."""

    name: str
    needed_by: str
    remedy: str
    required: bool = False  # by every emulation


@dataclass(frozen=True, slots=True)
class Finding:
    """What a probe saw. ``found`` is None where it could not look (without root)."""

    name: str
    found: bool | None
    detail: str = ""


_VM = "use a stock Debian or Ubuntu kernel, as the project's VM has (vagrant up)"
_INSTALL = "run sudo ./bootstrap install"
_EVERY = "every emulation"

NEEDS: tuple[Need, ...] = (
    Need("root", _EVERY, "run it with sudo", required=True),
    Need("kernel", _EVERY, f"a kernel of at least {MIN_KERNEL[0]}.{MIN_KERNEL[1]}: {_VM}", required=True),
    Need("namespaces", _EVERY, "leave the container, or start it with --privileged", required=True),
    Need("veth", _EVERY, f"modprobe veth, or {_VM}", required=True),
    Need("htb", f"{_EVERY} (link rates)", f"modprobe sch_htb, or {_VM}", required=True),
    Need("tc-bpf", "queue: fair", f"modprobe cls_bpf, or {_VM}; queue: fifo does without"),
    Need("nexthop-groups", "dataplane: router", _VM, required=True),
    Need("multipath-hash", "dataplane: router (paths by 5-tuple)", _VM, required=True),
    Need("nftables", f"{_EVERY} (the path every flow took)", f"{_INSTALL} (package nftables, kernel nf_tables)", required=True),
    Need("mininet", _EVERY, _INSTALL, required=True),
    Need("mnexec", f"{_EVERY} (Mininet's shells)", f"{_INSTALL} (package mininet)", required=True),
    Need("multipath-seed", "paths that repeat from run to run", "kernel 6.11 or newer; without it paths are still recorded"),
    Need("tcp-rto-min", "emulation.rto_min", "kernel 6.11 or newer; leave rto_min out without it"),
    Need("cores", "the demo's rates", "give the VM 2 cores; with one, expect INVALID above small rates"),
    Need("memory", "the demo", "give the machine more memory, or make the cluster smaller"),
    Need("ovs", "kind: ocs (the planes)", f"{_INSTALL} (package openvswitch-switch)"),
    Need("ovs-module", "datapath: kernel", f"modprobe openvswitch, or {_VM}; datapath: user does without"),
    Need("openflow-library", "kind: ocs (its controller)", f"{_INSTALL} (os-ken)"),
    Need("shutter", "kind: ocs (dark time kept in the data plane)", f"a kernel with BPF and XDP: {_VM}"),
    Need("netem", "nothing yet", f"modprobe sch_netem, or {_VM}"),
    Need("fq", "nothing yet", f"modprobe sch_fq, or {_VM}"),
    Need("fq_codel", "nothing yet", f"modprobe sch_fq_codel, or {_VM}"),
    Need("cake", "nothing yet", f"modprobe sch_cake, or {_VM}"),
    Need("red", "nothing yet", f"modprobe sch_red, or {_VM}"),
)
_BY_NAME = {need.name: need for need in NEEDS}
CONGESTION_CONTROL = "congestion-control:"
"""Prefix of the findings about one congestion control: ``congestion-control:cubic``."""


def need_named(name: str) -> Need:
    """The need a finding is about. Raises KeyError for a name that nothing needs."""
    if name.startswith(CONGESTION_CONTROL):
        kind = name.removeprefix(CONGESTION_CONTROL)
        return Need(name, f"congestion_control: {kind}", f"modprobe tcp_{kind}, or --set emulation.congestion_control=cubic")
    return _BY_NAME[name]


def needs_of(scenario: Scenario) -> tuple[str, ...]:
    """Names of what an emulation of the scenario, or of its variants, cannot do without."""
    return tuple(dict.fromkeys(name for _, variant in variants_of(scenario) for name in _needs_of(variant)))


def _needs_of(scenario: Scenario) -> tuple[str, ...]:
    names = [need.name for need in NEEDS if need.required]
    if scenario.emulation.queue == "fair":
        names.append("tc-bpf")
    if scenario.emulation.rto_min is not None:
        names.append("tcp-rto-min")
    if scenario.fabric.circuits is not None:
        names += ["ovs", "openflow-library", "shutter"]
        if scenario.fabric.circuits.datapath == "kernel":
            names.append("ovs-module")
    names.append(CONGESTION_CONTROL + scenario.emulation.congestion_control)
    return tuple(names)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a scenario could do here: ``missing`` names what it lacks (none: it runs), ``note`` what else to know."""

    scenario: str
    missing: tuple[str, ...]
    note: str = ""

    @property
    def runs(self) -> bool:
        return not self.missing


@dataclass(frozen=True, slots=True)
class Report:
    """Everything found, and what it means for each built-in scenario."""

    findings: tuple[Finding, ...]
    verdicts: tuple[Verdict, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether the built-in demo can run."""
        return any(verdict.scenario == "demo" and verdict.runs for verdict in self.verdicts)

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        findings = []
        for finding in self.findings:
            need = need_named(finding.name)
            findings.append(
                {
                    "name": finding.name,
                    "found": finding.found,
                    "detail": finding.detail,
                    "needed_by": need.needed_by,
                    "required": need.required,
                    "remedy": None if finding.found else need.remedy,
                }
            )
        scenarios = [
            {"name": item.scenario, "runs": item.runs, "missing": list(item.missing), "note": item.note} for item in self.verdicts
        ]
        return {"ok": self.ok, "machine": dict(self.facts), "probes": findings, "scenarios": scenarios}


def missing_for(scenario: Scenario, findings: Iterable[Finding]) -> tuple[str, ...]:
    """Names of what the scenario needs and the findings lack. What no probe could look at counts as missing."""
    found = {finding.name: finding.found for finding in findings}
    return tuple(name for name in needs_of(scenario) if not found.get(name))


def examine(findings: Iterable[Finding], facts: Mapping[str, Any] | None = None) -> Report:
    """Judge the findings. ``facts`` are what is known of the machine (``cores``, ``memory_bytes``, …), for display."""
    findings = tuple(findings)
    memory = (facts or {}).get("memory_bytes")
    verdicts = []
    for item in built_in_scenarios():
        # What a trace holds does not matter here: any file that exists stands in for it.
        overrides = ["workload.tenants.0.trace=/dev/null"] if item.needs_trace else []
        scenario = load_scenario(item.name, overrides)
        notes = ["needs --trace PATH"] if item.needs_trace else []
        wanted = BASE_BYTES + BYTES_PER_HOST * scenario.cluster_layout().size
        if memory is not None and memory < wanted:
            notes.append("may run out of memory")
        verdicts.append(Verdict(item.name, missing_for(scenario, findings), "; ".join(notes)))
    return Report(findings, tuple(verdicts), dict(facts or {}))


def require(scenario: Scenario, findings: Iterable[Finding]) -> None:
    """Raise MachineCannot, naming the first thing the scenario lacks and what to do about it."""
    missing = missing_for(scenario, findings)
    if missing:
        first = need_named(missing[0])
        more = f" (and {len(missing) - 1} more: kvfabric doctor)" if len(missing) > 1 else ""
        raise MachineCannot(f"this machine lacks {first.name}, needed by {first.needed_by}{more}", first.remedy)
