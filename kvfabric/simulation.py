"""One simulated run: the scenario's turns and serving model on a virtual clock, its records written, its books judged.

Needs no privileges and no sandbox. The same scenario and seed give the same records, byte for byte.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from kvfabric.evidence import CircuitEvidence
from kvfabric.records import RecordWriter, write_json, write_manifest
from kvfabric.rows import CircuitRow, FlowRow, RequestRow, TransferRow
from kvfabric.run_books import accounts_of, open_manifest, run_facts
from kvfabric.scenario import Scenario
from kvfabric.simulated_network import Handed, SimulatedCircuits, SimulatedPackets
from kvfabric.simulated_rows import RowMaker
from kvfabric.simulated_verdict import SimulationEvidence, judge_simulation
from kvfabric.summary import summarise
from kvfabric.verdict import Verdict
from kvfabric.workload import Workload

_TABLES = ("requests", "transfers", "flows")
NOT_HANDED = Handed()


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """Everything a simulation leaves, as rows; ``ended_s`` real seconds since the start of the window."""

    requests: list[RequestRow]
    transfers: list[TransferRow]
    flows: list[FlowRow]
    circuits: list[CircuitRow]
    optical: CircuitEvidence | None
    verdict: Verdict
    ended_s: float


@dataclass(frozen=True, slots=True)
class Simulated:
    """What became of it: its summary document and its verdict."""

    summary: dict[str, object]
    verdict: Verdict


def simulate(scenario: Scenario, workload: Workload, handed: Handed = NOT_HANDED) -> SimulatedRun:
    """Run it, for as long as an emulation would wait: the window and the drain."""
    rows, until_s = RowMaker(scenario, workload), scenario.window + scenario.drain
    windows: list[CircuitRow] = []
    optical: CircuitEvidence | None = None
    effort = None
    if scenario.fabric.circuits is None:
        packets = SimulatedPackets(scenario, workload, handed)
        packet_run = packets.run(until_s)
        finished, ended_s, effort = packet_run.finished, packet_run.end_s, packets.effort
        starts = {transfer: one.start for transfer, one in packet_run.transfers.items()}
        transfers, flows = rows.packets(packet_run, packets)
    else:
        circuits = SimulatedCircuits(scenario, workload, handed)
        circuit_run = circuits.run(until_s)
        finished, ended_s, starts = circuit_run.finished, circuit_run.end_s, circuit_run.starts
        transfers, flows, windows = rows.circuits(circuit_run)
        counts = circuits.network.counts
        optical = CircuitEvidence(
            faults=(), lost_packets=0, tau_emu_s=scenario.fabric.circuits.tau * scenario.scale.time, dark_errors_emu_s=(),
            control_emu_s=(), carried=(), booked=counts.booked, reconfigurations=counts.reconfigurations, reused=counts.reused,
        )  # fmt: skip
    requests = rows.requests(finished, starts)
    evidence = SimulationEvidence(
        accounts=accounts_of(workload, requests),
        requests=requests,
        flows=flows,
        circuits=windows,
        tp=scenario.cluster.tp,
        effort=effort,
    )
    return SimulatedRun(requests, transfers, flows, windows, optical, judge_simulation(evidence), ended_s)


def simulate_into(
    scenario: Scenario, workload: Workload, out: Path, *, csv: bool = False, handed: Handed = NOT_HANDED
) -> Simulated:
    """Run it and write its records into ``out``. Raises BadInput for one that will not do, OSError when the disk refuses."""
    began = monotonic()
    tables = _TABLES if scenario.fabric.circuits is None else (*_TABLES, "circuits")
    writer = RecordWriter(out, csv=csv, tables=tables)
    given = {"paths": len(handed.spine_of), "decodes": sum(len(chosen) for chosen in handed.decodes.values())}
    with open_manifest(out, scenario, workload, "simulation", handed=given) as manifest:
        run = simulate(scenario, workload, handed)
        simulated_s = monotonic() - began
        for rows in (run.requests, run.transfers, run.flows, run.circuits):
            writer.add(*rows)
        writer.close()
    facts = run_facts(scenario, workload, "simulation", ended_s=run.ended_s, wall_s=monotonic() - began)
    summary = summarise(facts, run.verdict, run.requests, run.flows, run.optical)
    manifest |= {"wall_s": facts.wall_s, "simulated_in_s": simulated_s, "rows": dict(writer.rows)}
    write_json(out / "summary.json", summary)
    write_manifest(out, manifest, "finished")
    return Simulated(summary, run.verdict)
