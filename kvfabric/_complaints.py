"""What pydantic found wrong with a scenario, as two lines: where and what, and what to write instead."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from kvfabric._schema import Scenario
from kvfabric._section import NOT_YET, KeyConflictError
from kvfabric._yaml import Path
from kvfabric.errors import BadInput, one_line
from topo.units import UnitError

_BOUNDS = {
    "greater_than": ("gt", "must be above {}"),
    "greater_than_equal": ("ge", "must be at least {}"),
    "less_than": ("lt", "must be below {}"),
    "less_than_equal": ("le", "must be at most {}"),
}
_KINDS = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "text; put it in quotes",
    "tuple_type": "a list",
    "model_type": "a section of keys",
    "model_attributes_type": "a section of keys",
}


def dotted(path: Iterable[str | int]) -> str:
    """A path as it is typed after --set: ``workload.tenants.0.load``."""
    return ".".join(str(part) for part in path)


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that ``word`` was most likely meant to be, if any is near."""
    matches = difflib.get_close_matches(word.lower(), list(known), n=1, cutoff=0.6)
    return matches[0] if matches else None


def where(path: Path, source: str, lines: Mapping[Path, int], origins: Mapping[Path, str]) -> str:
    """Which option set the value at a path, or which line of the file (that of its nearest section if it is missing).

    ``origins`` holds the options by the path that each one set.
    """
    for length in range(len(path), 0, -1):
        if path[:length] in origins:  # the option replaced whatever the file had from here on
            return origins[path[:length]]
    for length in range(len(path), -1, -1):
        if path[:length] in lines:
            return f"{source}:{lines[path[:length]]}"
        for origin_path, origin in origins.items():
            if origin_path[:length] == path[:length]:  # a section that the file lacks and an option made
                return origin
    return source


def complain(error: ValidationError, source: str, lines: Mapping[Path, int], origins: Mapping[Path, str]) -> BadInput:
    """The first thing to mend, as a BadInput naming file and line (or option) and key."""
    details = error.errors(include_url=False)
    # A mistyped key leaves its right name missing as well: the cause comes first, then what is wrong, then what lacks.
    details.sort(key=lambda detail: {"extra_forbidden": 0, "missing": 2}.get(detail["type"], 1))
    path, problem, remedy = _explain(details[0])
    spot = where(path, source, lines, origins)
    cause = details[0].get("ctx", {}).get("error")
    if isinstance(cause, KeyConflictError) and spot not in origins.values():
        # Two keys disagree: the one that came by an option is the news.
        base = _real_path(details[0]["loc"])
        others = [where((*base, *key), source, lines, origins) for key in cause.also]
        spot = next((other for other in others if other in origins.values()), spot)
    key = dotted(path)
    return BadInput(f"{spot}: {key}: {problem}" if key else f"{spot}: {problem}", remedy)


def _explain(detail: ErrorDetails) -> tuple[Path, str, str]:
    path = _real_path(detail["loc"])
    kind, given = detail["type"], detail["input"]
    context: dict[str, Any] = detail.get("ctx", {})
    if kind == "extra_forbidden":
        return path, *_unknown_key(path)
    hint = _hint(path)
    if kind == "missing":
        return path, "is missing", hint
    cause = context.get("error")
    if isinstance(cause, KeyConflictError):
        return (*path, *cause.key), str(cause), cause.remedy.replace(".N.", f".{path[-1]}." if path else ".0.")
    if isinstance(cause, UnitError):
        problem, _, remedy = str(cause).partition("; ")
        return path, problem, remedy if remedy.startswith("write") else hint
    if given is None and kind in _KINDS:
        return path, "has no value", hint
    if kind == "literal_error":
        return path, *_not_a_choice(path, given)
    if kind in _BOUNDS:
        name, text = _BOUNDS[kind]
        return path, f"is {given!r}; it {text.format(f'{context[name]:g}')}", hint
    if kind in _KINDS:
        return path, f"{_shown(given)} is not {_KINDS[kind]}", hint
    if kind == "string_pattern_mismatch" and path[-1] != "name":
        return path, f"{_shown(given)} is not well formed", hint
    if kind == "too_short" and given in ((), []):
        return path, "is empty", hint
    if kind == "string_pattern_mismatch":
        return path, f"{_shown(given)} is not a name", "use 1 to 40 letters, digits, _ . or -, a letter or digit first"
    return path, f"{detail['msg']}, and it is {_shown(given)}", hint


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return "a section of keys"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, bool):
        return str(value).lower()
    text = one_line(repr(value))
    return text if len(text) <= 80 else text[:79] + "…"


def _real_path(location: tuple[int | str, ...]) -> Path:
    # pydantic adds the branch of a union to the location ("float", "literal['as-recorded']"): those are no keys.
    path: Path = ()
    for part in location:
        if isinstance(part, str) and _model_at(path) is None and _is_leaf(path):
            break
        path = (*path, part)
    return path


def _is_leaf(path: Path) -> bool:
    annotation = _annotation_at(path)
    return annotation is not None and get_origin(annotation) is not tuple


def _annotation_at(path: Path) -> Any:
    annotation: Any = Scenario
    for part in path:
        model = _as_model(annotation)
        if model is not None and isinstance(part, str):
            field = model.model_fields.get(part)
            if field is None:
                return None
            annotation = field.annotation
        elif get_origin(annotation) is tuple and isinstance(part, int):
            annotation = get_args(annotation)[0]
        else:
            return None
    return annotation


def _as_model(annotation: Any) -> type[BaseModel] | None:
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _model_at(path: Path) -> type[BaseModel] | None:
    return _as_model(_annotation_at(path))


def _hint(path: Path) -> str:
    model = _model_at(path[:-1]) if path else None
    field = model.model_fields.get(str(path[-1])) if model else None
    return f"{path[-1]}: {field.description}" if field and field.description else ""


def _choices(annotation: Any) -> list[str]:
    if get_origin(annotation) is Literal:
        return [str(choice) for choice in get_args(annotation)]
    if get_origin(annotation) is Union or type(annotation).__name__ == "UnionType":
        return [choice for part in get_args(annotation) for choice in _choices(part)]
    return []


def _unknown_key(path: Path) -> tuple[str, str]:
    model = _model_at(path[:-1])
    known = list(model.model_fields) if model else []
    close = nearest(str(path[-1]), known)
    return "unknown key", f"did you mean {close}?" if close else f"known keys here: {', '.join(known)}"


def _not_a_choice(path: Path, given: object) -> tuple[str, str]:
    choices = _choices(_annotation_at(path))
    listed = " or ".join(choices)
    if given in NOT_YET.get(dotted(path), ()):
        return f"{given} is not in this version", f"write {listed}"
    close = nearest(given, choices) if isinstance(given, str) else None
    if close and len(choices) > 1:
        return f"{_shown(given)} is not one of {', '.join(choices)}", f"did you mean {close}?"
    return f"{_shown(given)} is not known here", f"write {listed}"
