"""The controller as a process: how it starts and ends, and what its northbound says to whom."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest
from ocs_bench import ROOT, bench, check_reaches, join, python_of

from controller.client import OcsClient
from controller.northbound_http import render_request
from controller.ocs_config import to_text
from controller.ocs_messages import Event, EventKind, Order

pytestmark = [pytest.mark.netns, pytest.mark.sealed]

libraries = pytest.mark.parametrize("library", ["os-ken", "ryu"])
TAU_S = 0.02


@libraries
def test_the_controller_ends_with_the_process_that_started_it(library: str) -> None:
    with bench(library, switches=False) as one:
        path = Path("/run/other.json")
        path.write_text(to_text(one.config).replace("/run/ocs.sock", "/run/other.sock").replace("6653", "6654"), encoding="utf-8")
        code = (
            "import subprocess, sys, time\n"
            f"command = [{one.python!r}, '-m', 'controller.ocs_app', {str(path)!r}]\n"
            f"child = subprocess.Popen(command, pass_fds=[{one.config.light_fd}])\n"
            "print(child.pid, flush=True)\n"
            "time.sleep(60)\n"
        )
        fds = [] if one.config.light_fd is None else [one.config.light_fd]
        parent = subprocess.Popen([one.python, "-c", code], cwd=ROOT, pass_fds=fds, stdout=subprocess.PIPE, text=True)
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        until = time.monotonic() + 10
        while not Path("/run/other.sock").exists():
            assert time.monotonic() < until
            time.sleep(0.02)
        parent.kill()
        parent.wait()
        while Path(f"/proc/{pid}").exists() and "State:\tZ" not in Path(f"/proc/{pid}/status").read_text():
            assert time.monotonic() < until
            time.sleep(0.02)


def test_ryu_manager_loads_the_app() -> None:
    python = python_of("ryu")
    with bench("ryu", light=False, switches=False) as one:
        config = to_text(one.config).replace("/run/ocs.sock", "127.0.0.1:8181")
        Path("/run/managed.json").write_text(config, encoding="utf-8")
        environment = {**os.environ, "KVFABRIC_OCS_CONFIG": "/run/managed.json"}
        command = [python, "-m", "controller.openflow", "--ofp-tcp-listen-port", "6655", "controller.ocs_app"]
        managed = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL)
        until = time.monotonic() + 10
        while True:
            try:
                client = OcsClient("127.0.0.1:8181")
                break
            except OSError:
                assert managed.poll() is None
                assert time.monotonic() < until
                time.sleep(0.05)
        client.close()
        managed.send_signal(signal.SIGTERM)
        managed.wait(10)


def test_a_configuration_that_cannot_be_is_refused_in_words() -> None:
    done = subprocess.run(
        [python_of("os-ken"), "-m", "controller.ocs_app", "/dev/stdin"],
        cwd=ROOT,
        input='{"planes": []}',
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 2
    assert "northbound is missing" in done.stderr


@libraries
def test_a_controller_that_cannot_listen_ends_and_says_so(library: str) -> None:
    with bench(library, switches=False, light=False) as one:
        ours = to_text(one.config)
        taken = ours.replace("/run/ocs.sock", "/run/second.sock")
        shared = ours.replace("6653", "6654")
        nowhere = shared.replace("/run/ocs.sock", "/no/such/place.sock")
        for config, words in ((taken, "in use"), (shared, "another controller"), (nowhere, "No such file")):
            command = [one.python, "-m", "controller.ocs_app", "/dev/stdin"]
            done = subprocess.run(command, cwd=ROOT, input=config, capture_output=True, text=True, timeout=20, check=False)
            assert done.returncode == 3
            assert done.stderr.startswith("ocs_app: cannot listen at 127.0.0.1:665")
            assert words in done.stderr


def request(address: str, raw: bytes) -> tuple[int, dict[str, object]]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(5)
        connection.connect(address)
        connection.sendall(raw)
        said = b""
        while b"\r\n\r\n" not in said or not said.endswith(b"}"):
            part = connection.recv(65536)
            if not part:
                break
            said += part
    head, _, body = said.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


def test_the_northbound_answers_what_it_does_not_understand_and_goes_on() -> None:
    with bench("os-ken", tau_s=TAU_S) as one:
        where = one.config.northbound
        status, health = request(where, render_request("GET", "/health"))
        assert (status, health["healthy"], health["ready"]) == (200, True, 1)
        for body, words in {
            b"[": "not JSON", b"{}": "the body is", b'{"circuits":[{"a":0}]}': "needs the ports",
            b'{"circuits":[{"a":0,"b":1,"c":2}]}': "unknown key 'c'", b'{"circuits":[{"a":0,"b":1,"planes":[4]}]}': "no plane 4",
        }.items():  # fmt: skip
            status, document = request(where, render_request("POST", "/circuits", body))
            assert (status, words in str(document["error"])) == (400, True), document
        assert request(where, render_request("GET", "/nothing"))[0] == 404
        assert request(where, render_request("PUT", "/planes"))[0] == 405
        assert request(where, b"POST /circuits HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n")[0] == 413
        assert request(where, b"nonsense\r\n\r\n")[0] == 400
        join(one, Order(a=0, b=2))
        assert one.ovs is not None
        one.ovs._vsctl("del-controller", "ocs0")
        one.wait(lambda e: e.kind is EventKind.DISCONNECTED)
        assert request(where, render_request("GET", "/health"))[0] == 503


def test_a_reader_that_does_not_read_is_dropped_and_holds_nobody_up() -> None:
    with bench("os-ken", tau_s=TAU_S) as one:
        with socket.socket(socket.AF_UNIX) as stuck:
            stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stuck.connect(one.config.northbound)
            stuck.sendall(render_request("GET", "/events"))
            dropped = None
            slowest = 0
            for _ in range(400):  # each is refused, which is an event with a tag
                start = time.monotonic_ns()
                number = one.client.connect(*[Order(a=1, b=1, tag="x" * 500)] * 20)
                one.answers(number)
                slowest = max(slowest, time.monotonic_ns() - start)
                dropped = next((e for e in one.received if isinstance(e, Event) and "dropped" in e.detail), None)
                one.received.clear()
                if dropped is not None:
                    break
            assert dropped is not None
            assert dropped.detail == "a reader of events was 4096 behind and was dropped"
            assert slowest < 1_000_000_000
        join(one, Order(a=0, b=2))
        check_reaches(one, {(0, 0): 2})


def test_the_northbound_is_not_open_to_other_users() -> None:
    with bench("os-ken", switches=False) as one:
        assert os.stat(one.config.northbound).st_mode & 0o777 == 0o600
