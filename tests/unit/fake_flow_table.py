"""A flow table in plain Python, so that rules are tested by sending packets through them without a switch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from controller.flow_table import Entry, Repair, entry_of
from ocs_switch.rules import RuleChange


class FakeFlowTable:
    """What a switch does with the entries it has. No entry matches: nothing is forwarded, as without a table-miss entry."""

    def __init__(self, ofports: Sequence[int], entries: Iterable[Entry] = ()) -> None:
        self.ofports = ofports
        self.entries = set(entries)

    def change(self, change: RuleChange) -> None:
        """As the controller has it done: a removal takes an entry only if it leads where the rule does; an addition replaces an
        entry of the same match and priority."""
        for rule in change.remove:
            self.entries.discard(entry_of(rule, self.ofports))
        for rule in change.add:
            added = entry_of(rule, self.ofports)
            same = {e for e in self.entries if (e.match, e.priority, e.table) == (added.match, added.priority, added.table)}
            self.entries = (self.entries - same) | {added}

    def repair(self, repair: Repair) -> None:
        self.entries -= set(repair.delete)
        self.change(RuleChange((), repair.add))

    def forward(self, ofport: int, **fields: str) -> tuple[int, ...]:
        """The ports by which a packet that enters ``ofport`` leaves."""
        packet = {("in_port", str(ofport)), *fields.items()}
        matching = [entry for entry in self.entries if entry.table == 0 and entry.match <= packet]
        if not matching:
            return ()
        best = max(entry.priority for entry in matching)
        (chosen,) = [entry for entry in matching if entry.priority == best]  # a tie is undefined in OpenFlow
        return tuple(int(action.removeprefix("output:")) for action in chosen.actions if action.startswith("output:"))
