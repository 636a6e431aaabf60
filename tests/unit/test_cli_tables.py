"""Tables: numbers line up, units are in the headers, and nothing is cut or taken for markup."""

from __future__ import annotations

import io

import pytest

from kvfabric.tables import Column, cell, pairs, show, table

pytestmark = pytest.mark.unit


def lines_of(*items: object) -> list[str]:
    file = io.StringIO()
    show(*items, file=file)  # type: ignore[arg-type]
    return file.getvalue().splitlines()


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        (True, "yes"),
        (False, "no"),
        (12031, "12,031"),
        (0.0, "0"),
        (0.12345, "0.1235"),
        (-1234.6, "-1,235"),
        (12345.6, "12,346"),
        (1.5e12, "1.500e+12"),
        (1.5e-9, "1.500e-09"),
        (float("nan"), "-"),
        (float("inf"), "inf"),
        ("[red]x", "[red]x"),
    ],
)
def test_a_cell_is_shown_plainly(value: str | int | float | bool | None, shown: str) -> None:
    assert cell(value) == shown


def test_numbers_end_in_the_same_column_and_units_are_in_the_header() -> None:
    drawn = table([Column("link"), Column("rate", "Mb/s", number=True)], [("a", 200.0), ("b", 12345)])
    lines = [line for line in lines_of(drawn) if line and not set(line.strip()) <= {"─"}]
    assert "rate (Mb/s)" in lines[0]
    assert len({len(line) for line in lines}) == 1


def test_text_in_brackets_is_not_markup() -> None:
    assert any("[bold]x[/bold]" in line for line in lines_of(table([Column("a")], [("[bold]x[/bold]",)])))
    assert any("[red]" in line for line in lines_of(pairs([("k", "[red]")])))


def test_long_text_stays_on_its_line_when_the_output_is_no_terminal() -> None:
    text = "word " * 40
    assert any(text.strip() in line for line in lines_of(table([Column("a"), Column("b")], [(text, "x")])))


def test_lines_have_no_trailing_blanks() -> None:
    lines = lines_of(table([Column("a"), Column("b")], [("x", "y"), ("longer", "")]))
    assert all(line == line.rstrip() for line in lines)


def test_a_row_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(ValueError, match="argument"):
        table([Column("a"), Column("b")], [("x",)])
