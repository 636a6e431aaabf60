"""``kvfabric doctor``: what this machine has, what it lacks, and what each built-in scenario could run here."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from kvfabric.cli._options import Subparsers, add_common, add_verb, print_json
from kvfabric.errors import EXIT_MACHINE, EXIT_OK

if TYPE_CHECKING:
    from kvfabric.doctor import Report


def add_parser(subparsers: Subparsers) -> None:
    parser = add_verb(
        subparsers,
        "doctor",
        "check this machine and say what each scenario could run here",
        example="  sudo kvfabric doctor",
    )
    add_common(parser)


def execute(args: argparse.Namespace) -> int:
    from kvfabric.doctor import examine
    from kvfabric.probes import machine_facts, probe_machine

    facts = machine_facts()
    report = examine(probe_machine(facts), facts)
    if args.json:
        print_json(report.to_json())
    else:
        _print(report)
    return EXIT_OK if report.ok else EXIT_MACHINE


def _print(report: Report) -> None:
    from kvfabric.doctor import need_named
    from kvfabric.tables import Column, pairs, show, table

    facts = report.facts
    machine = [(name, facts.get(name)) for name in ("system", "kernel", "cpu", "cores_usable", "python")]
    rows = []
    for finding in report.findings:
        need = need_named(finding.name)
        state = {True: "yes", False: "NO" if need.required else "no", None: "?"}[finding.found]
        rows.append((finding.name, state, finding.detail, need.needed_by, "" if finding.found else need.remedy))
    checks = table([Column(header) for header in ("what", "here", "detail", "needed by", "if missing")], rows)
    could = table(
        [Column(header) for header in ("scenario", "emulation here", "remark")],
        [
            (item.scenario, "yes" if item.runs else "no", "; ".join(filter(None, (_lacks(item.missing), item.note))))
            for item in report.verdicts
        ],
    )
    show(pairs(machine), checks, could)
    print("The demo can run here." if report.ok else "The demo cannot run here: see the lines with NO or ?.")


def _lacks(missing: tuple[str, ...]) -> str:
    return f"lacks {', '.join(missing)}" if missing else ""
