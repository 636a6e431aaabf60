"""What a stream of numbered frames tells of the light on its way: when it was dark, what was lost, what went astray. Pure.

A frame that arrives had light when it was sent, so darkness is measured on the sender's clock: between the last frame that
arrived before and the first that was lost it began, between the last that was lost and the first that arrived after it ended.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gap:
    """A run of lost frames between two that arrived. Numbers of frames, and the nanoseconds at which they were sent."""

    last_before: int
    first_after: int
    last_before_ns: int
    first_lost_ns: int
    last_lost_ns: int
    first_after_ns: int

    @property
    def lost(self) -> int:
        return self.first_after - self.last_before - 1

    @property
    def least_s(self) -> float:
        """It was dark at least this long."""
        return (self.last_lost_ns - self.first_lost_ns) / 1e9

    @property
    def most_s(self) -> float:
        """It was dark at most this long."""
        return (self.first_after_ns - self.last_before_ns) / 1e9

    @property
    def dark_s(self) -> float:
        """The middle of the two, which is off by at most one interval of the stream."""
        return (self.least_s + self.most_s) / 2


def gaps(sent_ns: Sequence[int], arrived: Collection[int]) -> tuple[Gap, ...]:
    """Every run of lost frames that has an arrival on both sides. ``sent_ns[n]`` is when frame n left."""
    found = []
    before = None
    for number in sorted(arrived):
        if before is not None and number > before + 1:
            sent = (sent_ns[place] for place in (before, before + 1, number - 1, number))
            found.append(Gap(before, number, *sent))
        before = number
    return tuple(found)


def lost(sent: int, arrived: Collection[int]) -> int:
    """How many of the first ``sent`` frames never arrived anywhere."""
    return sent - sum(number < sent for number in arrived)


@dataclass(frozen=True, slots=True)
class Move:
    """A port that was joined to ``before`` was moved to ``after``: the darkness in between, frames on a wrong circuit, and frames
    lost at any other time."""

    gap: Gap
    wrong: int
    lost_besides: int


def move(sent_ns: Sequence[int], arrivals: Mapping[int, Collection[int]], before: int, after: int, span: range,
         dark_ns: tuple[int, int]) -> Move | None:  # fmt: skip
    """The move that was to be dark from ``dark_ns[0]`` to ``dark_ns[1]``, as the frames of ``span`` saw it; None where it was not
    dark then, or never lit again. The longest gap that meets that time is the move.

    ``arrivals`` has the numbers that arrived, by port. A frame is on a wrong circuit if it arrived at ``before`` after the
    gap, at ``after`` before it, or at any third port.
    """
    here = {port: {number for number in numbers if number in span} for port, numbers in arrivals.items()}
    seen = gaps(sent_ns, here.get(before, set()) | here.get(after, set()))
    meeting = [one for one in seen if one.last_before_ns <= dark_ns[1] and one.first_after_ns >= dark_ns[0]]
    if not meeting:
        return None
    gap = max(meeting, key=lambda one: one.lost)
    wrong = sum(number > gap.last_before for number in here.get(before, ()))
    wrong += sum(number < gap.first_after for number in here.get(after, ()))
    wrong += sum(len(numbers) for port, numbers in here.items() if port not in (before, after))
    return Move(gap, wrong, sum(one.lost for one in seen) - gap.lost)


Reach = Mapping[int, Mapping[int, Collection[int]]]
"""What was sent into a port to each port, and where it came out: source → addressee → ports at which it arrived."""


def astray(found: Reach, circuits: Iterable[tuple[int, int]]) -> list[str]:
    """Every way in which light did not go as the circuits say, in words: it must come out at the other end, whomever a frame
    is addressed to, and nowhere else."""
    other = {end: far for a, b in circuits for end, far in ((a, b), (b, a))}
    problems = []
    for source, sent in sorted(found.items()):
        for addressee, ports in sorted(sent.items()):
            wanted = {other[source]} if source in other else set()
            if extra := set(ports) - wanted:
                problems.append(f"port {source}: a frame to {addressee} came out at {_listed(extra)}, {_circuit(wanted)}")
            if wanted - set(ports):
                problems.append(f"port {source}: a frame to {addressee} was lost, {_circuit(wanted)}")
    return problems


def _listed(ports: Iterable[int]) -> str:
    return ", ".join(str(port) for port in sorted(ports))


def _circuit(wanted: Collection[int]) -> str:
    return f"its circuit leads to {_listed(wanted)}" if wanted else "it has no circuit"
