"""The account of every flow: predicted path when its connection opens, realised path when the run is over, one row each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from kvfabric.flow_paths import Paths
from kvfabric.rows import FlowRow
from topo.scale import Scale
from workloads.replay.flows import FlowResult, FlowSpec, ideal_fct

_CLOCK_S = 200e-6
"""How early a send can seem, or a delivery late: the loop reads the clock before it sends and after it receives."""
_BUSY_SHARE = 0.97


class FlowLog:
    """``rate_Bps`` is the emulated goodput of a link; ideal times are those of a flow alone at that rate."""

    def __init__(self, paths: Paths, scale: Scale, rate_Bps: float, tp: int) -> None:
        self.rate_Bps = rate_Bps
        self.rows: list[FlowRow] = []
        self._paths = paths
        self._scale = scale
        self._tp = tp
        self._predicted: dict[tuple[str, str, int, int], str | None] = {}

    def predict(self, source: str, destination: str, sport: int, dport: int) -> None:
        """Ask the network for the path of a connection that is about to open."""
        self._predicted[source, destination, sport, dport] = self._paths.predict(source, destination, sport, dport)

    def add(self, result: FlowResult, epoch: float) -> None:
        """A flow has ended, well or not."""
        spec = result.spec
        ideal = ideal_fct(spec.released_at, spec.released_bytes, self.rate_Bps, result.gates)
        done = result.failed is None
        flow = (spec.source, spec.destination, result.sport, result.dport)
        at_once = len(spec.released_at) == 1
        self.rows.append(
            FlowRow(
                flow=spec.id,
                transfer=spec.id // self._tp,
                position=spec.id % self._tp,
                source=spec.source,
                destination=spec.destination,
                source_address=self._paths.address(spec.source),
                destination_address=self._paths.address(spec.destination),
                sport=result.sport,
                dport=result.dport,
                cold=result.cold,
                bytes_emu=spec.bytes,
                planned_send_emu_s=result.planned_send - epoch,
                actual_send_emu_s=result.actual_send - epoch,
                lateness_emu_s=result.lateness,
                delivered_emu_s=result.delivered - epoch if done else None,
                fct_emu_s=result.fct if done else None,
                fct_s=self._scale.to_real_time(result.fct) if done else None,
                ideal_fct_emu_s=ideal,
                slowdown=result.fct / ideal if done else None,
                path_predicted=self._predicted.get(flow),
                path_realised=None,
                retransmissions=result.retransmissions,
                rto_count=result.rto_count,
                snd_wnd_bytes=result.snd_wnd,
                content_checked=spec.check,
                content_ok=result.content_ok,
                # With all bytes released at once, TCP has work until the end: if it had none, the sender held it up.
                sender_limited=result.busy_s < _BUSY_SHARE * result.fct if done and at_once else None,
                status="completed" if done else "failed",
            )
        )

    def close(self, unfinished: Iterable[FlowSpec], epoch: float) -> None:
        """Rows for flows that have not ended; then read what the network has counted, and give every flow its realised path."""
        done = {row.flow for row in self.rows}
        for spec in unfinished:
            if spec.id not in done:
                self.rows.append(self._unfinished(spec, epoch))
        for place, path in enumerate(self._paths.realised(self.rows)):
            self.rows[place] = replace(self.rows[place], path_realised=path)

    def _unfinished(self, spec: FlowSpec, epoch: float) -> FlowRow:
        return FlowRow(
            spec.id, spec.id // self._tp, spec.id % self._tp, spec.source, spec.destination,
            self._paths.address(spec.source), self._paths.address(spec.destination), None, None, None, spec.bytes,
            spec.released_at[0] - epoch, None, None, None, None, None,
            ideal_fct(spec.released_at, spec.released_bytes, self.rate_Bps),
            None, None, None, None, None, None, spec.check, None, None, "unfinished",
        )  # fmt: skip

    def credit(self, row: FlowRow) -> float:
        """How far below 1 a flow's slowdown may lie: the shaper's burst (of shapers in a row that of one), its own lateness,
        the clock."""
        shape = self._paths.shape
        late = max(0.0, row.lateness_emu_s or 0.0)
        return (shape.burst / shape.wire_Bps + late + _CLOCK_S) / row.ideal_fct_emu_s
