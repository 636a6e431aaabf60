"""A plane under control with a switch that does what it is told, shutters, a clock, and all that was said."""

from __future__ import annotations

from fake_flow_table import FakeFlowTable

from controller.ocs_config import PlaneConfig, Timing
from controller.ocs_messages import Answer, Event, EventKind, Keeper, Order, Verb
from controller.ocs_plane import Plane
from controller.ocs_steps import Emit, Instruction, Open, Send, Shut
from ocs_switch.crossbar import Circuit

MS = 1_000_000
TAU = 25 * MS
OFPORTS = (11, 12, 13, 14, 15, 16)


class Rig:
    """The plane, and what came of its instructions."""

    def __init__(self, keeper: Keeper = Keeper.LIGHT, *, ready: bool = True) -> None:
        self.plane = Plane(3, PlaneConfig(7, TAU / 1e9, OFPORTS), Timing(settle_s=0.006, barrier_s=1.0), keeper)
        self.table = FakeFlowTable(OFPORTS)
        self.now = 1_000 * MS
        self.windows: dict[int, tuple[int, int | None] | None] = dict.fromkeys(range(6), (0, None))
        self.events: list[Event] = []
        self.unanswered: list[int] = []
        self.drops: list[str] = []
        if ready:
            self.take(self.plane.connected(self.now))
            self.take(self.plane.synchronised(self.now))
            self.events.clear()

    def take(self, instructions: list[Instruction]) -> None:
        for one in instructions:
            if isinstance(one, Shut):
                dark = self.is_dark(one.port, self.now)  # as Light has it: a port that is dark stays so
                begun = self.windows[one.port] if dark else None
                self.windows[one.port] = min(begun[0], one.from_ns) if begun else one.from_ns, one.until_ns
            elif isinstance(one, Open):
                self.windows[one.port] = None
            elif isinstance(one, Send):
                self.table.change(one.change)
                self.unanswered.append(one.token)
            elif isinstance(one, Emit):
                self.events.append(one.event)
            else:
                self.drops.append(one.reason)

    def connect(self, a: int, b: int, *, at: int | None = None, replace: bool = False, force: bool = False) -> Answer:
        return self.order(Order(a=a, b=b, at_ns=at, replace=replace, force=force, tag="t"))

    def disconnect(self, a: int, b: int, *, at: int | None = None) -> Answer:
        return self.order(Order(a=a, b=b, at_ns=at, verb=Verb.DISCONNECT))

    def order(self, order: Order) -> Answer:
        answer, out = self.plane.ask(order, self.now)
        self.take(out)
        return answer

    def reply(self, after: int = MS) -> None:
        """The switch confirms everything that it was sent."""
        self.now += after
        tokens, self.unanswered = self.unanswered, []
        for token in tokens:
            self.take(self.plane.confirmed(token, self.now))

    def advance(self, to: int) -> None:
        """Let time pass as the app does: wake the plane when it wants to be."""
        while (due := self.plane.next_wake_ns) is not None and due <= to:
            self.now = max(self.now, due)
            self.take(self.plane.advance(self.now))
        self.now = to

    def kinds(self) -> list[str]:
        return [event.kind.value for event in self.events]

    def last(self, kind: EventKind) -> Event:
        return next(event for event in reversed(self.events) if event.kind is kind)

    def is_dark(self, port: int, at: int) -> bool:
        window = self.windows.get(port)
        return window is not None and window[0] <= at and (window[1] is None or at < window[1])


def standing(*circuits: tuple[int, int], keeper: Keeper = Keeper.LIGHT) -> Rig:
    rig = Rig(keeper)
    for a, b in circuits:
        rig.connect(a, b)
        while (due := rig.plane.next_wake_ns) is not None:
            if rig.unanswered:
                rig.reply()
            else:
                rig.advance(due)
    assert rig.plane.crossbar.circuits == {Circuit.of(*pair) for pair in circuits}
    rig.events.clear()
    return rig
