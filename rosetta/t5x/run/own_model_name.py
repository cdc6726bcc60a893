"""The variable MODEL, which names a Flax module of the user's own, and what it excludes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from rosetta.core.errors import CONFLICT, INVALID, MISSING, UserError
from rosetta.core.value_parsing import parse_path

if TYPE_CHECKING:
    from collections.abc import Mapping

VARIABLE = "MODEL"
# The size whose gin files a run with MODEL reads. They set the vocabulary of bytes.
SIZE = "tiny"
# Variables of rosetta's own networks, and the values that change nothing there.
_NETWORK_VARIABLES: Mapping[str, tuple[str, ...]] = {
    "ENABLE_FP8": ("0",),
    "ENABLE_TE": ("0",),
    "ATTENTION": ("xla",),
    "FUSE_QKV": (),
    "TRANSPOSE_BS": (),
    "LOGITS_DTYPE": (),
    "REMAT": ("none",),
    "SCAN_LAYERS": ("0",),
    "LORA_RANK": ("0",),
    "LORA_ALPHA": (),
    "LORA_TARGETS": (),
    "FREEZE": (),
    "NUM_DECODES": ("1",),
    "TEMPERATURE": (),
    "TOP_K": (),
    "TOP_P": (),
}


def split_model_name(name: str) -> tuple[str, str]:
    """Return the module, or the path of a Python file, and the class that MODEL names.

    Raises:
      UserError: the value is not of the form module:Class.
    """
    module, colon, class_name = name.rpartition(":")
    if not colon or not module or not class_name.isidentifier():
        raise UserError(
            "not of the form module:Class",
            f"{VARIABLE}={name}",
            "write module:Class, or FILE.py:Class",
            kind=INVALID,
            value=name,
        )
    return module, class_name


def resolve_model_name(variables: Mapping[str, str]) -> str:
    """Return the value of MODEL with an absolute path; "" if it is not set.

    Args:
      variables: of the run.

    Raises:
      UserError: the value is not valid, the file does not exist, or a variable of rosetta's own
        networks is set, too.
    """
    name = variables.get(VARIABLE, "")
    if not name:
        return ""
    module, class_name = split_model_name(name)
    if module.endswith(".py"):
        module = parse_path(VARIABLE, module)
        if not os.path.isfile(module):
            raise UserError(
                "the file does not exist",
                f"{VARIABLE}={name}",
                "name a Python file, or a module that can be imported",
                kind=MISSING,
            )
    for variable, harmless in _NETWORK_VARIABLES.items():
        value = variables.get(variable)
        if value and value not in harmless:
            raise UserError(
                "this is a setting of rosetta's own networks",
                f"{variable}={value}",
                f"leave it out, or leave out {VARIABLE}: your module decides how it computes",
                kind=CONFLICT,
                value=value,
            )
    for variable in ("T5_SIZE", "T5_FAMILY"):
        value = variables.get(variable)
        if value:
            raise UserError(
                f"{VARIABLE} names a model of your own, which has no such size or family",
                f"{variable}={value}",
                "leave it out; MODEL_FIELDS of a gin file sets the fields of your class",
                kind=CONFLICT,
                value=value,
            )
    if variables.get("PREC") == "float16":
        raise UserError(
            "the loss of a module of your own is not scaled, which float16 needs",
            "PREC=float16",
            "set PREC=bfloat16 or PREC=float32",
            kind=CONFLICT,
        )
    if variables.get("OPTIMIZER") == "adafactor":
        raise UserError(
            "Adafactor reads the names of a T5's dimensions, which your module need not have",
            "OPTIMIZER=adafactor",
            "leave it out: AdamW trains any module",
            kind=CONFLICT,
        )
    return f"{module}:{class_name}"


def replace_network_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Return variables with which nothing is decided about rosetta's own networks.

    Without MODEL, they are the same.
    """
    if not variables.get(VARIABLE):
        return dict(variables)
    return {
        **variables,
        "ENABLE_FP8": "0",
        "ATTENTION": "xla",
        "FUSE_QKV": "1",
        "TRANSPOSE_BS": "1",
        "LOGITS_DTYPE": "float32",
    }


def make_bindings(variables: Mapping[str, str], precision: str) -> dict[str, object]:
    """Return the gin bindings of a module of the user's own; none if MODEL is not set.

    Args:
      variables: of the run.
      precision: the type of the activations.

    Raises:
      UserError: see resolve_model_name.
    """
    name = resolve_model_name(variables)
    return {"OWN_MODEL": name, "DTYPE": precision} if name else {}
