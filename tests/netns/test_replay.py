"""The replay engine on real sockets in a small leaf-spine: releases kept, content compared, connections reused, failures told."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

import pytest

from kvfabric.testbed import endpoints, socket_settings
from topo.cluster import Cluster
from topo.emulated import EmulatedFabric, LinkSettings
from topo.leafspine import LeafSpine
from topo.tc import flow_class
from workloads.replay.connections import LISTEN_PORT, SocketSettings
from workloads.replay.engine import ReplayEngine, run_flows
from workloads.replay.flows import FlowResult, FlowSpec
from workloads.replay.pattern import Pattern

pytestmark = [pytest.mark.netns, pytest.mark.sealed]

RATE_BPS = 25e6
MTU = 9000
FRAME = 9014
CLASSES = 16
SOON_S = 0.05


@contextmanager
def replaying(pattern: Pattern | None = None, *, reuse: bool = True) -> Iterator[tuple[EmulatedFabric, ReplayEngine]]:
    """Four hosts on two leaves, and an engine with a socket in each."""
    settings = LinkSettings(MTU, classes=CLASSES, limit=200)
    with EmulatedFabric(LeafSpine(Cluster(2, 2, 1, 2), 2, RATE_BPS).build(), settings, observed=False) as fabric:
        sockets = SocketSettings("cubic", 32_768, read_chunk=16_384, classes=CLASSES, reuse=reuse)
        engine = ReplayEngine(endpoints(fabric), sockets, pattern or Pattern(1))
        try:
            yield fabric, engine
        finally:
            engine.close()


def flow(number: int, *steps: tuple[float, int], start: float, slot: int = 0, source: str = "p0g0", to: str = "d0g0",
         head: int = 0, check: bool = False) -> FlowSpec:  # fmt: skip
    """A flow that may send up to so many bytes from so many seconds after ``start`` on."""
    at, released = zip(*steps, strict=True)
    return FlowSpec(number, source, to, slot, tuple(start + step for step in at), tuple(released), head, check)


def replay(engine: ReplayEngine, *specs: FlowSpec, within_s: float = 10.0) -> list[FlowResult]:
    return run_flows(engine, specs, give_up_at=monotonic() + within_s)


def one(engine: ReplayEngine, spec: FlowSpec) -> FlowResult:
    (result,) = replay(engine, spec)
    return result


def in_node(fabric: EmulatedFabric, node: str, *words: str, script: str | None = None) -> None:
    subprocess.run(
        words, input=script, preexec_fn=fabric.node(node).namespace.enter, text=True, capture_output=True, timeout=10, check=True
    )


def reset(fabric: EmulatedFabric, host: str) -> None:
    """Have a host's kernel abort every connection that was accepted there, which its peers see as a reset."""
    in_node(fabric, host, "ss", "-K", "state", "established", "sport", "=", str(LISTEN_PORT))


# Releases


def test_no_byte_leaves_before_it_is_released_and_all_arrive_at_the_rate_after() -> None:
    """By the receiver's account (head and last byte) and by the kernel's: what the sender's port has carried just before."""
    with replaying() as (fabric, engine):
        one(engine, flow(0, (0.0, 1000), start=monotonic() + SOON_S))
        sent: dict[float, int] = {}
        port = fabric.fabric.ports_of["p0g0"][0]
        base = fabric.counters()[port].bytes
        start = monotonic() + SOON_S
        steps = [(0.0, 100_000), (0.3, 200_000), (0.6, 300_000)]
        for at in (0.29, 0.59):
            engine.call_at(start + at, lambda at=at: sent.__setitem__(at, fabric.counters()[port].bytes - base))  # type: ignore[misc]
        heads: list[float] = []
        engine.on_head = lambda _spec, now: heads.append(now - start)
        result = one(engine, flow(1, *steps, start=start, head=200_000))
        for at, limit in ((0.29, 100_000), (0.59, 200_000)):
            assert limit <= sent[at] <= limit * 1.02 + FRAME, sent
        assert heads == [pytest.approx(0.3 + 100_000 / RATE_BPS, abs=0.02)]
        assert result.head_delivered == pytest.approx(start + heads[0])
        assert result.delivered - start == pytest.approx(0.6 + 100_000 / RATE_BPS, abs=0.02)
        assert result.delivered - start >= 0.6 + (100_000 - 4 * FRAME) / RATE_BPS  # a frame of credit at each of four ports
        assert result.received == 300_000


def test_a_cold_flow_is_counted_from_its_syn_and_is_never_faster_than_its_link() -> None:
    with replaying(reuse=False) as (_fabric, engine):
        start = monotonic() + SOON_S
        results = replay(engine, *(flow(number, (0.3 * number, 500_000), start=start) for number in range(4)))
        assert len(results) == 4
        for result in results:
            assert result.cold
            assert result.fct >= (500_000 - 4 * FRAME) / RATE_BPS
            assert result.lateness >= -1e-3


# Content


def test_content_is_compared_on_the_flows_that_ask_for_it() -> None:
    with replaying() as (_fabric, engine):
        start = monotonic() + SOON_S
        results = replay(
            engine, *(flow(number, (0.0, 300_001), start=start, slot=number, check=number < 2) for number in range(3))
        )
        assert {result.spec.id: result.content_ok for result in results} == {0: True, 1: True, 2: None}


def test_one_wrong_byte_is_found() -> None:
    pattern = Pattern(1)
    with replaying(pattern) as (_fabric, engine):
        place = pattern.offset(5, 123_456)
        right = os.pread(pattern.fd, 1, place)
        os.pwrite(pattern.fd, bytes([right[0] ^ 1]), place)
        result = one(engine, flow(5, (0.0, 200_000), start=monotonic() + SOON_S, check=True))
        assert (result.received, result.failed, result.content_ok) == (200_000, None, False)


def test_the_bytes_of_another_flow_are_not_taken_for_its_own() -> None:
    pattern, other = Pattern(1), Pattern(2)
    pattern.fd, other.fd = other.fd, pattern.fd
    with replaying(pattern) as (_fabric, engine):
        result = one(engine, flow(0, (0.0, 50_000), start=monotonic() + SOON_S, check=True))
        assert result.content_ok is False


# Connections


def test_a_reused_connection_is_warm_and_has_the_same_ports() -> None:
    with replaying() as (_fabric, engine):
        first, second = (one(engine, flow(number, (0.0, 100_000), start=monotonic() + SOON_S, slot=3)) for number in range(2))
        assert (first.cold, second.cold) == (True, False)
        assert (first.sport, first.dport) == (second.sport, second.dport)
        other = one(engine, flow(2, (0.0, 100_000), start=monotonic() + SOON_S, slot=4))
        assert other.cold
        assert other.sport != first.sport


def test_two_flows_of_a_slot_at_once_do_not_share_a_connection() -> None:
    with replaying() as (_fabric, engine):
        start = monotonic() + SOON_S
        one_, two = replay(engine, *(flow(number, (0.0, 500_000), start=start, slot=3) for number in range(2)))
        assert one_.sport != two.sport
        assert {flow_class(result.sport, result.dport, CLASSES) for result in (one_, two)} == {3}


def test_fresh_connections_are_cold_and_on_new_ports_of_the_slots_class() -> None:
    with replaying(reuse=False) as (_fabric, engine):
        results = [one(engine, flow(number, (0.0, 20_000), start=monotonic() + SOON_S, slot=5)) for number in range(4)]
        assert all(result.cold for result in results)
        assert len({result.sport for result in results}) == 4
        assert {(result.sport + result.dport) % CLASSES for result in results} == {5}


def test_a_prepared_connection_is_warm_for_its_first_flow() -> None:
    with replaying() as (_fabric, engine):
        engine.dialer.prepare("p0g0", "d0g0", 6)
        until = monotonic() + 5
        while engine.dialer.preparing and monotonic() < until:
            engine.run(monotonic() + 0.02)
        engine.run(monotonic() + 0.02)
        result = one(engine, flow(0, (0.0, 20_000), start=monotonic() + SOON_S, slot=6))
        assert not result.cold
        assert (result.sport + result.dport) % CLASSES == 6


def test_a_thousand_flows_at_once_in_one_process_all_complete() -> None:
    """Half of the bytes are held back until all are open, so that all thousand are in progress together."""
    with replaying(reuse=False) as (_fabric, engine):
        start = monotonic() + SOON_S
        hosts = [("p0g0", "d0g0"), ("p0g0", "d1g0"), ("p1g0", "d0g0"), ("p1g0", "d1g0")]
        specs = []
        for number in range(1000):
            source, to = hosts[number % 4]
            steps = ((number * 1e-3, 6_000), (2.5, 12_000))
            specs.append(flow(number, *steps, start=start, slot=number, source=source, to=to, check=number % 50 == 0))
        results = replay(engine, *specs, within_s=20)
        assert engine.concurrent_peak == 1000
        assert sorted(result.spec.id for result in results) == list(range(1000))
        assert all(result.failed is None and result.received == 12_000 for result in results)
        assert sum(result.content_ok is True for result in results) == 20
        assert len({(result.spec.source, result.sport) for result in results}) == 1000


# Failures


def test_a_refused_connection_is_a_failed_flow() -> None:
    with replaying() as (_fabric, engine):
        assert one(engine, flow(0, (0.0, 1000), start=monotonic() + SOON_S)).failed is None
        engine.dialer.pool.listeners["d0g0"].close()
        result = one(engine, flow(1, (0.0, 1000), start=monotonic() + SOON_S, slot=1))
        assert (result.failed, result.received) == ("Connection refused", 0)


@pytest.mark.parametrize("at", [0.1, 0.302], ids=["between releases", "while bytes are on the way"])
def test_a_reset_is_a_failed_flow_and_others_go_on(at: float) -> None:
    with replaying() as (fabric, engine):
        start = monotonic() + SOON_S
        engine.call_at(start + at, lambda: reset(fabric, "d0g0"))
        steps = ((0.0, 100_000), (0.3, 400_000))
        found = replay(engine, flow(0, *steps, start=start), flow(1, *steps, start=start, source="p1g0", to="d1g0"))
        results = {result.spec.id: result for result in found}
        assert results[0].failed in ("Connection reset by peer", "Software caused connection abort")
        assert 100_000 <= results[0].received < 400_000
        assert (results[1].failed, results[1].received) == (None, 400_000)


def test_a_sender_without_a_link_is_a_failed_flow_and_others_go_on() -> None:
    with replaying() as (fabric, engine):
        in_node(fabric, "p0g0", "ip", "link", "set", fabric.fabric.ports_of["p0g0"][0].name, "down")
        start = monotonic() + SOON_S
        lost, fine = flow(0, (0.0, 1000), start=start), flow(1, (0.0, 1000), start=start, source="p1g0")
        results = {result.spec.id: result for result in replay(engine, lost, fine)}
        assert "p0g0 cannot connect to d0g0" in (results[0].failed or "")
        assert results[1].failed is None


def test_a_receiver_without_a_link_leaves_its_flow_unfinished_and_no_other() -> None:
    """TCP waits for minutes: the run's drain ends such a flow, and it is told as unfinished."""
    with replaying() as (fabric, engine):
        start = monotonic() + SOON_S
        port = fabric.fabric.ports_of["d0g0"][0].name
        engine.call_at(start + 0.1, lambda: in_node(fabric, "d0g0", "ip", "link", "set", port, "down"))
        steps = ((0.0, 100_000), (0.3, 200_000))
        results = replay(engine, flow(0, *steps, start=start), flow(1, *steps, start=start, to="d1g0"), within_s=1.5)
        assert [result.spec.id for result in results] == [1]
        assert engine.live == ()  # abandoned: it must not end in what the engine does next


def test_a_connection_that_died_while_idle_is_not_given_to_a_flow() -> None:
    with replaying() as (fabric, engine):
        first = one(engine, flow(0, (0.0, 1000), start=monotonic() + SOON_S, slot=2))
        reset(fabric, "d0g0")
        engine.run(monotonic() + 0.1)
        second = one(engine, flow(1, (0.0, 1000), start=monotonic() + SOON_S, slot=2))
        assert (second.cold, second.failed) == (True, None)
        assert second.sport != first.sport


def test_the_settings_of_a_scenario_reach_the_sockets() -> None:
    from kvfabric.scenario import load_scenario

    chosen = socket_settings(load_scenario("smoke", ["emulation.receive_window=64KB", "emulation.classes=32"]))
    assert (chosen.receive_window, chosen.classes, chosen.congestion_control) == (64_000, 32, "cubic")
    with replaying() as (_fabric, engine):
        result = one(engine, flow(0, (0.0, 2_000_000), start=monotonic() + SOON_S))
        assert result.snd_wnd is None or 0 < result.snd_wnd <= 2 * 32_768  # the kernel doubles what it is asked for
