"""Everything of a run that has ended, as rows."""

from __future__ import annotations

from collections.abc import Callable

from kvfabric.flow_log import FlowLog
from kvfabric.rows import RequestRow, TransferRow
from topo.scale import Scale
from workloads.events import TurnFinished
from workloads.replay.driver import LiveTransfer
from workloads.replay.flows import ideal_fct


class RunLog:
    """Everything that has ended, as rows: sent to the observer as they come, kept for the summary."""

    def __init__(self, scale: Scale, flow_log: FlowLog, send: Callable[..., None], tp: int) -> None:
        self.requests: list[RequestRow] = []
        self.transfers: list[TransferRow] = []
        self._scale = scale
        self._flow_log = flow_log
        self._send = send
        self._tp = tp

    def turn(self, end: TurnFinished) -> None:
        row = RequestRow.finished(end)
        self.requests.append(row)
        self._send(row)

    def transfer(self, live: LiveTransfer) -> None:
        self.transfers.append(row := self._transfer_row(live))
        self._send(row)

    def _transfer_row(self, live: LiveTransfer) -> TransferRow:
        start, schedule = live.start, live.schedule
        ideal = self._scale.to_real_time(
            ideal_fct(live.specs[0].released_at, live.specs[0].released_bytes, self._flow_log.rate_Bps)
        )
        done = live.ended_s is not None and live.failed is None
        fct = live.ended_s - schedule.at_s[0] if live.ended_s is not None and done else None
        status = "completed" if done else "failed" if live.failed is not None else "unfinished"
        return TransferRow(
            start.transfer, start.turn, start.prefill, start.decode, start.mode, start.head_bytes, start.tail_bytes, self._tp,
            schedule.at_s[0], live.ended_s if done else None, fct, ideal, None if fct is None else fct / ideal, status,
        )  # fmt: skip
