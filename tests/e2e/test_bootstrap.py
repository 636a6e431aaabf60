"""./bootstrap as a user types it. Nothing here installs anything: apt and pip are out of reach of every call."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).resolve().parents[2]
AS_NOBODY = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups")
DISTRIBUTION = Path("/etc/os-release").read_text(encoding="utf-8")


def call(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **variables}
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60, check=False
    )


def two_lines(done: subprocess.CompletedProcess[str]) -> str:
    """The error, after a look at its shape: what is wrong, then what to do, on stderr alone."""
    first, second = done.stderr.splitlines()
    assert first.startswith("bootstrap: ")
    assert second.startswith("  ")
    assert done.stdout == ""
    return done.stderr


@pytest.fixture
def fresh() -> Iterator[Path]:
    """A checkout as bootstrap sees it, never set up, that any user may read."""
    folder = Path(tempfile.mkdtemp(prefix="kvfabric-fresh-"))
    folder.chmod(0o755)
    for name in ("bootstrap", "requirements.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, folder / name)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def no_packages(fresh: Path) -> str:
    """A package database in which nothing is installed."""
    if not any(f"ID={name}" in DISTRIBUTION for name in ("debian", "ubuntu")):
        pytest.skip("bootstrap installs packages on Debian and Ubuntu only")
    (fresh / "dpkg").mkdir()
    (fresh / "dpkg" / "status").touch()
    return str(fresh / "dpkg")


def fake_apt(folder: Path, body: str) -> str:
    """A PATH on which apt-get writes down how it was called, and then does as told."""
    tools = folder / "tools"
    tools.mkdir()
    script = tools / "apt-get"
    script.write_text(f'#!/bin/sh\necho "$DEBIAN_FRONTEND $*" >>"{folder}/apt.log"\n{body}\n', encoding="utf-8")
    script.chmod(0o755)
    return f"{tools}:{os.environ['PATH']}"


def test_a_second_install_takes_under_a_second() -> None:
    if call(str(ROOT / "bootstrap"), "install", "--dry-run").returncode != 0:
        pytest.skip("this checkout was not set up by ./bootstrap, or has changed since")
    durations = []
    for _ in range(3):
        start = time.monotonic()
        done = call(str(ROOT / "bootstrap"), "install")
        durations.append(time.monotonic() - start)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert min(durations) < 1.0


def test_help_shows_an_example_and_an_unknown_command_is_refused(fresh: Path) -> None:
    help_text = call(str(fresh / "bootstrap"), "--help")
    assert help_text.returncode == 0
    assert "Example:" in help_text.stdout
    refused = call(str(fresh / "bootstrap"), "instal")
    assert refused.returncode == 2
    assert "'instal'" in two_lines(refused)
    nothing = call(str(fresh / "bootstrap"))
    assert nothing.returncode == 2
    assert "no command" in two_lines(nothing)


def test_a_plain_user_is_told_to_use_sudo_for_the_demo(fresh: Path) -> None:
    refused = call(*AS_NOBODY, str(fresh / "bootstrap"), "demo")
    assert refused.returncode == 3
    assert "sudo ./bootstrap demo" in two_lines(refused)


def test_a_plain_user_is_told_which_packages_need_root(fresh: Path, no_packages: str) -> None:
    refused = call(*AS_NOBODY, str(fresh / "bootstrap"), "install", DPKG_ADMINDIR=no_packages)
    assert refused.returncode == 3
    assert "openvswitch-switch" in two_lines(refused)
    assert not (fresh / ".venv").exists()


def test_an_unsupported_distribution_is_refused_by_name(fresh: Path) -> None:
    (fresh / "os-release").write_text('ID="slackware"\nVERSION_ID=15.0\n', encoding="utf-8")
    inside = f'mount --bind "{fresh}/os-release" /etc/os-release && exec "{fresh}/bootstrap" install'
    refused = call("unshare", "--mount", "sh", "-c", inside)
    assert refused.returncode == 3
    text = two_lines(refused)
    assert "slackware 15.0" in text
    assert "Debian 12 or 13" in text


def test_only_missing_packages_are_installed_without_questions_or_extras(fresh: Path, no_packages: str) -> None:
    path = fake_apt(fresh, "exit 0")
    done = call(str(fresh / "bootstrap"), "install", PATH=path, DPKG_ADMINDIR=no_packages, KVFABRIC_PYTHON="/no/python")
    update, install = (fresh / "apt.log").read_text(encoding="utf-8").splitlines()
    assert update.startswith("noninteractive ")
    assert update.endswith(" update")
    assert "DPkg::Lock::Timeout=" in install
    assert " install --no-install-recommends ethtool iproute2 mininet " in install
    assert done.returncode == 3
    assert "no Python at /no/python" in done.stderr


def test_a_failing_apt_shows_its_own_words(fresh: Path, no_packages: str) -> None:
    path = fake_apt(fresh, 'echo "E: the archive is on fire"; exit 100')
    # A /run as it is where systemd starts services: without it, what apt says may be about a daemon that we do not need.
    inside = f'mount -t tmpfs none /run && mkdir -p /run/systemd/system && exec "{fresh}/bootstrap" install'
    done = call("unshare", "--mount", "sh", "-c", inside, PATH=path, DPKG_ADMINDIR=no_packages)
    assert done.returncode == 3
    assert "the archive is on fire" in done.stderr
    assert "apt could not install: ethtool" in done.stderr
    assert not (fresh / ".venv").exists()


def test_an_interpreter_that_is_too_old_is_refused(fresh: Path) -> None:
    old = fresh / "python3.9"
    old.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    old.chmod(0o755)
    refused = call(str(fresh / "bootstrap"), "install", KVFABRIC_PYTHON=str(old))
    assert refused.returncode == 3
    assert "older than Python 3.10" in refused.stderr


def test_an_environment_that_was_left_half_made_is_made_again(fresh: Path) -> None:
    """The stamp is written last, so an interrupted call leaves an environment without one."""
    (fresh / ".venv" / "bin").mkdir(parents=True)
    python = fresh / ".venv" / "bin" / "python"
    python.symlink_to("/usr/bin/python3")
    planned = call(str(fresh / "bootstrap"), "install", "--dry-run")
    assert planned.returncode == 1
    assert f"virtual environment to make: {fresh}/.venv" in planned.stdout
