"""``kvfabric scenarios``: the built-in scenarios, one of them as a file, and the schema for editors."""

from __future__ import annotations

import argparse
import sys

from kvfabric.cli._options import Subparsers, add_common, add_verb, print_json


def add_parser(subparsers: Subparsers) -> None:
    parser = add_verb(
        subparsers,
        "scenarios",
        "list the built-in scenarios, show one, or print the schema",
        example="  kvfabric scenarios show demo > mine.yaml",
    )
    add_common(parser)
    actions = parser.add_subparsers(title="commands", dest="action", metavar="COMMAND")
    show = add_verb(actions, "show", "print a scenario's file", example="  kvfabric scenarios show demo > mine.yaml")
    show.add_argument("name", metavar="NAME", help="a built-in name or a YAML file")
    schema = add_verb(
        actions,
        "schema",
        "print the JSON schema of scenario files",
        example="  kvfabric scenarios schema > scenario.schema.json",
    )
    for action in (show, schema):
        # SUPPRESS: the inner parser's default must not undo an option given before the inner verb.
        action.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="one JSON document on stdout")
        action.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help="show tracebacks")


def execute(args: argparse.Namespace) -> int:
    from kvfabric.scenario import built_in_scenarios, json_schema, scenario_text

    if args.action == "schema":
        print_json(json_schema())
    elif args.action == "show":
        text, path = scenario_text(args.name)
        if args.json:
            print_json({"name": args.name, "path": str(path), "text": text})
        else:
            sys.stdout.write(text)
    else:
        found = built_in_scenarios()
        if args.json:
            print_json({"scenarios": [{"name": s.name, "about": s.about, "needs_trace": s.needs_trace} for s in found]})
        else:
            width = max(len(scenario.name) for scenario in found)
            for scenario in found:
                print(f"{scenario.name:<{width}}  {scenario.about}")
    return 0
