"""TraceLab rounds, JSONL: ``session_id``, ``round_index``, ``prefix_tokens``, ``newly_append_tokens``, ``output_tokens``,
``timing_events``.

Source: uw-syfi/TraceLab. A round's time is that of its first event, since the session's first round. The keys are not
unique in the published data: a session whose ``round_index`` does not go up is taken for another session of that name.
"""

from __future__ import annotations

from pathlib import Path

from workloads.errors import TraceError
from workloads.readers._fields import Row, json_row
from workloads.readers._trace import Collector, Trace, lines_of
from workloads.readers.azure import parse_stamp
from workloads.turns import TraceTurn


class _Session:
    def __init__(self, name: str, index: int, at_ns: int) -> None:
        self.name, self.index, self.start_ns, self.last_ns = name, index, at_ns, at_ns


def read(path: Path, *, skip_bad: bool = False) -> Trace:
    """Read a file. Raises TraceError: a bad row (unless ``skip_bad``), time going back in a session, nothing in the file."""
    into = Collector(str(path), skip_bad=skip_bad)
    sessions: dict[str, _Session] = {}
    repeats: dict[str, int] = {}
    for number, content in lines_of(path):
        try:
            row = json_row(str(path), number, content)
            key, index, at_ns = row.text("session_id"), row.count("round_index"), _time_ns(row)
            prefix, new, output = (row.count(name) for name in ("prefix_tokens", "newly_append_tokens", "output_tokens"))
            if prefix + new < 1:
                raise row.error("newly_append_tokens", "is 0 and so is prefix_tokens; a round has at least one token")
            session = sessions.get(key)
            if session is None or index <= session.index:
                repeats[key] = repeats.get(key, 0) + 1
                name = key if repeats[key] == 1 else f"{key}~{repeats[key]}"
                session = _Session(name, index, at_ns)
            elif at_ns < session.last_ns:
                raise row.error("timing_events", "start before the round above in this session; sort the rounds by time")
        except TraceError as error:
            into.bad(error)
            continue
        sessions[key] = session
        session.index, session.last_ns = index, at_ns
        if new == 0:  # all of it cached: the last token is computed again, or there is no next one
            prefix, new = prefix - 1, 1
        time_s = (at_ns - session.start_ns) / 1e9
        into.turns.append(TraceTurn(time_s, session.name, prefix, new, output, row.source))
    split = sum(count - 1 for count in repeats.values())
    if split:
        into.notes.append(f"{split} sessions begin again under the same session_id and are kept apart as id~2, id~3, …")
    return into.trace("tracelab", session_relative=True)


def _time_ns(row: Row) -> int:
    events = row.values.get("timing_events")
    if not isinstance(events, list) or not events or not isinstance(events[0], dict):
        raise row.error("timing_events", "is missing or empty; its first event gives the time of the round")
    return parse_stamp(Row(row.file, row.line, events[0]), "timestamp")
