"""``kvfabric run``: run a scenario and write its records."""

from __future__ import annotations

import argparse
import os
from datetime import datetime, timezone
from pathlib import Path

from kvfabric.cli._options import Subparsers, add_common, add_scenario, add_verb, scenario_of
from kvfabric.errors import BadInput

_ENGINES = ("emulation", "simulation", "both")


def add_parser(subparsers: Subparsers) -> None:
    parser = add_verb(
        subparsers,
        "run",
        "run a scenario, with progress, write its records, and say whether to believe it",
        example=(
            "  sudo kvfabric run demo --out runs/first\n"
            "  kvfabric run demo --engine simulation\n"
            "  sudo kvfabric run demo --variant ecmp --engine both\n"
            "  sudo kvfabric run weka --trace sessions/\n"
            "  sudo kvfabric run mooncake --trace conversation_trace.jsonl --start 600s --window 60s"
        ),
    )
    add_scenario(parser)
    parser.add_argument(
        "--engine", default="emulation", metavar="ENGINE", help="emulation (default), simulation, or both and their comparison"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="new or empty folder for the records (default: runs/NAME-TIME)")
    parser.add_argument("--variant", metavar="NAME", help="only this one of the scenario's variants")
    parser.add_argument("--csv", action="store_true", help="write the records as CSV as well")
    add_common(parser)


def execute(args: argparse.Namespace) -> int:
    if args.engine not in _ENGINES:
        raise BadInput(f"run: no engine {args.engine!r}", f"write --engine {', '.join(_ENGINES)}")
    scenario = scenario_of(args)
    out = args.out if args.out is not None else default_out(scenario.name, datetime.now(timezone.utc), os.getpid())
    if args.engine == "simulation":
        from kvfabric.engines import run_simulation

        return run_simulation(scenario, out=out, csv=args.csv, as_json=args.json, only=args.variant)
    if args.engine == "both":
        from kvfabric.engines import run_both

        return run_both(scenario, out=out, csv=args.csv, as_json=args.json, debug=args.debug, only=args.variant)
    from kvfabric.run import run_emulation

    return run_emulation(scenario, out=out, csv=args.csv, as_json=args.json, debug=args.debug, only=args.variant)


def default_out(name: str, now: datetime, process: int) -> Path:
    """``runs/NAME-TIME-PID``: two runs started in the same second must not meet."""
    return Path("runs") / f"{name}-{now:%Y%m%dT%H%M%SZ}-{process}"
