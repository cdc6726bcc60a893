"""What the checkpoint that a run would read holds, against what the run wants: a model's variables
with their shapes, and what switches add to them.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rosetta.core import run_folders
from rosetta.core.errors import CONFLICT, DAMAGED, DIFFERS, UserError
from rosetta.pax.run import preflight

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Shapes = Mapping[str, tuple[int, ...]]  # of variables, by their full names
_SWITCH_PARTS = (("FP8 state", r"_amax_history$"), ("LoRA's kernels", r"lora_a$"))


def find_newest(folder: str) -> str | None:
    """Return the newest checkpoint_N in a folder of them, None where there is none."""
    steps = run_folders.list_checkpoint_steps(folder)
    return make_path(folder, steps[-1]) if steps else None


def make_path(folder: str, step: int) -> str:
    """Return the path of a step's checkpoint."""
    return f"{folder}/checkpoint_{step:08}"


def read_shapes(checkpoint: str) -> Shapes | None:
    """Return the shapes of a checkpoint's variables without their padding, a model's and not its
    optimizer's: "params.lm.final_ln.scale" -> shape.

    They stand in its metadata since Paxml's version 1.1 of them; of older checkpoints, and where
    there is no metadata, nothing is known: None.

    Raises:
      UserError: the metadata cannot be understood.
    """
    place = f"{checkpoint}/metadata/metadata"
    path = run_folders.make_path(place)
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_text()).get("train_state_metadata")
        return None if found is None else dict(_list_arrays("", found["mdl_vars"]))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(
            f"it cannot be read ({type(error).__name__})",
            place,
            "restore the file, or move this checkpoint away and take another",
            kind=DAMAGED,
        ) from None


def _list_arrays(name: str, node: Mapping[str, object]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the arrays of a tree in the metadata; masked ones have no shape and are left out."""
    for key, below in node.items():
        if not isinstance(below, dict):
            raise TypeError(key)
        inner = f"{name}.{key}" if name else key
        if "_array_metadata_tag" not in below:
            yield from _list_arrays(inner, below)
        elif "unpadded_shape" in below:
            yield inner, tuple(below["unpadded_shape"])


def check_switches(folder: str, *, fp8: bool, lora: bool) -> None:
    """Check that a run can go on from its folder's newest checkpoint; where there is none, or one
    of which nothing is known, it is taken to be fine.

    Args:
      folder: of the run (job_log_dir).
      fp8: whether it computes in FP8, and so has state.
      lora: whether it trains low-rank adaptations.

    Raises:
      UserError: the checkpoint lacks what the run wants, or has more.
    """
    checkpoint = find_newest(f"{folder}/{preflight.CHECKPOINTS}")
    names = read_shapes(checkpoint) if checkpoint else None
    if checkpoint is None or names is None:
        return
    for (what, pattern), wanted in zip(_SWITCH_PARTS, (fp8, lora), strict=True):
        if any(re.search(pattern, name) for name in names) != wanted:
            has = "has no" if wanted else "has"
            do = (
                "go on with the switches it was begun with, or begin another folder with "
                f'--fdl.CHECKPOINT_RESTORE_PATH="{folder}"'
            )
            raise UserError(
                (
                    f"{run_folders.split_checkpoint_path(checkpoint)[1]} {has} {what}, and the run "
                    f"would {'have some' if wanted else 'have none'}"
                ),
                folder,
                do,
                kind=CONFLICT,
            )


def check_shapes(
    there: Shapes, model: Shapes, where: str, do: str, ignored: Iterable[str] = ()
) -> None:
    """UserError naming the first variable that differs between a checkpoint and a model, and how
    many do: in shape, missing in the checkpoint, additional there.

    Args:
      there: the checkpoint's variables, see shapes.
      model: the model's.
      where: for the message.
      do: likewise.
      ignored: patterns of variables that may differ, which match as Paxml's do: from the start, of
        names with slashes.
    """
    known = [re.compile(pattern) for pattern in ignored]

    def kept(names: Iterable[str]) -> list[str]:
        return sorted(
            name
            for name in names
            if not any(pattern.match(name.replace(".", "/")) for pattern in known)
        )

    other = [
        f"has {name} in the shape {_format_shape(there[name])}, "
        f"the model needs {_format_shape(model[name])}"
        for name in kept(there.keys() & model.keys())
        if there[name] != model[name]
    ]
    missing = [
        f"has no {name}, the model needs it in the shape {_format_shape(model[name])}"
        for name in kept(model.keys() - there.keys())
    ]
    additional = [
        f"has {name} in the shape {_format_shape(there[name])}, the model has none"
        for name in kept(there.keys() - model.keys())
    ]
    first, *rest = [
        (line, kind)
        for kind, lines in (("in shape", other), ("missing", missing), ("additional", additional))
        for line in lines
    ] or [("", "")]
    if not first[0]:
        return
    kinds = Counter(kind for _, kind in rest)
    more = (
        (
            f", and {len(rest)} more differ{'s' * (len(rest) == 1)} "
            f"({', '.join(f'{count} {kind}' for kind, count in kinds.items())})"
        )
        if rest
        else ""
    )
    raise UserError(f"it {first[0]}{more}", where, do, kind=DIFFERS)


def _format_shape(sizes: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, sizes))}]"
