"""Counts, times and shares as a verdict words them. Pure."""

from __future__ import annotations

from collections.abc import Iterable

NAMED = 3
"""How many of a kind are named before "… and 12 more"."""


def capped(kind: str, found: Iterable[str]) -> list[str]:
    items = list(dict.fromkeys(found))
    lines = items[:NAMED]
    if len(items) > NAMED:
        lines.append(f"… and {len(items) - NAMED} more {kind}")
    return lines


def percent(share: float) -> str:
    return f"{share * 100:.1f} %"


def ms(time_s: float) -> str:
    return f"{time_s * 1e3:.2f} ms"


def count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
