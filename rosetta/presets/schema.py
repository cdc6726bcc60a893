"""The fields that a preset may set, and the check of each field's value.

A field is a dotted name, for example "precision" or "xla_flags.NAME". Preset files, the site's file
and the command line use the same fields.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rosetta.core import run_description
from rosetta.core.errors import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from rosetta.core.errors import UserError
    from rosetta.core.strict_yaml import Document

FRAMEWORKS = run_description.FRAMEWORKS
PRECISIONS = ("bf16", "fp32", "fp8-xla", "fp8-te")
COMBINE_MODES = ("published", "layers")
GROUPS = ("mesh", "batch", "xla_flags", "env", "settings", "fdl")
# A dimension of a mesh may be one of these names instead of a number: the GPUs of a node, or the
# nodes of the run.
MESH_SIZE_NAMES = ("gpus", "nodes")


@dataclass(frozen=True)
class Value:
    """The value that one layer sets for a field.

    Attributes:
        value: The value. None removes what lower layers set.
        origin: Where it is set: `FILE:LINE`, the name of a variable, or "command line".
        why: The reason that is given there.
        until: Package -> first version that does not need the value any more.
        since: Package -> first version that supports the value.
    """

    value: Any
    origin: str
    why: str = ""
    until: Mapping[str, str] = field(default_factory=dict)
    since: Mapping[str, str] = field(default_factory=dict)


def _check_whole_number(value: Any) -> str:
    """Return what to write instead of the value, "" if it is a whole number of at least 1."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return ""
    return "give a whole number, at least 1"


def _make_choice_check(*choices: str) -> Callable[[Any], str]:
    """Return a check for a value that must be one of some words."""
    return lambda value: "" if value in choices else f"choose one of: {', '.join(choices)}"


def _check_text(value: Any) -> str:
    """Return what to write instead of the value, "" if it is a text."""
    return "" if isinstance(value, str) else "give a text; a number in quotes"


def _check_mesh(value: Any) -> str:
    """Return what to write instead of the value, "" if it is a mesh of three dimensions."""
    is_mesh = (
        isinstance(value, list)
        and len(value) == 3
        and all(size in MESH_SIZE_NAMES or not _check_whole_number(size) for size in value)
    )
    if is_mesh:
        return ""
    return "give [data, fsdp, tensor], whole numbers, or `gpus` (of a node) and `nodes`"


def _check_batch(value: Any) -> str:
    """Return what to write instead of the value, "" if it is a whole number or a decimal fraction
    below 1.
    """
    if isinstance(value, str) and re.fullmatch(r"0\.\d*[1-9]\d*", value):
        return ""
    return _check_whole_number(value)


def _check_names(value: Any) -> str:
    """Return what to write instead of the value, "" if it is a list of texts."""
    if isinstance(value, list) and all(isinstance(name, str) for name in value):
        return ""
    return "give a list of names"


def _check_mounts(value: Any) -> str:
    """Return what to write instead of the value, "" if it is a list of pairs of texts."""
    is_list_of_pairs = isinstance(value, list) and all(
        isinstance(pair, list) and len(pair) == 2 and not any(map(_check_text, pair))
        for pair in value
    )
    return "" if is_list_of_pairs else "give pairs: [[OUTSIDE, INSIDE], ...]"


def _check_flag(value: Any) -> str:
    """Return what to write instead of the value, "" if an XLA flag can have it."""
    if isinstance(value, (bool, int, str)):
        return ""
    return "give true, false, a whole number or a text"


def _accept_any(_: Any) -> str:
    """Accept every value: a hyper-parameter may have any type."""
    return ""


# Field -> function that returns what to write instead of a value, "" if the value is valid.
FIELDS: dict[str, Callable[[Any], str]] = {
    "runs": _make_choice_check("pretrain", "finetune", "pile", "lambada", "train", "boolq"),
    "precision": _make_choice_check(*PRECISIONS),
    "combine": _make_choice_check(*COMBINE_MODES),
    "cache": _check_text,
    "switches": _check_names,
    "accelerator": _check_text,
    "mounts": _check_mounts,
    "nodes": _check_whole_number,
    "gpus_per_node": _check_whole_number,
    "processes_per_node": _make_choice_check(*run_description.PROCESSES),
    "mesh.ici": _check_mesh,
    "mesh.dcn": _check_mesh,
    "batch.per_gpu": _check_batch,
    "batch.microbatches": _check_whole_number,
}
# Every run has these fields, so no layer can remove them.
REQUIRED_FIELDS = (
    "runs",
    "precision",
    "nodes",
    "gpus_per_node",
    "processes_per_node",
)
# Field or group -> what it sets, in Markdown, for docs/reference/presets.md.
FIELD_HELP = {
    "runs": (
        "Command: `pretrain` or `finetune` of T5X; `train`, `pile`, `lambada` or `boolq` of Pax."
    ),
    "nodes": "Number of nodes.",
    "gpus_per_node": "Number of GPUs of each node.",
    "processes_per_node": "`gpu`: one process for each GPU. `node`: one for each node.",
    "precision": "One of the [precisions](#precisions).",
    "batch.per_gpu": (
        "Sequences in the batch of one GPU. In T5X with `TP_SIZE`, of each group of `TP_SIZE` GPUs."
    ),
    "batch.microbatches": "Number of parts of a batch that one step computes one after another.",
    "mesh.ici": (
        "Pax: mesh within a node, `[data, fsdp, tensor]`. `gpus` is the number of GPUs of a node."
    ),
    "mesh.dcn": "Pax: mesh across nodes, `[data, fsdp, tensor]`. `nodes` is the number of nodes.",
    "settings": "Variables of the training scripts, such as `T5_SIZE: small`. Values are texts.",
    "fdl": "Pax: hyper-parameters, such as `MAX_STEPS: 500`.",
    "xla_flags": "XLA flags, by their names without dashes.",
    "env": "Environment variables of JAX, NCCL and other libraries. Values are texts.",
    "switches": "Switches to add. `null` removes the switches of lower layers.",
    "combine": ("`published` or `layers`: see [thresholds](#thresholds-of-combined-collectives)."),
    "cache": "Folder on shared storage, for the switches that need one.",
    "accelerator": "Short name of the GPU. Set it in the site's file.",
    "mounts": "Folders for containers: `[[OUTSIDE, INSIDE], ...]`.",
}
# Group -> pattern of the names in it, and the check of their values.
_GROUP_RULES: dict[str, tuple[str, Callable[[Any], str]]] = {
    "xla_flags": (r"xla_\w+", _check_flag),
    "env": (r"[A-Z][A-Z0-9_]*", _check_text),
    "settings": (r"[A-Z][A-Z0-9_]*", _check_text),
    "fdl": (r"[A-Za-z_][\w.]*", _accept_any),
}


def is_field(path: str) -> bool:
    """Return whether a preset may set a field of this name."""
    if path in FIELDS:
        return True
    group, _, name = path.partition(".")
    return group in _GROUP_RULES and bool(re.fullmatch(_GROUP_RULES[group][0], name))


def find_value_problem(path: str, value: Any) -> str:
    """Return what to write instead of a value, "" if the value is valid.

    Args:
        path: A field for which `is_field` is true.
        value: The value. None is valid if the field can be removed.
    """
    if value is None and path not in REQUIRED_FIELDS:
        return ""
    if path in FIELDS:
        return FIELDS[path](value)
    _, check = _GROUP_RULES[path.partition(".")[0]]
    return check(value)


@dataclass(frozen=True)
class _FieldInFile:
    """A field as a file sets it.

    Attributes:
        path: The dotted name of the field.
        keys: The keys of the document that lead to it.
        content: What the file has there.
    """

    path: str
    keys: tuple[str, ...]
    content: Any


def read_values(
    document: Document, at: tuple[str, ...], others: tuple[str, ...] = ()
) -> dict[str, Value]:
    """Return field -> value for a mapping in a YAML document, in the order of the file.

    In the file, a value is either plain, or a mapping {value, why, until, since}.

    Args:
        document: The file.
        at: The keys that lead to the mapping.
        others: Keys of the mapping that are not fields; the caller reads them.

    Raises:
        UserError: A field is unknown, or its value is not valid.
    """
    body = document.data
    for key in at:
        body = body[key]
    if not isinstance(body, dict):
        raise document.make_error("not a mapping", at, "write NAME: VALUE")
    return {
        field_in_file.path: _read_value(document, field_in_file)
        for field_in_file in _iterate_fields(document, at, body, others)
    }


def _iterate_fields(
    document: Document, at: tuple[str, ...], body: Mapping[str, Any], others: tuple[str, ...]
) -> Iterator[_FieldInFile]:
    """Yield the fields of a mapping, including those in groups.

    Raises:
        UserError: A field is unknown, or a group is not a mapping.
    """
    for key, content in body.items():
        keys = (*at, key)
        if key in others:
            continue
        if key not in GROUPS:
            fields = [_FieldInFile(key, keys, content)]
        elif isinstance(content, dict):
            fields = [
                _FieldInFile(f"{key}.{name}", (*keys, name), member)
                for name, member in content.items()
            ]
        else:
            raise document.make_error("not a mapping", keys, f"write {key}: {{NAME: VALUE}}")
        for field_in_file in fields:
            if not is_field(field_in_file.path):
                raise _make_unknown_field_error(document, field_in_file.keys, others)
            yield field_in_file


def _make_unknown_field_error(
    document: Document, keys: tuple[str, ...], others: tuple[str, ...]
) -> UserError:
    """Return the error for a key that is not a field."""
    names = sorted({name for name in FIELDS if name != "runs"} | set(_GROUP_RULES) | set(others))
    return document.make_error(
        f"there is no field {keys[-1]!r}",
        keys,
        f"choose one of: {', '.join(names)}",
        kind=UNKNOWN,
        value=keys[-1],
    )


def _read_value(document: Document, field_in_file: _FieldInFile) -> Value:
    """Return the value of a field.

    Raises:
        UserError: The value, its reason or its versions are not valid.
    """
    keys, content = field_in_file.keys, field_in_file.content
    parts = content if isinstance(content, dict) else {"value": content}
    unknown_keys = sorted(parts.keys() - {"value", "why", "until", "since"})
    if unknown_keys or "value" not in parts:
        raise document.make_error(
            f"{unknown_keys[0]!r} is not a valid key" if unknown_keys else "the value is missing",
            keys,
            (
                "write a value, or {value: VALUE, why: TEXT, until: {PACKAGE: VERSION}, since: "
                "{PACKAGE: VERSION}}"
            ),
            value=unknown_keys[0] if unknown_keys else None,
        )
    value = parts["value"]
    if advice := find_value_problem(field_in_file.path, value):
        raise document.make_error(f"{value!r} is not a valid value", keys, advice, value=value)
    why = parts.get("why", "")
    if not isinstance(why, str):
        raise document.make_error("`why` is not a text", keys, "give the reason in one line")
    for name in ("until", "since"):
        if not _are_versions(parts.get(name, {})):
            raise document.make_error(
                f"`{name}` is not a mapping of packages to versions",
                keys,
                f'write {name}: {{PACKAGE: "VERSION"}}',
                value=name,
            )
    return Value(
        value,
        document.format_position(keys),
        why,
        parts.get("until", {}),
        parts.get("since", {}),
    )


def _are_versions(versions: Any) -> bool:
    """Return whether this is a mapping whose values are texts that begin with a digit."""
    return isinstance(versions, dict) and all(
        isinstance(version, str) and re.match(r"\d", version) for version in versions.values()
    )
