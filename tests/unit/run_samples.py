"""Rows and evidence of a good run, for tests to change."""

from __future__ import annotations

from dataclasses import replace

from kvfabric.evidence import CircuitEvidence, CpuSample, Evidence, FlowEvidence, PortEvidence
from kvfabric.rows import FlowRow, LinkRow, RequestRow, TransferRow
from workloads.events import TurnFinished
from workloads.turns import Turn

LINK = LinkRow(1.0, 1.0, "leaf0-eth0", "spine0-eth0", 1e6, 1.1e6, 1000, 0.001, 0, 0)
FLOW_ROW = FlowRow(
    flow=1, transfer=3, position=0, source="h0", destination="h1", source_address="10.0.0.1",
    destination_address="10.0.0.2", sport=8192, dport=7000, cold=True, bytes_emu=1000, planned_send_emu_s=1.0,
    actual_send_emu_s=1.001, lateness_emu_s=0.001, delivered_emu_s=1.5, fct_emu_s=0.499, fct_s=0.0499,
    ideal_fct_emu_s=0.49, slowdown=1.018, path_predicted="h0>leaf0>h1", path_realised="h0>leaf0>h1", retransmissions=0,
    rto_count=None, snd_wnd_bytes=16384, content_checked=False, content_ok=None, sender_limited=False, status="completed",
)  # fmt: skip
TRANSFER = TransferRow(3, 3, 0, 1, "layerwise", 1000, 100, 2, 2.0, 3.5, 1.5, 1.2, 1.25, "completed")
FLOW = FlowEvidence(
    flow=0, status="completed", lateness_emu_s=0.0005, path_predicted="a>b", path_realised="a>b", content_checked=True,
    content_ok=True, slowdown=1.01, slowdown_credit=0.001,
)  # fmt: skip
PORT = PortEvidence(
    port="leaf0-eth2", wire_Bps=1e7, sent_bytes=10**8, drops=0, max_use=1.001, max_use_at_s=4.0, saturated_s=60.0,
    saturated_use=0.995, waiting=600, looks=600,
)  # fmt: skip
CPU = tuple(CpuSample(float(second), 1.0, 0.5, ((0, 0.4), (1, 0.6))) for second in range(1, 61))
GOOD = Evidence(
    interrupted=None, observer_faults=(), preflight_failures=(), calibration_failures=(), missing_capabilities=(),
    shaping_faults_start=(), shaping_faults_end=(), sysctl_faults=(), rows_in=10, rows_accounted=10, offered=10, completed=10,
    failed=0, unfinished=0, request_rows=10, failure_reasons=(), flows=tuple(replace(FLOW, flow=n) for n in range(200)),
    queue="fair", ports=(PORT,), cpu=CPU, duration_emu_s=60.0, longest_gap_emu_s=1.01, softnet_drops=0, time_squeeze=3,
    empty_classes=(), circuits=None,
)  # fmt: skip
CIRCUITS = CircuitEvidence(
    faults=(), lost_packets=0, tau_emu_s=0.125, dark_errors_emu_s=(0.0,) * 60, control_emu_s=(0.001,) * 60, carried=(0.99,) * 40,
    booked=100, reconfigurations=60, reused=40,
)  # fmt: skip
REQUEST = RequestRow.finished(TurnFinished(Turn(0, "t", "s", 0.0, 1, 1, 1, "x"), 0, 0, True, 1, 1, 0.0, 0.5, 0.4, 0.5, None))
