"""Errors that reach a user: two lines (what is wrong and where, what to do) and an exit code."""

from __future__ import annotations

EXIT_OK = 0
EXIT_NO = 1
EXIT_BAD_INPUT = 2
EXIT_MACHINE = 3
EXIT_BUG = 70  # EX_SOFTWARE of sysexits.h: the program itself is at fault
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as a shell reports it
EXIT_PIPE = 141  # 128 + SIGPIPE: whoever read the output has gone

_MAX_LINE = 400


def one_line(text: object) -> str:
    """``text`` with control characters and line breaks made harmless, and shortened: input must not forge output."""
    flat = " ".join(str(text).split())
    flat = "".join(char if char.isprintable() else "?" for char in flat)
    return flat if len(flat) <= _MAX_LINE else flat[: _MAX_LINE - 1] + "…"


class KvfabricError(Exception):
    """Something a user is told in two lines. ``problem`` says what and where, ``remedy`` what to do about it."""

    exit_code = EXIT_BUG

    def __init__(self, problem: object, remedy: object = "") -> None:
        self.problem = one_line(problem)
        self.remedy = one_line(remedy)
        super().__init__(self.problem)

    def lines(self) -> tuple[str, ...]:
        """The one or two lines to print."""
        return (self.problem, self.remedy) if self.remedy else (self.problem,)


class BadInput(KvfabricError):  # noqa: N818 - the name says it where it is raised
    """The scenario, a trace or the command line is wrong."""

    exit_code = EXIT_BAD_INPUT


class MachineCannot(KvfabricError):  # noqa: N818
    """This machine lacks a privilege, a kernel feature or a program that was asked for."""

    exit_code = EXIT_MACHINE


class AnswerIsNo(KvfabricError):  # noqa: N818
    """The command worked and its answer is no: an INVALID run, a claim that differs, a failed check."""

    exit_code = EXIT_NO
