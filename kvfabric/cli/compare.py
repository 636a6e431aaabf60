"""``kvfabric compare``: two runs of the same turns against each other."""

from __future__ import annotations

import argparse
from pathlib import Path

from kvfabric.cli._options import Subparsers, add_common, add_verb, print_json
from kvfabric.errors import EXIT_NO, EXIT_OK


def add_parser(subparsers: Subparsers) -> None:
    parser = add_verb(
        subparsers,
        "compare",
        "compare two runs of the same turns, flow by flow, turn by turn and in aggregate",
        example="  kvfabric compare runs/first/emulation runs/first/simulation",
    )
    parser.add_argument("a", type=Path, metavar="DIR", help="a run's records, say an emulation's")
    parser.add_argument("b", type=Path, metavar="DIR", help="those it is compared with, say a simulation's")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where the figures go (default: compare.json in the first DIR)")
    add_common(parser)


def execute(args: argparse.Namespace) -> int:
    from rich.console import Console

    from kvfabric.compare import compare_runs, render_comparison

    into = args.out if args.out is not None else args.a / "compare.json"
    document = compare_runs(args.a, args.b, into)
    if args.json:
        print_json(document)
    else:
        Console().print(render_comparison(document))
        print(f"figures: {into}")
    return EXIT_OK if all(run["verdict"] == "VALID" for run in document["runs"]) else EXIT_NO
