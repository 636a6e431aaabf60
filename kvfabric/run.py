"""``kvfabric run`` from the outside: everything that can be refused without a network is refused here, then the sandbox."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from kvfabric.cli._options import print_json
from kvfabric.cpu_claim import claimed_cpu, idle_shares
from kvfabric.doctor import require
from kvfabric.errors import EXIT_NO, EXIT_OK, BadInput, MachineCannot
from kvfabric.observer import wants_progress
from kvfabric.probes import machine_facts, probe_machine
from kvfabric.records import prepare_out, read_json
from kvfabric.routing_support import refuse_what_is_only_simulated
from kvfabric.sandbox import run_sealed
from kvfabric.scenario import Scenario, fabric_name, parse_scenario, variants_of
from kvfabric.side_by_side import render, same_load
from kvfabric.summary import render_summary
from kvfabric.testbed import keeper_of
from kvfabric.workload import build_workload
from ocs_switch.limits import refusal


@dataclass(frozen=True, slots=True)
class Series:
    """Summaries of runs by name, in their order, and the exit code of all."""

    summaries: dict[str, dict[str, Any]]
    code: int


_SEALED_OFF = ("/run", "/var/run", "/proc", "/sys", "/dev")
"""Inside the sandbox these are its own: what is written there goes with it."""


def run_emulation(scenario: Scenario, *, out: Path, csv: bool, as_json: bool, debug: bool, only: str | None = None) -> int:
    """Run a scenario, or its variants one after the other (``only`` names one), each in a sandbox of its own; the exit code.

    Raises BadInput for a variant, a trace or an output directory that will not do, MachineCannot for what this machine
    lacks; all before anything has been made.
    """
    chosen = chosen_variants(scenario, only)
    refuse_what_is_only_simulated(chosen)
    for _, one in chosen:
        build_workload(one)
    out = admit(chosen, out)
    try:
        if len(chosen) == 1:
            return run_one(chosen[0][1], out, csv=csv, as_json=as_json, debug=debug)
        return _run_all(chosen, out, csv=csv, as_json=as_json, debug=debug)
    finally:
        give_to_caller(out)


def admit(runs: Sequence[tuple[str, Scenario]], out: Path) -> Path:
    """Make the output directory, if this machine can do the runs; its absolute path. Raises BadInput and MachineCannot."""
    out = out.resolve()
    if any(out.is_relative_to(place) for place in _SEALED_OFF):
        raise BadInput(f"--out {out} would be lost: the run has a {out.parts[1]} of its own", "choose a directory elsewhere")
    if os.geteuid() != 0:
        raise MachineCannot("an emulation makes network namespaces, and that needs root", "run it again with sudo")
    findings = probe_machine(machine_facts())
    for _, one in runs:
        require(one, findings)
        ocs = one.fabric.circuits
        refused = None if ocs is None else refusal(ocs.tau, one.scale.time, keeper_of(ocs))
        if refused is not None:
            problem, _, remedy = refused.partition("; ")
            raise MachineCannot(problem, remedy)
    prepare_out(out)
    return out


def chosen_variants(scenario: Scenario, only: str | None) -> tuple[tuple[str, Scenario], ...]:
    """The runs that a scenario asks for, by name: its variants, or the one that is named. Raises BadInput."""
    found = variants_of(scenario)
    if only is None:
        return found
    names = [name for name, _ in found]
    if only not in names or not scenario.variants:
        have = f"it has {', '.join(names)}" if scenario.variants else "it has none"
        raise BadInput(f"--variant {only}: scenario {scenario.name} has no such variant", have)
    return (found[names.index(only)],)


def run_one(scenario: Scenario, out: Path, *, csv: bool, as_json: bool, debug: bool, quiet: bool = False) -> int:
    """One run in one sandbox; ``quiet`` leaves its summary to the records. Exit code as of ``run_emulation``."""
    request = {
        "scenario": scenario.resolved(), "out": str(out), "csv": csv, "json": as_json, "debug": debug, "quiet": quiet
    }  # fmt: skip
    with claimed_cpu(idle_shares()) as request["host_cpu"]:
        # Ctrl-C waits until the program inside has been loaded: Python answers one that comes before with a traceback.
        return run_sealed([sys.executable, "-m", "kvfabric.run", json.dumps(request)], held=[signal.SIGINT])


def run_series(runs: Sequence[tuple[str, Scenario]], out: Path, *, csv: bool, as_json: bool, debug: bool) -> Series:
    """Runs one after the other, each into a folder of its name. A run that stops without a summary ends the series."""
    summaries: dict[str, dict[str, Any]] = {}
    for place, (name, scenario) in enumerate(runs, 1):
        if not as_json:
            announce(place, len(runs), name, scenario)
        code = run_one(scenario, out / name, csv=csv, as_json=as_json, debug=debug, quiet=True)
        if code not in (EXIT_OK, EXIT_NO):
            return Series(summaries, code)
        summaries[name] = read_json(out / name / "summary.json")
        if read_json(out / name / "manifest.json")["status"] == "interrupted":
            return Series(summaries, EXIT_NO)
    valid = all(summary["verdict"] == "VALID" for summary in summaries.values())
    return Series(summaries, EXIT_OK if valid else EXIT_NO)


def _run_all(chosen: Sequence[tuple[str, Scenario]], out: Path, *, csv: bool, as_json: bool, debug: bool) -> int:
    series = run_series(chosen, out, csv=csv, as_json=as_json, debug=debug)
    alike = show_variants(series.summaries, out, as_json=as_json)
    return series.code if alike else EXIT_NO


def announce(place: int, runs: int, name: str, scenario: Scenario) -> None:
    """Tell the user which of several runs begins."""
    print(f"[{place}/{runs}] {name}: {fabric_name(scenario)}", file=sys.stderr, flush=True)


def show_run(summary: dict[str, Any], out: Path, *, as_json: bool) -> None:
    """Print what came of one run."""
    if as_json:
        print_json(summary)
    else:
        Console().print(render_summary(summary))
        print(f"records: {out}")


def show_variants(summaries: dict[str, dict[str, Any]], out: Path, *, as_json: bool) -> bool:
    """Print what came of variants, side by side; whether all were offered the same."""
    alike = same_load(tuple(summaries.values()))
    if as_json:
        print_json({"variants": summaries, "same_load": alike})
    elif summaries:
        Console().print(render(summaries))
        print(f"records: {out}")
    return alike


def give_to_caller(out: Path) -> None:
    """Under sudo the records belong to whoever called it."""
    uid, gid = os.environ.get("SUDO_UID", ""), os.environ.get("SUDO_GID", "")
    if uid.isdecimal() and gid.isdecimal() and out.exists():
        for path in (out, *out.rglob("*")):
            os.chown(path, int(uid), int(gid), follow_symlinks=False)


def inside(request: str) -> int:
    """The run itself, in the sandbox; prints the summary and returns the exit code."""
    from kvfabric.emulation import emulate

    asked = json.loads(request)
    scenario = parse_scenario(json.dumps(asked["scenario"]), source="the scenario")
    out = Path(asked["out"])
    workload = build_workload(scenario)
    progress = wants_progress(as_json=asked["json"], stderr_is_tty=sys.stderr.isatty())
    try:
        outcome = emulate(scenario, workload, out, csv=asked["csv"], progress=progress, host_cpu=asked["host_cpu"])
    except OSError as error:
        raise MachineCannot(f"the network could not be built: {error}", "see what kvfabric doctor says") from error
    if not asked["quiet"]:  # else whoever asked reads the records
        show_run(outcome.summary, out, as_json=asked["json"])
    return EXIT_OK if outcome.verdict.valid else EXIT_NO


def _main() -> int:
    from kvfabric.cli._failure import report_failure

    request = sys.argv[1]
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        return inside(request)
    except (Exception, KeyboardInterrupt) as error:
        return report_failure(error, debug=bool(json.loads(request)["debug"]))


if __name__ == "__main__":
    sys.exit(_main())
