"""Service levels."""

from __future__ import annotations

import pytest

from workloads.events import TurnFinished
from workloads.slo import meets_slo, slo_attainment, slo_limits_s
from workloads.turns import Turn

pytestmark = pytest.mark.unit


def finished(tenant: str, ttft_s: float, failed: str | None = None) -> TurnFinished:
    turn = Turn(0, tenant, "s", 10.0, 0, 1, 0, "test")
    return TurnFinished(turn, 0, 0, False, 0, 1, 10.0, 10.5, 10.0 + ttft_s, 0.5, failed)


def test_the_limit_is_five_times_the_median_of_each_tenant() -> None:
    offered = [("chat", 0.1), ("chat", 0.2), ("chat", 9.0), ("agent", 1.0), ("agent", 3.0)]
    assert slo_limits_s(offered) == {"chat": pytest.approx(1.0), "agent": 10.0}
    assert slo_limits_s(offered, factor=2.0)["agent"] == 4.0
    assert slo_limits_s([]) == {}


def test_a_turn_on_its_limit_meets_it_and_a_failed_one_never_does() -> None:
    assert meets_slo(finished("chat", 1.0), 1.0)
    assert not meets_slo(finished("chat", 1.5), 1.0)
    assert not meets_slo(finished("chat", 0.5, failed="reset"), 1.0)


def test_attainment_counts_failed_and_unfinished_turns_as_missed() -> None:
    done = [finished("chat", 0.5), finished("chat", 0.6, failed="reset"), finished("agent", 3.0)]
    shares = slo_attainment(done, ["chat", "chat", "idle"], {"chat": 1.0, "agent": 3.0, "idle": 1.0})
    assert shares == {"all": 2 / 6, "agent": 1.0, "chat": 0.25, "idle": 0.0}


def test_attainment_of_nothing_is_empty() -> None:
    assert slo_attainment([], [], {}) == {}


def test_a_tenant_without_a_limit_or_named_like_the_total_is_refused() -> None:
    with pytest.raises(KeyError):
        slo_attainment([finished("chat", 0.5)], [], {})
    with pytest.raises(ValueError, match="'all'"):
        slo_attainment([finished("all", 0.5)], [], {"all": 1.0})
