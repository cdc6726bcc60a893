"""What can be known to be wrong with a run before JAX starts: its devices, its model's split, its
data, its files.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from rosetta.core import path_checks, value_parsing
from rosetta.core.errors import CONFLICT, DIFFERS, INVALID, MISSING, UserError
from rosetta.core.run_folders import absolute
from rosetta.core.run_folders import check_last_step as check_end
from rosetta.core.variables import reading
from rosetta.data import checks
from rosetta.data.spec import PAIRS
from rosetta.t5x.run import checkpoint_record, folders, gin_text, parameter_count

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rosetta.t5x.run.settings import Settings


def split(
    bound: dict[str, str], ways: int, devices: int | None, *, size: str, name: str = "TP_SIZE="
) -> bool:
    """Check that a model can be split over devices (tensor parallelism).

    Args:
      bound: what its gin files and its bindings bind, as ginread reads them.
      ways: devices that share a model.
      devices: of the run; None where they are not known.
      size: of the model, for the error.
      name: what `ways` is called there.

    Returns whether the files say anything of the model.

    Raises:
      UserError: one line, with the splits that fit.
    """
    # These are the dimensions that upstream's rules lay over the model axis.
    wide = {
        what: gin_text.value(bound, f"network.T5Config.{field}")
        for field, what in (
            ("num_heads", "heads"),
            ("mlp_dim", "MLP width"),
            ("vocab_size", "vocabulary"),
        )
    }
    known = {what: found for what, found in wide.items() if isinstance(found, int)}
    for what, found in known.items():
        if found % ways:
            raise UserError(
                f"a {size} model's {what} of {found} do not divide by it",
                f"{name}{ways}",
                value_parsing.list_common_divisors(
                    *([devices] if devices else []), *known.values()
                ),
                kind=INVALID,
                value=ways,
            )
    return bool(known)


def check(given: Settings, bound: dict[str, str], environment: Mapping[str, str]) -> None:
    """Check a training run's model and data.

    Args:
      given: the run.
      bound: what its gin files and its bindings bind, as ginread reads them.
      environment: its variables.

    Raises:
      UserError: one line.
    """
    if not split(bound, given.tensor_parallel, given.gpus, size=given.size):
        raise UserError(
            "its gin files are not those of these scripts",
            "T5X_DIR",
            "use a tree of rosetta's (python build.py), or unset it",
            kind=DIFFERS,
        )
    check_periods(bound)
    data(bound, environment, trains=True)


def check_periods(bound: Mapping[str, str]) -> None:
    """Check that a run that evaluates does so at steps that fit its checkpoints, as T5X demands.

    Args:
      bound: see check.

    Raises:
      UserError: neither period is a multiple of the other.
    """
    save, evaluate = (gin_text.value(bound, name) for name in ("SAVE_PERIOD", "EVAL_PERIOD"))
    saves = bound.get("utils.CheckpointConfig.save", "").strip() != "None"
    if not gin_text.value(bound, "EVAL_DATA") or not saves:
        return
    if not isinstance(save, int) or not isinstance(evaluate, int) or not save or not evaluate:
        return
    if max(save, evaluate) % min(save, evaluate):
        what = f"neither it nor EVAL_PERIOD={evaluate} is a multiple of the other"
        raise UserError(
            what,
            f"SAVE_PERIOD={save}",
            f"set both, as in EVAL_PERIOD={save}",
            kind=CONFLICT,
            value=save,
        )


def data(
    bound: dict[str, str],
    environment: Mapping[str, str],
    *,
    trains: bool = False,
    answered: bool = True,
) -> None:
    """Check data, vocabulary and lengths, as far as they are set in a way that can be read; see
    check.

    Training's first records are read, and every record that is evaluated or inferred from.

    Args:
      bound: see check.
      environment: see check.
      trains: whether the run trains.
      answered: whether the records need answers, which inference's may lack.

    Raises:
      UserError: one line.
    """
    if not bound.get("MIXTURE_OR_TASK_NAME", "").startswith("@dataset.task"):
        return
    found = {
        name: gin_text.value(bound, name)
        for name in (
            "DATA",
            "EVAL_DATA",
            "OBJECTIVE",
            "VOCAB",
            "TASK_FEATURE_LENGTHS",
            "MEAN_NOISE_SPAN_LENGTH",
        )
    }
    source, objective, vocab, lengths, span = (
        found[name]
        for name in ("DATA", "OBJECTIVE", "VOCAB", "TASK_FEATURE_LENGTHS", "MEAN_NOISE_SPAN_LENGTH")
    )
    size, extra_ids = (
        gin_text.value(bound, "network.T5Config.vocab_size"),
        gin_text.value(bound, "EXTRA_IDS"),
    )
    if (
        not isinstance(source, (str, dict))
        or not isinstance(vocab, str)
        or not isinstance(objective, str)
        or not isinstance(lengths, dict)
    ):
        return
    root = datasets(environment)
    if source == "tfds:the_pile" and "://" not in root and not Path(root, "the_pile").is_dir():
        do = "name a prepared copy, or other data: DATA=text:GLOB and VOCAB=FILE, or DATA=synthetic"
        raise UserError(
            "it has no the_pile, which has been offline since October 2023",
            f"TFDS_DATA_DIR={root}",
            do,
            kind=MISSING,
        )
    kept = os.environ.get("TFDS_DATA_DIR")
    os.environ["TFDS_DATA_DIR"] = root  # where the data's own checks look
    try:
        checks.before_start(
            data=source,
            objective=objective,
            vocab=vocab,
            vocab_size=size if isinstance(size, int) else None,
            lengths=lengths,
            eval_data=found["EVAL_DATA"] if isinstance(found["EVAL_DATA"], (str, dict)) else None,
            extra_ids=extra_ids if isinstance(extra_ids, int) else None,
            mean_noise_span_length=span if isinstance(span, float) else 3.0,
            first=str(gin_text.value(bound, "dataset.task.text_field") or "text") if trains else "",
        )
        evaluated = found["EVAL_DATA"]
        if objective in PAIRS and isinstance(evaluated, (str, dict)):
            from rosetta.data import spec, task_records

            task_records.check_all(
                spec.describe(evaluated), objective, "validation", answered=answered
            )
    finally:
        if kept is None:
            del os.environ["TFDS_DATA_DIR"]
        else:
            os.environ["TFDS_DATA_DIR"] = kept


def goes_on(checkpoint: str, start: str, bound: dict[str, str]) -> None:
    """Check that a run that goes on makes the rows that it began with, as far as that can be read;
    the trainer looks at files and vocabulary, too.

    Args:
      checkpoint: the newest in its folder.
      start: what a finetuning starts from; "" in pretraining. A checkpoint with another one is not
        this run's.
      bound: see check.

    Raises:
      UserError: what has changed.
    """
    found, spec = checkpoint_record.read(checkpoint), gin_text.value(bound, "DATA")
    if (
        not found
        or not found.data
        or found.start != start
        or not isinstance(spec, (str, dict))
        or not bound.get("MIXTURE_OR_TASK_NAME", "").startswith("@dataset.task")
    ):
        return
    from rosetta.data import pipeline
    from rosetta.data.spec import describe

    objective, lengths, pack, span = (
        gin_text.value(bound, name)
        for name in ("OBJECTIVE", "TASK_FEATURE_LENGTHS", "PACK", "MEAN_NOISE_SPAN_LENGTH")
    )
    now = {"objective": objective, "pack": pack, "mean_noise_span_length": span}
    if isinstance(lengths, dict):
        now |= {
            "inputs": 0 if objective == "lm" else lengths.get("inputs", 0),
            "targets": lengths.get("targets"),
        }
    if not describe(spec).startswith("task:"):  # SeqIO's keep no place
        pipeline.same_as_told(
            found.data,
            {name: value for name, value in now.items() if value is not None},
            describe(spec),
        )


def check_last_step(
    bound: Mapping[str, str], begun: int, step: int, folder: str
) -> tuple[str, ...]:
    """Check that a run ends no earlier than the checkpoint it resumes; return a line if no step is
    left.

    Args:
      bound: see check.
      begun: the step of the checkpoint that a finetuning starts from; 0 if it is not known.
      step: of the newest checkpoint in the run's folder.
      folder: the name of the folder's variable.

    Raises:
      UserError: the checkpoint is past the end.
    """
    counts_from_start = "@" in bound.get("TRAIN_STEPS", "")
    end = parameter_count.find_last_step(bound, begun)
    if end is None or (counts_from_start and not begun):
        return ()
    name = "FT_STEPS" if counts_from_start else "TRAIN_STEPS"
    return check_end(f"{name}={bound[name]}", end, step, folder)


def describe_precision_change(checkpoint: str, bound: Mapping[str, str]) -> tuple[str, ...]:
    """Return a line if a run continues in another precision than the one it was saved in.

    Args:
      checkpoint: the newest in its folder.
      bound: see check.
    """
    saved = checkpoint_record.read(checkpoint)
    before = saved.config.get("dtype") if saved else None
    now = gin_text.value(bound, "network.T5Config.dtype")
    if not before or not isinstance(now, str) or before == now:
        return ()
    return (f"this run was computed in {before} so far and continues in {now}",)


def datasets(environment: Mapping[str, str]) -> str:
    """Return the folder of prepared data sets: TFDS_DATA_DIR, else where the image's documentation
    mounts it.
    """
    folder: str = reading.read_setting(environment, "TFDS_DATA_DIR", "t5x")
    return folder


def checkpoint(path: str, name: str) -> str:
    """Return the checkpoint_N, or folder with some, that a variable names, absolute; UserError
    where a folder of this machine is neither.
    """
    found = absolute(path)
    if "://" in found:
        path_checks.remote_path(found)
    elif not Path(found).is_dir() or (
        not re.search(r"/checkpoint_\d+$", found) and folders.newest(found) is None
    ):
        raise UserError(
            "it is no checkpoint_N and holds none",
            f"{name}={found}",
            "name a checkpoint_N, or a folder of them",
            kind=MISSING,
        )
    return found
