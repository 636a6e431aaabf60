"""``kvfabric compare``: two runs' records read, compared, written as ``compare.json``, shown as a table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from kvfabric.comparison import RunRows, compare
from kvfabric.errors import EXIT_NO, BadInput, KvfabricError
from kvfabric.optical_policy import chosen_at
from kvfabric.records import read_json, read_rows, write_json
from kvfabric.rows import FlowRow, RequestRow, TransferRow
from kvfabric.scenario import parse_scenario
from kvfabric.simulated_network import Handed


class DifferentLoad(KvfabricError):  # noqa: N818 - the name says it where it is raised
    """The two runs were not offered the same turns: no difference between them would mean anything."""

    exit_code = EXIT_NO


def read_run(path: Path) -> RunRows:
    """A run's records. Raises BadInput where there is no finished run."""
    try:
        summary = read_json(path / "summary.json")
        return RunRows(
            name=str(path),
            engine=summary["engine"],
            verdict=summary["verdict"],
            digest=summary["offered_digest"],
            requests=tuple(read_rows(path, RequestRow)),
            transfers=tuple(read_rows(path, TransferRow)),
            flows=tuple(read_rows(path, FlowRow)),
        )
    except FileNotFoundError:
        raise BadInput(f"{path}: no run has been finished there", "name the folder that kvfabric run wrote (its --out)") from None
    except (OSError, ValueError, KeyError) as error:
        raise BadInput(
            f"{path}: its records cannot be read: {error}", "name the folder that kvfabric run wrote (its --out)"
        ) from None


def compare_runs(first: Path, second: Path, into: Path) -> dict[str, Any]:
    """Compare two runs and write the document. Raises BadInput, and DifferentLoad for runs of different turns."""
    a, b = read_run(first), read_run(second)
    if a.digest != b.digest:
        raise DifferentLoad(
            f"{first} and {second} were not offered the same turns: digests {a.digest[:12]} and {b.digest[:12]}",
            "run both with the same scenario, window and seed; fabric, scale and engine may differ",
        )
    document = compare(a, b)
    try:
        write_json(into, document)
    except OSError as error:
        raise BadInput(f"{into}: {error.strerror}", "choose another place with --out") from None
    return document


def handed_by(path: Path) -> Handed:
    """What a run can hand to a simulation of the same turns: the path of every flow, and every choice of decode."""
    spines: dict[int, int] = {}
    for row in read_rows(path, FlowRow):
        middle = (row.path_realised or "").split(">")[1:-1]
        if len(middle) == 1 and middle[0].removeprefix("spine").isdecimal():
            spines[row.flow] = int(middle[0].removeprefix("spine"))
    decodes: dict[tuple[int, float], list[int]] = {}
    scenario = parse_scenario(json.dumps(read_json(path / "manifest.json")["scenario"]), source=f"{path / 'manifest.json'}")
    at_arrival = chosen_at(scenario) == "arrival"
    for request in sorted(read_rows(path, RequestRow), key=lambda row: row.turn):
        at_s = request.arrival_s if at_arrival else request.prefill_start_s
        if request.prefill is not None and request.decode is not None and at_s is not None:
            decodes.setdefault((request.prefill, at_s), []).append(request.decode)
    return Handed(spines, decodes)


_CLASSES = ("alone", "shared", "short", "long")
_AGGREGATES = (("mean_fct", "mean FCT"), ("p95_fct", "p95 FCT"), ("mean_ttft", "mean TTFT"), ("p95_ttft", "p95 TTFT"))


def render_comparison(document: Mapping[str, Any]) -> RenderableType:
    """The errors in tables that line up; an INVALID run says so in every title."""
    runs = document["runs"]
    mark = "" if all(run["verdict"] == "VALID" for run in runs) else " (INVALID)"
    a, b = (f"{run['engine']} {run['name']}" for run in runs)
    lines = [
        Text(f"  {run['engine']} {run['name']} is {run['verdict']}", style="red") for run in runs if run["verdict"] != "VALID"
    ]
    errors = _table(f"Error per flow and turn, |a - b| / b{mark}", "", "of", "median", "p95", "bias")
    rows = [
        ("FCT of flows", document["flows"], document["fct_error"]),
        *((f"  {name}", document["classes"][name]["flows"], document["classes"][name]) for name in _CLASSES),
        ("FCT of transfers", document["turns"], document["transfer_fct_error"]),
        ("TTFT of turns", document["turns"], document["ttft_error"]),
    ]
    for name, number, figures in rows:
        errors.add_row(name, str(number), *(_percent(figures[key], signed=key == "bias") for key in ("median", "p95", "bias")))
    totals = _table(f"Error in aggregate, (a - b) / b{mark}", "", "")
    for key, name in _AGGREGATES:
        totals.add_row(name, _percent(document["aggregate_bias"][key], signed=True))
    same = _table(f"The same in both{mark}", "", "")
    for key, name in (("paths_equal", "paths of flows"), ("starts_equal", "planned starts of flows"), ("same_decode", "decodes")):
        same.add_row(name, _percent(document[key]))
    return Group(Text(f"a: {escape(a)}"), Text(f"b: {escape(b)}"), *lines, errors, totals, same)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right", no_wrap=True)
    return table


def _percent(value: float | None, *, signed: bool = False) -> str:
    if value is None:
        return "none"
    return f"{value * 100:+.3f} %" if signed else f"{value * 100:.3f} %"
