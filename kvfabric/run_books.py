"""The books of a run, kept alike by every engine: its manifest from the first moment on, its turns accounted for, its facts."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from kvfabric.machine import host_facts
from kvfabric.records import write_manifest
from kvfabric.rows import RequestRow
from kvfabric.scenario import Scenario, fabric_name
from kvfabric.summary import RunFacts
from kvfabric.verdict import Accounts
from kvfabric.workload import Workload
from workloads.events import StartTransfer

Engine = Literal["emulation", "simulation"]


@contextmanager
def open_manifest(out: Path, scenario: Scenario, workload: Workload, engine: Engine, **own: object) -> Iterator[dict[str, Any]]:
    """Write the manifest of a run that begins, to be added to and written again when it ends; what stops it is noted there.

    ``own`` is what only this engine has to say from the first moment on.
    """
    manifest: dict[str, Any] = {
        "scenario": scenario.resolved(),
        "engine": engine,
        "seed": scenario.seed,
        "offered_digest": workload.offered.digest,
        "workload": workload.describe(),
        **own,
        "host": host_facts(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    write_manifest(out, manifest, "running")
    try:
        yield manifest
    except BaseException as error:
        manifest["failure"] = f"{type(error).__name__}: {error}"
        with suppress(OSError):  # a full disk may be what went wrong, and must not hide it
            write_manifest(out, manifest, "interrupted" if isinstance(error, KeyboardInterrupt) else "failed")
        raise


def unfinished_rows(workload: Workload, ended: Collection[int], starts: Mapping[int, StartTransfer],
                    state: Callable[[int], str]) -> Iterator[RequestRow]:  # fmt: skip
    """A row for every turn offered that is not among ``ended``; ``starts`` are by turn, ``state`` says how far it had come."""
    for turn in workload.offered.turns:
        if turn.id not in ended:
            unloaded_s = workload.prefill.total(turn.context, turn.new)
            yield RequestRow.unfinished(turn, unloaded_s, starts.get(turn.id), f"{state(turn.id)} when the run ended")


def accounts_of(workload: Workload, requests: Sequence[RequestRow]) -> Accounts:
    """Every row of the traces, every turn."""
    status = Counter(row.status for row in requests)
    return Accounts(
        rows_in=workload.rows,
        rows_accounted=len(requests) + workload.rows_left_out,
        offered=len(workload.offered.turns),
        completed=status["completed"],
        failed=status["failed"],
        unfinished=status["unfinished"],
        request_rows=len(requests),
        failure_reasons=tuple(sorted({row.reason for row in requests if row.status == "failed" and row.reason})),
    )


def run_facts(scenario: Scenario, workload: Workload, engine: Engine, *, ended_s: float, wall_s: float) -> RunFacts:
    """What the summary says of the run; see RunFacts for the two times."""
    return RunFacts(
        scenario=scenario.name,
        engine=engine,
        fabric=fabric_name(scenario),
        offered_digest=workload.offered.digest,
        ended_s=ended_s,
        time_scale=scenario.scale.time,
        wall_s=wall_s,
        slo_factor=scenario.slo.ttft_over_prefill,
    )
