"""Loops that numba compiles, with their types kept for mypy. Compiled at the first call, then read back from a cache.

numba looks for changes only in the file of the function itself, so the cache is kept in a folder named after the contents of all
files of this package: machine code of an older version of some inner loop is never used. Where no such folder can be made,
every process compiles anew.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba.core import config as _config

config: Any = _config  # a module whose names are made when it is loaded
njit: Any = numba.njit

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _cache_folder() -> str | None:
    here = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted(here.glob("*.py")):
        digest.update(path.read_bytes())
    name = f"numba-{digest.hexdigest()[:16]}"
    for base in (here / "__pycache__", Path("~/.cache/kvfabric").expanduser()):
        try:
            (base / name).mkdir(parents=True, exist_ok=True)
            probe = base / name / ".probe"
            probe.touch()
            probe.unlink(missing_ok=True)
        except (OSError, RuntimeError):
            continue
        return str(base / name)
    return None


_FOLDER = _cache_folder()


def compiled(function: _Function) -> _Function:
    """The function as machine code. Floating-point arithmetic stays as it is written: no reordering, no fused steps.

    Arrays are not counted (``_nrt``), which would cost more than the work: what is compiled here may make no array.
    """
    before = config.CACHE_DIR
    config.CACHE_DIR = _FOLDER or before
    try:
        return cast(_Function, njit(cache=_FOLDER is not None, error_model="numpy", _nrt=False)(function))
    finally:
        config.CACHE_DIR = before
