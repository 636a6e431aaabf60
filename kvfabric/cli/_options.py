"""What the verbs have in common: the parser that raises, --json and --debug, and the options that choose a scenario."""

from __future__ import annotations

import argparse
import difflib
import json
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from kvfabric.errors import BadInput

if TYPE_CHECKING:
    from kvfabric.scenario import Override, Scenario

    Subparsers = argparse._SubParsersAction["Parser"]
else:
    Subparsers = argparse.Action


class Parser(argparse.ArgumentParser):
    """argparse that raises BadInput instead of printing a usage, and knows the nearest option."""

    def error(self, message: str) -> NoReturn:
        verb = self.prog.removeprefix("kvfabric").strip()
        raise BadInput(f"{verb}: {message}" if verb else message, f"see {self.prog} --help")

    def refuse(self, verb: str, left: list[str]) -> NoReturn:
        """Raise BadInput about arguments that nobody took."""
        name = left[0].partition("=")[0]
        known = [option for parser in self._verb_parsers(verb) for option in parser._option_string_actions]
        close = difflib.get_close_matches(name, known, n=1) if name.startswith("-") else []
        kind = "unknown option" if name.startswith("-") else "unexpected argument"
        raise BadInput(f"{verb}: {kind} {name}", f"did you mean {close[0]}?" if close else f"see kvfabric {verb} --help")

    def _verb_parsers(self, verb: str) -> list[argparse.ArgumentParser]:
        found: list[argparse.ArgumentParser] = []
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                chosen = [parser for name, parser in action.choices.items() if verb in ("", name)]
                for parser in chosen:
                    found.append(parser)
                    if isinstance(parser, Parser):
                        found.extend(parser._verb_parsers(""))
        return found


def add_verb(subparsers: Subparsers, name: str, help_line: str, *, example: str) -> Parser:
    """A parser for a verb (or a verb's verb), with its example at the end of --help."""
    return subparsers.add_parser(
        name,
        help=help_line,
        description=f"{help_line[0].upper()}{help_line[1:]}.",
        epilog=f"example:\n{example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def add_common(parser: argparse.ArgumentParser) -> None:
    """--json and --debug."""
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout, nothing else")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")


def add_scenario(parser: argparse.ArgumentParser) -> None:
    """SCENARIO and what changes it."""
    parser.add_argument("scenario", metavar="SCENARIO", help="a built-in name (see kvfabric scenarios) or a YAML file")
    parser.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change one key, like fabric.ratio=1:1 or workload.tenants.0.load=0.7; may be repeated",
    )
    parser.add_argument("--seed", metavar="N", help="the same as --set seed=N")
    parser.add_argument("--trace", metavar="PATH", help="the first tenant replays this trace, its format found out")
    parser.add_argument(
        "--start", metavar="TIME", help="begin that far into the first tenant's trace, like 600s (not for session traces)"
    )
    parser.add_argument(
        "--window", metavar="TIME", help="take that much of the first tenant's trace, like 10s (not for session traces)"
    )


def overrides_of(args: argparse.Namespace) -> list[str | Override]:
    """The options as overrides: --set comes last, so it wins."""
    from kvfabric._yaml import scalar
    from kvfabric.scenario import Override

    tenant = ("workload", "tenants", 0)
    found: list[str | Override] = []
    if args.trace is not None:
        origin = f"--trace {args.trace}"
        # A path is text even if it looks like a number; a generator in its place goes.
        for key, value in (("trace", args.trace), ("format", "auto"), ("generator", None)):
            found.append(Override((*tenant, key), value, origin))
    for key in ("start", "window"):
        text = getattr(args, key)
        if text is not None:
            found.append(Override((*tenant, key), scalar(text), f"--{key} {text}"))
    if args.seed is not None:
        found.append(Override(("seed",), scalar(args.seed), f"--seed {args.seed}"))
    found.extend(args.overrides)
    return found


def scenario_of(args: argparse.Namespace) -> Scenario:
    """The scenario the arguments describe. Raises BadInput."""
    from kvfabric.scenario import load_scenario

    return load_scenario(args.scenario, overrides_of(args))


def print_json(document: Any) -> None:
    """One JSON document on stdout. NaN has no place in JSON: a ValueError here is a bug of the caller's."""
    json.dump(document, sys.stdout, indent=2, ensure_ascii=False, allow_nan=False)
    sys.stdout.write("\n")
