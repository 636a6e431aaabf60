"""What an egress port did, from its counters read now and then: pure bookkeeping."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvfabric.evidence import PortEvidence
from kvfabric.rows import LinkRow
from topo.tc import PortCounters


@dataclass(frozen=True, slots=True)
class PortPlan:
    """A port as planned: emulated goodput and wire rate in bytes per second, bytes that its shaper lets leave at once."""

    port: str
    peer: str
    rate_Bps: float
    wire_Bps: float
    burst: int


@dataclass(frozen=True, slots=True)
class Reading:
    """Counters of the ports of one node, by name, read between ``at_s − slack_s`` and ``at_s + slack_s``."""

    node: str
    at_s: float
    slack_s: float
    counters: Mapping[str, PortCounters]


class PortTally:
    """One port over a run: ``look`` within an interval, ``tick`` at its end."""

    def __init__(self, plan: PortPlan, at_s: float, slack_s: float, counters: PortCounters) -> None:
        self.plan = plan
        self._at_s, self._slack_s, self._last = at_s, slack_s, counters
        self._looks = self._waiting = 0
        self._sent = self._drops = 0
        self._max_use = self._max_use_at_s = 0.0
        self._saturated_s = 0.0
        self._saturated_sent = 0
        self._all_looks = self._all_waiting = 0

    @property
    def waiting(self) -> bool:
        """Whether packets waited when the interval began; only such intervals are looked into."""
        return self._last.backlog > 0

    def look(self, backlog: int) -> None:
        self._looks += 1
        self._waiting += backlog > 0

    def tick(self, at_s: float, slack_s: float, counters: PortCounters, *, epoch_s: float) -> LinkRow | str:
        """The interval that ends now as a row, or in words why there is none (its counters fell: it was made anew)."""
        interval = at_s - self._at_s
        slack = slack_s + self._slack_s
        was, self._last = self._last, counters
        sent, drops = counters.shaped_bytes - was.shaped_bytes, (counters.drops - was.drops) % (1 << 32)
        looks, waiting = self._looks + 1, self._waiting + (counters.backlog > 0)
        self._looks = self._waiting = 0
        self._at_s, self._slack_s = at_s, slack_s
        if counters.bytes < was.bytes or counters.packets < was.packets or interval <= 0:
            return f"{self.plan.port}: its counters fell at {at_s - epoch_s:.1f} s: its shaper was made anew"
        sent = max(0, sent)  # free packets are counted a moment before their bytes
        self._sent += sent
        self._drops += drops
        # What neither the shaper's burst nor the moment that the reading took explains:
        proved = max(0, sent - self.plan.burst) / (self.plan.wire_Bps * (interval + slack))
        if proved > self._max_use:
            self._max_use, self._max_use_at_s = proved, at_s - epoch_s
        if was.backlog > 0:
            self._saturated_s += interval
            self._saturated_sent += sent
            # The look that chose this interval is not counted: it would make packets seem to wait more than they do.
            self._all_looks += looks
            self._all_waiting += waiting
        return LinkRow(
            at_s - epoch_s, interval, self.plan.port, self.plan.peer, self.plan.rate_Bps, self.plan.wire_Bps, sent,
            sent / (self.plan.wire_Bps * interval), counters.backlog, drops,
        )  # fmt: skip

    def evidence(self) -> PortEvidence:
        use = self._saturated_sent / (self.plan.wire_Bps * self._saturated_s) if self._saturated_s > 0 else None
        return PortEvidence(
            port=self.plan.port,
            wire_Bps=self.plan.wire_Bps,
            sent_bytes=self._sent,
            drops=self._drops,
            max_use=self._max_use,
            max_use_at_s=self._max_use_at_s,
            saturated_s=self._saturated_s,
            saturated_use=use,
            waiting=self._all_waiting,
            looks=self._all_looks,
        )
