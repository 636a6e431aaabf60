"""The rules of the house (CONTRIBUTING.md), held by the machine: style, types, who may import whom, what stays out."""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache, lru_cache
from itertools import pairwise
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[2]

# A package and what of ours it may import.
MAY_IMPORT: dict[str, set[str]] = {
    "topo": set(),
    "ocs_switch": {"topo"},
    "workloads": {"topo"},
    "controller": {"topo", "ocs_switch"},
    "flowsim": {"topo", "controller", "workloads"},
    "kvfabric": {"topo", "ocs_switch", "workloads", "controller", "flowsim"},
}
CODE_FOLDERS = [*MAY_IMPORT, "tests", "benchmarks"]

# The adapters, module or package, and what each touches. Every other module outside kvfabric/ is pure.
EDGE: dict[str, str] = {
    "controller.client": "sockets to the northbound, in the caller's event loop",
    "controller.northbound": "the northbound's sockets",
    "controller.ocs_app": "the Ryu app: the clock, the shutters and the switches",
    "controller.ocs_channel": "OpenFlow to one switch",
    "controller.openflow": "chooses and starts the OpenFlow library",
    "ocs_switch.bpf": "the bpf system call",
    "ocs_switch.probes": "packet sockets on the KV NICs",
    "ocs_switch.shutters": "the shutters of a cluster, by plane and port",
    "ocs_switch.fence": "the switch's control socket",
    "controller.ocs_fence": "the switch's control socket, in a green thread",
    "ocs_switch.light": "a program at the switch's ports, and the array it reads",
    "topo.emulated": "builds a fabric with Mininet",
    "topo.emulated_optical": "builds the planes with Mininet and Open vSwitch",
    "topo.links": "netlink sockets: interfaces, addresses and routes",
    "topo.mn": "Mininet's hosts, links and networks",
    "topo.netlink": "netlink sockets",
    "topo.netns": "enters network namespaces",
    "topo.observe": "asks the kernel what it has built",
    "topo.ovs": "an Open vSwitch of its own",
    "topo.tc": "netlink messages for qdiscs",
    "workloads.replay": "the TCP sender and receiver on the real clock",
}
# kvfabric/ is the face and mostly edge; these of its modules are pure.
PURE_FACE = {
    "kvfabric._complaints",
    "kvfabric._overrides",
    "kvfabric._quantities",
    "kvfabric._schema",
    "kvfabric._schema_emulation",
    "kvfabric._schema_fabric",
    "kvfabric._section",
    "kvfabric._yaml",
    "kvfabric.errors",
    "kvfabric.evidence",
    "kvfabric.progress",
    "kvfabric.rows",
    "kvfabric.verdict",
    "kvfabric._circuit_verdict",
    "kvfabric._wording",
}
IMPURE_IMPORTS = {
    *("asyncio", "ctypes", "eventlet", "fcntl", "mininet", "multiprocessing", "os", "os_ken", "pyroute2"),
    *("ryu", "select", "selectors", "shutil", "signal", "socket", "subprocess", "tempfile", "threading", "time"),
}

MAX_LINES = 350
# path: why it is one subject that cannot be split
LONG_MODULES: dict[str, str] = {
    "tests/netns/test_sandbox.py": "one sandbox, its life, signals, terminal and leaks: to be split by these four",
    "tests/unit/test_observer.py": "one process and its protocol",
    "tests/unit/test_scenario.py": "one file format and all the ways to get it wrong",
    "tests/unit/test_workloads_readers.py": "four formats held to the same rules",
}

# Put together here so that this file does not contain what it looks for.
FORBIDDEN_COMMANDS = re.compile(
    r"\bp" r"kill\b|\bkill" r"all\b|\bmn\s+" r"-c\b|[\"']mn[\"'],\s*[\"']" r"-c[\"']|\bshell\s*=\s*" r"True"
)
FORBIDDEN_ADDRESSES = re.compile(
    "|".join(
        [
            r"pypi\." r"org",
            r"pythonhosted\." r"org",
            r"npmjs\." r"(?:org|com)",
            r"deb\.debian\." r"org",
            r"archive\.ubuntu\." r"com",
            r"crates\." r"io",
            r"/wo" r"rk/\w",
            r"/ro" r"ot/\w",
            r"/tmp/" r"kv/",
        ]
    )
)
CODE_SUFFIXES = {".py", ".sh", ".yaml", ".yml", ".toml"}
CODE_NAMES = {"bootstrap", "Vagrantfile", "run"}
NOT_OURS = {"__pycache__", "build", "runs", ".git", ".venv", ".venv-ryu", ".vagrant", ".hypothesis"}


@lru_cache(maxsize=1)
def committed_files() -> tuple[Path, ...]:
    """Every file that belongs to the repository, found without git, which a copied checkout may lack."""
    found: list[Path] = []
    for folder, names, files in os.walk(ROOT):
        names[:] = sorted(n for n in names if n not in NOT_OURS and not n.endswith(("_cache", ".egg-info")))
        found += [Path(folder, name) for name in sorted(files)]
    return tuple(found)


def python_files(*folders: str) -> list[Path]:
    return [path for path in committed_files() if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in folders]


def test_files() -> list[Path]:
    return [path for path in python_files("tests") if path.name.startswith("test_")]


test_files.__test__ = False  # type: ignore[attr-defined]  # a helper whose name pytest would collect


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and full name of everything a module imports, wherever in it; ``from a import b`` gives a and a.b."""
    package = module_name(path).split(".")
    if path.name != "__init__.py":
        package.pop()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            yield node.lineno, source
            for alias in node.names:
                yield node.lineno, f"{source}.{alias.name}"


def is_edge(module: str) -> bool:
    return any(module == name or module.startswith(name + ".") for name in EDGE)


def is_pure(name: str) -> bool:
    """Whether a module of ours, or something imported from one, is pure."""
    parts = name.split(".")
    if parts[0] == "kvfabric":
        return len(parts) == 1 or ".".join(parts[:2]) in PURE_FACE
    return parts[0] in MAY_IMPORT and not is_edge(name)


def is_impure_import(name: str) -> bool:
    top = name.split(".")[0]
    return not is_pure(name) if top in MAY_IMPORT else top in IMPURE_IMPORTS


def run_tool(*command: str) -> None:
    done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"


def test_ruff_finds_nothing() -> None:
    run_tool("ruff", "check", "--no-cache", ".")


def test_the_code_is_formatted_by_ruff() -> None:
    run_tool("ruff", "format", "--no-cache", "--check", ".")


def test_mypy_strict_finds_nothing() -> None:
    folders = [folder for folder in CODE_FOLDERS if python_files(folder)]
    cache = ROOT / ".mypy_cache" if os.access(ROOT, os.W_OK) else Path(os.devnull)
    run_tool("mypy", f"--cache-dir={cache}", *folders)


def test_no_statement_stands_twice_in_a_row() -> None:
    """In the product, where it is a slip: what was to happen once happens twice. A test may do a thing twice to see it."""
    twice = [
        f"{path.relative_to(ROOT)}:{second.lineno} {ast.unparse(second).splitlines()[0]}"
        for path in python_files(*MAY_IMPORT)
        for node in ast.walk(parsed(path))
        for block in (getattr(node, name, None) for name in ("body", "orelse", "finalbody"))
        if isinstance(block, list)
        for first, second in pairwise(block)
        if ast.dump(first) == ast.dump(second)
    ]
    assert twice == []


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_a_package_imports_only_what_the_house_allows(package: str) -> None:
    denied = set(MAY_IMPORT) - MAY_IMPORT[package] - {package} | {"tests", "benchmarks"}
    wrong = {
        f"{path.relative_to(ROOT)}:{line} imports {name.split('.')[0]}"
        for path in python_files(package)
        for line, name in imports(path)
        if name.split(".")[0] in denied
    }
    assert not wrong, "\n".join(sorted(wrong))


def test_pure_modules_touch_neither_machine_nor_clock() -> None:
    """An adapter belongs into EDGE with what it touches; anything else must get its clock and its I/O passed in."""
    wrong = {
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in python_files(*MAY_IMPORT)
        if is_pure(module_name(path))
        for line, name in imports(path)
        if is_impure_import(name)
    }
    assert not wrong, "\n".join(sorted(wrong))


def test_the_lists_of_pure_and_edge_modules_name_modules_that_exist() -> None:
    there = {module_name(path) for path in python_files(*MAY_IMPORT)}
    assert not ({*EDGE, *PURE_FACE} - there)
    assert set(LONG_MODULES) <= {str(path.relative_to(ROOT)) for path in committed_files()}


def test_a_module_is_read_in_one_sitting() -> None:
    lengths = {str(p.relative_to(ROOT)): len(p.read_text(encoding="utf-8").splitlines()) for p in python_files(*CODE_FOLDERS)}
    long = {name: lines for name, lines in lengths.items() if lines > MAX_LINES and name not in LONG_MODULES}
    assert not long, f"over {MAX_LINES} lines: {long}"


def marker_names(path: Path) -> set[str]:
    """The markers of a module's ``pytestmark``, written as one mark or as a list of them."""
    values = [
        node.value
        for node in parsed(path).body
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "pytestmark" for t in node.targets)
    ]
    attributes = [n for value in values for n in ast.walk(value) if isinstance(n, ast.Attribute)]
    return {n.attr for n in attributes if isinstance(n.value, ast.Attribute) and n.value.attr == "mark"}


def test_every_test_module_carries_the_marker_of_its_folder() -> None:
    wrong = {
        f"{path.relative_to(ROOT)}: pytestmark must be pytest.mark.{path.relative_to(ROOT).parts[1]}"
        for path in test_files()
        if path.relative_to(ROOT).parts[1] not in marker_names(path)
    }
    assert not wrong, "\n".join(sorted(wrong))


def test_test_modules_have_names_of_their_own() -> None:
    """The test folders are no packages, so two modules of one name would hide each other from pytest and mypy."""
    names = [path.name for path in python_files("tests", "benchmarks")]
    assert not {name for name in names if names.count(name) > 1}


def asserts_something(function: ast.AST) -> bool:
    for node in ast.walk(function):
        if isinstance(node, ast.Assert):
            return True
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in {"raises", "warns", "fail", "run_tool"} or name.startswith(("assert", "check", "expect")):
                return True
    return False


def test_every_test_asserts_something() -> None:
    idle = {
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path in test_files()
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_") and node.name != "test_files"
        if not asserts_something(node)
    }
    assert not idle, "\n".join(sorted(idle))


def lines_matching(pattern: re.Pattern[str], files: list[Path]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in files
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        if pattern.search(line)
    ]


def test_nothing_kills_by_name_cleans_up_others_networks_or_starts_a_shell() -> None:
    code = [path for path in committed_files() if path.suffix in CODE_SUFFIXES or path.name in CODE_NAMES]
    found = lines_matching(FORBIDDEN_COMMANDS, code)
    assert not found, "\n".join(found)


def test_no_registry_host_and_no_path_of_one_machine_is_committed() -> None:
    found = lines_matching(FORBIDDEN_ADDRESSES, list(committed_files()))
    assert not found, "\n".join(found)


def test_links_between_the_pages_lead_somewhere() -> None:
    pages = [path for path in committed_files() if path.suffix == ".md"]
    broken = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in pages
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8"))
        if "://" not in target and not (page.parent / target).exists()
    ]
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize(
    ("line", "pattern"),
    [
        ("p" + "kill -f ryu", FORBIDDEN_COMMANDS),
        ("mn" + " -c", FORBIDDEN_COMMANDS),
        ('run(["mn", "' + '-c"])', FORBIDDEN_COMMANDS),
        ("run(x, shell=" + "True)", FORBIDDEN_COMMANDS),
        ("https://files.pythonhosted" + ".org/x", FORBIDDEN_ADDRESSES),
    ],
)
def test_the_patterns_of_forbidden_text_find_it(line: str, pattern: re.Pattern[str]) -> None:
    assert pattern.search(line)


def test_every_command_has_its_page() -> None:
    verbs = getattr(importlib.import_module("kvfabric.cli"), "VERBS", None)
    if verbs is None:
        pytest.skip("kvfabric.cli has no VERBS yet")
    missing = sorted(verb for verb in verbs if not (ROOT / "docs" / "commands" / f"{verb}.md").is_file())
    assert not missing, f"no docs/commands/<verb>.md for: {missing}"
