"""Looks at this machine for ``doctor``. What can only be known by doing it is done in a child, in throw-away namespaces."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvfabric.doctor import BASE_BYTES, BYTES_PER_HOST, CONGESTION_CONTROL, MIN_KERNEL, NEEDS, Finding
from kvfabric.machine import host_facts

_TIMEOUT_S = 30
_DEMO_HOSTS = 16
_IN_CHILD = [
    "namespaces",
    "veth",
    "htb",
    "tc-bpf",
    "nexthop-groups",
    "multipath-hash",
    "nftables",
    "multipath-seed",
    "tcp-rto-min",
    "netem",
    "fq",
    "fq_codel",
    "cake",
    "red",
    "shutter",
]


def machine_facts() -> dict[str, Any]:
    """Kernel, system, processor, memory and versions, as a run's manifest has them."""
    return dict(host_facts())


def probe_machine(facts: dict[str, Any]) -> tuple[Finding, ...]:
    """All findings, in the order of ``doctor.NEEDS``, congestion controls last. Changes nothing on the machine."""
    found = [
        _root(),
        kernel_finding(platform.release()),
        _program("mnexec"),
        _module("mininet", ("mininet",)),
        _module("openflow-library", ("os_ken", "ryu")),
        _ovs(),
        _ovs_module(),
        _cores(facts),
        _memory(facts),
        *_child(),
        *congestion_findings(_read("/proc/sys/net/ipv4/tcp_available_congestion_control")),
    ]
    order = {need.name: index for index, need in enumerate(NEEDS)}
    return tuple(sorted(found, key=lambda finding: order.get(finding.name, len(order))))


def kernel_finding(release: str) -> Finding:
    """Whether a kernel release such as ``6.1.0-18-amd64`` is new enough."""
    match = re.match(r"(\d+)\.(\d+)", release)
    version = (int(match[1]), int(match[2])) if match else (0, 0)
    return Finding("kernel", platform.system() == "Linux" and version >= MIN_KERNEL, release)


def congestion_findings(available: str) -> tuple[Finding, ...]:
    """A finding for each congestion control in the kernel's list, and for the usual ones it lacks."""
    have = set(available.split())
    return tuple(Finding(CONGESTION_CONTROL + name, name in have) for name in sorted(have | {"cubic", "reno", "bbr", "dctcp"}))


def _root() -> Finding:
    return Finding("root", os.geteuid() == 0, "yes" if os.geteuid() == 0 else f"user id {os.geteuid()}")


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _output(command: Sequence[str]) -> str | None:
    """First line of a program's output; None if it is not there or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return (done.stdout.splitlines() or [""])[0].strip()


def _program(name: str) -> Finding:
    path = shutil.which(name)
    return Finding(name, path is not None, path or "")


def _module(name: str, modules: Sequence[str]) -> Finding:
    for module in modules:
        if importlib.util.find_spec(module) is not None:
            return Finding(name, True, module)
    return Finding(name, False)


def _ovs() -> Finding:
    lacking = [name for name in ("ovs-vswitchd", "ovsdb-server", "ovs-vsctl") if shutil.which(name) is None]
    if lacking:
        return Finding("ovs", False, f"no {', '.join(lacking)}")
    version = _output(["ovs-vswitchd", "--version"])
    return Finding("ovs", version is not None, version or "ovs-vswitchd does not start")


def _ovs_module() -> Finding:
    if Path("/sys/module/openvswitch").exists():
        return Finding("ovs-module", True, "loaded")
    folder = f"/lib/modules/{platform.release()}"
    known = _read(f"{folder}/modules.dep") + _read(f"{folder}/modules.builtin")
    return Finding("ovs-module", "/openvswitch.ko" in known, "can be loaded" if "/openvswitch.ko" in known else "")


def _cores(facts: dict[str, Any]) -> Finding:
    cores = int(facts.get("cores_usable") or 0)
    return Finding("cores", cores >= 2, f"{cores} usable")


def _memory(facts: dict[str, Any]) -> Finding:
    memory = facts.get("memory_bytes")
    if not isinstance(memory, int):
        return Finding("memory", None, "unknown")
    return Finding("memory", memory >= BASE_BYTES + _DEMO_HOSTS * BYTES_PER_HOST, f"{memory / 2**30:.1f} GiB")


def _child() -> tuple[Finding, ...]:
    if os.geteuid() != 0:
        return tuple(Finding(name, None, "not tried without root") for name in _IN_CHILD)
    package = str(Path(__file__).resolve().parent.parent)
    path = os.pathsep.join(part for part in (package, os.environ.get("PYTHONPATH", "")) if part)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "kvfabric._probe_child"],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            env={**os.environ, "PYTHONPATH": path},
            check=True,
        )
        seen = json.loads(done.stdout)
        return tuple(Finding(name, *seen.get(name, (None, "not tried"))) for name in _IN_CHILD)
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines()
        reason = lines[-1] if lines else f"exit code {error.returncode}"
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        reason = str(error)
    return tuple(Finding(name, None, f"the probe failed: {reason}") for name in _IN_CHILD)
