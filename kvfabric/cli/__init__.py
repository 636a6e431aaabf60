"""The command line. One verb a module; what a verb needs is imported when it runs, so that --help answers at once."""

from __future__ import annotations

import argparse
import difflib
import importlib
import sys
from collections.abc import Sequence
from typing import Protocol, cast

from kvfabric import __version__
from kvfabric.cli._failure import report_failure
from kvfabric.cli._options import Parser, Subparsers
from kvfabric.errors import BadInput

VERBS: dict[str, str] = {
    "doctor": "kvfabric.cli.doctor",
    "scenarios": "kvfabric.cli.scenarios",
    "plan": "kvfabric.cli.plan",
    "run": "kvfabric.cli.run",
    "compare": "kvfabric.cli.compare",
    "hiding": "kvfabric.cli.hiding",
    "trace": "kvfabric.cli.trace",
}
"""Verb to the module that has its ``add_parser(subparsers)`` and ``execute(args) -> exit code``, in the order of --help."""

NOT_YET = ("ecmp", "claims", "triage", "cost", "link-budget", "sweep", "shell", "report")
"""Verbs of the design that this version lacks."""

_EPILOG = """\
examples:
  kvfabric doctor                      can this machine run it?
  sudo kvfabric run demo               16 GPUs over packets and circuits, two minutes
  sudo kvfabric run weka --trace DIR   the same cluster with your own trace

exit codes:
  0 success   1 the answer is no (an INVALID run)   2 bad input   3 this machine cannot do it
  70 a bug    130 interrupted                       141 the reader of the output has gone
"""


class Verb(Protocol):
    """What a verb's module offers."""

    def add_parser(self, subparsers: Subparsers) -> None: ...

    def execute(self, args: argparse.Namespace) -> int: ...


def load_verb(name: str) -> Verb:
    """The module of a verb."""
    return cast(Verb, importlib.import_module(VERBS[name]))


def build_parser() -> Parser:
    """The parser with all verbs. Errors are raised as BadInput, never printed as a usage."""
    parser = Parser(
        prog="kvfabric",
        description="A packet-level testbed for the network of disaggregated LLM serving.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"kvfabric {__version__}")
    subparsers = parser.add_subparsers(title="commands", dest="verb", metavar="COMMAND", required=True)
    for name in VERBS:
        load_verb(name).add_parser(subparsers)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. ``--help`` and ``--version`` leave by SystemExit(0), as argparse does."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        _check_verb(arguments)
        parser = build_parser()
        args, left = parser.parse_known_args(arguments)
        if left:
            parser.refuse(args.verb, left)
        code = load_verb(args.verb).execute(args)
        sys.stdout.flush()
        return code
    except (Exception, KeyboardInterrupt) as error:
        return report_failure(error, debug="--debug" in arguments)


def _check_verb(arguments: list[str]) -> None:
    verb = next((argument for argument in arguments if not argument.startswith("-")), None)
    if verb is None or verb in VERBS:
        return
    if verb in NOT_YET:
        raise BadInput(f"{verb} is not in this version", f"commands: {', '.join(VERBS)}")
    close = difflib.get_close_matches(verb, VERBS, n=1)
    raise BadInput(f"no command {verb!r}", f"did you mean {close[0]}?" if close else f"commands: {', '.join(VERBS)}")
