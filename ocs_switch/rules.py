"""A plane's circuits as forwarding rules, free of any protocol: two per circuit, and nothing else forwards."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ocs_switch.crossbar import Circuit


@dataclass(frozen=True, slots=True, order=True)
class Rule:
    """Everything that enters ``in_port`` leaves by ``out_port``. Ports of the crossbar, which count from 0."""

    in_port: int
    out_port: int


@dataclass(frozen=True, slots=True)
class RuleChange:
    """What turns one set of rules into another, each part in the order of ports.

    Removals go first: between the two, light is lost and never sent to a wrong port.
    """

    remove: tuple[Rule, ...]
    add: tuple[Rule, ...]


def rules(circuits: Iterable[Circuit]) -> frozenset[Rule]:
    """The rules of circuits that carry light; a moving one has none, so that what is sent into it is lost."""
    return frozenset(rule for one in circuits for rule in (Rule(one.a, one.b), Rule(one.b, one.a)))


def difference(before: Iterable[Circuit], after: Iterable[Circuit]) -> RuleChange:
    """The rules to remove and to add; those of circuits that stand in both are not touched."""
    old, new = rules(before), rules(after)
    return RuleChange(tuple(sorted(old - new)), tuple(sorted(new - old)))
