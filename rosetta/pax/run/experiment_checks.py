"""Find mistakes in an experiment before anything is compiled.

An experiment is a class of hyper-parameters, the attributes in capitals. The trainer checks the
whole experiment; the checks before JAX starts use the functions for the values that they know.
"""

from __future__ import annotations

import difflib
import math
from typing import TYPE_CHECKING, Any

from rosetta.core.errors import CONFLICT, INVALID, TOO_BIG, UNKNOWN, UNSUPPORTED, UserError
from rosetta.core.value_parsing import parse_truth_value
from rosetta.core.variables import choices

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# A value of CHECKPOINT_POLICY: repeated layers keep the products with weights, and what cuDNN's
# attention returns.
SAVE_DOT_AND_ATTENTION = "save_dot_and_attention"
_MESH_AXES = 3  # data, fsdp, tensor; upstream calls them replica, data, mdl
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
_OLDEST_JAX = (0, 5)  # the layers of rosetta.nn need this version
_MINIMUM_COUNTS = {"MAX_STEPS": 0, "LR_COS_WARMUP": 0, "MAX_SEQ_LEN": 2}


def find_switch_problem(jax: str) -> str:
    """Return why a version of JAX has no switches, such as FP8 and LoRA; "" if it has them.

    Args:
      jax: The version of JAX, for example "0.4.26".
    """
    major, minor = (int(part) for part in jax.split(".")[:2])
    return "" if (major, minor) >= _OLDEST_JAX else f"JAX {jax} is too old for the switches"


def read_precision(value: Any) -> str:
    """Return the name of an FPROP_DTYPE.

    Args:
      value: A name such as "bfloat16", or a type of JAX or NumPy.

    Raises:
      UserError: The value is not a precision that models can be computed in.
    """
    if isinstance(value, str):
        name = value
    else:
        name = str(getattr(value, "__name__", None) or getattr(value, "name", value))
    if name not in choices.PAX_PRECISIONS:
        raise UserError(
            f"{name!r} is not a valid precision",
            "FPROP_DTYPE",
            f"choose one of: {', '.join(choices.PAX_PRECISIONS)}",
            kind=INVALID,
            value=name,
        )
    return name


def check_experiment(experiment: Any, devices: int) -> None:
    """Check the names, sizes, precision, schedule, mesh and batch of an experiment.

    Args:
      experiment: An instance of an experiment.
      devices: The number of devices of the run.

    Raises:
      UserError: A hyper-parameter is wrong. The error is about the first one.
    """
    _check_names(experiment)
    read_precision(experiment.FPROP_DTYPE)
    _check_sizes(experiment)
    _check_schedule(experiment)
    parts = math.prod(compute_mesh(experiment, devices)[:2])
    rows = compute_batch(experiment.PERCORE_BATCH_SIZE, devices, split=parts)
    check_microbatches(rows, getattr(experiment, "NUM_MICROBATCHES", 1))
    tokens = rows // parts * experiment.MAX_SEQ_LEN
    groups = getattr(experiment, "GROUPS_PER_PART", 1)
    if tokens % groups:
        raise UserError(
            f"the {tokens} tokens in a part of the batch do not divide into {groups} groups",
            f"GROUPS_PER_PART={groups}",
            f"give a divisor of {tokens}",
            kind=INVALID,
            value=groups,
        )


def _check_names(experiment: Any) -> None:
    """Check that every value that was set belongs to a hyper-parameter of the class."""
    known = [name for name in dir(type(experiment)) if name.isupper()]
    for name in vars(experiment):
        if not hasattr(type(experiment), name):
            raise make_unknown_name_error(name, known)


def make_unknown_name_error(name: str, known: Iterable[str]) -> UserError:
    """Return the error for a name that is not a hyper-parameter; it suggests the nearest name.

    Args:
      name: The name that was given.
      known: The names of all hyper-parameters.
    """
    similar = difflib.get_close_matches(name.upper(), known, n=1)
    remedy = "see docs/reference/pax-experiments.md for their names"
    if similar:
        remedy = f"did you mean {similar[0]}?"
    return UserError(
        "there is no such hyper-parameter", f"--fdl.{name}", remedy, kind=UNKNOWN, value=name
    )


def check_count(name: str, value: Any, least: int = 1) -> int:
    """Return a whole number after checking it.

    Args:
      name: The hyper-parameter, for the message.
      value: The value that was given.
      least: The smallest valid number.

    Raises:
      UserError: The value is not a whole number, or is less than `least`.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise UserError(
            f"{value!r} is not a valid number",
            name,
            f"give a whole number of at least {least}",
            kind=INVALID,
            value=value,
        )
    return value


def read_switch(name: str, value: Any) -> bool:
    """Return whether a hyper-parameter switches something on.

    Args:
      name: The hyper-parameter, for the message.
      value: True, False, or a word such as "on".

    Raises:
      UserError: The value is neither on nor off.
    """
    return value if isinstance(value, bool) else parse_truth_value(name, str(value))


def check_counts(values: Mapping[str, Any]) -> None:
    """Check that hyper-parameters that count something are whole numbers.

    Args:
      values: Hyper-parameters by name. Those that are absent are not checked.

    Raises:
      UserError: A value is not a whole number, or is too small.
    """
    for name in _COUNTS:
        if name in values:
            check_count(name, values[name], _MINIMUM_COUNTS.get(name, 1))


def check_numbers(values: Mapping[str, Any]) -> None:
    """Check that the learning rate, if it is known, is a number above 0.

    Raises:
      UserError: The learning rate is not such a number.
    """
    rate = values.get("LEARNING_RATE", 1)
    is_number = isinstance(rate, (int, float)) and not isinstance(rate, bool)
    if not is_number or not 0 < rate < math.inf:
        raise UserError(
            f"{rate!r} is not a valid learning rate",
            "LEARNING_RATE",
            "give a number above 0, as in 1e-4",
            kind=INVALID,
            value=rate,
        )


def _check_sizes(experiment: Any) -> None:
    """Check the sizes of the model, each alone and against each other."""
    names = {*_COUNTS, "LEARNING_RATE"}
    values = {name: getattr(experiment, name) for name in names if hasattr(experiment, name)}
    check_counts(values)
    check_numbers(values)
    _check_heads(experiment.NUM_HEADS, experiment.MODEL_DIMS, experiment.DIMS_PER_HEAD)
    if getattr(experiment, "USE_MQA", False):
        kv_heads = check_count("NUM_KV_HEADS", experiment.NUM_KV_HEADS)
        if experiment.NUM_HEADS % kv_heads:
            raise UserError(
                f"{kv_heads} heads of keys and values do not divide "
                f"NUM_HEADS={experiment.NUM_HEADS}",
                f"NUM_KV_HEADS={kv_heads}",
                f"give a divisor of {experiment.NUM_HEADS}",
                kind=INVALID,
                value=kv_heads,
            )
    if hasattr(experiment, "NUM_EXPERTS") and experiment.NUM_LAYERS % 2:
        raise UserError(
            "layers come in pairs, a dense layer and a layer of experts",
            f"NUM_LAYERS={experiment.NUM_LAYERS}",
            "give an even number",
            kind=INVALID,
            value=experiment.NUM_LAYERS,
        )


def _check_heads(heads: int, model_dims: int, head_dims: Any) -> None:
    """Check that the heads together are as wide as the model.

    Args:
      heads: NUM_HEADS.
      model_dims: MODEL_DIMS.
      head_dims: DIMS_PER_HEAD; None for MODEL_DIMS / NUM_HEADS.

    Raises:
      UserError: The widths differ.
    """
    divides = model_dims % heads == 0
    if head_dims is None:
        if not divides:
            raise UserError(
                f"{heads} heads do not divide MODEL_DIMS={model_dims}",
                f"NUM_HEADS={heads}",
                f"give a divisor of {model_dims}",
                kind=INVALID,
                value=heads,
            )
        return
    total = heads * check_count("DIMS_PER_HEAD", head_dims)
    if model_dims != total:
        remedy = f"set MODEL_DIMS to their product, {total}"
        if divides:
            remedy += f", or set DIMS_PER_HEAD={model_dims // heads}"
        raise UserError(
            f"NUM_HEADS={heads} x DIMS_PER_HEAD={head_dims} is {total}",
            f"MODEL_DIMS={model_dims}",
            remedy,
            kind=CONFLICT,
            value=model_dims,
        )


def _check_schedule(experiment: Any) -> None:
    """Check that warm-up and decay of the learning rate follow each other."""
    schedule = experiment.LR_SCHEDULE
    if schedule not in choices.LEARNING_RATE_SCHEDULES:
        raise UserError(
            f"{schedule!r} is not a valid schedule",
            "LR_SCHEDULE",
            f"choose one of: {', '.join(choices.LEARNING_RATE_SCHEDULES)}",
            kind=INVALID,
            value=schedule,
        )
    if schedule == "constant":
        return
    prefix = "LR_COS" if schedule == "linear_rampup_cosine_decay" else "LR_LRED"
    warmup = getattr(experiment, f"{prefix}_WARMUP")
    start = getattr(experiment, f"{prefix}_DECAY_START")
    end = getattr(experiment, f"{prefix}_DECAY_END")
    if start is None:
        start = warmup + 1
    if start < warmup:
        raise UserError(
            f"the decay starts before the warm-up ends, at {prefix}_WARMUP={warmup}",
            f"{prefix}_DECAY_START={start}",
            f"give at least {warmup}",
            kind=CONFLICT,
            value=start,
        )
    if end <= start:
        raise UserError(
            f"the decay ends before it starts, at step {start}",
            f"{prefix}_DECAY_END={end}",
            f"give more than {start}",
            kind=CONFLICT,
            value=end,
        )


def compute_mesh(experiment: Any, devices: int) -> list[int]:
    """Return the whole mesh: the product of the meshes within a node and across nodes.

    Args:
      experiment: An object with ICI_MESH_SHAPE and DCN_MESH_SHAPE.
      devices: The number of devices of the run.

    Returns:
      The sizes of the axes [data, fsdp, tensor].

    Raises:
      UserError: A shape is not valid, or the mesh has another number of devices.
    """
    if getattr(experiment, "USE_EXPERT_PARALLEL", False):
        raise UserError(
            "rosetta has no axis for experts: they are laid over the data axis",
            "USE_EXPERT_PARALLEL",
            "leave USE_EXPERT_PARALLEL out",
            kind=UNSUPPORTED,
        )
    shapes = {}
    for name in ("ICI_MESH_SHAPE", "DCN_MESH_SHAPE"):
        shape = getattr(experiment, name)
        if shape is None and name == "DCN_MESH_SHAPE":
            shape = [1, 1, 1]
        if not _is_mesh_shape(shape):
            raise UserError(
                f"{shape!r} is not a valid mesh",
                name,
                "give [data, fsdp, tensor], three whole numbers",
                kind=INVALID,
                value=shape,
            )
        shapes[name] = list(shape)
    mesh = [
        within * across
        for within, across in zip(shapes["ICI_MESH_SHAPE"], shapes["DCN_MESH_SHAPE"])  # noqa: B905 (Python 3.9)
    ]
    size = math.prod(mesh)
    if size != devices:
        settings = [f"{name}={shape}".replace(" ", "") for name, shape in shapes.items()]
        raise UserError(
            f"the mesh is for {size} devices, and the run has {devices}",
            " x ".join(settings),
            f"make their product {devices}, as with --fdl.ICI_MESH_SHAPE=[1,{devices},1] "
            "--fdl.DCN_MESH_SHAPE=[1,1,1]",
            kind=CONFLICT,
            value=size,
        )
    return mesh


def _is_mesh_shape(shape: Any) -> bool:
    """Return whether a value is a list of three whole numbers of at least 1."""
    if not isinstance(shape, (list, tuple)) or len(shape) != _MESH_AXES:
        return False
    return all(isinstance(size, int) and size >= 1 for size in shape)


def check_row_count(count: int | None, rows: int, length: int, data: str) -> None:
    """Check that the data has enough rows for one global batch; a batch must not repeat a row.

    Args:
      count: The rows of the data; None if the number is not known.
      rows: The rows of a global batch.
      length: The tokens of a row.
      data: The source of the data, for the message.

    Raises:
      UserError: The data has fewer rows.
    """
    if count is not None and count < rows:
        raise UserError(
            f"the data holds {count} rows of {length} tokens, fewer than one batch of {rows}",
            f"DATA={data}",
            "give more text, shorter rows (MAX_SEQ_LEN) or a smaller batch (PERCORE_BATCH_SIZE)",
            kind=TOO_BIG,
            value=rows,
        )


def check_rows_per_device(percore: Any) -> float:
    """Return PERCORE_BATCH_SIZE after checking that it is a number above 0.

    Raises:
      UserError: It is not.
    """
    is_number = isinstance(percore, (int, float)) and not isinstance(percore, bool)
    if not is_number or not percore > 0 or math.isinf(percore):
        raise UserError(
            f"{percore!r} is not a number above 0",
            f"PERCORE_BATCH_SIZE={percore}",
            "give the rows for one device, or a fraction",
            kind=INVALID,
            value=percore,
        )
    return float(percore)


def compute_batch(percore: Any, devices: int, *, split: int = 1) -> int:
    """Return the rows of the global batch: PERCORE_BATCH_SIZE times the devices.

    Args:
      percore: PERCORE_BATCH_SIZE, which may be a fraction.
      devices: The number of devices of the run.
      split: The number of parts that the data and fsdp axes of the mesh make of the batch.

    Raises:
      UserError: The batch is not a whole number of rows, or does not divide into the parts.
    """
    check_rows_per_device(percore)
    where = f"PERCORE_BATCH_SIZE={percore}"
    rows: int = round(percore * devices)
    if abs(percore * devices - rows) > 1e-6 * devices or not rows:
        raise UserError(
            f"a batch for {devices} devices would have {percore * devices:g} rows",
            where,
            f"give a multiple of 1/{devices}",
            kind=INVALID,
            value=percore,
        )
    if rows % split:
        raise UserError(
            f"the {rows} rows of a batch do not divide among the {split} parts that data and "
            "fsdp make of it",
            where,
            f"give a multiple of {split / devices:g}, or another mesh",
            kind=INVALID,
            value=rows,
        )
    return rows


def check_microbatches(rows: int, parts: int) -> None:
    """Check that a global batch divides into microbatches, as rosetta.pax.learner demands.

    Args:
      rows: The rows of the global batch.
      parts: NUM_MICROBATCHES.

    Raises:
      UserError: The number is not valid, or does not divide the batch.
    """
    if rows % check_count("NUM_MICROBATCHES", parts):
        raise UserError(
            f"a batch of {rows} rows does not divide into {parts} microbatches",
            f"NUM_MICROBATCHES={parts}",
            f"give a divisor of {rows}",
            kind=INVALID,
            value=parts,
        )
