"""The sandbox as its users meet it: exit codes, signals, terminals, and nothing left behind however it ends."""

from __future__ import annotations

import contextlib
import os
import pty
import random
import re
import select
import shlex
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kvfabric import sandbox

pytestmark = [
    pytest.mark.netns,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make namespaces"),
]

ROOT = Path(__file__).resolve().parents[2]
BOUND_S = 5.0  # the kernel removes namespaces in the background
RUNNER = "import sys; from kvfabric.sandbox import run_sealed; sys.exit(run_sealed(sys.argv[1:]))"

# An inner program as kvfabric's own is: it stops in order at the first signal, and says how often it was asked.
STOPPER = """
import select, sys
from kvfabric.sandbox import StopSignals
with StopSignals() as stop:
    print("ready", flush=True)
    select.select([stop], [], [])
    print("asked", stop.requested, flush=True)
    if len(sys.argv) > 1:
        import time
        time.sleep(float(sys.argv[1]))
    print("orderly", flush=True)
sys.exit(7)
"""

# A daemon as daemons are made: forked twice, a session and a network namespace of its own, no standard descriptors.
DAEMON = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        from kvfabric import _libc
        _libc.unshare(_libc.CLONE_NEWNET)
        null = os.open("/dev/null", os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        time.sleep(60)
    os._exit(0)
os.wait()
"""


def command(*argv: str) -> list[str]:
    return [sys.executable, "-c", RUNNER, *argv]


def python(code: str, *argv: str) -> list[str]:
    return [sys.executable, "-c", code, *argv]


@pytest.fixture(autouse=True)
def found_by_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


class Marked:
    """Processes that carry a variable of this test in their environment, as all descendants of a command do."""

    def __init__(self) -> None:
        self.name = f"KVTEST_{uuid.uuid4().hex}"
        self.env = {**os.environ, self.name: "1"}

    def pids(self) -> set[int]:
        found = set()
        for entry in Path("/proc").glob("[0-9]*"):
            # A process that is gone meanwhile, or a zombie, has no environment to read.
            with contextlib.suppress(OSError):
                if self.name.encode() in (entry / "environ").read_bytes():
                    found.add(int(entry.name))
        return found

    def namespaces(self) -> set[str]:
        """The network namespaces these processes are in, other than ours."""
        found = set()
        for pid in self.pids():
            with contextlib.suppress(OSError):
                found.add(os.readlink(f"/proc/{pid}/ns/net"))
        return found - {os.readlink("/proc/self/ns/net")}


@pytest.fixture
def marked(found_by_python: None) -> Iterator[Marked]:
    marked = Marked()
    yield marked
    for pid in marked.pids():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def holds(condition: Callable[[], bool], bound_s: float = BOUND_S) -> bool:
    end = time.monotonic() + bound_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def network_namespaces() -> set[str]:
    found = set()
    for link in Path("/proc").glob("[0-9]*/ns/net"):
        with contextlib.suppress(OSError):
            found.add(os.readlink(link))
    return found


def interfaces() -> set[str]:
    return set(os.listdir("/sys/class/net"))


def run(*argv: str, **options: Any) -> subprocess.CompletedProcess[str]:
    settings: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 30, **options}
    return subprocess.run(command(*argv), check=False, **settings)


@contextlib.contextmanager
def started(marked: Marked, *argv: str, group: bool = False) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        command(*argv),
        env=marked.env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=group,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def rest(process: subprocess.Popen[str]) -> list[str]:
    assert process.stdout is not None
    return process.stdout.read().split("\n")


# --- the inner program's life ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 3", 3), ("kill -TERM $$", 143), ("kill -9 $$", 137)])
def test_exit_code_of_the_inner_program_comes_out(script: str, code: int) -> None:
    done = run("sh", "-c", script)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


def test_working_directory_environment_and_output_are_kept_and_other_descriptors_closed(tmp_path: Path) -> None:
    probe = "import os; print(os.getcwd(), os.environ['KV_X'], sorted(map(int, os.listdir('/proc/self/fd')))[:-1])"
    reading, writing = os.pipe()
    done = run(*python(probe), cwd=tmp_path, env={**os.environ, "KV_X": "x y"}, pass_fds=(reading, writing))
    os.close(reading)
    os.close(writing)
    assert done.stdout == f"{tmp_path} x y [0, 1, 2]\n"


def test_closed_standard_descriptors_become_dev_null() -> None:
    close_all = "import os, sys; os.closerange(0, 3); os.execv(sys.argv[1], sys.argv[1:])"
    probe = "import os; os._exit(sum(os.readlink(f'/proc/self/fd/{n}') == '/dev/null' for n in range(3)))"
    done = subprocess.run(python(close_all, *command(*python(probe))), timeout=30, check=False)
    assert done.returncode == 3


def test_orphans_are_reaped() -> None:
    script = "for i in 1 2 3; do (sleep 0.05 & ) ; done; sleep 0.4; ls -d /proc/[0-9]* | wc -l"
    # init, the shell, ls and wc
    assert int(run("sh", "-c", script).stdout) <= 4


def test_a_program_that_cannot_be_started_is_said_in_two_lines() -> None:
    code = "from kvfabric import sandbox\ntry: sandbox.run_sealed(['/nonexistent/program'])\n"
    code += "except sandbox.SandboxError as e: print(e)"
    done = subprocess.run(python(code), capture_output=True, text=True, timeout=30, check=True)
    assert len(done.stdout.splitlines()) == 2
    assert "/nonexistent/program" in done.stdout


def test_the_calling_process_is_as_it_was() -> None:
    code = """if True:
        import os, signal
        from kvfabric import sandbox
        def state():
            namespaces = [os.readlink(f"/proc/self/ns/{kind}") for kind in ("net", "mnt", "pid", "pid_for_children")]
            handlers = [signal.getsignal(number) for number in signal.valid_signals()]
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
            wakeup = signal.set_wakeup_fd(-1)
            return namespaces, handlers, mask, wakeup, sorted(os.listdir("/proc/self/fd")), os.environ.copy()
        before = state()
        assert sandbox.run_sealed(["true"]) == 0
        assert state() == before
    """
    assert subprocess.run(python(code), timeout=30, check=False).returncode == 0


# --- refusals -------------------------------------------------------------------------------------------------------


def test_without_root_two_lines_say_to_use_sudo(tmp_path: Path) -> None:
    code = "import os; os.setuid(65534); from kvfabric import sandbox\n"
    code += "try: sandbox.run_sealed(['true'])\nexcept sandbox.SandboxError as e: print(e)"
    # Imports must work for nobody too, wherever the checkout is.
    code = "import kvfabric.sandbox\n" + code
    done = subprocess.run(python(code), capture_output=True, text=True, timeout=30, check=False)
    lines = done.stdout.splitlines()
    assert len(lines) == 2, done
    assert lines[0].startswith("kvfabric needs root for an emulation")
    assert "sudo" in lines[1]


@pytest.mark.parametrize("stage", ["before", "within"])
def test_where_root_may_not_make_namespaces_two_lines_name_the_container(stage: str) -> None:
    # Root without CAP_SYS_ADMIN, as in a container: refused at the first namespace. "within": refused at the mounts,
    # as AppArmor does; there is no other way to bring that about here than to replace the call.
    code = "import ctypes, sys; from kvfabric import _libc, sandbox\n"
    if stage == "before":
        code += "ctypes.CDLL(None).prctl(24, 21, 0, 0, 0)\n"  # PR_CAPBSET_DROP CAP_SYS_ADMIN; takes effect at exec
        code += "import os; os.execv(sys.executable, [sys.executable, '-c', sys.argv[1]])\n"
        attempt = "from kvfabric import sandbox\n"
    else:
        attempt = "import errno, os; from kvfabric import _libc, sandbox\n"
        attempt += "def refuse(*a): raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))\n_libc.mount = refuse\n"
        code = "import sys; exec(sys.argv[1])"
    attempt += "try: sandbox.run_sealed(['true'])\nexcept sandbox.SandboxError as e: print(e)"
    done = subprocess.run(python(code, attempt), capture_output=True, text=True, timeout=30, check=False)
    lines = done.stdout.splitlines()
    assert len(lines) == 2, done
    assert "container" in lines[0]
    assert "--privileged" in lines[1]


def test_preparing_outside_of_a_sandbox_is_refused() -> None:
    with pytest.raises(sandbox.SandboxError, match="not in one"):
        sandbox.prepare_inside()


def test_a_mark_exported_from_elsewhere_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not sandbox.inside()
    monkeypatch.setenv("KVFABRIC_SANDBOX", "1")
    assert not sandbox.inside()


# --- what is seen within --------------------------------------------------------------------------------------------

VIEW = """
import os, stat
from kvfabric import sandbox
sandbox.prepare_inside()
print(sandbox.inside(), sorted(os.listdir("/run")), os.listdir("/run/netns"), os.listdir("/sys/class/net"))
print(oct(stat.S_IMODE(os.stat("/run/kvfabric").st_mode)), os.getppid(), os.path.exists("/run/openvswitch/db.sock"))
import socket
with socket.create_server(("127.0.0.1", 0)) as s, socket.create_connection(s.getsockname()): print("loopback")
"""


def test_the_sandbox_has_its_own_run_proc_sys_and_loopback() -> None:
    done = run(*python(VIEW))
    assert done.stdout.splitlines() == [
        "True ['kvfabric', 'lock', 'netns'] [] ['lo']",
        "0o700 1 False",
        "loopback",
    ], done


def test_sandboxes_nest() -> None:
    done = run(*command(*python(VIEW)))
    assert done.stdout.startswith("True ['kvfabric', 'lock', 'netns'] [] ['lo']"), done


def test_two_sandboxes_use_the_same_names_side_by_side(marked: Marked) -> None:
    script = "ip netns add leaf1 && ip link add uplink0 type bridge && echo up; read x; ip netns list"
    with started(marked, "sh", "-c", script + "; sleep 60") as one, started(marked, "sh", "-c", script) as two:
        assert (line(one), line(two)) == ("up", "up")
        assert two.wait(10) == 0
        assert "leaf1" in rest(two)[0]
        assert line(one) == "leaf1"


def test_a_foreign_namespace_bridge_and_file_survive_unseen(marked: Marked, tmp_path: Path) -> None:
    name = f"kvt{uuid.uuid4().hex[:8]}"
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        subprocess.run(["ip", "-n", name, "link", "add", "br0", "type", "bridge"], check=True)
        (tmp_path / "file").write_text("mine")
        with started(marked, "sh", "-c", "ls /run/netns | wc -l; sleep 60") as process:
            assert line(process) == "0"
            process.kill()
            process.wait(10)
        assert holds(lambda: not marked.pids())
        assert "br0" in subprocess.run(["ip", "-n", name, "link"], capture_output=True, text=True, check=True).stdout
        assert (tmp_path / "file").read_text() == "mine"
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=True)


# --- signals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_a_signal_to_the_visible_process_stops_in_order(marked: Marked, name: str) -> None:
    with started(marked, *python(STOPPER)) as process:
        assert line(process) == "ready"
        process.send_signal(signal.Signals[name])
        assert rest(process)[:2] == [f"asked {name}", "orderly"]
        assert process.wait(10) == 7


def test_a_second_signal_ends_at_once(marked: Marked) -> None:
    with started(marked, *python(STOPPER, "60")) as process:
        assert line(process) == "ready"
        process.send_signal(signal.SIGTERM)
        assert line(process) == "asked SIGTERM"
        process.send_signal(signal.SIGTERM)
        assert process.wait(2) == 128 + signal.SIGTERM


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_signals_arrive_though_a_library_has_started_threads(marked: Marked, name: str) -> None:
    code = "import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n" + RUNNER
    argv = python(code, *python(STOPPER, "0.2"))
    with subprocess.Popen(argv, env=marked.env, stdout=subprocess.PIPE, text=True) as process:
        assert line(process) == "ready"
        process.send_signal(signal.Signals[name])
        assert rest(process)[:2] == [f"asked {name}", "orderly"]
        assert process.wait(10) == 7


def test_a_signal_to_the_whole_group_arrives_once(marked: Marked) -> None:
    # As timeout(1) sends it: to the process, and then to its group.
    with started(marked, *python(STOPPER, "0.4"), group=True) as process:
        assert line(process) == "ready"
        process.send_signal(signal.SIGTERM)
        os.killpg(process.pid, signal.SIGTERM)
        assert rest(process)[:2] == ["asked SIGTERM", "orderly"]
        assert process.wait(10) == 7


def test_other_signals_are_handed_on(marked: Marked) -> None:
    script = (
        "trap 'echo USR1' USR1; trap 'echo WINCH' WINCH; trap 'echo QUIT; exit 4' QUIT; echo ready; while :; do sleep 0.05; done"
    )
    with started(marked, "bash", "-c", script) as process:
        assert line(process) == "ready"
        for name in ("USR1", "WINCH", "QUIT"):
            process.send_signal(signal.Signals[f"SIG{name}"])
            assert line(process) == name
        assert process.wait(10) == 4


def test_a_signal_during_the_start_is_not_lost(marked: Marked) -> None:
    source = random.Random(5)
    for to_group in (False, True, False, True):
        with started(marked, "sleep", "60", group=True) as process:
            time.sleep(source.uniform(0.02, 0.15))
            (os.killpg if to_group else os.kill)(process.pid, signal.SIGTERM)
            assert process.wait(5) in (-signal.SIGTERM, 128 + signal.SIGTERM)
        assert holds(lambda: not marked.pids())


# --- terminals ------------------------------------------------------------------------------------------------------


class Terminal:
    """A program at a terminal of its own, typed at and read from as a person does."""

    def __init__(self, argv: list[str], env: dict[str, str]) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execvpe(argv[0], argv, env)
        self.text = ""
        self.status: int | None = None

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def expect(self, pattern: str, bound_s: float = BOUND_S) -> re.Match[str]:
        """Read until ``pattern`` is there; the text up to its end is then done with."""
        end = time.monotonic() + bound_s
        while (match := re.search(pattern, self.text)) is None:
            assert select.select([self.fd], [], [], max(0.0, end - time.monotonic()))[0], self.text
            try:
                chunk = os.read(self.fd, 65536)
            except OSError:  # how Linux says that the last process has closed the terminal
                chunk = b""
            assert chunk, self.text
            self.text += chunk.decode()
        self.text = self.text[match.end() :]
        return match

    def wait(self, bound_s: float = BOUND_S) -> int:
        """The exit code. Keeps reading: a program that leaves a terminal waits till its output has been read."""

        def ended() -> bool:
            if select.select([self.fd], [], [], 0)[0]:
                with contextlib.suppress(OSError):
                    self.text += os.read(self.fd, 65536).decode()
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
            return bool(pid)

        assert holds(ended, bound_s), self.text
        assert self.status is not None
        return self.status

    def close(self) -> None:
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        with contextlib.suppress(OSError):
            os.close(self.fd)


@pytest.fixture
def terminal(marked: Marked) -> Iterator[Callable[[list[str]], Terminal]]:
    opened = []

    def open_terminal(argv: list[str]) -> Terminal:
        opened.append(Terminal(argv, {**marked.env, "PS1": "prompt> ", "TERM": "dumb"}))
        return opened[-1]

    yield open_terminal
    for one in opened:
        one.close()


def test_ctrl_c_once_stops_in_order(terminal: Callable[[list[str]], Terminal]) -> None:
    at = terminal(command(*python(STOPPER, "0.4")))
    at.expect("ready")
    at.type("\x03")
    at.expect("asked SIGINT")
    at.expect("orderly")
    assert at.wait() == 7


def test_ctrl_c_twice_ends_at_once(terminal: Callable[[list[str]], Terminal]) -> None:
    at = terminal(command(*python(STOPPER, "60")))
    at.expect("ready")
    at.type("\x03")
    at.expect("asked SIGINT")
    at.type("\x03")
    assert at.wait(2) == 128 + signal.SIGINT


def test_kill_int_at_a_terminal_arrives_once(terminal: Callable[[list[str]], Terminal]) -> None:
    at = terminal(command(*python(STOPPER, "0.4")))
    at.expect("ready")
    os.kill(at.pid, signal.SIGINT)
    at.expect("asked SIGINT")
    at.expect("orderly")
    assert at.wait() == 7


def test_an_interactive_shell_works_with_job_control(terminal: Callable[[list[str]], Terminal]) -> None:
    at = terminal(command("bash", "--norc", "-i"))
    at.expect("prompt> ")
    at.type("echo $((6 * 7))\n")
    at.expect(r"\n42\r")
    at.expect("prompt> ")
    at.type("sleep 60\n")
    time.sleep(0.2)
    at.type("\x1a")
    at.expect("Stopped")
    at.expect("prompt> ")  # readline drops what is typed while it sets the terminal up
    at.type("fg\n")
    time.sleep(0.2)
    at.type("\x03")
    at.expect("prompt> ")
    at.type("exit 3\n")
    assert at.wait() == 3
    assert "no job control" not in at.text


def test_ctrl_z_and_fg_under_a_shell(terminal: Callable[[list[str]], Terminal]) -> None:
    at = terminal(["bash", "--norc", "-i"])
    at.expect("prompt> ")
    at.type(shlex.join(command(*python("print('reads'); print('got', input())"))) + "\n")
    at.expect("\nreads")
    at.type("\x1a")
    at.expect("Stopped")
    at.expect("prompt> ")  # readline drops what is typed while it sets the terminal up
    at.type("fg\n")
    time.sleep(0.3)
    at.type("hello\n")
    at.expect("got hello")
    at.expect("prompt> ")
    at.type("exit\n")
    assert at.wait() == 0


def test_a_program_killed_in_raw_mode_leaves_a_usable_terminal(terminal: Callable[[list[str]], Terminal]) -> None:
    script = '"$@"; echo code $?; stty -a; read x; echo got $x'
    at = terminal(["bash", "--norc", "-c", script, "-", *command("sh", "-c", "stty raw -echo; kill -9 $$")])
    at.expect("code 137")
    settings = at.expect(r"(-?)icanon")
    assert settings[1] == ""
    at.type("line\n")
    at.expect("got line")
    assert at.wait() == 0


def test_a_closed_terminal_stops_in_order(marked: Marked, terminal: Callable[[list[str]], Terminal], tmp_path: Path) -> None:
    log = tmp_path / "log"
    code = STOPPER.replace("import select, sys\n", f"import select, sys\nsys.stdout = open({str(log)!r}, 'w')\n")
    script = tmp_path / "inner.py"
    script.write_text(code)
    at = terminal(["bash", "--norc", "-i"])
    at.expect("prompt> ")
    at.type(shlex.join(command(sys.executable, str(script), "0.3")) + "\n")
    assert holds(lambda: log.exists() and "ready" in log.read_text())
    os.close(at.fd)
    assert holds(lambda: not marked.pids() or marked.pids() == {at.pid})
    assert log.read_text().split("\n")[1:3] == ["asked SIGHUP", "orderly"]


# --- nothing leaks --------------------------------------------------------------------------------------------------

BUSY = f"""
{DAEMON}
import subprocess
for n in range(3):
    subprocess.run(["ip", "netns", "add", f"host{{n}}"], check=True)
    subprocess.run(["ip", "link", "add", f"kvl{{n}}", "type", "veth", "peer", f"kvr{{n}}"], check=True)
    subprocess.run(["ip", "link", "set", f"kvr{{n}}", "netns", f"host{{n}}"], check=True)
print("built", flush=True)
time.sleep(60)
"""


def test_kill_9_at_any_instant_leaves_nothing(marked: Marked) -> None:
    source = random.Random(2)
    before = interfaces()
    seen: set[str] = set()
    instants = sorted(source.uniform(0.0, 0.35) for _ in range(10))
    for instant in instants:
        with started(marked, *python(BUSY)) as process:
            time.sleep(instant)
            seen |= marked.namespaces()
            process.kill()
            process.wait(5)
        assert holds(lambda: not marked.pids()), f"killed after {instant:.3f} s: {marked.pids()} live on"
    assert seen, "no kill came after the sandbox was made"
    assert holds(lambda: not seen & network_namespaces())
    assert interfaces() == before


def test_kill_9_right_at_the_fork_leaves_nothing(marked: Marked) -> None:
    # The outer process dies by its own hand between the fork and the child's first instruction, and a little later.
    for delay in ("0", "0.001", "0.01"):
        code = "import os, signal, sys, time; from kvfabric.sandbox import run_sealed; fork = os.fork\n"
        code += "def dying():\n pid = fork()\n if pid: time.sleep(float(sys.argv[1])); os.kill(os.getpid(), 9)\n return pid\n"
        code += "os.fork = dying; run_sealed(['sleep', '60'])"
        done = subprocess.run(python(code, delay), env=marked.env, timeout=10, check=False)
        assert done.returncode == -signal.SIGKILL
        assert holds(lambda: not marked.pids())


@pytest.mark.parametrize("victim", ["outer", "init", "inner"])
def test_whoever_dies_takes_a_daemon_with_its_own_namespace_along(marked: Marked, victim: str) -> None:
    with started(
        marked, *python(DAEMON + "print(open('/proc/self/stat').read().split()[0], flush=True)\ntime.sleep(60)")
    ) as process:
        assert line(process).isdigit()
        assert holds(lambda: len(marked.namespaces()) == 2 and len(marked.pids()) == 4), marked.pids()
        spaces = marked.namespaces()
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        init = int(children[0])
        inner = int(Path(f"/proc/{init}/task/{init}/children").read_text().split()[0])
        os.kill({"outer": process.pid, "init": init, "inner": inner}[victim], signal.SIGKILL)
        assert process.wait(5) == (-9 if victim == "outer" else 137)
        assert holds(lambda: not marked.pids() and not spaces & network_namespaces())


def test_nothing_lives_on_after_an_ordinary_end(marked: Marked) -> None:
    done = run(*python(DAEMON + "print('done')"), env=marked.env)
    assert done.stdout == "done\n"
    assert not marked.pids()  # at once: the exit code comes out when all of the sandbox is dead


# --- the inner program's side ---------------------------------------------------------------------------------------


def test_stop_signals_leave_nohup_in_force_and_restore_handlers() -> None:
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        with sandbox.StopSignals() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert stop.requested is None
            os.kill(os.getpid(), signal.SIGTERM)
            assert holds(lambda: stop.requested == "SIGTERM")
            assert select.select([stop], [], [], 0)[0]
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    finally:
        signal.signal(signal.SIGHUP, previous)
