"""Scenarios: a YAML file (or a built-in name) and options of the command line, validated into frozen data.

The models are in ``_schema``; this module finds the file, applies ``--set`` and turns whatever is wrong into two lines.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kvfabric import _complaints, _overrides, _yaml
from kvfabric._overrides import Override, parse_set
from kvfabric._schema import ClusterSpec, ScaleSpec, Scenario, SloSpec, TenantSpec, VariantSpec, WorkloadSpec, names_a_file
from kvfabric._schema_emulation import EmulationSpec, OffloadSpec
from kvfabric._schema_fabric import FabricSpec, OcsSpec
from kvfabric.errors import BadInput
from topo.units import format_time

__all__ = [
    "BuiltIn",
    "ClusterSpec",
    "EmulationSpec",
    "FabricSpec",
    "OcsSpec",
    "OffloadSpec",
    "Override",
    "ScaleSpec",
    "Scenario",
    "SloSpec",
    "TenantSpec",
    "VariantSpec",
    "WorkloadSpec",
    "built_in_scenarios",
    "fabric_name",
    "json_schema",
    "load_scenario",
    "parse_scenario",
    "parse_set",
    "scenario_text",
    "variants_of",
]

_BUILT_IN = Path(__file__).parent / "scenarios"
_MAX_BYTES = 256 * 1024  # a scenario is a page; what is larger is a trace given in its place


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """A scenario that comes with the package. ``needs_trace`` says that it runs only with a trace of the user's."""

    name: str
    about: str
    needs_trace: bool


def built_in_scenarios() -> tuple[BuiltIn, ...]:
    """The built-in scenarios, demo first, then by name."""
    found = []
    for path in _BUILT_IN.glob("*.yaml"):
        tree = _yaml.parse(path.read_text(encoding="utf-8")).value
        tenants = tree["workload"]["tenants"]
        needs_trace = any("generator" not in tenant and "trace" not in tenant for tenant in tenants)
        found.append(BuiltIn(tree["name"], tree["about"], needs_trace))
    return tuple(sorted(found, key=lambda item: (item.name != "demo", item.name)))


def scenario_text(name_or_path: str) -> tuple[str, Path]:
    """The text of a built-in scenario or of a file, and where it is. A built-in name wins over a file of that name.

    Raises BadInput.
    """
    built_in = {path.stem: path for path in _BUILT_IN.glob("*.yaml")}
    path = built_in.get(name_or_path) or Path(name_or_path).expanduser()
    try:
        if path.is_dir():
            raise BadInput(f"{path}: a folder, not a scenario", "to replay a trace: kvfabric run weka --trace PATH")
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
        if len(data) > _MAX_BYTES:
            raise BadInput(f"{path}: too large for a scenario", "to replay a trace: kvfabric run weka --trace PATH")
        return data.decode("utf-8-sig"), path
    except FileNotFoundError:
        close = _complaints.nearest(name_or_path, built_in)
        hint = f"did you mean {close}? " if close else ""
        raise BadInput(
            f"no scenario {name_or_path!r}: neither built in nor a file",
            f"{hint}built in: {', '.join(sorted(built_in))}",
        ) from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise BadInput(f"{path}:{line}: not UTF-8 text", "a scenario is a YAML file; see docs/scenario.md") from None
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL in it
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise BadInput(f"{name_or_path}: cannot be read: {reason}", "check the path and its permissions") from None


def load_scenario(name_or_path: str, overrides: Iterable[str | Override] = ()) -> Scenario:
    """A built-in scenario or a file, with overrides (``"key=value"`` or Override) applied in order, validated.

    Relative traces and model files belong to the scenario's folder, those of overrides to the current one; both
    come out absolute and must exist. Raises BadInput, which names file and line or option, and key.
    """
    text, path = scenario_text(name_or_path)
    return parse_scenario(text, source=str(path), folder=path.parent, overrides=overrides)


def parse_scenario(text: str, *, source: str, folder: Path | None = None, overrides: Iterable[str | Override] = ()) -> Scenario:
    """Like ``load_scenario``, from text; ``source`` is its name in messages. Without ``folder`` paths stay as they are."""
    try:
        document = _yaml.parse(text)
    except _yaml.YamlError as error:
        key = f"{_complaints.dotted(error.path)}: " if error.path else ""
        raise BadInput(f"{source}:{error.line}: {key}{error}", "see kvfabric scenarios show demo for a complete file") from None
    tree = document.value
    if not isinstance(tree, dict):
        raise BadInput(f"{source}:1: not a scenario: it holds no keys", "see kvfabric scenarios show demo for a complete file")
    origins: dict[_yaml.Path, str] = {}
    for item in overrides:
        override = parse_set(item) if isinstance(item, str) else item
        path = _overrides.apply(tree, override)
        origins = {known: origin for known, origin in origins.items() if known[: len(path)] != path}
        origins[path] = override.origin
    if folder is not None:
        for path in _file_keys(tree):
            spot = _complaints.where(path, source, document.lines, origins)
            from_option = any(path[: len(origin)] == origin for origin in origins)
            _resolve_file(tree, path, folder, spot, from_option)
    try:
        return Scenario.model_validate(tree)
    except ValidationError as error:
        raise _complaints.complain(error, source, document.lines, origins) from None


def variants_of(scenario: Scenario) -> tuple[tuple[str, Scenario], ...]:
    """Name and scenario of every variant, none of which has variants; of a scenario without, itself. Raises BadInput."""
    if not scenario.variants:
        return ((scenario.name, scenario),)
    tree = {**scenario.resolved(), "variants": []}
    text = json.dumps(tree)
    return tuple(
        (variant.name, parse_scenario(text, source=f"variant {variant.name} of {scenario.name}", overrides=variant.set))
        for variant in scenario.variants
    )


def fabric_name(scenario: Scenario) -> str:
    """The fabric in a few words, for titles and records."""
    fabric = scenario.fabric
    ocs = fabric.circuits
    if ocs is not None:
        return f"ocs {ocs.policy}{'' if ocs.reuse else ' without reuse'}, τ {format_time(ocs.tau)}"
    return f"{fabric.kind} {fabric.ratio or f'{scenario.uplinks} uplinks'} {fabric.routing}"


def json_schema() -> dict[str, Any]:
    """The JSON schema of a scenario file, for editors."""
    schema = Scenario.model_json_schema(mode="validation")
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "kvfabric scenario"
    return json.loads(json.dumps(schema))  # type: ignore[no-any-return]


def _file_keys(tree: dict[str, Any]) -> list[_yaml.Path]:
    """Paths of the values that name files."""
    keys: list[_yaml.Path] = []
    cluster = tree.get("cluster")
    model = cluster.get("model") if isinstance(cluster, dict) else None
    if isinstance(model, str) and names_a_file(model):
        keys.append(("cluster", "model"))
    workload = tree.get("workload")
    tenants = workload.get("tenants") if isinstance(workload, dict) else None
    for index, tenant in enumerate(tenants if isinstance(tenants, list) else []):
        if isinstance(tenant, dict) and isinstance(tenant.get("trace"), str) and tenant["trace"]:
            keys.append(("workload", "tenants", index, "trace"))
    return keys


def _resolve_file(tree: Any, key: _yaml.Path, folder: Path, spot: str, from_option: bool) -> None:
    node = tree
    for part in key[:-1]:
        node = node[part]
    given = node[key[-1]]
    try:
        path = Path(given).expanduser()
        path = ((Path.cwd() if from_option else folder) / path).resolve()
        exists = path.exists()
    except (OSError, ValueError, RuntimeError) as error:
        raise BadInput(f"{spot}: {_complaints.dotted(key)}: {error}", "write the path of a file or folder") from None
    if not exists:
        base = "the current folder" if from_option else "the scenario's folder"
        raise BadInput(
            f"{spot}: {_complaints.dotted(key)}: no such file: {path}",
            f"write an absolute path, or one relative to {base}",
        )
    node[key[-1]] = str(path)
