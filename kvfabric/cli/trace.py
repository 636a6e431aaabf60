"""``kvfabric trace inspect``: what is in a trace, before it is replayed."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from kvfabric.cli._options import Subparsers, add_common, add_verb, print_json
from kvfabric.errors import BadInput


def add_parser(subparsers: Subparsers) -> None:
    parser = add_verb(
        subparsers, "trace", "look at a trace", example="  kvfabric trace inspect conversation_trace.jsonl --skip-bad"
    )
    actions = parser.add_subparsers(title="commands", dest="action", metavar="COMMAND", required=True)
    inspect = add_verb(
        actions,
        "inspect",
        "say what is in a trace: format, rows, spans, medians, problems by line",
        example="  kvfabric trace inspect conversation_trace.jsonl --skip-bad",
    )
    inspect.add_argument("file", metavar="FILE", help="a trace, or a folder of WEKA sessions")
    inspect.add_argument("--format", default="auto", metavar="FORMAT", help="auto, weka, mooncake, azure or tracelab")
    inspect.add_argument("--skip-bad", action="store_true", help="count and list malformed rows instead of stopping")
    add_common(inspect)


def execute(args: argparse.Namespace) -> int:
    from workloads.readers import FORMATS, read_trace

    if args.format not in ("auto", *FORMATS):
        raise BadInput(f"trace inspect: no format {args.format!r}", f"write auto, {', '.join(FORMATS)}")
    from workloads.inspect import inspect_trace

    trace = read_trace(args.file, format=args.format, skip_bad=args.skip_bad)
    document = inspect_trace(trace).to_json()
    if args.json:
        print_json(document)
    else:
        from kvfabric.tables import pairs, show

        show(pairs(_flat(document)))
    return 0


def _flat(document: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested keys as dotted names, lists as a line each."""
    for key, value in document.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _flat(value, f"{name}.")
        elif isinstance(value, (list, tuple)):
            yield name, len(value)
            yield from ((f"  {name}[{index}]", str(item)) for index, item in enumerate(value))
        else:
            yield name, value
