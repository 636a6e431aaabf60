"""``kvfabric hiding``: how much of a reconfiguration shows, commanded as the prefill starts and after it."""

from __future__ import annotations

import argparse
import csv
import os
from collections.abc import Sequence
from dataclasses import asdict, astuple, fields
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvfabric.cli._options import Subparsers, add_common, add_verb, print_json
from kvfabric.errors import EXIT_NO, EXIT_OK, BadInput
from topo.units import UnitError, format_time, parse_time

if TYPE_CHECKING:
    from kvfabric.hiding import Exposure, HidingPlan, HidingPoint

_TAUS = ("10ms", "25ms", "50ms", "100ms")


def add_parser(subparsers: Subparsers) -> None:
    parser = add_verb(
        subparsers,
        "hiding",
        "measure how much of a reconfiguration a prefill hides",
        example="  sudo kvfabric hiding\n  sudo kvfabric hiding --tau 10ms --tau 100ms --prompts 16 --out runs/hiding",
    )
    parser.add_argument(
        "--tau", action="append", metavar="TIME", help=f"reconfiguration delay; may be repeated (default {' '.join(_TAUS)})"
    )
    parser.add_argument(
        "--prompts", type=int, default=6, metavar="N", help="prompts for each prefill instance and run (default 6)"
    )
    parser.add_argument("--new", type=int, default=2048, metavar="TOKENS", help="length of a prompt (default 2048)")
    parser.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE", help="change one key of the scenario"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="new or empty folder for the records (default: runs/hiding-TIME)")
    add_common(parser)


def execute(args: argparse.Namespace) -> int:
    from kvfabric.cli.run import default_out
    from kvfabric.hiding import WHEN, base_scenario, exposures, plan_hiding, point, scenario_for, write_prompts
    from kvfabric.records import read_rows
    from kvfabric.rows import RequestRow
    from kvfabric.run import admit, give_to_caller, run_series

    if args.prompts < 1 or args.new < 1:
        raise BadInput("hiding: --prompts and --new must be at least 1", "leave them out, or write whole numbers")
    base = base_scenario(args.overrides)
    plan = plan_hiding(base, _taus(args.tau or list(_TAUS)), args.prompts, args.new)
    out = args.out if args.out is not None else default_out("hiding", datetime.now(timezone.utc), os.getpid())
    nothing = Path("/dev/null")  # stands in for the prompts, which are written into the folder that is made here
    out = admit([(when, scenario_for(plan, args.overrides, tau_s, when, nothing)) for tau_s in plan.taus_s for when in WHEN], out)
    try:
        runs = []
        for tau_s in plan.taus_s:
            trace = out / f"prompts-{_label(tau_s)}.jsonl"
            write_prompts(plan, tau_s, base.cluster.prefill, trace)
            runs += [(f"{_label(tau_s)}-{when}", scenario_for(plan, args.overrides, tau_s, when, trace)) for when in WHEN]
        series = run_series(runs, out, csv=False, as_json=args.json, debug=args.debug)
        if len(series.summaries) < len(runs):
            return series.code
        found: list[Exposure] = []
        points: list[HidingPoint] = []
        for tau_s in plan.taus_s:
            of_tau = [
                item
                for when in WHEN
                for item in exposures(plan, tau_s, when, read_rows(out / f"{_label(tau_s)}-{when}", RequestRow))
            ]
            found += of_tau
            if {item.when for item in of_tau} == set(WHEN):
                points.append(point(of_tau))
        _write_points(out / "hiding.csv", found)
        reasons = [f"{name}: {reason}" for name, summary in series.summaries.items() for reason in summary["reasons"]]
        if args.json:
            print_json(_document(plan, points, series.summaries, reasons))
        else:
            _show(plan, points, reasons, out)
        complete = len(points) == len(plan.taus_s)  # else a run ended before its prompts, for a reason that is told
        as_claimed = complete and all(item.hidden and item.cost_as_expected for item in points)
        return EXIT_OK if as_claimed and series.code == EXIT_OK else EXIT_NO
    finally:
        give_to_caller(out)


def _taus(texts: Sequence[str]) -> tuple[float, ...]:
    found = []
    for text in texts:
        try:
            tau_s = parse_time(text)
        except UnitError as error:
            problem, _, remedy = str(error).partition("; ")
            raise BadInput(f"--tau {text}: {problem}", remedy or "write it like 25ms") from None
        if tau_s in found:
            raise BadInput(f"--tau {text} is given twice", "name every delay once")
        found.append(tau_s)
    return tuple(sorted(found))


def _label(tau_s: float) -> str:
    return f"{tau_s * 1e3:g}ms"


def _write_points(path: Path, found: Sequence[Exposure]) -> None:
    """Every prompt, for a plot: exposed_s over tau_s, one series for each ``when``."""
    from kvfabric.hiding import Exposure

    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([item.name for item in fields(Exposure)])
        writer.writerows(astuple(item) for item in found)


def _document(plan: HidingPlan, points: Sequence[HidingPoint], summaries: dict[str, Any], reasons: list[str]) -> dict[str, Any]:
    return {
        "plan": asdict(plan),
        "points": [{**asdict(item), "hidden": item.hidden, "cost_as_expected": item.cost_as_expected} for item in points],
        "verdicts": {name: summary["verdict"] for name, summary in summaries.items()},
        "reasons": reasons,
    }


def _show(plan: HidingPlan, points: Sequence[HidingPoint], reasons: list[str], out: Path) -> None:
    from kvfabric.hiding import COST, EXPOSED_SHARE
    from kvfabric.tables import Column, show, table

    columns = (
        Column("τ", number=True),
        Column("exposed, at start: median", number=True),
        Column("most", number=True),
        Column("most, of prefill", number=True),
        Column("hidden"),
        Column("exposed, after: median", number=True),
        Column("cost of τ: median", number=True),
        Column("least", number=True),
        Column("most", number=True),
        Column("as τ"),
    )
    rows = [
        (
            format_time(item.tau_s), format_time(item.start_median_s), format_time(item.start_max_s), f"{item.start_share:.2%}",
            item.hidden, format_time(item.after_median_s), f"{item.after_cost:.3f} τ", f"{item.after_cost_least:.3f}",
            f"{item.after_cost_most:.3f}", item.cost_as_expected,
        )
        for item in points
    ]  # fmt: skip
    print(
        f"{plan.new_tokens} new tokens: prefill {format_time(plan.prefill_s)}, KV transfer {format_time(plan.transfer_s)}; "
        f"{plan.prompts} prompts an instance and run"
    )
    print(f"hidden: at most {EXPOSED_SHARE:.0%} of the prefill exposed; as τ: afterwards it costs {COST[0]:g} to {COST[1]:g} τ")
    show(table(columns, rows))
    for reason in reasons:
        print(f"  INVALID: {reason}")
    print(f"records: {out} (every prompt: hiding.csv)")
