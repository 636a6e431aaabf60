"""YAML text to plain values, with the line of every key, and none of YAML's surprises.

Scalars follow the core schema of YAML 1.2: ``2:1`` is text (YAML 1.1 reads the number 121), ``no`` and ``on`` are text,
dates are text. Refused, because in a scenario they are mistakes or attacks: duplicate keys, a second document, aliases,
merge keys, tags, keys that are not text, deep nesting.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import yaml

Path = tuple[str | int, ...]

_MAX_DEPTH = 20
_INT_RE = re.compile(r"[-+]?[0-9]+")
_FLOAT_RE = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_MAX_DIGITS = 30  # longer than any quantity here, far below the interpreter's limit on converting digits


class YamlError(ValueError):
    """Text that is not acceptable YAML. ``line`` counts from 1; ``path`` is the key concerned, empty if none is."""

    def __init__(self, message: str, *, line: int, path: Path = ()) -> None:
        super().__init__(message)
        self.line = line
        self.path = path


@dataclass(frozen=True, slots=True)
class Document:
    """A YAML document: its value (dict, list, str, int, float, bool, None) and the line of each path in it."""

    value: Any
    lines: dict[Path, int] = field(default_factory=dict)


def scalar(text: str) -> Any:
    """A plain (unquoted) scalar as a value, by the core schema of YAML 1.2 without infinities."""
    if text in ("", "~", "null", "Null", "NULL"):
        return None
    if text in ("true", "True", "TRUE"):
        return True
    if text in ("false", "False", "FALSE"):
        return False
    if len(text) <= _MAX_DIGITS:
        if _INT_RE.fullmatch(text):
            return int(text)
        if _FLOAT_RE.fullmatch(text):
            return float(text)
    return text


def parse(text: str) -> Document:
    """Read exactly one document. Raises YamlError."""
    try:
        _refuse_what_has_no_place(text)
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = " ".join(part for part in (error.context, error.problem) if part)
        raise YamlError(f"not YAML: {what}", line=mark.line + 1 if mark else 1) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1 if isinstance(error.position, int) else 1
        raise YamlError("not text: it holds a control character", line=line) from None
    if node is None:
        raise YamlError("empty", line=1)
    lines: dict[Path, int] = {}
    return Document(_build(node, (), lines), lines)


def _refuse_what_has_no_place(text: str) -> None:
    # On events, because the parser is a loop: composing is recursive and would run out of stack on "[[[[…".
    depth = documents = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        line = event.start_mark.line + 1 if event.start_mark else 1
        if isinstance(event, yaml.AliasEvent):
            raise YamlError(f"the alias *{event.anchor} is not supported; write the value out", line=line)
        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            if documents > 1:
                raise YamlError("a second document starts here; one file holds one scenario", line=line)
        if isinstance(event, (yaml.ScalarEvent, yaml.CollectionStartEvent)) and event.tag not in (None, "!"):
            raise YamlError(f"the tag {event.tag} is not supported; remove it", line=line)
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > _MAX_DEPTH:
                raise YamlError(f"nested more than {_MAX_DEPTH} deep", line=line)
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _build(node: yaml.Node, path: Path, lines: dict[Path, int]) -> Any:
    lines.setdefault(path, node.start_mark.line + 1)
    if isinstance(node, yaml.ScalarNode):
        return scalar(node.value) if node.style is None else node.value
    if isinstance(node, yaml.SequenceNode):
        return [_build(item, (*path, index), lines) for index, item in enumerate(node.value)]
    mapping: dict[str, Any] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode):
            raise YamlError("a key must be text", line=line, path=path)
        key = key_node.value
        if key == "<<" and key_node.style is None:
            raise YamlError("merge keys (<<) are not supported; write the keys out", line=line, path=path)
        child = (*path, key)
        if key in mapping:
            raise YamlError(f"given twice (first on line {lines[child]})", line=line, path=child)
        lines[child] = line
        mapping[key] = _build(value_node, child, lines)
    return mapping
