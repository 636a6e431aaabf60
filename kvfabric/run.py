"""``kvfabric run`` from the outside: everything that can be refused without a network is refused here, then the sandbox."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from rich.console import Console

from kvfabric.cpu_claim import claimed_cpu, idle_shares
from kvfabric.doctor import require
from kvfabric.errors import EXIT_NO, EXIT_OK, BadInput, MachineCannot
from kvfabric.observer import wants_progress
from kvfabric.probes import machine_facts, probe_machine
from kvfabric.records import prepare_out
from kvfabric.sandbox import run_sealed
from kvfabric.scenario import Scenario, parse_scenario
from kvfabric.summary import render_summary
from kvfabric.workload import build_workload

_SEALED_OFF = ("/run", "/var/run", "/proc", "/sys", "/dev")
"""Inside the sandbox these are its own: what is written there goes with it."""


def run_emulation(scenario: Scenario, *, out: Path, csv: bool, as_json: bool, debug: bool) -> int:
    """Run a scenario in a sandbox of its own and return the exit code.

    Raises BadInput for a trace or an output directory that will not do, MachineCannot for what this machine lacks; both
    before anything has been made.
    """
    build_workload(scenario)
    out = out.absolute()
    if any(out.is_relative_to(place) for place in _SEALED_OFF):
        raise BadInput(f"--out {out} would be lost: the run has a {out.parts[1]} of its own", "choose a directory elsewhere")
    if os.geteuid() != 0:
        raise MachineCannot("an emulation makes network namespaces, and that needs root", "run it again with sudo")
    require(scenario, probe_machine(machine_facts()))
    prepare_out(out)
    request = {"scenario": scenario.resolved(), "out": str(out), "csv": csv, "json": as_json, "debug": debug}
    with claimed_cpu(idle_shares()) as request["host_cpu"]:
        # Ctrl-C waits until the program inside has been loaded: Python answers one that comes before with a traceback.
        code = run_sealed([sys.executable, "-m", "kvfabric.run", json.dumps(request)], held=[signal.SIGINT])
    _give_to_caller(out)
    return code


def _give_to_caller(out: Path) -> None:
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
    if asked["json"]:
        json.dump(outcome.summary, sys.stdout, indent=2, ensure_ascii=False, allow_nan=False)
        print()
    else:
        Console().print(render_summary(outcome.summary))
        print(f"records: {out}")
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
