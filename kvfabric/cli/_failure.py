"""Any exception as at most two lines on stderr and an exit code."""

from __future__ import annotations

import errno
import os
import select
import sys
import traceback

from kvfabric.errors import (
    EXIT_BAD_INPUT,
    EXIT_BUG,
    EXIT_INTERRUPTED,
    EXIT_MACHINE,
    EXIT_PIPE,
    KvfabricError,
    one_line,
)

_INPUT_ERRORS = {"TraceError", "UnitError", "ModelError", "FabricError", "OfferError"}
_MACHINE_ERRORS = {"SandboxError"}
_OURS = ("kvfabric", "topo", "workloads", "controller", "ocs_switch", "flowsim")
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def report_failure(error: BaseException, *, debug: bool) -> int:
    """Print what happened (with the traceback if asked for) and return the exit code."""
    if isinstance(error, BrokenPipeError) and _reader_has_gone():
        # The interpreter flushes stdout once more when it ends, and would complain then.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_PIPE
    if debug:
        traceback.print_exception(error)
    code, problem, remedy = describe(error)
    try:
        print(f"kvfabric: {problem}" + (f"\n  {remedy}" if remedy else ""), file=sys.stderr, flush=True)
    except BrokenPipeError:
        return EXIT_PIPE
    return code


def describe(error: BaseException) -> tuple[int, str, str]:
    """(exit code, what is wrong and where, what to do) for any exception; the last may be empty."""
    if isinstance(error, KvfabricError):
        return error.exit_code, error.problem, error.remedy
    if isinstance(error, KeyboardInterrupt):
        return EXIT_INTERRUPTED, "interrupted", ""
    # By name, not by import: an error of a package can only arrive where that package was loaded, and --help and
    # mistyped options should not have to wait for loading all of them.
    names = {kind.__name__ for kind in type(error).__mro__ if kind.__module__.partition(".")[0] in _OURS}
    if names & _MACHINE_ERRORS:
        return EXIT_MACHINE, *_split(str(error), "\n")
    if names & _INPUT_ERRORS:
        return EXIT_BAD_INPUT, *_split(str(error), "; ")
    if isinstance(error, OSError) and error.filename is not None:
        code = EXIT_MACHINE if error.errno in _NO_ROOM else EXIT_BAD_INPUT
        return (
            code,
            one_line(f"{_name(error.filename)}: {error.strerror or error}"),
            "check the path, its permissions and the disk",
        )
    if isinstance(error, MemoryError):
        return EXIT_MACHINE, "out of memory", "take a shorter window, or a machine with more memory"
    summary = one_line(f"internal error: {type(error).__name__}: {error}")
    return EXIT_BUG, summary, "this is a bug; run it again with --debug and report what it prints"


def _split(text: str, separator: str) -> tuple[str, str]:
    problem, _, remedy = text.partition(separator)
    return one_line(problem), one_line(remedy)


def _name(filename: object) -> str:
    return os.fsdecode(filename) if isinstance(filename, (str, bytes)) else str(filename)


def _reader_has_gone() -> bool:
    """Whether it is stdout that broke, and not some socket of ours."""
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError, AttributeError):
        return False
    poller = select.poll()
    poller.register(descriptor, 0)
    return any(event & select.POLLERR for _, event in poller.poll(0))
