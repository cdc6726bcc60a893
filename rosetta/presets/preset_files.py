"""The files that presets stand in: those beside this one, those of users, and the one of a site."""

from __future__ import annotations

import difflib
import functools
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rosetta.core import bounded_read, gpus, log, strict_yaml
from rosetta.core.errors import CONFLICT, INVALID, MISSING, UNKNOWN, UserError
from rosetta.core.variables import setting_values
from rosetta.presets import schema
from rosetta.presets.schema import Value

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rosetta.core.strict_yaml import Document

PRESET_FOLDER = Path(__file__).parent
_PRESET_KEYS = ("about", "extends", "configs", "accelerators")
_SITE_KEYS = ("accelerators",)
GPUS_PER_NODE_FIELD = "gpus_per_node"


@dataclass(frozen=True)
class Layer:
    """What one place sets; `by_gpu` is what it sets for one GPU, by its short name.

    The rest is of presets: configs are experiments of Pax.
    """

    name: str
    values: Mapping[str, Value]
    by_gpu: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)
    about: str = ""
    extends: str = ""
    configs: tuple[str, ...] = ()


def read_document(path: Path, where: str) -> Document:
    """Return a file; UserError where it cannot be read or is no plain YAML."""
    log.debug(f"read {path}")
    try:
        text = bounded_read.read_text(path, where)
    except OSError as error:
        raise UserError(
            f"it cannot be read: {error.strerror}", where, "name a file of presets", kind=MISSING
        ) from None
    except UnicodeDecodeError:
        raise UserError(
            "it is no text in UTF-8", where, "write it in UTF-8", kind=INVALID
        ) from None
    return strict_yaml.parse_document(text, where, may_be_empty=True)


@functools.cache
def _read_shipped_file(name: str) -> Document:
    return read_document(PRESET_FOLDER / name, f"presets/{name}")


@functools.cache
def load_common_layer() -> Layer:
    """Return what every preset starts from."""
    return Layer("common", schema.read_values(_read_shipped_file("common.yaml"), ()))


@functools.cache
def load_accelerator_values() -> dict[str, dict[str, Value]]:
    """Return what every preset sets for a GPU, by its short name; most GPUs have no such values.

    The number of GPUs of a node is the table's where the usual node differs from the common one.
    """
    document_ = _read_shipped_file("accelerators.yaml")
    values = {
        name: schema.read_values(document_, (name,)) if name in document_.data else {}
        for name in gpus.GPUS
    }
    for name, gpu in gpus.GPUS.items():
        if gpu.gpus_per_node not in (None, load_common_layer().values[GPUS_PER_NODE_FIELD].value):
            why = f"the usual node: {gpu.sources['node'][0].title}"
            values[name][GPUS_PER_NODE_FIELD] = Value(
                gpu.gpus_per_node, f"core/gpus.py: {name}", why
            )
    return values


@functools.cache
def load_named_layers(name: str) -> dict[str, Layer]:
    """Return precisions or switches, by name."""
    found = _read_shipped_file(f"{name}.yaml")
    return {
        each: Layer(
            each, schema.read_values(found, (each,), ("about",)), about=body.get("about", "")
        )
        for each, body in found.data.items()
    }


@functools.cache
def load_presets() -> dict[str, Layer]:
    """Return all presets that are shipped, by name; a framework's own, which its others extend, has
    its name.
    """
    return {
        name: _parse_preset(_read_shipped_file(f"{framework}.yaml"), (name,), name)
        for framework in schema.FRAMEWORKS
        for name in _read_shipped_file(f"{framework}.yaml").data
    }


def _parse_preset(found: Document, at: tuple[str, ...], name: str) -> Layer:
    values = schema.read_values(found, at, _PRESET_KEYS)
    body = found.data
    for key in at:
        body = body[key]
    for key in ("about", "extends"):
        if not isinstance(body.get(key, ""), str):
            raise found.make_error(
                f"it is {body[key]!r}", (*at, key), "give a text", value=body[key]
            )
    configs = body.get("configs", [])
    if not isinstance(configs, list) or not all(isinstance(each, str) for each in configs):
        raise found.make_error(
            f"it is {configs!r}", (*at, "configs"), "give a list of experiments", value=configs
        )
    return Layer(
        name,
        values,
        _parse_accelerators(found, at, body.get("accelerators", {})),
        body.get("about", ""),
        body.get("extends", ""),
        tuple(configs),
    )


def _parse_accelerators(
    found: Document, at: tuple[str, ...], body: object
) -> dict[str, Mapping[str, Value]]:
    if not isinstance(body, dict):
        raise found.make_error(
            "it is no mapping", (*at, "accelerators"), "write accelerators: {h100: ...}"
        )
    for name in body:
        if name not in gpus.GPUS:
            raise found.make_error(
                "it is not a GPU that rosetta knows",
                (*at, "accelerators", name),
                f"choose one of: {', '.join(gpus.GPUS)}",
                kind=UNKNOWN,
                value=name,
            )
    return {name: schema.read_values(found, (*at, "accelerators", name)) for name in body}


def load_preset_chain(name: str) -> list[Layer]:
    """Return a preset by name, or by the path of a file, after those that it extends.

    Raises:
      UserError: there is none, a file is wrong, or what it extends comes back to it.
    """
    found: list[Layer] = []
    wanted, asked_by = name, "preset"
    while wanted or not found:
        layer = _load_preset(wanted, asked_by)
        if any(each.name == layer.name for each in found):
            raise UserError(
                "what it extends comes back to it",
                layer.name,
                "let it extend one of those that are shipped",
                kind=CONFLICT,
            )
        found.insert(0, layer)
        wanted, asked_by = layer.extends, layer.name
    if found[0].name not in schema.FRAMEWORKS:
        raise UserError(
            "it extends nothing",
            found[0].name,
            f"write extends: NAME, of {', '.join(load_presets())}",
            kind=MISSING,
        )
    return found


def is_file_name(name: str) -> bool:
    """Return whether a preset is named by the path of a file."""
    return "/" in name or name.endswith((".yaml", ".yml"))


def _load_preset(name: str, asked_by: str) -> Layer:
    if name in load_presets():
        return load_presets()[name]
    if is_file_name(name):
        path = Path(name).absolute()
        return _parse_preset(read_document(path, name), (), str(path))
    near = difflib.get_close_matches(name, load_presets(), 1)
    raise UserError(
        f"there is no preset {name!r}",
        asked_by,
        (f"did you mean {near[0]}? " if near else "")
        + f"It may be a file, or one of: {', '.join(load_presets())}",
        kind=UNKNOWN,
        value=name,
    )


def load_site_layer(environment: Mapping[str, str]) -> Layer:
    """Return what the site sets: the file that ROSETTA_SITE names, else ~/.config/rosetta/site.yaml
    where there is one; ROSETTA_SITE empty: nothing.

    Raises:
      UserError: it is wrong, or ROSETTA_SITE names no file.
    """
    given = environment.get("ROSETTA_SITE")
    if given:
        setting_values.read_setting(environment, "ROSETTA_SITE")
    home = environment.get("XDG_CONFIG_HOME") or (
        f"{environment['HOME']}/.config" if environment.get("HOME") else ""
    )
    path = Path(given) if given else Path(home, "rosetta", "site.yaml")
    if given == "" or (given is None and (not home or not path.is_file())):
        return Layer("site", {})
    found = read_document(path, str(path))
    if found.data is None:
        return Layer("site", {})
    values = schema.read_values(found, (), _SITE_KEYS)
    return Layer("site", values, _parse_accelerators(found, (), found.data.get("accelerators", {})))
