"""Quantities as pydantic types: text with a unit going in, a number inside, text that reads back exactly coming out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

from topo.units import UnitError, parse_rate, parse_size, parse_time

_RATE_UNITS = ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"))
_SIZE_UNITS = ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
_TIME_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))


def _exact(value: float, units: tuple[tuple[float, str], ...], base: str, parse: Callable[[object], float]) -> str:
    """``value`` in the largest unit that gives a short number which parses back to exactly the same float."""
    for factor, unit in units:
        text = f"{value / factor:.9g}{unit}"
        if value >= factor and parse(text) == value:
            return text
    return f"{value!r}{base}"


def exact_rate(value_Bps: float) -> str:
    """A rate as text that ``parse_rate`` turns back into the same number: ``45GB/s``."""
    return _exact(value_Bps, _RATE_UNITS, "B/s", parse_rate)


def exact_size(value: float) -> str:
    """A size as text that ``parse_size`` turns back into the same number: ``16KiB``."""
    return _exact(value, _SIZE_UNITS, "B", parse_size)


def exact_time(value_s: float) -> str:
    """A time as text that ``parse_time`` turns back into the same number: ``25ms``."""
    return "0s" if value_s == 0 else _exact(value_s, _TIME_UNITS, "s", parse_time)


def _finite(parse: Callable[[object], float]) -> Callable[[object], float]:
    def validate(text: object) -> float:
        value = parse(text)
        if value == float("inf"):
            raise UnitError(f"{text!r} is too large")
        return value

    return validate


def _above_zero(text: object) -> float:
    value = _finite(parse_time)(text)
    if value <= 0:
        raise UnitError(f"{text!r} is not above zero; this time must be")
    return value


def _text_schema(description: str, *examples: str) -> WithJsonSchema:
    schema: dict[str, Any] = {"type": "string", "format": description, "examples": list(examples)}
    return WithJsonSchema(schema)


Rate = Annotated[
    float, BeforeValidator(_finite(parse_rate)), PlainSerializer(exact_rate), _text_schema("rate", "45GB/s", "200Mb/s")
]
"""Bytes per second, written ``45GB/s`` or ``360Gb/s``."""
Size = Annotated[float, BeforeValidator(_finite(parse_size)), PlainSerializer(exact_size), _text_schema("size", "16KiB", "5.4GB")]
"""Bytes, written ``16KiB`` or ``5.4GB``."""
Time = Annotated[float, BeforeValidator(_finite(parse_time)), PlainSerializer(exact_time), _text_schema("time", "25ms", "330s")]
"""Seconds, zero allowed, written ``25ms`` or ``330s``."""
PositiveTime = Annotated[float, BeforeValidator(_above_zero), PlainSerializer(exact_time), _text_schema("time", "25ms", "330s")]
"""Seconds, above zero."""
