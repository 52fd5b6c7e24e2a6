"""Every setting of a training run with its type, default and meaning, from the model that checks configurations."""

from __future__ import annotations

import types
from collections.abc import Sequence
from itertools import groupby
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

import yaml
from pydantic import BaseModel
from pydantic_core import PydanticUndefined


class Accepts(NamedTuple):
    """Annotation of a field: words for what it accepts, where its type alone does not tell it."""

    words: str


class Setting(NamedTuple):
    """One key of a configuration."""

    key: str  #: as on the command line, such as ``"optimiser.lr"``
    kind: str  #: what is accepted, in words
    default: Any
    required: bool  #: there is no default
    meaning: str  #: what it does, and where the default comes from


def list_settings(model: type[BaseModel], before: str = "") -> list[Setting]:
    """All settings in the order of the model; sections within sections are flattened to ``section.key``."""
    found: list[Setting] = []
    for name, field in model.model_fields.items():
        key, below = f"{before}{field.alias or name}", field.annotation
        if isinstance(below, type) and issubclass(below, BaseModel):
            found += list_settings(below, f"{key}.")
            continue
        words = next((entry.words for entry in field.metadata if isinstance(entry, Accepts)), None)
        required = field.default is PydanticUndefined
        kind = words or _kind(below, field.metadata)
        found.append(Setting(key, kind, None if required else field.default, required, field.description or ""))
    return found


def settings_yaml(model: type[BaseModel], values: BaseModel | None = None) -> str:
    """A complete configuration in YAML with a comment behind each key; ``values`` replace the defaults."""
    given = None if values is None else values.model_dump(mode="json", by_alias=True)
    lines: list[str] = []
    for section, settings in groupby(list_settings(model), key=lambda setting: setting.key.rpartition(".")[0]):
        lines.append(f"{section}:")
        for setting in settings:
            name = setting.key.rpartition(".")[2]
            shown = setting.default if given is None else given[section][name]
            text = "" if setting.required and given is None else _inline(shown)
            kind = f"required, {setting.kind}" if setting.required else setting.kind
            lines.append(f"{f'  {name}: {text}'.rstrip():<34}  # ({kind}) {setting.meaning}")
    return "\n".join(lines) + "\n"


def settings_table(model: type[BaseModel]) -> str:
    """A Markdown table of all settings, one section after the other."""
    parts: list[str] = []
    for section, settings in groupby(list_settings(model), key=lambda setting: setting.key.rpartition(".")[0]):
        parts += ["", f"## `{section}`", "", "| key | default | accepts | meaning |", "|---|---|---|---|"]
        for setting in settings:
            default = "required" if setting.required else f"`{_inline(setting.default)}`"
            cells = (f"`{setting.key}`", default, setting.kind, setting.meaning)
            parts.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(parts[1:]) + "\n"


_SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def _kind(annotation: Any, metadata: Sequence[Any]) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        limits = [entry for given in arguments[1:] for entry in getattr(given, "metadata", [given])]
        return _kind(arguments[0], limits)
    if origin is Literal:
        return _one_of([str(each) for each in arguments])
    if origin in (Union, types.UnionType):
        return _one_of([_kind(each, metadata) for each in arguments if each is not type(None)] + ["null"])
    if origin is tuple:
        return f"a list, each {_kind(arguments[0], metadata)}"
    if annotation is bool:
        return "true or false"
    if annotation in (int, float):
        found = [(sign, getattr(entry, name, None)) for entry in metadata for name, sign in _SIGNS.items()]
        limits = [f"{sign} {value:g}" for sign, value in found if value is not None]
        return " ".join(["a whole number" if annotation is int else "a number", " and ".join(limits)]).rstrip()
    if annotation is str:
        return "a text"
    return "keys with values" if origin is dict or annotation is dict else str(annotation)


def _one_of(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _inline(value: Any) -> str:
    """A value as YAML in one line."""
    plain = list(value) if isinstance(value, tuple) else value
    text = str(yaml.safe_dump(plain, default_flow_style=True, width=10_000)).strip()
    return text.removesuffix("...").strip()
