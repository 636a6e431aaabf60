"""WEKA / AgentX coding sessions: one JSON file a session, or a directory of them.

Source: callanjfox/kv-cache-tester, traces/. A request has ``t`` (s since the session's start), ``in``, ``out`` and
``hash_ids`` of ``block_size`` (64) tokens, local to the session. Its cached prefix is the leading ids already seen in the
session; that shrinks at a compaction, when a shorter history takes the place of the old one. An entry with requests of its
own is a subagent: a session of its own ("trace#agent"), with its own clock and nothing cached at its start.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from pathlib import Path

from workloads.errors import TraceError
from workloads.readers._fields import MAX_SECONDS, Row
from workloads.readers._trace import Collector, Trace, unreadable
from workloads.turns import TraceTurn

BLOCK = 64
UNIT_STEPS = 20
UNIT_FACTOR = 100.0
"""With UNIT_STEPS steps or more that have api_time and think_time, ``t`` is refused as being in another unit when the
median step of ``t`` is UNIT_FACTOR times longer or shorter than the two together."""


def read(path: Path, *, skip_bad: bool = False) -> Trace:
    """Read a file or a directory. Raises TraceError: a bad request or file (unless ``skip_bad``), or nothing to read."""
    into = Collector(str(path), skip_bad=skip_bad)
    reader = _Reader(into)
    for file in _files(path):
        try:
            reader.session_file(file)
        except TraceError as error:
            into.bad(error)
    reader.check_unit()
    if reader.empty_agents:
        into.notes.append(f"{reader.empty_agents} subagents made no request")
    into.notes.append("times count from each session's start: arrivals are synthesised")
    return into.trace("weka", session_relative=True)


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = sorted(path.glob("*.json"))
    if not files:
        raise TraceError(str(path), None, None, "has no *.json files; give the directory that holds the sessions")
    return files


class _Reader:
    def __init__(self, into: Collector) -> None:
        self._into = into
        self._names: set[str] = set()
        self._step_ratios: list[float] = []
        self.empty_agents = 0

    def session_file(self, file: Path) -> None:
        top = _load(file)
        row = Row(str(file), "", top)
        name = str(top.get("id") or file.stem)
        block = row.count("block_size", low=1) if "block_size" in top else BLOCK
        requests = top.get("requests")
        if not isinstance(requests, list):
            raise TraceError(str(file), None, "requests", "is missing or not a list; it holds the session's requests")
        self._session(str(file), self._unique(name), requests, block, "#")

    def _unique(self, name: str) -> str:
        count, unique = 1, name
        while unique in self._names:
            count += 1
            unique = f"{name}~{count}"
        self._names.add(unique)
        return unique

    def _session(self, file: str, name: str, requests: list[object], block: int, at: str) -> None:
        seen: set[int] = set()
        last_s = 0.0
        before: Mapping[str, object] | None = None
        for step, request in enumerate(requests):
            try:
                if not isinstance(request, dict):
                    raise TraceError(file, f"{at}{step}", None, "is not an object; a request has t, in, out and hash_ids")
                row = Row(file, f"{at}{step}", request)
                if "requests" in request or request.get("type") == "subagent":
                    self._subagent(row, name, block)
                    continue
                turn = _turn(row, name, seen, block)
                if turn.time_s < last_s:
                    raise row.error("t", f"is {turn.time_s:g}, before {last_s:g} of the request above; sort by t")
            except TraceError as error:
                self._into.bad(error)
                before = None
                continue
            seen.update(row.ids("hash_ids"))
            self._note_step(before, request, turn.time_s - last_s)
            before, last_s = request, turn.time_s
            self._into.turns.append(turn)

    def _subagent(self, row: Row, name: str, block: int) -> None:
        requests = row.values.get("requests")
        if requests is None or requests == []:
            self.empty_agents += 1
            return
        if not isinstance(requests, list):
            raise row.error("requests", "is not a list; it holds the subagent's requests")
        agent = row.values.get("agent_id") or f"agent{row.line}".replace("#", "_")
        self._session(row.file, self._unique(f"{name}#{agent}"), requests, block, f"{row.line}.")

    def _note_step(self, before: Mapping[str, object] | None, request: Mapping[str, object], step_s: float) -> None:
        if before is None:
            return
        api, think = before.get("api_time"), request.get("think_time")
        if isinstance(api, (int, float)) and isinstance(think, (int, float)) and api + think > 0 and step_s > 0:
            self._step_ratios.append(step_s / (api + think))

    def check_unit(self) -> None:
        if len(self._step_ratios) < UNIT_STEPS:
            return
        ratio = statistics.median(self._step_ratios)
        if not 1 / UNIT_FACTOR <= ratio <= UNIT_FACTOR:
            raise TraceError(
                self._into.path,
                None,
                "t",
                f"steps of t are {ratio:.3g} times api_time + think_time in the middle; t must be seconds, as they are",
            )


def _turn(row: Row, session: str, seen: set[int], block: int) -> TraceTurn:
    time_s = row.number("t", high=MAX_SECONDS)
    length, output, ids = row.count("in", low=1), row.count("out"), row.ids("hash_ids")
    depth = next((at for at, block_id in enumerate(ids) if block_id not in seen), len(ids))
    context = min(depth * block, length - 1)  # at least one token is always computed, or there is no next one
    return TraceTurn(time_s, session, context, length - context, output, row.source)


def _load(file: Path) -> dict[str, object]:
    try:
        top = json.loads(file.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise unreadable(file, error) from error
    except UnicodeDecodeError as error:
        raise TraceError(str(file), None, None, f"is not UTF-8 (byte {error.start}); re-encode the file") from error
    except json.JSONDecodeError as error:
        message = "is empty" if not error.doc.strip() else f"is not JSON (column {error.colno}: {error.msg})"
        raise TraceError(str(file), error.lineno, None, f"{message}; give a session as published") from error
    except (ValueError, RecursionError) as error:
        raise TraceError(str(file), None, None, f"is not usable JSON ({error}); give a session as published") from error
    if not isinstance(top, dict):
        raise TraceError(str(file), None, None, "is not an object; give a session as published, one a file")
    return top
