"""The OpenFlow 1.3 connection to the switch of one plane: rules as flow mods, its table as entries, barriers.

Messages are put together by the library once and kept as bytes: rendering a flow mod takes it 0.1 ms, which a circuit of four
would pay each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from controller.flow_table import COOKIE, PRIORITY, Entry, Repair, repair
from controller.openflow import controller, ofproto_v1_3, ofproto_v1_3_parser
from ocs_switch.rules import Rule, RuleChange


class Channel:
    """One connection. ``ofports``: the switch's number of each port of the crossbar."""

    def __init__(self, datapath: controller.Datapath, ofports: Sequence[int]) -> None:
        self.datapath = datapath
        self._ofports = ofports
        self._found: list[Any] = []
        self._rendered: dict[tuple[Rule, bool], bytes] = {}

    def change(self, change: RuleChange) -> int:
        """Remove and add rules and send a barrier, in one piece; the barrier's xid."""
        return self._send(
            [self._render(rule, False) for rule in change.remove] + [self._render(rule, True) for rule in change.add]
        )

    def ask_table(self) -> None:
        """Have the switch send its whole table."""
        self._found = []
        self.datapath.send_msg(ofproto_v1_3_parser.OFPFlowStatsRequest(self.datapath))

    def table_part(self, message: Any) -> bool:
        """Take one of the replies; whether it was the last."""
        self._found += message.body
        return not message.flags & ofproto_v1_3.OFPMPF_REPLY_MORE

    def repair(self, intended: frozenset[Rule]) -> tuple[Repair, int]:
        """Make the table that was sent the intended one; what had to change, and the xid of the barrier behind it."""
        found = {_entry(stats): stats for stats in self._found}
        needed = repair(found, intended, self._ofports)
        deletions = [self._serialised(self._deletion(found[entry])) for entry in needed.delete]
        return needed, self._send(deletions + [self._render(rule, True) for rule in needed.add])

    def close(self) -> None:
        """Disconnect. The library lets go of the socket when the switch does, or after its own 5 s."""
        self.datapath.close()

    def _send(self, messages: list[bytes]) -> int:
        barrier = ofproto_v1_3_parser.OFPBarrierRequest(self.datapath)
        xid: int = self.datapath.set_xid(barrier)
        # One entry of the library's queue, which holds 16 and then makes its sender wait in the middle of a command.
        self.datapath.send(b"".join([*messages, self._serialised(barrier)]))
        return xid

    def _render(self, rule: Rule, add: bool) -> bytes:
        found = self._rendered.get((rule, add))
        if found is None:
            found = self._rendered[rule, add] = self._serialised(self._flow_mod(rule, add))
        return found

    def _flow_mod(self, rule: Rule, add: bool) -> Any:
        parser, ofproto, datapath = ofproto_v1_3_parser, ofproto_v1_3, self.datapath
        output = self._ofports[rule.out_port]
        match = parser.OFPMatch(in_port=self._ofports[rule.in_port])
        if not add:  # only where it still leads to that port: a later rule of the same in_port is another circuit's
            return parser.OFPFlowMod(
                datapath, command=ofproto.OFPFC_DELETE_STRICT, priority=PRIORITY, match=match,
                out_port=output, out_group=ofproto.OFPG_ANY,
            )  # fmt: skip
        actions = [parser.OFPActionOutput(output)]
        instructions = [parser.OFPInstructionActions(ofproto.OFPIT_APPLY_ACTIONS, actions)]
        return parser.OFPFlowMod(datapath, cookie=COOKIE, priority=PRIORITY, match=match, instructions=instructions)

    def _deletion(self, stats: Any) -> Any:
        return ofproto_v1_3_parser.OFPFlowMod(
            self.datapath, command=ofproto_v1_3.OFPFC_DELETE_STRICT, table_id=stats.table_id, priority=stats.priority,
            match=stats.match, out_port=ofproto_v1_3.OFPP_ANY, out_group=ofproto_v1_3.OFPG_ANY,
        )  # fmt: skip

    def _serialised(self, message: Any) -> bytes:
        if message.xid is None:
            message.set_xid(0)
        message.serialize()
        return bytes(message.buf)


def _entry(stats: Any) -> Entry:
    actions: list[str] = []
    for instruction in stats.instructions:
        if instruction.type != ofproto_v1_3.OFPIT_APPLY_ACTIONS:
            actions.append(f"instruction {instruction.type}")
            continue
        for action in instruction.actions:
            plain = action.type == ofproto_v1_3.OFPAT_OUTPUT
            actions.append(f"output:{action.port}" if plain else f"action {action.type}")
    return Entry(
        match=frozenset((str(field), str(value)) for field, value in stats.match.items()),
        actions=tuple(actions), priority=stats.priority, table=stats.table_id, cookie=stats.cookie,
        idle_s=stats.idle_timeout, hard_s=stats.hard_timeout,
    )  # fmt: skip
