"""Reading one field of one row: present, of the right type, in range, or an error that names it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

from workloads.errors import TraceError

MAX_TOKENS = 100_000_000
"""Keeps out values in another unit (characters of a corpus, bytes, hashes): no model has a context near it."""

MAX_SECONDS = 3.2e9
"""A century. Keeps out times that are in another unit by a factor of a thousand or more, and overflows behind them."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row with its place in a file, for errors."""

    file: str
    line: int | str
    values: Mapping[str, object]

    @property
    def source(self) -> str:
        """ "file:line" or "file#step"."""
        return TraceError(self.file, self.line, None, "").where

    def error(self, field: str | None, message: str) -> TraceError:
        return TraceError(self.file, self.line, field, message)

    def number(self, field: str, *, low: float = 0.0, high: float = math.inf) -> float:
        """A finite number; text that looks like one is not. Raises TraceError."""
        value = self.values.get(field)
        if value is None or value == "":
            raise self.error(field, "is missing; every row needs it")
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.error(field, f"is {_short(value)}, not a number; write a number")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise self.error(field, f"is {_short(value)}, not a finite number; remove the row or correct it")
        if number < low:
            what = "is negative" if number < 0 else f"is below {low:g}"
            raise self.error(field, f"{what} ({_short(value)}); it must be at least {low:g}")
        if number > high:
            raise self.error(field, f"is {_short(value)}, above {high:g}; check its unit")
        return number

    def count(self, field: str, *, low: int = 0, high: int = MAX_TOKENS) -> int:
        """A whole number. Raises TraceError."""
        number = self.number(field, low=low, high=high)
        if number != int(number):
            raise self.error(field, f"is {number!r}, not a whole number; tokens are counted")
        return int(number)

    def ids(self, field: str) -> list[int]:
        """A list of whole numbers. Raises TraceError."""
        value = self.values.get(field)
        if value is None:
            raise self.error(field, "is missing; cached prefixes are found by it")
        if not isinstance(value, list):
            raise self.error(field, f"is {_short(value)}, not a list; write the ids of the prompt's blocks")
        for item in value:
            if type(item) is not int:
                raise self.error(field, f"holds {_short(item)}, not a whole number; write the ids of the prompt's blocks")
        return value

    def text(self, field: str) -> str:
        """A string that is not empty. Raises TraceError."""
        value = self.values.get(field)
        if value is None or value == "":
            raise self.error(field, "is missing; every row needs it")
        if not isinstance(value, str):
            raise self.error(field, f"is {_short(value)}, not a string; write it in quotes")
        return value


def json_row(file: str, line: int, content: bytes) -> Row:
    """A line that holds one JSON object. Raises TraceError."""
    try:
        values = json.loads(content.decode("utf-8-sig" if line == 1 else "utf-8"))
    except UnicodeDecodeError as error:
        raise TraceError(file, line, None, f"is not UTF-8 (byte {error.start}); re-encode the file") from error
    except json.JSONDecodeError as error:
        raise TraceError(
            file, line, None, f"is not JSON (column {error.colno}: {error.msg}); correct or remove the line"
        ) from error
    except (ValueError, RecursionError) as error:
        raise TraceError(file, line, None, f"is not usable JSON ({error}); correct or remove the line") from error
    if not isinstance(values, dict):
        raise TraceError(file, line, None, f"is {_short(values)}, not an object; write one JSON object per line")
    return Row(file, line, values)


def _short(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # an integer too long to print
        return "a very long number"
    return text if len(text) <= 40 else text[:37] + "..."
