"""``kvfabric plan``: the scale-down sheet of a scenario."""

from __future__ import annotations

import argparse
import sys

from kvfabric.cli._options import Subparsers, add_common, add_scenario, add_verb, print_json, scenario_of


def add_parser(subparsers: Subparsers) -> None:
    parser = add_verb(
        subparsers,
        "plan",
        "print the scale-down sheet: real and emulated values, what is kept, what is out of bounds",
        example="  kvfabric plan demo --set scale.time=10",
    )
    add_scenario(parser)
    add_common(parser)


def execute(args: argparse.Namespace) -> int:
    scenario = scenario_of(args)
    from kvfabric.plan import build_plan, render_plan

    plan = build_plan(scenario)
    if args.json:
        print_json(plan.to_json())
    else:
        sys.stdout.write(render_plan(plan).rstrip("\n") + "\n")
    return 0
