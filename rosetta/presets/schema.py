"""What may stand in a preset, and of what kind: the names of the run description's fields, and what
they are made from.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rosetta.core import run_description
from rosetta.core.errors import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from rosetta.core.strict_yaml import Document

FRAMEWORKS = run_description.FRAMEWORKS
PRECISIONS = ("bf16", "fp32", "fp8-xla", "fp8-te")
COMBINE_MODES = ("published", "layers")
GROUPS = ("mesh", "batch", "xla_flags", "env", "settings", "fdl")
MESH_SIZE_NAMES = ("gpus", "nodes")  # of the run, for a dimension of a mesh


@dataclass(frozen=True)
class Value:
    """A value where it is set, and why. None takes out what was set below.

    `until` is package -> version that ends a workaround, `since` package -> version that first has
    it.
    """

    value: Any
    origin: str
    why: str = ""
    until: Mapping[str, str] = field(default_factory=dict)
    since: Mapping[str, str] = field(default_factory=dict)


def _check_whole_number(value: Any) -> str:
    return (
        ""
        if isinstance(value, int) and not isinstance(value, bool) and value >= 1
        else "give a whole number, at least 1"
    )


def _make_choice_check(*known: str) -> Callable[[Any], str]:
    return lambda value: "" if value in known else f"choose one of: {', '.join(known)}"


def _check_text(value: Any) -> str:
    return "" if isinstance(value, str) else "give a text; a number in quotes"


def _check_mesh(value: Any) -> str:
    fine = (
        isinstance(value, list)
        and len(value) == 3
        and all(each in MESH_SIZE_NAMES or not _check_whole_number(each) for each in value)
    )
    return (
        ""
        if fine
        else "give [data, fsdp, tensor], whole numbers, or `gpus` (of a node) and `nodes`"
    )


def _check_batch(value: Any) -> str:
    fraction = isinstance(value, str) and re.fullmatch(r"0\.\d*[1-9]\d*", value)
    return "" if fraction else _check_whole_number(value)


def _check_names(value: Any) -> str:
    return (
        ""
        if isinstance(value, list) and all(isinstance(each, str) for each in value)
        else "give a list of names"
    )


def _check_mounts(value: Any) -> str:
    fine = isinstance(value, list) and all(
        isinstance(each, list) and len(each) == 2 and not any(map(_check_text, each))
        for each in value
    )
    return "" if fine else "give pairs: [[OUTSIDE, INSIDE], ...]"


def _check_flag(value: Any) -> str:
    return (
        "" if isinstance(value, (bool, int, str)) else "give true, false, a whole number or a text"
    )


def _accept_any(_: Any) -> str:
    return ""


# Field -> what says what is wrong with a value, "" where nothing is.
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
REQUIRED_FIELDS = (
    "runs",
    "precision",
    "nodes",
    "gpus_per_node",
    "processes_per_node",
)  # of every run: they cannot be taken out
# Field or group -> what it sets, in one sentence of Markdown, for docs/reference/presets.md.
FIELD_HELP = {
    "runs": (
        "Command: `pretrain` or `finetune` of T5X; `train`, `pile`, `lambada` or `boolq` of Pax."
    ),
    "nodes": "Nodes.",
    "gpus_per_node": "GPUs of each node.",
    "processes_per_node": "`gpu`: one process for each GPU. `node`: one for each node.",
    "precision": "One of the [precisions](#precisions).",
    "batch.per_gpu": (
        "Sequences of a batch for one GPU; of T5X with `TP_SIZE`, for each group of that many GPUs."
    ),
    "batch.microbatches": "Parts of a batch, one after another, of one step.",
    "mesh.ici": (
        "Pax: mesh within a node, `[data, fsdp, tensor]`. `gpus` is the number of GPUs of a node."
    ),
    "mesh.dcn": ("Pax: mesh across nodes, `[data, fsdp, tensor]`. `nodes` is the number of nodes."),
    "settings": "Variables of the scripts, such as `T5_SIZE: small`. Values are texts.",
    "fdl": "Pax: hyper-parameters, such as `MAX_STEPS: 500`.",
    "xla_flags": "Flags of XLA, by their names without dashes.",
    "env": "Variables of the environment, of JAX, NCCL and other libraries. Values are texts.",
    "switches": "Switches to add. `null` removes those of the layers below.",
    "combine": ("`published` or `layers`: see [thresholds](#thresholds-of-combined-collectives)."),
    "cache": "Folder on shared storage, for the switches that need one.",
    "accelerator": "GPU of the runs, by its short name. The place for it is the site's file.",
    "mounts": "Folders for containers: `[[OUTSIDE, INSIDE], ...]`.",
}
# Group -> the names in it, and what says what is wrong with a value.
_GROUP_RULES: dict[str, tuple[str, Callable[[Any], str]]] = {
    "xla_flags": (r"xla_\w+", _check_flag),
    "env": (r"[A-Z][A-Z0-9_]*", _check_text),
    "settings": (r"[A-Z][A-Z0-9_]*", _check_text),
    "fdl": (r"[A-Za-z_][\w.]*", _accept_any),
}


def is_field(path: str) -> bool:
    """Is there such a field?"""
    group, _, name = path.partition(".")
    return path in FIELDS or (
        group in _GROUP_RULES and bool(re.fullmatch(_GROUP_RULES[group][0], name))
    )


def find_value_problem(path: str, value: Any) -> str:
    """Return what to do about a value of a known field, "" where it is fine."""
    if value is None and path not in REQUIRED_FIELDS:
        return ""
    return FIELDS[path](value) if path in FIELDS else _GROUP_RULES[path.partition(".")[0]][1](value)


def read_values(
    document: Document, at: tuple[str, ...], others: tuple[str, ...] = ()
) -> dict[str, Value]:
    """Return field -> value of what stands at a path of a document, in the order of the file.

    A value stands by itself, or as {value, why, until, since}.

    Args:
      document: of a file.
      at: the path.
      others: keys there that are the caller's.

    Raises:
      UserError: there is no such field, or its value is of another kind.
    """
    body = document.data
    for key in at:
        body = body[key]
    if not isinstance(body, dict):
        raise document.make_error("it is no mapping", at, "write NAME: VALUE")
    return {
        path: _read_value(document, where, given, path)
        for path, where, given in _iterate_fields(document, at, body, others)
    }


def _iterate_fields(
    document: Document, at: tuple[str, ...], body: Mapping[str, Any], others: tuple[str, ...]
) -> Iterator[tuple[str, tuple[str, ...], Any]]:
    for key, given in body.items():
        where = (*at, key)
        if key in others:
            continue
        if key not in GROUPS:
            inside = {key: (where, given)}
        elif not isinstance(given, dict):
            raise document.make_error("it is no mapping", where, f"write {key}: {{NAME: VALUE}}")
        else:
            inside = {f"{key}.{name}": ((*where, name), each) for name, each in given.items()}
        for path, (there, each) in inside.items():
            if not is_field(path):
                fields = sorted(
                    {name for name in FIELDS if name != "runs"} | set(_GROUP_RULES) | set(others)
                )
                raise document.make_error(
                    "there is no such field",
                    there,
                    f"it may have {', '.join(fields)}",
                    kind=UNKNOWN,
                    value=there[-1],
                )
            yield path, there, each


def _read_value(document: Document, where: tuple[str, ...], given: Any, path: str) -> Value:
    parts = given if isinstance(given, dict) else {"value": given}
    odd = sorted(parts.keys() - {"value", "why", "until", "since"})
    if odd or "value" not in parts:
        raise document.make_error(
            f"it has {odd[0]}" if odd else "it has no value",
            where,
            (
                "write a value, or {value: VALUE, why: TEXT, until: {PACKAGE: VERSION}, since: "
                "{PACKAGE: VERSION}}"
            ),
            value=odd[0] if odd else None,
        )
    if advice := find_value_problem(path, parts["value"]):
        raise document.make_error(f"it is {parts['value']!r}", where, advice, value=parts["value"])
    why = parts.get("why", "")
    if not isinstance(why, str):
        raise document.make_error("why is no text", where, "give the reason in a line")
    for name in ("until", "since"):
        versions = parts.get(name, {})
        if not isinstance(versions, dict) or any(
            _check_text(each) or not re.match(r"\d", each) for each in versions.values()
        ):
            raise document.make_error(
                f"{name} names no versions",
                where,
                f'write {name}: {{PACKAGE: "VERSION"}}',
                value=name,
            )
    return Value(
        parts["value"],
        document.format_position(where),
        why,
        parts.get("until", {}),
        parts.get("since", {}),
    )
