"""The records of a simulated run: the rows of ``kvfabric.rows``, with null in what only packets have.

Columns ``_emu_s`` and ``bytes_emu`` hold what the emulation of the same scenario would have: real seconds × ``scale.time``, bytes
rounded once. So records of both engines lie side by side. Nothing is late in a simulation, no connection cold, nothing lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flowsim.circuits import CircuitRun
from flowsim.simulation import PacketRun
from kvfabric.rows import CircuitRow, FlowRow, RequestRow, TransferRow
from kvfabric.run_books import unfinished_rows
from kvfabric.scenario import Scenario
from kvfabric.simulated_network import SimulatedPackets
from kvfabric.workload import Workload
from topo.cluster import Role
from topo.leafspine import LeafSpine, host_name
from topo.optical import Optical
from topo.routing import layer3
from topo.scale import Scale
from workloads.events import ReleaseSchedule, StartTransfer, TurnFinished
from workloads.replay.flows import Gate, first_send, ideal_fct

_EXACT = 1e-9
"""Relative: what an FCT falls below the ideal by less than this is rounding."""


@dataclass(frozen=True, slots=True)
class _Account:
    """What became of a flow: when its first byte was to leave, and when its last arrived (real seconds; None: it has not)."""

    begins_s: float
    arrived_s: float | None
    ideal_s: float

    @property
    def fct_s(self) -> float | None:
        return None if self.arrived_s is None else self.arrived_s - self.begins_s


class RowMaker:
    """Makes the rows of one run."""

    def __init__(self, scenario: Scenario, workload: Workload) -> None:
        self._scenario = scenario
        self._workload = workload
        self._scale = Scale(scenario.fabric.rate, scenario.scale.rate, scenario.scale.time)
        self._tp = scenario.cluster.tp
        layout = scenario.cluster_layout()
        if scenario.fabric.circuits is None:
            self._address = layer3(LeafSpine(layout, scenario.uplinks, scenario.fabric.rate).build()).address_of
            self._optical = None
        else:
            self._optical = Optical(layout, scenario.fabric.rate, scenario.fabric.circuits.planes or 0)
            self._address = {self._optical.name(gpu): self._optical.address(gpu) for gpu in layout.gpus()}

    def requests(self, finished: Sequence[TurnFinished], starts: Mapping[int, StartTransfer]) -> list[RequestRow]:
        """In the order of their ends, then those that have none."""
        ended = {end.turn.id for end in finished}
        rest = unfinished_rows(self._workload, ended, starts, lambda turn: "under way" if turn in starts else "not started")
        return [*map(RequestRow.finished, finished), *rest]

    def packets(self, run: PacketRun, network: SimulatedPackets) -> tuple[list[TransferRow], list[FlowRow]]:
        """Transfers and their flows, in the order of starts."""
        transfers, flows = [], []
        rate_Bps = self._scenario.fabric.rate if self._scenario.fabric.routing != "ceiling" else float("inf")
        for one in run.transfers.values():
            ideal_s = ideal_fct(one.schedule.at_s, one.schedule.released_bytes, rate_Bps)
            transfers.append(self._transfer(one.start, one.schedule, one.ended_s, ideal_s))
            for position, arrived_s in enumerate(one.arrived_s):
                flow = network.five_tuple(one.start, position)
                account = _Account(one.schedule.at_s[0], arrived_s, ideal_s)
                path = network.path_of[one.start.transfer * self._tp + position]
                flows.append(self._flow(one.start, position, account, path, flow.sport, flow.dport))
        return transfers, flows

    def circuits(self, run: CircuitRun) -> tuple[list[TransferRow], list[FlowRow], list[CircuitRow]]:
        """Transfers, their flows (which are equal), and windows in the order of their ends."""
        assert self._optical is not None
        transfers, flows = [], []
        for transfer, schedule in run.schedules.items():
            start, gates, ended_s = run.starts[transfer], run.gates[transfer], run.ended.get(transfer)
            alone_s = ideal_fct(schedule.at_s, schedule.released_bytes, self._scenario.fabric.rate)
            transfers.append(self._transfer(start, schedule, ended_s, alone_s))
            account = self._gated(schedule, gates, ended_s)
            for position in range(self._tp):
                place = self._optical.at(Role.PREFILL, start.prefill, position)
                flows.append(self._flow(start, position, account, self._optical.switch(place.plane).name, None, None))
        return transfers, flows, [CircuitRow.over(number, record) for number, record in enumerate(run.windows)]

    def _gated(self, schedule: ReleaseSchedule, gates: Sequence[Gate], ended_s: float | None) -> _Account:
        begins_s = first_send(schedule.at_s[0], gates)
        ideal_s = ideal_fct(schedule.at_s, schedule.released_bytes, self._scenario.fabric.rate, gates)
        return _Account(begins_s, ended_s, ideal_s)

    def _transfer(self, start: StartTransfer, schedule: ReleaseSchedule, ended_s: float | None, ideal_s: float) -> TransferRow:
        fct_s = None if ended_s is None else ended_s - schedule.at_s[0]
        status = "unfinished" if ended_s is None else "completed"
        return TransferRow(
            start.transfer, start.turn, start.prefill, start.decode, start.mode, start.head_bytes, start.tail_bytes, self._tp,
            schedule.at_s[0], ended_s, fct_s, ideal_s, _slowdown(fct_s, ideal_s), status,
        )  # fmt: skip

    def _flow(self, start: StartTransfer, position: int, account: _Account, path: str, sport: int | None,
              dport: int | None) -> FlowRow:  # fmt: skip
        source, destination = host_name(Role.PREFILL, start.prefill, position), host_name(Role.DECODE, start.decode, position)
        emu, fct_s = self._scale.to_emu_time, account.fct_s
        return FlowRow(
            flow=start.transfer * self._tp + position,
            transfer=start.transfer,
            position=position,
            source=source,
            destination=destination,
            source_address=self._address[source],
            destination_address=self._address[destination],
            sport=sport,
            dport=dport,
            cold=None,
            bytes_emu=self._scale.to_emu_bytes(start.head_bytes + start.tail_bytes),
            planned_send_emu_s=emu(account.begins_s),
            actual_send_emu_s=emu(account.begins_s),
            lateness_emu_s=0.0,
            delivered_emu_s=None if account.arrived_s is None else emu(account.arrived_s),
            fct_emu_s=None if fct_s is None else emu(fct_s),
            fct_s=fct_s,
            ideal_fct_emu_s=emu(account.ideal_s),
            slowdown=_slowdown(fct_s, account.ideal_s),
            path_predicted=path,
            path_realised=path,
            retransmissions=None,
            rto_count=None,
            snd_wnd_bytes=None,
            content_checked=False,
            content_ok=None,
            sender_limited=None,
            status="unfinished" if fct_s is None else "completed",
        )


def _slowdown(fct_s: float | None, ideal_s: float) -> float | None:
    """Never a rounding below 1."""
    if fct_s is None:
        return None
    if ideal_s <= 0:
        return 1.0
    slowdown = fct_s / ideal_s
    return 1.0 if 1 - _EXACT <= slowdown < 1 else slowdown
