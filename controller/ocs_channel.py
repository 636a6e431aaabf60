"""The OpenFlow 1.3 connection to the switch of one plane: rules as flow mods, its table as entries, barriers.

Flow mods are put together by the library once, for ports that stand for others, and the ports of a rule are then put into the
bytes: the library takes 0.1 ms for a flow mod, and a circuit needs four.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from controller.flow_table import COOKIE, PRIORITY, Entry, Repair, repair
from controller.openflow import controller, ofproto_v1_3, ofproto_v1_3_parser
from ocs_switch.rules import Rule, RuleChange

_IN_PORT, _OUT_PORT = 0x11A2B3C4, 0x22A3B4C5
"""In place of a rule's ports; no field of a flow mod looks like them."""


class Channel:
    """One connection. ``ofports``: the switch's number of each port of the crossbar."""

    def __init__(self, datapath: controller.Datapath, ofports: Sequence[int]) -> None:
        self.datapath = datapath
        self._ofports = ofports
        self._found: list[Any] = []
        self._add = self._serialised(self._addition())
        self._remove = self._serialised(self._removal())

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
        template = self._add if add else self._remove
        into, out = self._ofports[rule.in_port], self._ofports[rule.out_port]
        return template.replace(_port(_IN_PORT), _port(into)).replace(_port(_OUT_PORT), _port(out))

    def _addition(self) -> Any:
        parser, ofproto = ofproto_v1_3_parser, ofproto_v1_3
        actions = [parser.OFPActionOutput(_OUT_PORT)]
        return parser.OFPFlowMod(
            self.datapath, cookie=COOKIE, priority=PRIORITY, match=parser.OFPMatch(in_port=_IN_PORT),
            instructions=[parser.OFPInstructionActions(ofproto.OFPIT_APPLY_ACTIONS, actions)],
        )  # fmt: skip

    def _removal(self) -> Any:
        """Only where the entry still leads to that port: a later rule of the same in_port is another circuit's."""
        return ofproto_v1_3_parser.OFPFlowMod(
            self.datapath, command=ofproto_v1_3.OFPFC_DELETE_STRICT, priority=PRIORITY,
            match=ofproto_v1_3_parser.OFPMatch(in_port=_IN_PORT), out_port=_OUT_PORT, out_group=ofproto_v1_3.OFPG_ANY,
        )  # fmt: skip

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


def _port(number: int) -> bytes:
    return struct.pack("!I", number)


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
