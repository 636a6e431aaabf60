"""Whether turns met their service level: TTFT ≤ 5 × the tenant's median unloaded prefill.

Source: serving.md of the design ("SLO: TTFT ≤ 5 × the tenant's median unloaded prefill [P]").
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping

from workloads.events import TurnFinished

SLO_FACTOR = 5.0


def slo_limits_s(unloaded_prefill_s: Iterable[tuple[str, float]], factor: float = SLO_FACTOR) -> dict[str, float]:
    """The TTFT limit of each tenant in seconds, from (tenant, unloaded prefill seconds) of every turn *offered*.

    From the offered turns, and not from those that ended, so that every engine and fabric is held to the same limit.
    """
    by_tenant: dict[str, list[float]] = {}
    for tenant, prefill_s in unloaded_prefill_s:
        by_tenant.setdefault(tenant, []).append(prefill_s)
    return {tenant: factor * statistics.median(values) for tenant, values in by_tenant.items()}


def meets_slo(finished: TurnFinished, limit_s: float) -> bool:
    """Whether a finished turn met its limit; a failed one never does."""
    return finished.failed is None and finished.ttft_s <= limit_s


def slo_attainment(
    finished: Iterable[TurnFinished], unfinished_tenants: Iterable[str], limits_s: Mapping[str, float]
) -> dict[str, float]:
    """The share of offered turns that met their limit, for each tenant that offered any and for ``"all"``.

    ``unfinished_tenants`` has the tenant of every turn that the run ended without finishing: they count as missed, so
    that a network that delivers nothing cannot look good. Empty without turns. Raises KeyError for a tenant without a
    limit, and ValueError for a tenant called ``all``, whose figure could not be told from the total.
    """
    met: dict[str, int] = {}
    offered: dict[str, int] = {}
    for turn in finished:
        tenant = turn.turn.tenant
        offered[tenant] = offered.get(tenant, 0) + 1
        met[tenant] = met.get(tenant, 0) + meets_slo(turn, limits_s[tenant])
    for tenant in unfinished_tenants:
        offered[tenant] = offered.get(tenant, 0) + 1
    if "all" in offered:
        raise ValueError("a tenant is called 'all', which names the total: call it something else")
    shares = {tenant: met.get(tenant, 0) / count for tenant, count in sorted(offered.items())}
    return {"all": sum(met.values()) / sum(offered.values()), **shares} if offered else {}
