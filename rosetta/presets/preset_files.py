"""Load presets from YAML files: those in this folder, a user's own, and the site's settings.

A preset is a named run configuration. A layer is what one place sets: a preset, a GPU, a switch, a
precision or the site. `rosetta.presets.resolution` puts the layers on top of each other.
"""

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
    """The values that one place sets.

    Attributes:
        name: The name of the preset or switch, or the path of a user's file.
        values: Field -> value.
        by_gpu: Short name of a GPU -> the values for runs on that GPU.
        about: One sentence that describes the preset or switch.
        extends: The name of the preset below this one; "" if there is none.
        configs: The Pax experiments of the preset; the first one is the default.
    """

    name: str
    values: Mapping[str, Value]
    by_gpu: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)
    about: str = ""
    extends: str = ""
    configs: tuple[str, ...] = ()


def read_document(path: Path, where: str) -> Document:
    """Return the content of a YAML file.

    Args:
        path: The file.
        where: The name of the file in messages.

    Raises:
        UserError: The file cannot be read, or is not valid YAML.
    """
    log.debug(f"read {path}")
    try:
        text = bounded_read.read_text(path, where)
    except OSError as error:
        raise UserError(
            f"the file cannot be read: {error.strerror}",
            where,
            "give the path of a preset file",
            kind=MISSING,
        ) from None
    except UnicodeDecodeError:
        raise UserError(
            "the file is not UTF-8 text", where, "save the file as UTF-8", kind=INVALID
        ) from None
    return strict_yaml.parse_document(text, where, may_be_empty=True)


@functools.cache
def _read_shipped_file(name: str) -> Document:
    """Return a file of this folder."""
    return read_document(PRESET_FOLDER / name, f"presets/{name}")


@functools.cache
def load_common_layer() -> Layer:
    """Return the layer that every preset starts from."""
    return Layer("common", schema.read_values(_read_shipped_file("common.yaml"), ()))


@functools.cache
def load_accelerator_values() -> dict[str, dict[str, Value]]:
    """Return short name of a GPU -> the values that every preset has on that GPU.

    Most GPUs have no such values. The number of GPUs of a node comes from `rosetta.core.gpus`, if
    the usual node of a GPU has another number than common.yaml sets.
    """
    document = _read_shipped_file("accelerators.yaml")
    values = {
        name: schema.read_values(document, (name,)) if name in document.data else {}
        for name in gpus.GPUS
    }
    common_count = load_common_layer().values[GPUS_PER_NODE_FIELD].value
    for name, gpu in gpus.GPUS.items():
        if gpu.gpus_per_node not in (None, common_count):
            why = f"the usual node: {gpu.sources['node'][0].title}"
            values[name][GPUS_PER_NODE_FIELD] = Value(
                gpu.gpus_per_node, f"core/gpus.py: {name}", why
            )
    return values


@functools.cache
def load_named_layers(kind: str) -> dict[str, Layer]:
    """Return name -> layer, for the `kind` "precisions" or "switches"."""
    document = _read_shipped_file(f"{kind}.yaml")
    return {
        name: Layer(
            name,
            schema.read_values(document, (name,), ("about",)),
            about=body.get("about", ""),
        )
        for name, body in document.data.items()
    }


@functools.cache
def load_presets() -> dict[str, Layer]:
    """Return name -> preset, for all presets that rosetta ships.

    The presets "t5x" and "pax" are the ones that all other presets of their framework extend.
    """
    presets = {}
    for framework in schema.FRAMEWORKS:
        document = _read_shipped_file(f"{framework}.yaml")
        for name in document.data:
            presets[name] = _parse_preset(document, (name,), name)
    return presets


def _parse_preset(document: Document, at: tuple[str, ...], name: str) -> Layer:
    """Return the preset at some keys of a file.

    Raises:
        UserError: A field or value of the preset is not valid.
    """
    values = schema.read_values(document, at, _PRESET_KEYS)
    body = document.data
    for key in at:
        body = body[key]
    for key in ("about", "extends"):
        if not isinstance(body.get(key, ""), str):
            raise document.make_error(
                f"{body[key]!r} is not a text", (*at, key), "give a text", value=body[key]
            )
    configs = body.get("configs", [])
    if not isinstance(configs, list) or not all(isinstance(config, str) for config in configs):
        raise document.make_error(
            f"{configs!r} is not a list of experiments",
            (*at, "configs"),
            "give a list of names",
            value=configs,
        )
    return Layer(
        name,
        values,
        _parse_accelerators(document, at, body.get("accelerators", {})),
        body.get("about", ""),
        body.get("extends", ""),
        tuple(configs),
    )


def _parse_accelerators(
    document: Document, at: tuple[str, ...], body: object
) -> dict[str, Mapping[str, Value]]:
    """Return short name of a GPU -> its values, of the key `accelerators` of a file.

    Raises:
        UserError: A GPU is unknown, or a value is not valid.
    """
    if not isinstance(body, dict):
        raise document.make_error(
            "not a mapping", (*at, "accelerators"), "write accelerators: {h100: ...}"
        )
    for name in body:
        if name not in gpus.GPUS:
            raise document.make_error(
                f"{name!r} is not a GPU that rosetta knows",
                (*at, "accelerators", name),
                f"choose one of: {', '.join(gpus.GPUS)}",
                kind=UNKNOWN,
                value=name,
            )
    return {name: schema.read_values(document, (*at, "accelerators", name)) for name in body}


def load_preset_chain(name: str) -> list[Layer]:
    """Return a preset and those that it extends, the most general one first.

    Args:
        name: The name of a preset, or the path of a preset file.

    Raises:
        UserError: The preset is unknown, a file is not valid, or a preset extends itself or
            nothing.
    """
    chain: list[Layer] = []
    wanted, asked_by = name, "preset"
    while wanted or not chain:
        layer = _load_preset(wanted, asked_by)
        if any(other.name == layer.name for other in chain):
            raise UserError(
                "the preset extends itself, directly or through other presets",
                layer.name,
                "extend a preset that rosetta ships",
                kind=CONFLICT,
            )
        chain.insert(0, layer)
        wanted, asked_by = layer.extends, layer.name
    if chain[0].name not in schema.FRAMEWORKS:
        raise UserError(
            "the preset does not extend another preset",
            chain[0].name,
            f"write extends: NAME, with one of {', '.join(load_presets())}",
            kind=MISSING,
        )
    return chain


def is_file_name(name: str) -> bool:
    """Return whether this is the path of a preset file, and not the name of a preset."""
    return "/" in name or name.endswith((".yaml", ".yml"))


def _load_preset(name: str, asked_by: str) -> Layer:
    """Return one preset.

    Args:
        name: The name of a preset, or the path of a preset file.
        asked_by: Where the name comes from, for messages.

    Raises:
        UserError: The preset is unknown, or its file is not valid.
    """
    presets = load_presets()
    if name in presets:
        return presets[name]
    if is_file_name(name):
        path = Path(name).absolute()
        return _parse_preset(read_document(path, name), (), str(path))
    similar = difflib.get_close_matches(name, presets, 1)
    hint = f"did you mean {similar[0]}? " if similar else ""
    raise UserError(
        f"there is no preset {name!r}",
        asked_by,
        f"{hint}Give the path of a file, or one of: {', '.join(presets)}",
        kind=UNKNOWN,
        value=name,
    )


def load_site_layer(environment: Mapping[str, str]) -> Layer:
    """Return the settings of the site, which all runs of a cluster share.

    The file is the one that ROSETTA_SITE names, else ~/.config/rosetta/site.yaml if it exists. If
    ROSETTA_SITE is set but empty, no file is read.

    Raises:
        UserError: The file is not valid, or ROSETTA_SITE does not name a file.
    """
    nothing = Layer("site", {})
    setting = environment.get("ROSETTA_SITE")
    if setting == "":
        return nothing
    if setting:
        setting_values.read_setting(environment, "ROSETTA_SITE")
        path = Path(setting)
    else:
        home = environment.get("HOME")
        configuration = environment.get("XDG_CONFIG_HOME") or (f"{home}/.config" if home else "")
        path = Path(configuration, "rosetta", "site.yaml")
        if not configuration or not path.is_file():
            return nothing
    document = read_document(path, str(path))
    if document.data is None:
        return nothing
    values = schema.read_values(document, (), _SITE_KEYS)
    by_gpu = _parse_accelerators(document, (), document.data.get("accelerators", {}))
    return Layer("site", values, by_gpu)
