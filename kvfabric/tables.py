"""Tables for people: headers carry the units, numbers line up on the right, nothing is cut when the output is a file."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import IO

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

_PIPE_WIDTH = 400  # a file or a pipe has no width to fit into: lines stay whole, for grep
Cell = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its header, the unit of its numbers if they have one, and how many significant digits they get."""

    header: str
    unit: str = ""
    number: bool = False
    digits: int = 4

    @property
    def title(self) -> str:
        """Header with the unit: ``rate (Mb/s)``."""
        return f"{self.header} ({self.unit})" if self.unit else self.header


def cell(value: Cell, digits: int = 4) -> str:
    """A value as it is shown: ``-`` for none, grouped integers, floats to ``digits`` significant digits, yes and no."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return _number(value, digits)
    return value


def _number(value: float, digits: int) -> str:
    if math.isnan(value):
        return "-"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if value == 0:
        return "0"
    decimals = digits - 1 - math.floor(math.log10(abs(value)))
    if not -3 <= decimals <= digits + 2:  # very large or very small: plain digits would be all zeros
        return f"{value:.{digits - 1}e}"
    return f"{value:,.{max(decimals, 0)}f}"


def table(columns: Sequence[Column], rows: Iterable[Sequence[Cell]], *, title: str = "") -> Table:
    """A rich table. Cells are text, never markup. Raises ValueError when a row has not one cell for each column."""
    drawn = Table(box=SIMPLE_HEAD, title=Text(title) if title else None, title_justify="left", pad_edge=False)
    for column in columns:
        drawn.add_column(Text(column.title), justify="right" if column.number else "left", no_wrap=column.number, overflow="fold")
    for row in rows:
        cells = [Text(cell(value, column.digits)) for column, value in zip(columns, row, strict=True)]
        drawn.add_row(*cells)
    return drawn


def pairs(rows: Iterable[tuple[str, Cell]], *, title: str = "") -> Table:
    """Two columns without headers: what, and its value."""
    drawn = Table(box=None, show_header=False, title=Text(title) if title else None, title_justify="left", pad_edge=False)
    drawn.add_column()
    drawn.add_column(overflow="fold")
    for name, value in rows:
        drawn.add_row(Text(name), Text(cell(value)))
    return drawn


def console(file: IO[str] | None = None) -> Console:
    """Where tables go: as wide as the terminal, or as wide as needed where there is none."""
    target = sys.stdout if file is None else file
    width = None if target.isatty() else _PIPE_WIDTH
    return Console(file=target, width=width, highlight=False, soft_wrap=False)


def show(*items: RenderableType, file: IO[str] | None = None) -> None:
    """Print tables and lines one after the other, without trailing blanks."""
    out = console(file)
    if out.is_terminal:
        for item in items:
            out.print(item)
        return
    with out.capture() as captured:
        for item in items:
            out.print(item)
    out.file.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))
