"""What can be known to be wrong with an experiment before anything is compiled. Needs no JAX."""

from __future__ import annotations

import difflib
import math
from typing import TYPE_CHECKING, Any

from rosetta.core.errors import CONFLICT, INVALID, TOO_BIG, UNKNOWN, UNSUPPORTED, UserError
from rosetta.core.value_parsing import parse_truth_value
from rosetta.core.variables import choices

if TYPE_CHECKING:
    from collections.abc import Mapping

AXES = ("replica", "data", "mdl")
_COUNTS = (
    "NUM_LAYERS",
    "NUM_HEADS",
    "MODEL_DIMS",
    "HIDDEN_DIMS",
    "VOCAB_SIZE",
    "MAX_SEQ_LEN",
    "NUM_EXPERTS",
    "GROUPS_PER_PART",
    "MAX_STEPS",
    "LR_COS_WARMUP",
)
_LEAST = {"MAX_STEPS": 0, "LR_COS_WARMUP": 0, "MAX_SEQ_LEN": 2}


def read_precision(value: Any) -> str:
    """Return the name of an FPROP_DTYPE, given as one or as JAX's or NumPy's type.

    Raises:
      UserError: it is no precision that models are computed in.
    """
    name = (
        value
        if isinstance(value, str)
        else str(getattr(value, "__name__", None) or getattr(value, "name", value))
    )
    if name not in choices.PAX_PRECISIONS:
        raise UserError(
            f"it is {name!r}",
            "FPROP_DTYPE",
            f"choose one of: {', '.join(choices.PAX_PRECISIONS)}",
            kind=INVALID,
            value=name,
        )
    return name


def check_experiment(experiment: Any, devices: int) -> None:
    """Check an experiment for so many devices: names, sizes, precision, schedule, mesh, batch.

    Raises:
      UserError: one line.
    """
    _check_names(experiment)
    read_precision(experiment.FPROP_DTYPE)
    _check_sizes(experiment)
    _check_schedule(experiment)
    parts = math.prod(compute_mesh(experiment, devices)[:2])
    rows = compute_batch(experiment.PERCORE_BATCH_SIZE, devices, split=parts)
    check_microbatches(rows, getattr(experiment, "NUM_MICROBATCHES", 1))
    tokens, groups = (
        rows // parts * experiment.MAX_SEQ_LEN,
        getattr(experiment, "GROUPS_PER_PART", 1),
    )
    if tokens % groups:
        raise UserError(
            f"a part of the batch has {tokens} tokens, which do not divide by it",
            f"GROUPS_PER_PART={groups}",
            "give a divisor of them",
            kind=INVALID,
            value=groups,
        )


def _check_names(experiment: Any) -> None:
    known = [name for name in dir(type(experiment)) if name.isupper()]
    for name in vars(experiment):
        if not hasattr(type(experiment), name):
            near = difflib.get_close_matches(name.upper(), known, n=1)
            raise UserError(
                "there is no such hyper-parameter",
                f"--fdl.{name}",
                f"did you mean {near[0]}?"
                if near
                else "see docs/reference/pax-experiments.md for their names",
                kind=UNKNOWN,
                value=name,
            )


def check_count(name: str, value: Any, least: int = 1) -> int:
    """Return a whole number; UserError where the value is none, or less than `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise UserError(
            f"it is {value!r}",
            name,
            f"give a whole number of at least {least}",
            kind=INVALID,
            value=value,
        )
    return value


def read_switch(name: str, value: Any) -> bool:
    """Return whether a hyper-parameter switches something on: True, False, or a word such as "on".

    Raises:
      UserError: the value is neither.
    """
    return value if isinstance(value, bool) else parse_truth_value(name, str(value))


def check_counts(values: Mapping[str, Any]) -> None:
    """Check that hyper-parameters that count something are whole numbers.

    Args:
      values: hyper-parameters by name; others are left out.

    Raises:
      UserError: one is not.
    """
    for name in (name for name in _COUNTS if name in values):
        check_count(name, values[name], _LEAST.get(name, 1))


def check_numbers(values: Mapping[str, Any]) -> None:
    """Check that the learning rate is a number above 0; UserError where it is not."""
    rate = values.get("LEARNING_RATE", 1)
    is_number = isinstance(rate, (int, float)) and not isinstance(rate, bool)
    if not is_number or not 0 < rate < math.inf:
        raise UserError(
            f"it is {rate!r}",
            "LEARNING_RATE",
            "give a number above 0, as in 1e-4",
            kind=INVALID,
            value=rate,
        )


def _check_sizes(experiment: Any) -> None:
    names = {*_COUNTS, "LEARNING_RATE"}
    values = {name: getattr(experiment, name) for name in names if hasattr(experiment, name)}
    check_counts(values)
    check_numbers(values)
    heads, wide, each = experiment.NUM_HEADS, experiment.MODEL_DIMS, experiment.DIMS_PER_HEAD
    if each is None and wide % heads:
        raise UserError(
            f"{heads} heads do not divide MODEL_DIMS={wide}",
            f"NUM_HEADS={heads}",
            "give a divisor of it",
            kind=INVALID,
            value=heads,
        )
    if each is not None and wide != heads * check_count("DIMS_PER_HEAD", each):
        do = (
            f"make MODEL_DIMS their product, {heads * each}, or set DIMS_PER_HEAD={wide // heads}"
            if wide % heads == 0
            else f"make MODEL_DIMS their product, {heads * each}"
        )
        raise UserError(
            f"NUM_HEADS={heads} x DIMS_PER_HEAD={each} is {heads * each}",
            f"MODEL_DIMS={wide}",
            do,
            kind=CONFLICT,
            value=wide,
        )
    if getattr(experiment, "USE_MQA", False) and heads % check_count(
        "NUM_KV_HEADS", experiment.NUM_KV_HEADS
    ):
        raise UserError(
            f"they do not divide NUM_HEADS={heads}",
            f"NUM_KV_HEADS={experiment.NUM_KV_HEADS}",
            "give a divisor of it",
            kind=INVALID,
            value=experiment.NUM_KV_HEADS,
        )
    if hasattr(experiment, "NUM_EXPERTS") and experiment.NUM_LAYERS % 2:
        raise UserError(
            "layers come in pairs, a dense one and one of experts",
            f"NUM_LAYERS={experiment.NUM_LAYERS}",
            "give an even number",
            kind=INVALID,
            value=experiment.NUM_LAYERS,
        )


def _check_schedule(experiment: Any) -> None:
    kind = experiment.LR_SCHEDULE
    if kind not in choices.LEARNING_RATE_SCHEDULES:
        raise UserError(
            f"it is {kind!r}",
            "LR_SCHEDULE",
            f"choose one of: {', '.join(choices.LEARNING_RATE_SCHEDULES)}",
            kind=INVALID,
            value=kind,
        )
    if kind == "constant":
        return
    prefix = "LR_COS" if kind == "linear_rampup_cosine_decay" else "LR_LRED"
    warm, start, end = (
        getattr(experiment, f"{prefix}_{name}") for name in ("WARMUP", "DECAY_START", "DECAY_END")
    )
    start = warm + 1 if start is None else start
    if start < warm:
        raise UserError(
            f"the warm-up ends later, at {prefix}_WARMUP={warm}",
            f"{prefix}_DECAY_START={start}",
            f"give at least {warm}",
            kind=CONFLICT,
            value=start,
        )
    if end <= start:
        raise UserError(
            f"the decay begins at {start}",
            f"{prefix}_DECAY_END={end}",
            f"give more than {start}",
            kind=CONFLICT,
            value=end,
        )


def compute_mesh(experiment: Any, devices: int) -> list[int]:
    """Return the whole mesh, [replica, data, model]; UserError where it is none of so many
    devices.
    """
    if getattr(experiment, "USE_EXPERT_PARALLEL", False):
        raise UserError(
            "experts are laid over the data axis here",
            "USE_EXPERT_PARALLEL",
            "leave it out",
            kind=UNSUPPORTED,
        )
    shapes = {}
    for name in ("ICI_MESH_SHAPE", "DCN_MESH_SHAPE"):
        shape = getattr(experiment, name)
        shape = [1, 1, 1] if shape is None and name.startswith("DCN") else shape
        if (
            not isinstance(shape, (list, tuple))
            or len(shape) != len(AXES)
            or not all(isinstance(n, int) and n >= 1 for n in shape)
        ):
            raise UserError(
                f"it is {shape!r}",
                name,
                "give [data, fsdp, tensor], three whole numbers",
                kind=INVALID,
                value=shape,
            )
        shapes[name] = list(shape)
    whole = [a * b for a, b in zip(*shapes.values())]  # noqa: B905 (Python 3.9)
    if math.prod(whole) != devices:
        where = " x ".join(f"{name}={shape}".replace(" ", "") for name, shape in shapes.items())
        do = (
            f"make their product {devices}, as with --fdl.ICI_MESH_SHAPE=[1,{devices},1] "
            "--fdl.DCN_MESH_SHAPE=[1,1,1]"
        )
        raise UserError(
            f"it is a mesh of {math.prod(whole)} devices, and there are {devices}",
            where,
            do,
            kind=CONFLICT,
            value=math.prod(whole),
        )
    return whole


def check_row_count(count: int | None, rows: int, length: int, data: str) -> None:
    """Raise UserError where the data has fewer rows of so many tokens than a global batch: rows
    would repeat within it. None: nobody knows how many.
    """
    if count is not None and count < rows:
        do = "give more text, shorter rows (MAX_SEQ_LEN) or a smaller batch (PERCORE_BATCH_SIZE)"
        raise UserError(
            f"the data holds {count} rows of {length} tokens, fewer than one batch of {rows}",
            f"DATA={data}",
            do,
            kind=TOO_BIG,
            value=rows,
        )


def compute_batch(percore: Any, devices: int, *, split: int = 1) -> int:
    """Return the global batch, in rows: PERCORE_BATCH_SIZE, which may be a fraction, times the
    devices.

    Args:
      percore: PERCORE_BATCH_SIZE.
      devices: all of the run.
      split: how many ways the mesh's replica and data axes split it.

    Raises:
      UserError: it is no whole number of rows, or does not divide.
    """
    where = f"PERCORE_BATCH_SIZE={percore}"
    if (
        isinstance(percore, bool)
        or not isinstance(percore, (int, float))
        or not percore > 0
        or math.isinf(percore)
    ):
        raise UserError(
            "it is no number above 0",
            where,
            "give the rows a device, or a fraction",
            kind=INVALID,
            value=percore,
        )
    rows = round(percore * devices)
    if abs(percore * devices - rows) > 1e-6 * devices or not rows:
        raise UserError(
            f"times {devices} devices it is {percore * devices:g} rows",
            where,
            f"give a multiple of 1/{devices}",
            kind=INVALID,
            value=percore,
        )
    if rows % split:
        do = f"give a multiple of {split / devices:g}, or another mesh"
        raise UserError(
            (
                f"its {rows} rows do not divide among the {split} parts that data and fsdp make "
                "of them"
            ),
            where,
            do,
            kind=INVALID,
            value=rows,
        )
    return rows


def check_microbatches(rows: int, parts: int) -> None:
    """Check that a global batch divides into microbatches, as rosetta.pax.learner demands;
    UserError otherwise.
    """
    if rows % check_count("NUM_MICROBATCHES", parts):
        what = f"a batch of {rows} rows does not divide into {parts} microbatches"
        raise UserError(
            what,
            f"NUM_MICROBATCHES={parts}",
            "give a divisor of the batch",
            kind=INVALID,
            value=parts,
        )
