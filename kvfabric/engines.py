"""``kvfabric run`` by the simulation, and by both engines with their comparison. The emulation alone is kvfabric/run.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console

from kvfabric.cli._options import print_json
from kvfabric.compare import compare_runs, handed_by, render_comparison
from kvfabric.errors import EXIT_NO, EXIT_OK
from kvfabric.records import prepare_out, read_json
from kvfabric.routing_support import refuse_what_is_only_simulated
from kvfabric.run import admit, announce, chosen_variants, give_to_caller, run_one, show_run, show_variants
from kvfabric.scenario import Scenario
from kvfabric.side_by_side import render
from kvfabric.simulation import simulate_into
from kvfabric.workload import build_workload


def run_simulation(scenario: Scenario, *, out: Path, csv: bool, as_json: bool, only: str | None = None) -> int:
    """Simulate a scenario, or its variants one after the other; the exit code. Raises BadInput before anything is made."""
    chosen = chosen_variants(scenario, only)
    workloads = [build_workload(one) for _, one in chosen]
    if len(chosen) == 1:
        done = simulate_into(chosen[0][1], workloads[0], out, csv=csv)
        give_to_caller(out)
        show_run(done.summary, out, as_json=as_json)
        return EXIT_OK if done.verdict.valid else EXIT_NO
    prepare_out(out)
    summaries: dict[str, dict[str, Any]] = {}
    for place, ((name, one), workload) in enumerate(zip(chosen, workloads, strict=True), 1):
        if not as_json:
            announce(place, len(chosen), name, one)
        summaries[name] = simulate_into(one, workload, out / name, csv=csv).summary
    give_to_caller(out)
    alike = show_variants(summaries, out, as_json=as_json)
    return EXIT_OK if alike and all(summary["verdict"] == "VALID" for summary in summaries.values()) else EXIT_NO


def run_both(scenario: Scenario, *, out: Path, csv: bool, as_json: bool, debug: bool, only: str | None = None) -> int:
    """Emulate, simulate the same with the emulation's paths and decodes, compare; of every variant. The exit code."""
    chosen = chosen_variants(scenario, only)
    refuse_what_is_only_simulated(chosen)
    for _, one in chosen:
        build_workload(one)
    out = admit(chosen, out)
    documents: dict[str, dict[str, Any]] = {}
    code = EXIT_OK
    try:
        for place, (name, one) in enumerate(chosen, 1):
            if not as_json:
                announce(place, len(chosen), name, one)
            folder = out if len(chosen) == 1 else out / name
            folder.mkdir(exist_ok=True)
            emulated = folder / "emulation"
            ended = run_one(one, emulated, csv=csv, as_json=as_json, debug=debug, quiet=True)
            if ended not in (EXIT_OK, EXIT_NO):
                return ended
            if read_json(emulated / "manifest.json")["status"] == "interrupted":
                return EXIT_NO
            simulate_into(one, build_workload(one), folder / "simulation", csv=csv, handed=handed_by(emulated))
            document = compare_runs(emulated, folder / "simulation", folder / "compare.json")
            engines = {engine: read_json(folder / engine / "summary.json") for engine in ("emulation", "simulation")}
            documents[name] = {**engines, "compare": document}
            if any(summary["verdict"] != "VALID" for summary in engines.values()):
                code = EXIT_NO
            if not as_json:
                Console().print(render(engines))
                Console().print(render_comparison(document))
    finally:
        give_to_caller(out)
    if as_json:
        print_json(next(iter(documents.values())) if len(chosen) == 1 else {"variants": documents})
    else:
        print(f"records: {out}")
    return code
