"""Compare the checkpoint that a run would read with the run's model, before anything is read.

Paxml's metadata of a checkpoint names the model's variables with their shapes. Among them are the
variables that switches add: FP8 state and the kernels of LoRA.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rosetta.core import run_folders
from rosetta.core.errors import CONFLICT, DAMAGED, DIFFERS, UserError
from rosetta.pax.run import preflight

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Shapes = Mapping[str, tuple[int, ...]]  # of variables, by their full names
_FP8_STATE = re.compile(r"_amax_history$")
_LORA_KERNELS = re.compile(r"lora_a$")


def find_newest(folder: str) -> str | None:
    """Return the path of the newest checkpoint in a folder, None if the folder has none."""
    steps = run_folders.list_checkpoint_steps(folder)
    return make_path(folder, steps[-1]) if steps else None


def make_path(folder: str, step: int) -> str:
    """Return the path of the checkpoint of a step."""
    return f"{folder}/checkpoint_{step:08}"


def read_shapes(checkpoint: str) -> Shapes | None:
    """Return the shapes of the model's variables in a checkpoint, without their padding.

    The variables of the optimizer are left out.

    Args:
      checkpoint: The path of the checkpoint.

    Returns:
      Shapes by full names, such as "params.lm.final_ln.scale". None if there is no metadata, or
      if the metadata is older than version 1.1 of Paxml's and has no shapes.

    Raises:
      UserError: The metadata is damaged.
    """
    file = f"{checkpoint}/metadata/metadata"
    path = run_folders.make_path(file)
    if not path.exists():
        return None
    try:
        train_state = json.loads(path.read_text()).get("train_state_metadata")
        return None if train_state is None else dict(_list_arrays("", train_state["mdl_vars"]))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(
            f"the metadata of the checkpoint cannot be read ({type(error).__name__})",
            file,
            "restore the file, or move this checkpoint away and use another one",
            kind=DAMAGED,
        ) from None


def _list_arrays(prefix: str, node: Mapping[str, object]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the names and shapes of the arrays of a tree in the metadata.

    Masked arrays have no shape and are left out.
    """
    for key, child in node.items():
        if not isinstance(child, dict):
            raise TypeError(key)
        name = f"{prefix}.{key}" if prefix else key
        if "_array_metadata_tag" not in child:
            yield from _list_arrays(name, child)
        elif "unpadded_shape" in child:
            yield name, tuple(child["unpadded_shape"])


def check_switches(folder: str, *, fp8: bool, lora: bool) -> None:
    """Check that a run can resume from its newest checkpoint with its switches.

    The check passes if there is no checkpoint, or if nothing is known of the checkpoint.

    Args:
      folder: The folder of the run (job_log_dir).
      fp8: Whether the run computes in FP8, and so has FP8 state.
      lora: Whether the run trains low-rank adapters.

    Raises:
      UserError: The checkpoint lacks something that the run needs, or has more.
    """
    checkpoint = find_newest(f"{folder}/{preflight.CHECKPOINTS}")
    names = read_shapes(checkpoint) if checkpoint else None
    if checkpoint is None or names is None:
        return
    _, checkpoint_name = run_folders.split_checkpoint_path(checkpoint)
    for addition, pattern, wanted in (
        ("FP8 state", _FP8_STATE, fp8),
        ("LoRA's kernels", _LORA_KERNELS, lora),
    ):
        if any(pattern.search(name) for name in names) != wanted:
            difference = (
                f"{checkpoint_name} has no {addition}, and the run would have some"
                if wanted
                else f"{checkpoint_name} has {addition}, and the run would have none"
            )
            raise UserError(
                difference,
                folder,
                "resume with the switches that the run was started with, or start in another "
                f'folder with --fdl.CHECKPOINT_RESTORE_PATH="{folder}"',
                kind=CONFLICT,
            )


@dataclass(frozen=True)
class _Difference:
    """A variable that differs: in what way, and a clause about the checkpoint that says how."""

    kind: str
    clause: str


def check_shapes(
    stored: Shapes, model: Shapes, where: str, do: str, ignored: Iterable[str] = ()
) -> None:
    """Check that the variables of a checkpoint are those of a model.

    Args:
      stored: The variables of the checkpoint, see `read_shapes`.
      model: The variables of the model.
      where: The place that the message names.
      do: The remedy that the message names.
      ignored: Patterns of variables that may differ. As in Paxml, a pattern matches from the
        start of a name whose parts are separated by slashes.

    Raises:
      UserError: Variables differ in shape, are missing in the checkpoint, or are only there. The
        message names the first one and counts the others.
    """
    ignored_patterns = [re.compile(pattern) for pattern in ignored]

    def select(names: Iterable[str]) -> list[str]:
        """Return the names that are not ignored, sorted."""
        paths = {name: name.replace(".", "/") for name in sorted(names)}
        return [
            name
            for name, path in paths.items()
            if not any(pattern.match(path) for pattern in ignored_patterns)
        ]

    differences = [
        _Difference(
            "in shape",
            f"has {name} in the shape {_format_shape(stored[name])}, "
            f"the model needs {_format_shape(model[name])}",
        )
        for name in select(stored.keys() & model.keys())
        if stored[name] != model[name]
    ]
    differences += [
        _Difference(
            "missing",
            f"has no {name}, the model needs it in the shape {_format_shape(model[name])}",
        )
        for name in select(model.keys() - stored.keys())
    ]
    differences += [
        _Difference(
            "additional",
            f"has {name} in the shape {_format_shape(stored[name])}, the model has none",
        )
        for name in select(stored.keys() - model.keys())
    ]
    if not differences:
        return
    first, *others = differences
    what = f"the checkpoint {first.clause}"
    if others:
        counts = Counter(difference.kind for difference in others)
        listed = ", ".join(f"{count} {kind}" for kind, count in counts.items())
        verb = "differs" if len(others) == 1 else "differ"
        what += f", and {len(others)} more {verb} ({listed})"
    raise UserError(what, where, do, kind=DIFFERS)


def _format_shape(sizes: tuple[int, ...]) -> str:
    """Return a shape as text, such as "[128, 64]"."""
    return f"[{', '.join(map(str, sizes))}]"
