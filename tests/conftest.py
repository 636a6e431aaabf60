"""What all tests share: privileged tests step aside for a plain user, and the sample traces are found in one place."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from sealing import pytest_configure, pytest_pyfunc_call  # noqa: F401  # hooks: tests marked "sealed"

ROOT = Path(__file__).resolve().parents[1]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips what needs root where we are not root, instead of letting it fail for that reason."""
    if os.geteuid() == 0:
        return
    for item in items:
        for marker in ("netns", "e2e"):
            if item.get_closest_marker(marker) is not None:
                item.add_marker(pytest.mark.skip(reason=f"{marker} tests make network namespaces, which needs root"))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of public sample traces beside the checkout, which is not part of the repository."""
    path = ROOT.parent / "shared" / "data"
    if not path.is_dir():
        pytest.skip(f"no sample traces at {path}; they are not shipped with the repository")
    return path
