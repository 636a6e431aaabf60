"""Traces as they are published: found out by what is in the file, read into turns, every row accounted for."""

from __future__ import annotations

from pathlib import Path

from workloads.errors import TraceError
from workloads.readers import azure, mooncake, tracelab, weka
from workloads.readers._trace import Trace, unreadable

FORMATS = ("weka", "mooncake", "azure", "tracelab")

__all__ = ["FORMATS", "Trace", "TraceError", "detect_format", "read_trace"]

_LOOK = 1 << 20


def detect_format(path: str | Path) -> str:
    """The format of a trace, by the names of its fields; a directory is WEKA's. Raises TraceError where none fits.

    Names are looked for in the text, not in parsed rows, so that a broken first line is still reported by its reader.
    """
    path = Path(path)
    if path.is_dir():
        return "weka"
    try:
        with path.open("rb") as file:
            text = file.read(_LOOK).decode("utf-8", "replace").lstrip("\ufeff")
    except OSError as error:
        raise unreadable(path, error) from error
    if not text.strip():
        raise TraceError(str(path), None, None, "is empty; give a trace with at least one row")
    header = text.lstrip().partition("\n")[0]
    if not header.startswith("{") and any(name in header for name in azure.COLUMNS):
        return "azure"
    # In this order: the names of a later format may occur inside the rows of an earlier one.
    for format, names in (
        ("weka", ('"requests"', '"hash_id_scope"')),
        ("tracelab", ('"prefix_tokens"', '"newly_append_tokens"')),
        ("mooncake", ('"input_length"', '"output_length"', '"hash_ids"')),
    ):
        if any(name in text for name in names):
            return format
    if path.suffix == ".jsonl" and '"timestamp"' in text:
        return "mooncake"
    raise TraceError(
        str(path),
        None,
        None,
        f"is in no format known here; it can be one of {', '.join(FORMATS)}, named by the format option",
    )


def read_trace(path: str | Path, *, format: str = "auto", skip_bad: bool = False, spread: bool = True) -> Trace:
    """Read a trace file (or WEKA's directory).

    ``skip_bad`` collects bad rows in ``Trace.skipped`` where otherwise the first one is raised; ``spread`` applies to
    Mooncake's rounded timestamps. Raises TraceError; ``rows == len(turns) + len(skipped)`` always.
    """
    path = Path(path)
    if format == "auto":
        format = detect_format(path)
    if format == "weka":
        return weka.read(path, skip_bad=skip_bad)
    if path.is_dir():
        raise TraceError(str(path), None, None, f"is a directory; a {format} trace is a file")
    if format == "mooncake":
        return mooncake.read(path, skip_bad=skip_bad, spread=spread)
    if format == "azure":
        return azure.read(path, skip_bad=skip_bad)
    if format == "tracelab":
        return tracelab.read(path, skip_bad=skip_bad)
    raise TraceError(str(path), None, None, f"no trace format {format!r}; choose auto or one of {', '.join(FORMATS)}")
