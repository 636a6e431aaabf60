"""``--set key=value``: dotted paths into a scenario before it is validated, each remembered by where it came from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvfabric import _yaml
from kvfabric._yaml import Path
from kvfabric.errors import BadInput


@dataclass(frozen=True, slots=True)
class Override:
    """One value to put at a path; ``origin`` is the option as typed, for messages about it."""

    path: Path
    value: Any
    origin: str


def parse_set(text: str) -> Override:
    """``"workload.tenants.0.load=0.7"`` as an override. Raises BadInput."""
    origin = f"--set {text}"
    key, equals, raw = text.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        raise BadInput(f"{origin}: not a key and a value", "write it like --set workload.tenants.0.load=0.7")
    return Override(
        tuple(int(part) if part.isascii() and part.isdigit() else part for part in parts), _value(raw, origin), origin
    )


def _value(raw: str, origin: str) -> Any:
    text = raw.strip()
    # Only what is clearly YAML's flow style or quoted goes through the parser: a path may hold ": " or " #".
    if not text.startswith(("{", "[", '"', "'")):
        return _yaml.scalar(text)
    try:
        return _yaml.parse(text).value
    except _yaml.YamlError as error:
        raise BadInput(f"{origin}: {error}", "quote the value for your shell: --set 'key={a: 1, b: 2}'") from None


def apply(tree: Any, override: Override) -> Path:
    """Put the value into ``tree`` in place. Sections that are missing are made; the item after a list's last is added.
    Returns the path with every key as it is in the tree: text in a section, a number in a list.

    Raises BadInput if the path goes through a value that holds no keys, or past the end of a list.
    """
    node = tree
    real: Path = ()
    for depth, part in enumerate(override.path):
        last = depth == len(override.path) - 1
        here = ".".join(str(step) for step in override.path[:depth])
        if isinstance(node, list):
            if not isinstance(part, int):
                raise BadInput(f"{override.origin}: {here} is a list", f"number its items from 0: {here}.0.{part}")
            if part > len(node):
                raise BadInput(
                    f"{override.origin}: {here} ends at item {len(node) - 1}", f"write {here}.{len(node)} to add the next one"
                )
            if part == len(node):
                node.append({})
            key: Any = part
        elif isinstance(node, dict):
            key = str(part)
            if not last and not isinstance(node.get(key), (dict, list)):
                if node.get(key) is not None:
                    raise BadInput(
                        f"{override.origin}: {'.'.join(str(step) for step in override.path[: depth + 1])} is a value, "
                        "it holds no keys",
                        "see kvfabric scenarios schema, or docs/scenario.md",
                    )
                node[key] = {}
        else:
            raise BadInput(f"{override.origin}: {here} is a value, it holds no keys", "see docs/scenario.md")
        real = (*real, key)
        if last:
            node[key] = override.value
        else:
            node = node[key]
    return real
