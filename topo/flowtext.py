"""Flow tables as ``ovs-ofctl dump-flows`` prints them, turned into data. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

_STATISTICS = {"cookie", "duration", "table", "n_packets", "n_bytes", "idle_age", "hard_age", "reset_counts", "priority"}
_MATCHES_ANYTHING = "actions="


class FlowTextError(ValueError):
    """A line that is no flow; the message quotes it."""


@dataclass(frozen=True, slots=True)
class Flow:
    """One rule of a bridge. Two flows are equal when they do the same; ``packets`` and ``bytes`` are not compared.

    ``match`` holds the fields as printed (``{"in_port": "1"}``), with an empty value for a protocol's bare name (``ip``).
    """

    table: int
    priority: int
    match: Mapping[str, str]
    actions: str
    cookie: int
    packets: int = field(compare=False)
    bytes: int = field(compare=False)

    @property
    def output(self) -> int | None:
        """The one OpenFlow port this flow sends to; None when it does anything else."""
        found = re.fullmatch(r"output:(\d+)", self.actions)
        return int(found[1]) if found else None

    @property
    def in_port(self) -> int | None:
        """The OpenFlow port this flow takes from, when that is all it matches."""
        number = self.match.get("in_port", "")
        return int(number) if set(self.match) == {"in_port"} and number.isdigit() else None


def parse_flow(line: str) -> Flow:
    """One line of ``dump-flows`` (with ``--no-names``). Raises FlowTextError."""
    head, found, actions = line.strip().partition(_MATCHES_ANYTHING)
    if not found:
        raise FlowTextError(f"{line.strip()!r} is no flow")
    known: dict[str, str] = {}
    match: dict[str, str] = {}
    for word in filter(None, re.split(r"[,\s]+", head)):
        name, _, value = word.partition("=")
        (known if name in _STATISTICS else match)[name] = value
    try:
        return Flow(
            table=int(known.get("table", "0")),
            priority=int(known.get("priority", "32768")),
            match=match,
            actions=actions,
            cookie=int(known.get("cookie", "0"), 0),
            packets=int(known.get("n_packets", "0")),
            bytes=int(known.get("n_bytes", "0")),
        )
    except ValueError as error:
        raise FlowTextError(f"{line.strip()!r} is no flow: {error}") from None


def parse_flows(text: str) -> tuple[Flow, ...]:
    """Everything ``dump-flows`` printed, without the line that names the reply. Raises FlowTextError."""
    lines = (line for line in text.splitlines() if line.strip())
    return tuple(parse_flow(line) for line in lines if not re.match(r"\s*(OFPST|NXST)_FLOW reply", line))


def circuit_rules(flows: tuple[Flow, ...]) -> frozenset[tuple[int, int]]:
    """(in port, out port) of every rule that does no more than carry one port's light to another. OpenFlow port numbers."""
    return frozenset((flow.in_port, flow.output) for flow in flows if flow.in_port is not None and flow.output is not None)
