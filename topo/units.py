"""Quantities as people write them, converted once at the edge.

Inside the project a rate is bytes per second (``_Bps``), a time is seconds (``_s``) and a size is bytes; names carry the
unit. ``Mb/s`` is bits, ``MB/s`` is bytes; prefixes are decimal (``k`` = 1000) unless written ``Ki``, ``Mi``, ``Gi``.
"""

from __future__ import annotations

import re

_PREFIX = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30}
_TIME = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_NUMBER = r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*"
_SIZE_RE = re.compile(_NUMBER + r"(Ki|Mi|Gi|[kKMGT]?)B\s*$")
_RATE_RE = re.compile(_NUMBER + r"(Ki|Mi|Gi|[kKMGT]?)(b|B|bit)(?:/s|ps)\s*$")
_TIME_RE = re.compile(_NUMBER + r"(ns|us|µs|ms|s|min|h)\s*$")


class UnitError(ValueError):
    """A quantity without a unit, with a wrong unit, or out of range. The message says what to write instead."""


def parse_rate(text: object) -> float:
    """``"200Mb/s"`` or ``"45GB/s"`` as bytes per second. Raises UnitError."""
    match = _RATE_RE.match(text) if isinstance(text, str) else None
    if match is None:
        raise UnitError(f"{text!r} is not a rate; write it like 200Mb/s (bits) or 45GB/s (bytes)")
    value = float(match[1]) * _PREFIX[match[2]]
    return _positive(value / 8 if match[3] in ("b", "bit") else value, text, "rate")


def parse_size(text: object) -> float:
    """``"5.4GB"`` or ``"64KiB"`` as bytes. Raises UnitError."""
    match = _SIZE_RE.match(text) if isinstance(text, str) else None
    if match is None:
        raise UnitError(f"{text!r} is not a size; write it like 5.4GB or 64KiB")
    return _positive(float(match[1]) * _PREFIX[match[2]], text, "size")


def parse_time(text: object) -> float:
    """``"25ms"`` or ``"330s"`` as seconds; zero is allowed. Raises UnitError."""
    match = _TIME_RE.match(text) if isinstance(text, str) else None
    if match is None:
        raise UnitError(f"{text!r} is not a time; write it like 25ms or 330s")
    value = float(match[1]) * _TIME[match[2]]
    if value < 0:
        raise UnitError(f"{text!r} is negative; a time is zero or more")
    return value


def _positive(value: float, text: object, what: str) -> float:
    if not 0 < value < float("inf"):
        raise UnitError(f"{text!r} is not above zero; a {what} must be")
    return value


def _scaled(value: float, units: tuple[tuple[float, str], ...]) -> str:
    for factor, unit in units:
        if abs(value) >= factor:
            return f"{value / factor:.4g} {unit}"
    factor, unit = units[-1]
    return f"{value / factor:.4g} {unit}"


def format_rate(rate_Bps: float) -> str:
    """Bytes per second as bits per second: ``200 Mb/s``."""
    return _scaled(rate_Bps * 8, ((1e12, "Tb/s"), (1e9, "Gb/s"), (1e6, "Mb/s"), (1e3, "kb/s"), (1, "b/s")))


def format_size(size: float) -> str:
    """Bytes with a decimal prefix: ``5.46 GB``."""
    return _scaled(size, ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B")))


def format_time(time_s: float) -> str:
    """Seconds with a prefix: ``25 ms``."""
    if time_s == 0:
        return "0 s"
    return _scaled(time_s, ((1, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")))
