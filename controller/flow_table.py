"""Flow entries as data: what a circuit's rule is on a switch, and what has to go and to come so that a table is as intended."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ocs_switch.rules import Rule

COOKIE = 0x6B76_6F63
PRIORITY = 100


@dataclass(frozen=True, slots=True)
class Entry:
    """A flow entry: (field, value) pairs that a packet must have, all of them, and what is then done, as ``output:PORT`` or, for
    anything else, a text that is none of ours."""

    match: frozenset[tuple[str, str]]
    actions: tuple[str, ...]
    priority: int = PRIORITY
    table: int = 0
    cookie: int = COOKIE
    idle_s: int = 0
    hard_s: int = 0


def entry_of(rule: Rule, ofports: Sequence[int]) -> Entry:
    """A rule on a switch that numbers the crossbar's ports ``ofports``. Never times out."""
    return Entry(frozenset({("in_port", str(ofports[rule.in_port]))}), (f"output:{ofports[rule.out_port]}",))


@dataclass(frozen=True, slots=True)
class Repair:
    """Entries to delete, as they were found, and rules to add; nothing else has to change."""

    delete: tuple[Entry, ...]
    add: tuple[Rule, ...]


def repair(found: Iterable[Entry], intended: Iterable[Rule], ofports: Sequence[int]) -> Repair:
    """What makes a table the intended one. An entry that differs in anything, a timeout, say, is foreign: it goes and is added
    as it should be."""
    have, want = set(found), {entry_of(rule, ofports): rule for rule in intended}
    delete = sorted(have - set(want), key=lambda entry: (entry.table, -entry.priority, sorted(entry.match)))
    return Repair(tuple(delete), tuple(sorted(rule for entry, rule in want.items() if entry not in have)))
