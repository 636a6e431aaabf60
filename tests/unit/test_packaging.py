"""What a fresh machine needs: the set-up script, the pins, the Vagrantfile and the cloud-init file."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[2]
PYTHONS = ("3.10", "3.11", "3.12", "3.13")


def pin_lines(file: str) -> list[str]:
    lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


PIN_LINES = pin_lines("requirements.txt")
RYU_PIN_LINES = pin_lines("packaging/requirements-ryu.txt")


def project() -> dict[str, Any]:
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    table: dict[str, Any] = toml.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return table


def declared() -> list[Requirement]:
    extras = project()["optional-dependencies"].values()
    return [Requirement(text) for texts in [project()["dependencies"], *extras] for text in texts]


def environment(python: str) -> dict[str, str]:
    return {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_python_implementation": "CPython",
        "extra": "",
    }


def pins(python: str) -> dict[str, list[str]]:
    """The versions that requirements.txt asks for on a Python, by canonical name."""
    found: dict[str, list[str]] = {}
    for requirement in map(Requirement, PIN_LINES):
        if requirement.marker is None or requirement.marker.evaluate(environment(python)):
            (specifier,) = requirement.specifier
            found.setdefault(canonicalize_name(requirement.name), []).append(specifier.version)
    return found


def validator(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed here")
    return path


def run(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **variables}
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)


def check_passes(*command: str, **variables: str) -> None:
    done = run(*command, **variables)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("line", [*PIN_LINES, *(line for line in RYU_PIN_LINES if line not in PIN_LINES)])
def test_every_requirement_is_one_exact_version_and_nothing_else(line: str) -> None:
    assert re.fullmatch(r'[\w.-]+==[\w.]+(; python_version (<|>=) "3\.\d+")?', line)


@pytest.mark.parametrize("python", PYTHONS)
def test_the_pins_cover_every_declared_dependency_once(python: str) -> None:
    pinned = pins(python)
    for requirement in declared():
        versions = pinned.get(canonicalize_name(requirement.name), [])
        assert len(versions) == 1, f"{requirement} on Python {python}: {versions}"
        assert requirement.specifier.contains(versions[0]), f"{requirement} on Python {python}: {versions}"


def test_the_pins_cover_what_the_dependencies_need_themselves() -> None:
    """bootstrap installs with --no-deps, so a pin that is missing would be a package that is missing."""
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    pinned = pins(python)
    missing: set[str] = set()
    for name in pinned:
        for text in metadata.requires(name) or []:
            need = Requirement(text)
            applies = need.marker is None or need.marker.evaluate(environment(python))
            if applies and canonicalize_name(need.name) not in pinned:
                missing.add(f"{need.name}, needed by {name}")
    assert not missing


def test_the_environment_of_bootstrap_holds_the_pinned_versions() -> None:
    if not Path(sys.prefix, ".bootstrap-stamp").is_file():
        pytest.skip("this environment was not made by ./bootstrap")
    pinned = pins(f"{sys.version_info[0]}.{sys.version_info[1]}")
    installed = {name: [metadata.version(name)] for name in pinned}
    assert installed == pinned


def test_the_app_runs_on_the_same_eventlet_under_both_libraries() -> None:
    assert set(RYU_PIN_LINES) & {line for line in PIN_LINES if line.startswith(("eventlet==", "greenlet=="))} != set()
    assert {"ryu==4.34"} <= set(RYU_PIN_LINES)
    assert not any(line.startswith("os-ken") for line in RYU_PIN_LINES)  # where os-ken is, it is what is used


def test_the_changelog_speaks_of_this_version() -> None:
    assert f"## [{project()['version']}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("script", ["bootstrap", ".ci/run"])
def test_the_scripts_can_be_executed_and_satisfy_shellcheck(script: str) -> None:
    assert os.access(ROOT / script, os.X_OK)
    check_passes(validator("shellcheck"), script)


@pytest.mark.parametrize(("provider", "driver"), [("virtualbox", "kvm"), ("libvirt", "kvm"), ("libvirt", "qemu")])
def test_vagrant_accepts_the_vagrantfile(provider: str, driver: str, tmp_path: Path) -> None:
    vagrant = validator("vagrant")
    variables = {
        "VAGRANT_HOME": str(tmp_path / "home"),
        "VAGRANT_DOTFILE_PATH": str(tmp_path / "state"),
        "VAGRANT_CHECKPOINT_DISABLE": "1",
        "VAGRANT_DEFAULT_PROVIDER": provider,
        "KVFABRIC_LIBVIRT_DRIVER": driver,
    }
    if provider == "libvirt" and "vagrant-libvirt" not in run(vagrant, "plugin", "list", **variables).stdout:
        pytest.skip("vagrant has no plugin for libvirt here")
    check_passes(vagrant, "validate", "--ignore-provider", **variables)


def test_cloud_init_accepts_the_user_data() -> None:
    check_passes(validator("cloud-init"), "schema", "--config-file", "packaging/cloud-init.yaml")


@pytest.mark.parametrize("file", ["Vagrantfile", "packaging/cloud-init.yaml"])
def test_virtual_machines_are_set_up_by_bootstrap(file: str) -> None:
    assert "./bootstrap install" in (ROOT / file).read_text(encoding="utf-8")
