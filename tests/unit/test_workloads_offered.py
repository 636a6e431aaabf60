"""What a run is offered: loads, windows, rows accounted for, and one digest for one seed."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workloads.generator import AgenticSessions, ZipfLengths
from workloads.kvsize import load_model
from workloads.offered import Offered, OfferError, TenantLoad, digest_of, offer
from workloads.prefill import PrefillModel
from workloads.readers import Trace, read_trace
from workloads.turns import TraceTurn

pytestmark = pytest.mark.unit

PREFILL = PrefillModel(load_model("Llama-3.1-70B"), tp=4)


def trace_of(turns: list[TraceTurn], *, relative: bool = False) -> Trace:
    return Trace("test", "test", tuple(turns), len(turns), (), relative, ())


def absolute(times_s: list[float], new: int = 1_000) -> Trace:
    return trace_of([TraceTurn(t, f"s{at}", 0, new, 5, f"test:{at}") for at, t in enumerate(times_s)])


def sessions(count: int, length: int) -> Trace:
    return trace_of(
        [TraceTurn(float(at), f"s{s}", 1_000 * at, 900, 5, f"test#{s}.{at}") for s in range(count) for at in range(length)],
        relative=True,
    )


def offered(
    *tenants: TenantLoad, window_s: float = 60.0, instances: int = 2, seed: int = 1, max_turns: int | None = None
) -> Offered:
    rng = np.random.default_rng(seed)
    return offer(tenants, window_s=window_s, prefill_instances=instances, rng=rng, max_turns=max_turns)


AGENTIC = TenantLoad("agent", AgenticSessions(), PREFILL, 0.6)


def test_a_window_without_a_load_keeps_the_trace_s_times() -> None:
    tenant = TenantLoad("chat", absolute([0, 5, 10, 12.5, 30, 90]), PREFILL, None, start_s=5, duration_s=25)
    result = offered(tenant)
    assert [turn.arrival_s for turn in result.turns] == [0, 5, 7.5]
    assert [turn.source for turn in result.turns] == ["test:1", "test:2", "test:3"]
    assert (result.rows_in["chat"].in_window, result.rows_in["chat"].outside) == (3, 3)
    assert result.time_factor["chat"] == 1.0


def test_a_load_warps_absolute_times_by_one_factor() -> None:
    times_s = [0.7 * at for at in range(3_000)]
    result = offered(TenantLoad("chat", absolute(times_s), PREFILL, 0.6))
    assert result.realised_load["chat"] == pytest.approx(0.6, rel=0.01)
    factor = result.time_factor["chat"]
    assert factor is not None
    gaps = np.diff([turn.arrival_s for turn in result.turns])
    assert gaps == pytest.approx(np.full(len(gaps), 0.7 * factor), abs=2e-9)
    assert result.turns[-1].arrival_s + 0.7 * factor == pytest.approx(60.0)


def test_turns_of_one_instant_stay_together_when_warped() -> None:
    result = offered(TenantLoad("chat", absolute([0.0] * 5 + [3.0] * 5 + [6.0] * 5), PREFILL, 0.001), instances=1)
    assert [turn.arrival_s for turn in result.turns] == [0.0] * 5
    assert any("not the 0.001 asked for" in note for note in result.notes)


def test_a_trace_too_small_for_its_load_says_so() -> None:
    for trace in (absolute([0, 1, 2]), sessions(2, 3)):
        result = offered(TenantLoad("chat", trace, PREFILL, 0.9))
        assert result.realised_load["chat"] < 0.1
        assert len(result.turns) + result.rows_in["chat"].outside == trace.rows
        assert any("where the load takes" in note for note in result.notes)


def test_session_turns_arrive_in_order_within_a_session_and_sessions_interleave() -> None:
    result = offered(TenantLoad("agent", sessions(40, 50), PREFILL, 0.6, live_sessions=8))
    by_session: dict[str, list[int]] = {}
    for turn in result.turns:
        by_session.setdefault(turn.session, []).append(int(turn.source.rpartition(".")[2]))
    assert all(after == before + 1 for steps in by_session.values() for before, after in itertools.pairwise(steps))
    assert 8 <= len(by_session) < 40
    switches = sum(a.session != b.session for a, b in itertools.pairwise(result.turns))
    assert switches > 0.6 * len(result.turns)
    assert result.realised_load["agent"] == pytest.approx(0.6, rel=0.02)


def test_live_sessions_are_met_in_mid_life() -> None:
    result = offered(TenantLoad("agent", sessions(400, 50), PREFILL, 0.6), window_s=10)
    first = {turn.session: turn for turn in reversed(result.turns)}
    assert np.mean([turn.context for turn in first.values()]) > 10_000


def test_arrivals_of_sessions_are_poisson() -> None:
    result = offered(TenantLoad("agent", sessions(800, 50), PREFILL, 0.9), window_s=600, instances=4)
    gaps = np.diff([turn.arrival_s for turn in result.turns])
    assert len(gaps) > 5_000
    assert gaps.std() / gaps.mean() == pytest.approx(1.0, rel=0.05)


def test_turns_the_model_cannot_hold_are_left_outside_and_counted() -> None:
    trace = trace_of([TraceTurn(float(at), f"s{at}", 1_000 * at, 900, 5, f"t:{at}") for at in range(50)])
    for relative, load in ((False, None), (True, 0.05)):
        tenant = TenantLoad("t", replace(trace, session_relative=relative), PREFILL, load, max_tokens=10_000)
        result = offered(tenant)
        assert max(turn.context + turn.new for turn in result.turns) <= 10_000
        assert result.rows_in["t"].outside == 50 - len(result.turns)
        assert any("40 turns of more than 10000 tokens" in note for note in result.notes)


def test_one_very_long_turn_does_not_become_the_whole_load() -> None:
    rows = [TraceTurn(0.0, f"s{at}", 0, 200_000 if at % 4 == 0 else 1_000, 5, f"t:{at}") for at in range(4_000)]
    result = offered(TenantLoad("t", trace_of(rows, relative=True), PREFILL, 0.6))
    assert result.realised_load["t"] == pytest.approx(0.6, rel=0.05)
    assert any("longer than what was left" in note for note in result.notes)


def test_a_generator_makes_as_many_turns_as_its_load_takes() -> None:
    result = offered(AGENTIC, window_s=330, instances=8)
    assert result.realised_load["agent"] == pytest.approx(0.6, rel=0.05)
    count = result.rows_in["agent"]
    assert count.in_window == len(result.turns)
    assert count.rows == count.in_window + count.outside
    assert any("synthetic" in note for note in result.notes)
    assert json.dumps(result.accounts())


def test_the_same_seed_gives_the_same_digest_and_another_seed_another() -> None:
    one, same, other = offered(AGENTIC), offered(AGENTIC), offered(AGENTIC, seed=2)
    assert one == same
    assert one.digest == digest_of(one.turns) != other.digest
    nudged = (replace(one.turns[0], arrival_s=one.turns[0].arrival_s + 1e-9), *one.turns[1:])
    assert digest_of(nudged) != one.digest


def test_adding_a_tenant_changes_no_other_s_turns() -> None:
    half = replace(AGENTIC, instances_share=0.5)
    added = TenantLoad("a first by name", ZipfLengths(), PREFILL, 0.4, instances_share=0.5)

    def agent(result: Offered) -> list[tuple[str, float, int, int]]:
        return [(t.session, t.arrival_s, t.context, t.new) for t in result.turns if t.tenant == "agent"]

    alone, first, last = offered(half), offered(added, half), offered(half, added)
    assert agent(alone) == agent(first) == agent(last)
    assert first.digest == last.digest
    assert [turn.id for turn in first.turns] == list(range(len(first.turns)))
    assert first.realised_load == pytest.approx({"agent": 0.6, "a first by name": 0.4}, rel=0.1)


@given(
    times=st.lists(st.integers(0, 200), min_size=1, max_size=80),
    load=st.one_of(st.none(), st.floats(0.01, 2.0)),
    max_turns=st.one_of(st.none(), st.integers(1, 20)),
    relative=st.booleans(),
)
@settings(max_examples=80, deadline=None)
def test_every_row_is_accounted_for_and_every_arrival_is_in_the_window(
    times: list[int], load: float | None, max_turns: int | None, relative: bool
) -> None:
    trace = absolute([float(time) for time in sorted(times)])
    trace = replace(trace, session_relative=relative)
    tenants = [TenantLoad("t", trace, PREFILL, load)]
    if relative and load is None:
        with pytest.raises(OfferError, match="no absolute times"):
            offered(*tenants)
        return
    if load is None and min(times) >= 60:
        with pytest.raises(OfferError, match="no turn falls"):
            offered(*tenants)
        return
    result = offered(*tenants, max_turns=max_turns)
    count = result.rows_in["t"]
    assert count.rows == len(times) == count.in_window + count.outside + count.over_limit + count.skipped
    assert count.in_window == len(result.turns) <= (max_turns or len(times))
    arrivals = [turn.arrival_s for turn in result.turns]
    assert arrivals == sorted(arrivals)
    assert all(0 <= arrival <= 60.0 for arrival in arrivals)
    assert len({turn.source for turn in result.turns}) == len(result.turns)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"load": 0.0}, "load is 0.0"),
        ({"load": float("nan")}, "load is nan"),
        ({"load": None}, "give it a load"),
        ({"instances_share": 1.5}, "share is 1.5"),
        ({"start_s": 4.0}, "no start or duration"),
        ({"live_sessions": 0}, "live_sessions"),
        ({"max_tokens": 0}, "max_tokens"),
    ],
)
def test_a_tenant_that_cannot_be_offered_is_named(change: dict[str, object], says: str) -> None:
    with pytest.raises(OfferError, match=f"'agent'.*{says}"):
        offered(replace(AGENTIC, **change))  # type: ignore[arg-type]


def test_windows_limits_and_tenants_are_checked() -> None:
    with pytest.raises(OfferError, match="window is 0"):
        offered(AGENTIC, window_s=0)
    with pytest.raises(OfferError, match="at least one"):
        offered(AGENTIC, instances=0)
    with pytest.raises(OfferError, match="limit"):
        offered(AGENTIC, max_turns=0)
    with pytest.raises(OfferError, match="no tenant"):
        offered()
    with pytest.raises(OfferError, match="twice"):
        offered(AGENTIC, AGENTIC)
    with pytest.raises(OfferError, match="more than 1"):
        offered(AGENTIC, replace(AGENTIC, name="b"))


def test_windows_of_published_traces_meet_their_load(shared_data: Path) -> None:
    mooncake = read_trace(shared_data / "mooncake" / "conversation_trace.jsonl")
    weka = read_trace(shared_data / "weka" / "sessions")
    result = offered(
        TenantLoad("chat", mooncake, PREFILL, 0.6, instances_share=0.5, start_s=600),
        TenantLoad("agent", weka, PREFILL, 0.6, instances_share=0.5),
    )
    assert result.realised_load == pytest.approx({"chat": 0.6, "agent": 0.6}, rel=0.05)
    assert {name: count.rows for name, count in result.rows_in.items()} == {"chat": 12_031, "agent": 1_037}
    assert all(count.rows == count.in_window + count.outside for count in result.rows_in.values())
