"""The same turns on several fabrics: one table, a column a fabric, from the runs' summaries. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from topo.units import format_time

_Summary = Mapping[str, Any]


def _time(key: str, statistic: str) -> Callable[[_Summary], str]:
    def show(summary: _Summary) -> str:
        value = summary[key][statistic]
        least = "≥ " if summary["fidelity"].get("lower_bounds", {}).get(key) else ""
        return "-" if value is None else f"{least}{format_time(value)}"

    return show


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value * 100:.1f} %"


_ROWS: tuple[tuple[str, Callable[[_Summary], str]], ...] = (
    ("turns completed", lambda s: f"{s['requests']['completed']} of {s['requests']['offered']}"),
    ("migrated", lambda s: str(s["requests"]["migrated"])),
    ("TTFT mean", _time("ttft_s", "mean")),
    ("TTFT p95", _time("ttft_s", "p95")),
    ("exposed mean", _time("exposed_s", "mean")),
    ("exposed p95", _time("exposed_s", "p95")),
    ("exposed share of TTFT", lambda s: _share(s["exposed_share_of_ttft"])),
    ("hidden, of migrated", lambda s: _share(s["hidden_share"])),
    ("SLO met", lambda s: _share(s["slo_attainment"].get("all"))),
    ("FCT mean, from first byte", _time("fct_s", "mean")),
    ("reconfigurations", lambda s: str(s["circuits"]["reconfigurations"]) if s["circuits"]["booked"] else "-"),
    ("circuits reused", lambda s: str(s["circuits"]["reused"]) if s["circuits"]["booked"] else "-"),
)


def same_load(summaries: Sequence[_Summary]) -> bool:
    """Whether every run was offered the same turns."""
    return len({summary["offered_digest"] for summary in summaries}) <= 1


def render(summaries: Mapping[str, _Summary]) -> RenderableType:
    """The table, and under it why a run is INVALID; a column of an INVALID run says so."""
    table = Table(
        title="Side by side, times of the real cluster", title_justify="left", title_style="bold",
        box=None, pad_edge=False, padding=(0, 3, 0, 0),
    )  # fmt: skip
    table.add_column("", no_wrap=True)
    for name in summaries:
        table.add_column(escape(name), justify="right")
    table.add_row("fabric", *(escape(summary["fabric"]) for summary in summaries.values()))
    words = [
        (summary["verdict"], "bold green" if summary["verdict"] == "VALID" else "bold red") for summary in summaries.values()
    ]
    table.add_row("verdict", *(Text(word, style=style) for word, style in words))
    for name, show in _ROWS:
        table.add_row(name, *(show(summary) for summary in summaries.values()))
    lines = [Text(f"  {name}: {reason}", style="red") for name, summary in summaries.items() for reason in summary["reasons"]]
    load = "the same turns were offered to all of them" if same_load(tuple(summaries.values())) else (
        "NOT the same turns: the offered digests differ"
    )  # fmt: skip
    return Group(table, *lines, Text(f"  {load}", style="dim"))
