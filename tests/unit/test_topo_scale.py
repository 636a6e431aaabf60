"""Scaling a cluster down, and the sheet of what does not scale."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topo.scale import Circuits, Scale, ScaleCheck, ScaleInputs, checks, kept

pytestmark = pytest.mark.unit

# The anchor of design.md: Llama-3.1-70B in BF16, TP 4, on H100; a context of 66.7K of which 1.1K tokens are new.
PER_TOKEN = 80 * 1024
HEAD, TAIL = 65_600 * PER_TOKEN, 1_100 * PER_TOKEN
ANCHOR = Scale(rate_real_Bps=45e9, rate_emu_Bps=25e6, time=5.0)
INPUTS = ScaleInputs(
    head_bytes=HEAD,
    tail_bytes=TAIL,
    prefill_s=0.191,
    layer_s=0.191 / 80,
    mtu=9000,
    window_bytes=64 * 1024,
    queue_s=64 * 1024 / 25e6,
    rtt_s=0.2e-3,
    offered_Bps=60e6,
    packets_per_s=12_000,
    carried_Bps=150e6,
)

positive = st.floats(min_value=1e-3, max_value=1e12)
scales = st.builds(Scale, rate_real_Bps=positive, rate_emu_Bps=positive, time=st.floats(1e-3, 1e3))


def row(found: tuple[ScaleCheck, ...], name: str) -> ScaleCheck:
    (only,) = [check for check in found if check.name.startswith(name)]
    return only


def test_the_anchor_is_121_ms_of_transfer_191_of_prefill_and_2_4_a_layer() -> None:
    assert pytest.approx(5.46e9, rel=2e-3) == INPUTS.transfer_bytes
    assert INPUTS.transfer_bytes / ANCHOR.rate_real_Bps == pytest.approx(0.121, abs=0.5e-3)
    assert INPUTS.layer_s == pytest.approx(2.4e-3, abs=0.02e-3)
    emulated_s = ANCHOR.to_emu_bytes(INPUTS.transfer_bytes) / ANCHOR.rate_emu_Bps
    assert emulated_s == pytest.approx(5 * 0.1214, rel=1e-3)
    assert ANCHOR.to_real_time(emulated_s) == pytest.approx(0.1214, rel=1e-3)


def test_the_anchor_keeps_its_ratios() -> None:
    found = {ratio.name: ratio for ratio in kept(ANCHOR, replace(INPUTS, circuits=Circuits(0.025, 1e-3, 0.2)))}
    assert found["transfer / prefill"].real == pytest.approx(121.4 / 191, rel=1e-3)
    assert found["transfer / reconfiguration"].real == pytest.approx(121.4 / 25, rel=1e-3)
    assert set(found) == {"transfer / prefill", "layer transfer / layer time", "transfer / reconfiguration"}
    for ratio in found.values():
        assert ratio.emulated == pytest.approx(ratio.real, rel=1e-4)


@given(scales, st.floats(1e-6, 1e6))
def test_times_and_rates_come_back(scale: Scale, value: float) -> None:
    assert scale.to_real_time(scale.to_emu_time(value)) == pytest.approx(value)
    assert scale.to_real_rate(scale.to_emu_rate(value)) == pytest.approx(value)
    assert scale.to_emu_rate(scale.rate_real_Bps) == pytest.approx(scale.rate_emu_Bps)
    assert scale.alpha == pytest.approx(scale.rate_real_Bps / scale.rate_emu_Bps)


@given(scales, st.floats(0, 1e15))
def test_bytes_are_whole_rounded_once_and_none_only_where_there_were_none(scale: Scale, size: float) -> None:
    emulated = scale.to_emu_bytes(size)
    exact = size * scale.time / scale.alpha
    assert isinstance(emulated, int)
    assert (emulated == 0) == (size == 0)
    if emulated > 1:
        assert emulated == pytest.approx(exact, abs=0.5, rel=1e-12)
        assert scale.to_real_bytes(emulated) == pytest.approx(size, rel=1 / emulated + 1e-12)


@given(scales, st.integers(1, 10**12))
def test_a_transfer_takes_gamma_times_as_long(scale: Scale, size: int) -> None:
    emulated = scale.to_emu_bytes(size)
    if emulated > 10_000:
        assert emulated / scale.rate_emu_Bps == pytest.approx(scale.to_emu_time(size / scale.rate_real_Bps), rel=1e-4)


@pytest.mark.parametrize("name", ["rate_real_Bps", "rate_emu_Bps", "time"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), float("nan")])
def test_a_scale_of_nothing_is_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        replace(ANCHOR, **{name: value})


def test_the_anchor_passes_every_check_on_a_machine_that_carries_it() -> None:
    found = checks(ANCHOR, INPUTS)
    assert [check.name for check in found if not check.ok] == []
    transfer = ANCHOR.to_emu_bytes(INPUTS.transfer_bytes)
    assert transfer == pytest.approx(15.18e6, rel=1e-3)
    assert row(found, "window").emulated == pytest.approx(65536 / 15.18e6, rel=1e-3)
    assert row(found, "loaded RTT").emulated == pytest.approx((2.62e-3 + 0.2e-3) / 0.607, rel=1e-2)
    assert row(found, "bandwidth-delay").emulated == pytest.approx(25e6 * 0.2e-3 / 8948)
    assert row(found, "packets/s").real == pytest.approx(45e9 / 8948)
    assert row(found, "offered").real == pytest.approx(60e6 * 1800)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"window_bytes": 200_000}, "window"),
        ({"queue_s": 4e-3}, "loaded RTT"),
        ({"rtt_s": 3.2e-3, "queue_s": 0.0}, "loaded RTT"),
        ({"mtu": 1500}, "packets/s"),
        ({"offered_Bps": 200e6}, "offered"),
    ],
)
def test_each_bound_is_found_broken_alone(change: dict[str, float], name: str) -> None:
    broken = [check for check in checks(ANCHOR, replace(INPUTS, **change)) if not check.ok]  # type: ignore[arg-type]
    assert [check.name.startswith(name) for check in broken] == [True]
    assert broken[0].emulated > broken[0].bound
    assert broken[0].note


def test_a_pipe_of_more_than_ten_segments_is_found() -> None:
    long = checks(ANCHOR, replace(INPUTS, rtt_s=3.7e-3))
    assert not row(long, "bandwidth-delay").ok
    assert row(long, "bandwidth-delay").bound == 10


def test_circuits_are_checked_only_where_there_are_some() -> None:
    without = {check.name for check in checks(ANCHOR, INPUTS)}
    good = checks(ANCHOR, replace(INPUTS, circuits=Circuits(tau_s=0.025, control_s=2e-3, rto_s=0.05)))
    assert {check.name for check in good} - without == {"least RTO, s", "control latency, s"}
    assert all(check.ok for check in good)
    assert row(good, "control").bound == pytest.approx(0.05 * 0.125)
    bad = checks(ANCHOR, replace(INPUTS, circuits=Circuits(tau_s=0.025, control_s=7e-3, rto_s=0.2)))
    assert [check.name for check in bad if not check.ok] == ["least RTO, s", "control latency, s"]


@pytest.mark.parametrize(
    "change",
    [{"head_bytes": 0}, {"layer_s": 0.0}, {"tail_bytes": -1}, {"mtu": 52}, {"carried_Bps": 0.0}, {"rtt_s": float("nan")}],
)
def test_inputs_that_make_no_sheet_are_refused_by_name(change: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="scale inputs: .*(mtu|MTU|" + next(iter(change)) + ")"):
        replace(INPUTS, **change)  # type: ignore[arg-type]


def test_a_turn_without_new_tokens_still_has_a_sheet() -> None:
    assert all(check.ok for check in checks(ANCHOR, replace(INPUTS, tail_bytes=0)))
    assert kept(ANCHOR, replace(INPUTS, tail_bytes=0))[1].emulated == 0
