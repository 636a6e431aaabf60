"""The command line as a whole: exit codes, two lines on stderr, one document on stdout, nothing loaded for --help."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvfabric import cli
from kvfabric.cli import NOT_YET, VERBS, main
from kvfabric.cli._failure import describe
from kvfabric.errors import AnswerIsNo, BadInput, KvfabricError, MachineCannot
from kvfabric.sandbox import SandboxError
from topo.fabric import FabricError
from topo.units import UnitError
from workloads.errors import TraceError
from workloads.kvsize import ModelError

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[2]


def refused(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 2) -> list[str]:
    """Run a command that must fail with ``code``, two lines on stderr at most and nothing on stdout; returns the lines."""
    assert main(arguments) == code
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert 1 <= len(lines) <= 2
    assert lines[0].startswith("kvfabric: ")
    assert "Traceback" not in err
    return lines


@pytest.mark.parametrize(
    ("arguments", "problem", "remedy"),
    [
        ([], "COMMAND", "see kvfabric --help"),
        (["paln"], "no command 'paln'", "did you mean plan?"),
        (["xyzzy"], "no command 'xyzzy'", "commands: doctor"),
        (["plan"], "plan: the following arguments are required: SCENARIO", "see kvfabric plan --help"),
        (["plan", "demo", "--sed", "3"], "plan: unknown option --sed", "did you mean --seed?"),
        (["plan", "demo", "--sett=a=b"], "plan: unknown option --sett", "did you mean --set?"),
        (["plan", "demo", "extra"], "plan: unexpected argument extra", "see kvfabric plan --help"),
        (["plan", "demo", "--seed"], "plan: argument --seed: expected one argument", "see kvfabric plan --help"),
        (["plan", "dmeo"], "no scenario 'dmeo'", "did you mean demo?"),
        (["plan", "demo", "--seed", "x"], "--seed x: seed: 'x' is not a whole number", "seed"),
        (["plan", "demo", "--window", "5s"], "--window 5s: workload.tenants.0.window:", "--set window="),
        (["plan", "weka"], "workload.tenants.0.trace:", "--trace PATH"),
        (["plan", "weka", "--trace", "/no/such"], "--trace /no/such: workload.tenants.0.trace: no such file", "path"),
        (["run", "demo", "--set", "fabric.ratoi=1:1"], "--set fabric.ratoi=1:1: fabric.ratoi: unknown key", "ratio?"),
        (["run", "demo", "--set", "fabric.rate=-1GB/s"], "fabric.rate: '-1GB/s' is not above zero", "rate"),
        (["run", "smoke", "--set", "fabric.routing=srpt"], "fabric.routing srpt is simulated only", "--engine simulation"),
        (["compare", "/no/such", "/no/such"], "/no/such: no run has been finished there", "kvfabric run"),
        (["run", "demo", "--engine", "ns3"], "no engine 'ns3'", "emulation"),
        (["scenarios", "show"], "scenarios show: the following arguments are required: NAME", "see kvfabric scenarios show"),
        (["scenarios", "show", "nothing"], "no scenario 'nothing'", "built in: azure, demo"),
        (["trace"], "trace: the following arguments are required: COMMAND", "see kvfabric trace --help"),
        (["trace", "inspect", "/no/such"], "/no/such: no such file", "check the path"),
        (["trace", "inspect", "/no/such", "--format", "xml"], "no format 'xml'", "write auto, weka"),
    ],
)
def test_bad_input_is_two_lines_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], problem: str, remedy: str
) -> None:
    lines = refused(capsys, *arguments)
    assert problem in lines[0]
    assert remedy in lines[1]


@pytest.mark.parametrize("verb", NOT_YET)
def test_a_verb_of_a_later_version_is_refused_as_such(capsys: pytest.CaptureFixture[str], verb: str) -> None:
    assert f"{verb} is not in this version" in refused(capsys, verb, "demo")[0]


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("empty.jsonl", b"", "empty.jsonl: is empty"),
        ("broken.jsonl", b'{"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [1]}\n{"timestamp": x}\n', ":2:"),
        ("other.jsonl", b"hello\n", "is in no format known here"),
    ],
)
@pytest.mark.parametrize("command", ["inspect", "plan"])
def test_a_bad_trace_is_two_lines_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str, content: bytes, problem: str, command: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    arguments = ["trace", "inspect", str(path)] if command == "inspect" else ["plan", "mooncake", "--trace", str(path)]
    lines = refused(capsys, *arguments)
    assert problem in lines[0]
    assert len(lines) == 2


@pytest.mark.parametrize(
    ("error", "code", "problem", "remedy"),
    [
        (BadInput("a", "b"), 2, "a", "b"),
        (MachineCannot("a", "b"), 3, "a", "b"),
        (AnswerIsNo("a\nc"), 1, "a c", ""),
        (TraceError("f.csv", 7, "tokens", "is negative; correct the row"), 2, "f.csv:7: tokens: is negative", "correct the row"),
        (UnitError("5 is not a rate; write 5GB/s"), 2, "5 is not a rate", "write 5GB/s"),
        (FabricError("a; b"), 2, "a", "b"),
        (ModelError("a; b"), 2, "a", "b"),
        (SandboxError("no root\nuse sudo"), 3, "no root", "use sudo"),
        (FileNotFoundError(errno.ENOENT, "No such file", "x"), 2, "x: No such file", "check the path"),
        (PermissionError(errno.EACCES, "Permission denied", "x"), 2, "x: Permission denied", "check the path"),
        (OSError(errno.ENOSPC, "No space left on device", "x"), 3, "x: No space left", "check the path"),
        (MemoryError(), 3, "out of memory", "shorter window"),
        (KeyboardInterrupt(), 130, "interrupted", ""),
        (ValueError("odd\nthing"), 70, "internal error: ValueError: odd thing", "this is a bug"),
        (OSError(errno.EINVAL, "Invalid argument"), 70, "internal error: OSError:", "--debug"),
    ],
)
def test_every_kind_of_error_has_its_code_and_words(error: BaseException, code: int, problem: str, remedy: str) -> None:
    got_code, got_problem, got_remedy = describe(error)
    assert got_code == code
    assert got_problem.startswith(problem)
    assert remedy in got_remedy
    assert "\n" not in got_problem + got_remedy


def test_an_error_of_somebody_elses_package_is_a_bug_whatever_its_name() -> None:
    stranger = type("ModelError", (ValueError,), {"__module__": "elsewhere.models"})
    assert describe(stranger("a"))[0] == 70


def test_what_an_error_says_is_one_printable_line_of_bounded_length() -> None:
    error = KvfabricError("a\n\tb\x1b[31m" + "x" * 10_000, "c\r\nd")
    assert all(line.isprintable() and len(line) <= 400 for line in error.lines())


class _Failing:
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def execute(self, _args: object) -> int:
        raise self.error


def failing(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    real = cli.load_verb
    parser = cli.build_parser()
    monkeypatch.setattr(cli, "build_parser", lambda: parser)
    monkeypatch.setattr(cli, "load_verb", lambda name: _Failing(error) if name == "scenarios" else real(name))


def test_a_bug_is_two_lines_and_exit_code_70(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, RuntimeError("oops"))
    lines = refused(capsys, "scenarios", code=70)
    assert "RuntimeError: oops" in lines[0]
    assert "this is a bug" in lines[1]


def test_debug_shows_the_traceback_and_keeps_the_code(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, BadInput("wrong", "do right"))
    assert main(["scenarios", "--debug"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback (most recent call last)" in err
    assert err.endswith("kvfabric: wrong\n  do right\n")


def test_an_interrupt_is_one_line_and_exit_code_130(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, KeyboardInterrupt())
    assert refused(capsys, "scenarios", code=130) == ["kvfabric: interrupted"]


def test_a_broken_socket_is_not_taken_for_a_reader_that_has_gone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, BrokenPipeError(errno.EPIPE, "Broken pipe"))
    assert "BrokenPipeError" in refused(capsys, "scenarios", code=70)[0]


def python(*arguments: str, stdout: int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *arguments], stdout=stdout, stderr=subprocess.PIPE, text=True, env=environment, timeout=60, check=False
    )


def test_a_reader_that_has_gone_ends_the_command_quietly() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = python("-m", "kvfabric", "scenarios", "schema", stdout=writing)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


def test_help_loads_nothing_heavy() -> None:
    program = (
        "import sys\n"
        "from kvfabric.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit as leave: assert not leave.code\n"
        "heavy = {'numpy', 'pydantic', 'pyarrow', 'pyroute2', 'mininet', 'yaml', 'rich'} & set(sys.modules)\n"
        "sys.exit(f'loaded: {heavy}' if heavy else 0)\n"
    )
    done = python("-c", program)
    assert (done.returncode, done.stderr) == (0, "")
    assert all(f"\n    {verb}" in done.stdout for verb in VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_an_example(capsys: pytest.CaptureFixture[str], verb: str) -> None:
    with pytest.raises(SystemExit) as leave:
        main([verb, "--help"])
    assert leave.value.code == 0
    out = capsys.readouterr().out
    assert f"kvfabric {verb}" in out.partition("example:")[2]


def test_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    version = capsys.readouterr().out.split()[-1]
    assert f'version = "{version}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize("arguments", [["scenarios"], ["scenarios", "schema"], ["scenarios", "show", "demo"], ["plan", "smoke"]])
def test_json_is_one_document_and_nothing_else(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert main([*arguments, "--json"]) == 0
    out, err = capsys.readouterr()
    assert isinstance(json.loads(out), dict)
    assert err == ""


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_a_page_with_an_example_and_its_options(capsys: pytest.CaptureFixture[str], verb: str) -> None:
    page = (ROOT / "docs" / "commands" / f"{verb}.md").read_text(encoding="utf-8")
    assert f"kvfabric {verb}" in page
    options = {
        option
        for action in cli.build_parser()._verb_parsers(verb)[-1]._actions
        for option in action.option_strings
        if option.startswith("--") and option != "--help"
    }
    assert options
    assert all(f"`{option}" in page for option in options)
