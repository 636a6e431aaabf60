"""One emulated run, inside its sandbox: build, check, replay, observe, judge, write.

The order matters and is here; what each step does is in its own module.
"""

from __future__ import annotations

import gc
import os
import random
from collections import Counter
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import monotonic

from kvfabric.awake import cpus_awake
from kvfabric.circuit_run import CircuitRun
from kvfabric.evidence import Evidence, FlowEvidence
from kvfabric.fabric_ports import FabricReader, port_plans
from kvfabric.flow_log import FlowLog
from kvfabric.observer import Observation, Observer, ObserverSettings, ProgressPlan
from kvfabric.packet_run import PacketRun
from kvfabric.preflight import Preflight
from kvfabric.records import RecordWriter, write_json, write_manifest
from kvfabric.rows import FlowRow
from kvfabric.run_books import accounts_of, open_manifest, run_facts, unfinished_rows
from kvfabric.run_log import RunLog
from kvfabric.sandbox import StopSignals
from kvfabric.scenario import Scenario
from kvfabric.summary import summarise
from kvfabric.testbed import choose_steering, host_sysctls, socket_settings
from kvfabric.verdict import Verdict, judge
from kvfabric.workload import Workload
from topo.emulated import EmulatedFabric
from topo.scale import Scale
from topo.shaping import Queue
from workloads.replay.driver import TurnReplay
from workloads.replay.engine import ReplayEngine
from workloads.replay.pattern import Pattern
from workloads.serving import ServingModel

_LEAD_S = 0.3
"""Emulated seconds between the last preparation and the start of the window."""
LOOKAHEAD_S = 2e-3
"""Emulated seconds by which the model plans ahead of the clock, so that planning takes no time from the first byte."""
_REHEARSED = 8
_REHEARSAL_TIME = 0.02
_REHEARSAL_S = 3.0
PUBLISH = Path("/run/netns")
REPLAY_NICE = -10
"""The replay goes before other people's processes, not before the kernel's packets."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a run: its summary document and its verdict."""

    summary: dict[str, object]
    verdict: Verdict


RunNetwork = PacketRun | CircuitRun


def kind_of_run(scenario: Scenario) -> type[RunNetwork]:
    """Over packets or over circuits."""
    return PacketRun if scenario.fabric.circuits is None else CircuitRun


def emulate(scenario: Scenario, workload: Workload, out: Path, *, csv: bool, progress: bool,
            host_cpu: int | None = None) -> Outcome:  # fmt: skip
    """Run it. Raises KvfabricError for what stops a run before or without a verdict; OSError when the kernel refuses."""
    began = monotonic()
    scale = Scale(scenario.fabric.rate, scenario.scale.rate, scenario.scale.time)
    writer = RecordWriter(out, csv=csv, tables=kind_of_run(scenario).tables)
    with open_manifest(out, scenario, workload, "emulation") as manifest:
        return _emulate(scenario, workload, out, writer, manifest, scale, began, progress, host_cpu)


def _emulate(scenario: Scenario, workload: Workload, out: Path, writer: RecordWriter, manifest: dict[str, object], scale: Scale,
             began: float, progress: bool, host_cpu: int | None) -> Outcome:  # fmt: skip
    with ExitStack() as undo, StopSignals() as signals:
        split = choose_steering(host_cpu)
        manifest["cpus_awake"] = undo.enter_context(cpus_awake())
        network: RunNetwork = kind_of_run(scenario)(scenario, workload, PUBLISH, split)
        undo.callback(network.close)
        fabric = network.fabric
        manifest["network"] = _network_facts(fabric) | network.facts() | {"receive_window": scenario.receive_window}
        manifest["bring_up_s"] = monotonic() - began
        faults_start = (*fabric.shaping_faults(), *network.faults())
        plan = ProgressPlan(
            offered=len(workload.offered.turns),
            arrivals_end_emu_s=scale.to_emu_time(scenario.window),
            time_scale=scenario.scale.time,
        )
        settings = ObserverSettings(progress=plan if progress else None)
        observer = Observer.start(writer, port_plans(fabric), lambda: FabricReader(fabric), settings)
        undo.callback(observer.kill)
        # After the fork, so that the observer keeps off the replay's CPU and does not share its priority.
        if split is not None:
            os.sched_setaffinity(0, {split.host_cpu})
        os.setpriority(os.PRIO_PROCESS, 0, REPLAY_NICE)
        run = _Run(scenario, workload, scale, network, observer, signals, undo)
        run.execute()
        observer.end()
        faults_end = (*fabric.shaping_faults(), *network.faults())
        run.close_books()
        observation = observer.stop()
        verdict = judge(run.evidence(observation, faults_start, faults_end))
        facts = run_facts(scenario, workload, "emulation", ended_s=run.ended_s, wall_s=monotonic() - began)
        summary = summarise(facts, verdict, run.log.requests, run.flow_log.rows, run.network.evidence())
        manifest |= {"wall_s": facts.wall_s, "calibrated_share": run.preflight.calibrated, "concurrent_flows_peak": run.peak}
        manifest["rows"] = dict(observation.rows)
        write_json(out / "summary.json", summary)
        write_manifest(out, manifest, "interrupted" if signals.requested else "finished")
        return Outcome(summary, verdict)


def _network_facts(fabric: EmulatedFabric) -> dict[str, object]:
    """Every setting that was put into the kernel, as read back from it."""
    shapes = dict.fromkeys(fabric.shapes.values())
    offloads = Counter(str(sorted(state.items())) for state in fabric.offloads().values())
    return {
        "nodes": len(fabric.fabric.nodes),
        "links": len(fabric.fabric.links),
        "hash_seeds": fabric.seeds,
        "sysctls": {node.name: dict(fabric.node(node.name).sysctls) for node in fabric.fabric.nodes},
        "shapes": [
            {"goodput_Bps": shape.rate_Bps, "wire_Bps": shape.wire_Bps, "frame": shape.frame, "queue": shape.queue.value,
             "classes": shape.classes, "limit_packets": shape.limit, "mtu": shape.mtu,
             "bucket": shape.buffer, "burst": shape.burst, "free_acks": shape.free_acks and shape.queue is Queue.FAIR}
            for shape in shapes
        ],
        "offloads": [{"state": state, "ports": count} for state, count in offloads.items()],
    }  # fmt: skip


class _Run:
    """The replay of one run and what it leaves to be judged."""

    def __init__(self, scenario: Scenario, workload: Workload, scale: Scale, network: RunNetwork, observer: Observer,
                 signals: StopSignals, undo: ExitStack) -> None:  # fmt: skip
        self.scenario = scenario
        self.workload = workload
        self.scale = scale
        self.observer = observer
        self.signals = signals
        self.network = network
        self.flow_log = FlowLog(network.paths, scale, scenario.scale.rate, scenario.cluster.tp)
        self.log = RunLog(scale, self.flow_log, observer.send, scenario.cluster.tp)
        self.preflight = Preflight((), (), None)
        self.peak = 0
        self.ended_s = 0.0
        self.epoch = 0.0
        self._fabric = network.fabric
        self._endpoints = network.endpoints()
        self._pattern = Pattern(scenario.seed)
        undo.callback(self._pattern.close)
        self._engine = ReplayEngine(self._endpoints, socket_settings(scenario), self._pattern, on_open=self.flow_log.predict)
        undo.callback(self._engine.close)
        self._model: ServingModel | None = None
        self._replay: TurnReplay | None = None

    def execute(self) -> None:
        """Preflight, then the window, until every turn is done or the drain is over or somebody stops it."""
        engine = self._engine
        engine.watch(self.signals.fileno(), engine.stop)
        engine.watch(self.observer.fileno(), self.observer.check)
        self.preflight = self.network.preflight(engine)
        if self.signals.requested:  # what was cut short has proved nothing
            self.preflight = Preflight((), (), None)
        self.epoch = monotonic()
        if self.preflight.delivery or self.preflight.calibration or self.signals.requested:
            self.observer.begin(self.epoch)
            return
        self.network.prepare(engine, lambda: self.signals.requested)
        self._rehearse()
        self.network.rehearsed()
        gc.collect()
        gc.freeze()
        gc.disable()
        try:
            self.epoch = monotonic() + _LEAD_S
            self.observer.begin(self.epoch)
            draw = random.Random(f"content {self.scenario.seed}")
            share = self.scenario.emulation.content_check
            wanted: dict[int, bool] = {}
            self._model, waits = self.network.open(engine, self.scale, self.epoch, self.scale.to_real_time(LOOKAHEAD_S))
            self._replay = TurnReplay(
                engine, self._model, self.scale,
                tp=self.scenario.cluster.tp,
                epoch=self.epoch,
                lookahead_emu_s=LOOKAHEAD_S,
                checked=lambda flow: wanted.setdefault(flow, draw.random() < share),
                on_turn=self.log.turn,
                on_transfer=self.log.transfer,
                on_flow=lambda result: self.flow_log.add(result, self.epoch),
                network=waits,
            )  # fmt: skip
            self._replay.run(self.workload.offered.turns, give_up_s=self.scenario.window + self.scenario.drain)
        finally:
            gc.enable()
            gc.unfreeze()
        self.peak = engine.concurrent_peak

    def _rehearse(self) -> None:
        """Replay a few small turns, sped up, and forget them: the first pass through any code is the slowest, by
        milliseconds, and the first turns of the window would pay for it with late sends."""
        smallest = sorted(self.workload.offered.turns, key=lambda turn: turn.new)[:_REHEARSED]
        turns = tuple(replace(turn, id=place, arrival_s=0.0) for place, turn in enumerate(smallest))
        scale = Scale(self.scale.rate_real_Bps, self.scale.rate_emu_Bps, _REHEARSAL_TIME)
        epoch = monotonic() + _LEAD_S / 10
        scratch = FlowLog(self.network.paths, scale, self.scenario.scale.rate, self.scenario.cluster.tp)
        log = RunLog(scale, scratch, lambda *_rows: None, self.scenario.cluster.tp)
        model, waits = self.network.open(self._engine, scale, epoch, scale.to_real_time(LOOKAHEAD_S), rehearsal=True)
        TurnReplay(
            self._engine, model, scale,
            tp=self.scenario.cluster.tp,
            epoch=epoch,
            lookahead_emu_s=LOOKAHEAD_S,
            checked=lambda flow: flow % 2 == 0,
            on_turn=log.turn,
            on_transfer=log.transfer,
            on_flow=lambda result: scratch.add(result, epoch),
            network=waits,
        ).run(turns, give_up_s=_REHEARSAL_S / _REHEARSAL_TIME)  # fmt: skip
        self._engine.abandon()  # what was not done in time must not end in the window
        self._engine.concurrent_peak = 0

    def close_books(self) -> None:
        """Rows for what has not ended, and the realised path of every flow."""
        self.ended_s = max(0.0, self.scale.to_real_time(monotonic() - self.epoch))
        live = dict(self._replay.transfers) if self._replay else {}
        self.flow_log.close(tuple(spec for transfer in live.values() for spec in transfer.specs), self.epoch)
        seen = {row.turn for row in self.log.requests}
        started = {transfer.start.turn: transfer.start for transfer in live.values()}
        for transfer in live.values():
            self.log.transfer(transfer)
        states = {turn.turn.id: turn.state.value for turn in self._model.unfinished()} if self._model else {}
        for row in unfinished_rows(self.workload, seen, started, lambda turn: states.get(turn, "not arrived")):
            self.log.requests.append(row)
            self.observer.send(row)
        for rows in (self.flow_log.rows, self.network.close_books()):
            for start in range(0, len(rows), 500):
                self.observer.send(*rows[start : start + 500])

    def evidence(self, seen: Observation, faults_start: tuple[str, ...], faults_end: tuple[str, ...]) -> Evidence:
        """Everything the verdict rests on."""
        return Evidence(
            interrupted=self.signals.requested,
            observer_faults=seen.faults,
            preflight_failures=self.preflight.delivery,
            calibration_failures=self.preflight.calibration,
            missing_capabilities=(),
            shaping_faults_start=faults_start,
            shaping_faults_end=faults_end,
            sysctl_faults=self._sysctl_faults(),
            **asdict(accounts_of(self.workload, self.log.requests)),
            flows=tuple(FlowEvidence.of(row, self.flow_log.credit(row)) for row in self.flow_log.rows),
            queue=self.scenario.emulation.queue,
            ports=seen.ports,
            cpu=seen.cpu,
            duration_emu_s=seen.duration_emu_s,
            longest_gap_emu_s=seen.longest_gap_emu_s,
            softnet_drops=seen.softnet_drops,
            time_squeeze=seen.time_squeeze,
            empty_classes=self._empty_classes(),
            circuits=self.network.evidence(),
        )

    def _sysctl_faults(self) -> tuple[str, ...]:
        """Sysctls that no longer read as they were set."""
        found = []
        for node in self._fabric.fabric.nodes:
            mininet_node = self._fabric.node(node.name)
            now = mininet_node.namespace.read_sysctls(tuple(mininet_node.sysctls))
            found += [
                f"{node.name}: sysctl {key} reads {now[key]}, was set to {value}"
                for key, value in mininet_node.sysctls.items()
                if now[key] != value
            ]
        wanted = host_sysctls(self.scenario)
        hosts = [host for host in self._endpoints if not wanted.items() <= self._fabric.node(host).sysctls.items()]
        return (*found, *(f"{host}: not every sysctl of a host was set" for host in hosts))

    def _empty_classes(self) -> tuple[str, ...]:
        rows: list[FlowRow] = self.flow_log.rows
        migrated = {row.turn for row in self.log.requests if row.migrated}
        classes = {
            "migrated (head and tail)": any(row.transfer in migrated for row in rows),
            "not migrated (tail only)": any(row.transfer not in migrated for row in rows),
            "warm": any(row.cold is False for row in rows),
            "cold": any(row.cold for row in rows),
        }
        return tuple(name for name, any_flow in classes.items() if not any_flow)
