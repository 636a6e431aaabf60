"""The least reconfiguration a switch can keep: refused below, with what would do."""

from __future__ import annotations

import re

import pytest

from ocs_switch.limits import Keeper, keeper_for, limit, refusal

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("keeper", Keeper)
def test_what_is_at_the_limit_is_taken_and_what_is_below_refused(keeper: Keeper) -> None:
    least = limit(keeper).least_s
    assert refusal(least, 1.0, keeper) is None
    assert refusal(0.99 * least, 1.0, keeper) is not None


def test_the_limit_is_of_emulated_time() -> None:
    assert refusal(1e-3, 9.0, Keeper.FENCE) is not None
    assert refusal(1e-3, 10.0, Keeper.FENCE) is None


@pytest.mark.parametrize("keeper", Keeper)
def test_the_remedy_is_one(keeper: Keeper) -> None:
    reason = refusal(1e-5, 1.0, keeper)
    assert reason is not None
    found = re.search(r"scale.time (\S+) or more", reason)
    assert found is not None
    assert refusal(1e-5, float(found[1]) * 1.001, keeper) is None


def test_no_delay_at_all_cannot_be_emulated() -> None:
    reason = refusal(0.0, 1.0, Keeper.FENCE)
    assert reason is not None
    assert "simulate" in reason


def test_the_best_there_is_is_used() -> None:
    assert keeper_for(shutters=True, fence=True) is Keeper.FENCE
    assert keeper_for(shutters=True, fence=False) is Keeper.SETTLE
    assert keeper_for(shutters=False, fence=True) is Keeper.RULES
    assert limit(Keeper.FENCE).least_s < limit(Keeper.SETTLE).least_s < limit(Keeper.RULES).least_s
