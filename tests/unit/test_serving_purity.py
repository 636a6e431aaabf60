"""The serving model does no I/O and has no clock: it imports nothing that could give it either."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import workloads

pytestmark = pytest.mark.unit

PURE = ("serving", "serving_config", "live_turn", "decode_choice", "release", "slo", "events", "turns")
ALLOWED = {
    "__future__",
    "collections",
    "collections.abc",
    "dataclasses",
    "enum",
    "heapq",
    "itertools",
    "math",
    "statistics",
    "typing",
}


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            assert node.module
            found |= {f"workloads.{alias.name}" for alias in node.names} if node.module == "workloads" else {node.module}
    return found


@pytest.mark.parametrize("name", PURE)
def test_it_imports_only_pure_modules(name: str) -> None:
    path = Path(workloads.__file__).parent / f"{name}.py"
    assert imports(path) - ALLOWED <= {f"workloads.{other}" for other in PURE}


def test_the_check_sees_an_impure_import(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("def f():\n    from time import sleep\n    import os.path\n")
    assert imports(tmp_path / "bad.py") == {"time", "os.path"}
