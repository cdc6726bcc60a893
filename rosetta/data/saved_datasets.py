"""Hugging Face sets that `save_to_disk` wrote: a folder of Arrow files, or a folder of such splits.

They are read with pyarrow, without the package datasets.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from rosetta.core.errors import DAMAGED, MISSING, UNKNOWN, UNSUPPORTED, UserError

if TYPE_CHECKING:
    from rosetta.data.data_spec import Spec

_STATE, _SPLITS = "state.json", "dataset_dict.json"
_DEFAULT_SPLIT = "train"  # of a set that does not say its split


def is_saved(spec: Spec) -> bool:
    """Return whether a source is a folder that `save_to_disk` wrote."""
    folder = os.path.expanduser(spec.value)
    return spec.kind == "hf" and any(
        os.path.isfile(os.path.join(folder, name)) for name in (_STATE, _SPLITS)
    )


def find_files(spec: Spec, split: str) -> tuple[str, ...]:
    """Return the Arrow files of a split, in order.

    Args:
        spec: The set, for which is_saved holds.
        split: The split, if the spec names none.

    Raises:
        UserError: There is no such split, or a file of it is missing.
    """
    folder = os.path.expanduser(spec.value)
    name = spec.split or split
    splits_path = os.path.join(folder, _SPLITS)
    if os.path.isfile(splits_path):
        available = _read_json(splits_path).get("splits")
        if not isinstance(available, list):
            raise _describe_damage(splits_path)
        if name in available:
            folder = os.path.join(folder, name)
    else:
        available = [_read_json(os.path.join(folder, _STATE)).get("_split") or _DEFAULT_SPLIT]
    if name not in available:
        raise UserError(
            f"there is no split {name!r} (available: {', '.join(map(str, available))})",
            folder,
            f"name an available split: hf:{spec.value}#{available[0]}",
            kind=UNKNOWN,
            value=name,
        )
    return _list_files(folder)


def _list_files(folder: str) -> tuple[str, ...]:
    """Return the Arrow files that the state.json of a folder lists.

    Raises:
        UserError: A file is missing, or the order of the rows is in further files.
    """
    state_path = os.path.join(folder, _STATE)
    state = _read_json(state_path)
    if state.get("_indices_data_files"):
        raise UserError(
            "the rows of the set are selected by a list of indices, which is not read",
            folder,
            "write the rows themselves: dataset.flatten_indices().save_to_disk(FOLDER)",
            kind=UNSUPPORTED,
        )
    try:
        paths = tuple(os.path.join(folder, file["filename"]) for file in state["_data_files"])
    except (KeyError, TypeError):
        raise _describe_damage(state_path) from None
    for path in paths:
        if not os.path.isfile(path):
            raise UserError(
                f"the file is missing, and {_STATE} lists it",
                path,
                "copy the rest of the set",
                kind=MISSING,
            )
    if not paths:
        raise UserError("the set has no rows", folder, "name a set with rows in it", kind=MISSING)
    return paths


def _read_json(path: str) -> dict[str, Any]:
    """Return the content of a JSON file of a set. Raises UserError if it is damaged or missing."""
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
    except FileNotFoundError:
        raise UserError(
            "the file is missing", path, "copy the rest of the set", kind=MISSING
        ) from None
    except ValueError:
        raise _describe_damage(path) from None
    if not isinstance(content, dict):
        raise _describe_damage(path)
    return content


def _describe_damage(path: str) -> UserError:
    """Return the error for a file that save_to_disk did not write so."""
    return UserError(
        "not a valid file of a saved data set", path, "copy the set again", kind=DAMAGED
    )
