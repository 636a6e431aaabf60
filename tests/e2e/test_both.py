"""Both engines and their comparison, as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sealed_run import call

from kvfabric.errors import EXIT_OK

pytestmark = pytest.mark.e2e


ATTEMPTS = 4
"""An emulation is VALID on a machine that is left alone for a moment; this one runs other tests."""
SLOWLY = ("--set", "fabric.kind=ocs", "--set", "scale.time=5")
"""An emulated τ of 125 ms, of which the controller takes no large share."""


@pytest.mark.parametrize("changes", [(), SLOWLY], ids=["leaf-spine", "ocs"])
def test_an_emulation_follows_its_simulation_flow_by_flow(tmp_path: Path, changes: tuple[str, ...]) -> None:
    for attempt in range(ATTEMPTS):
        out = tmp_path / f"out{attempt}"
        done = call("run", "smoke", "--engine", "both", *changes, "--out", str(out), "--json")
        document = json.loads(done.stdout)
        assert (done.returncode == EXIT_OK) == (document["emulation"]["verdict"] == "VALID")
        if document["emulation"]["verdict"] == "VALID":
            break
    assert (done.returncode, document["emulation"]["reasons"], document["simulation"]["reasons"]) == (EXIT_OK, [], [])
    compared = document["compare"]
    assert json.loads((out / "compare.json").read_text()) == compared
    assert compared["flows"] == document["emulation"]["requests"]["completed"] > 0
    assert (compared["paths_equal"], compared["same_decode"], compared["offered_digest_equal"]) == (1.0, 1.0, True)
    assert changes or compared["starts_equal"] == 1.0
    assert compared["fct_error"]["median"] < 0.02
    assert compared["aggregate_error"]["mean_ttft"] < 0.03
