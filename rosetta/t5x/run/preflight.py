"""What can be known to be wrong with a run before JAX starts: its devices, its model's split, its
data, its files.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rosetta.core import path_checks, run_folders, value_parsing
from rosetta.core.errors import CONFLICT, DIFFERS, INVALID, MISSING, UserError
from rosetta.core.not_known import NOT_KNOWN
from rosetta.core.value_parsing import is_address, parse_path
from rosetta.core.variables import setting_values
from rosetta.data import data_checks
from rosetta.data.data_spec import PAIR_OBJECTIVES
from rosetta.t5x.run import checkpoint_record, folders, network_fields, parameter_count
from rosetta.t5x.run.gin_text import Reference

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rosetta.t5x.run.gin_reader import Configuration
    from rosetta.t5x.run.settings import Settings

_TRAIN = "__main__.train"
_TASK = "rosetta.t5x.dataset.task"
_VOCABULARY = "rosetta.t5x.dataset.vocabulary"
_DATA_SET = "t5x.utils.DatasetConfig"
_PARTITIONER = "rosetta.t5x.partitioning.PjitPartitioner"
_STANDARD_RULES = Reference("rosetta.t5x.partitioning.standard_logical_axis_rules")


def check_split(
    configuration: Configuration,
    ways: int,
    devices: int | None,
    *,
    size: str,
    name: str = "TP_SIZE=",
) -> None:
    """Check that a model can be split over devices (tensor parallelism), as far as its sizes are
    known. The trainer checks the arrays themselves.

    Args:
      configuration: its gin files and its bindings.
      ways: devices that share a model.
      devices: of the run; None where they are not known.
      size: of the model, for the error.
      name: what `ways` is called there.

    Raises:
      UserError: one line, with the splits that fit.
    """
    if configuration.value(f"{_PARTITIONER}.logical_axis_rules") != _STANDARD_RULES:
        return
    # These are the dimensions that upstream's rules lay over the model axis.
    wide = {
        what: network_fields.read_count(configuration, field)
        for field, what in (
            ("num_heads", "heads"),
            ("mlp_dim", "MLP width"),
            ("vocab_size", "vocabulary"),
        )
    }
    known = {what: count for what, count in wide.items() if count is not None}
    for what, count in known.items():
        if count % ways:
            raise UserError(
                f"a {size} model's {what} of {count} do not divide by it",
                f"{name}{ways}",
                value_parsing.suggest_common_divisors(
                    *([devices] if devices else []), *known.values()
                ),
                kind=INVALID,
                value=ways,
            )


def check_training(
    given: Settings, configuration: Configuration, environment: Mapping[str, str]
) -> None:
    """Check a training run's model and data.

    Args:
      given: the run.
      configuration: its gin files and its bindings.
      environment: its variables.

    Raises:
      UserError: one line.
    """
    if not configuration.missing and not configuration.binds(f"{_TASK}.data"):
        raise UserError(
            "its gin files are not those of these scripts",
            "T5X_DIR",
            "use a tree of rosetta's (python build.py), or unset it",
            kind=DIFFERS,
        )
    check_split(configuration, given.tensor_parallel, given.gpus, size=given.size)
    check_periods(configuration)
    check_data(configuration, environment, trains=True)


def _has_evaluation(configuration: Configuration) -> bool:
    """Return whether training is known to evaluate."""
    for name in ("train_eval_dataset_cfg", "infer_eval_dataset_cfg"):
        data_set = configuration.value(f"{_TRAIN}.{name}")
        if data_set == Reference("rosetta.t5x.values.when"):
            data_set = configuration.value("rosetta.t5x.values.when.condition")
        if data_set and data_set is not NOT_KNOWN:
            return True
    return False


def check_periods(configuration: Configuration) -> None:
    """Check that a run that evaluates does so at steps that fit its checkpoints, as T5X demands.

    Args:
      configuration: see check.

    Raises:
      UserError: neither period is a multiple of the other.
    """
    save = configuration.integer(f"{parameter_count.SAVE_CONFIG}.period")
    evaluate = configuration.integer(f"{_TRAIN}.eval_period")
    saves = configuration.value(parameter_count.SAVE_SETTING) == Reference(
        parameter_count.SAVE_CONFIG
    )
    if not saves or not save or not evaluate or not _has_evaluation(configuration):
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


@dataclass(frozen=True)
class _Data:
    """What a task of ours is made of, as far as it is known: see rosetta.t5x.dataset.task."""

    source: str | dict[str, float]
    evaluated: str | dict[str, float] | None
    objective: str
    vocabulary: str
    extra_ids: int | None
    lengths: dict[str, int]
    span: float
    density: float


def _read_data(configuration: Configuration, *, trains: bool) -> _Data | None:
    """Return what a run reads; None where the files leave a part of it open.

    Raises:
      UserError: The gin files do not set DATA.
    """
    if configuration.value("MIXTURE_OR_TASK_NAME") != Reference(_TASK):
        return None
    if configuration.value(f"{_TASK}.vocabulary") != Reference(_VOCABULARY):
        return None
    source = configuration.value(f"{_TASK}.data")
    if source is None:
        raise UserError("is not set", "DATA", "name records, as in DATA=jsonl:GLOB", kind=MISSING)
    evaluated = configuration.value(f"{_TASK}.eval_data")
    objective = configuration.text(f"{_TASK}.objective")
    vocabulary = configuration.text(f"{_VOCABULARY}.name")
    extra_ids = configuration.value(f"{_VOCABULARY}.extra_ids")
    lengths = _read_lengths(configuration, trains=trains)
    span = _read_number(configuration, f"{_TASK}.mean_noise_span_length", 3.0)
    density = _read_number(configuration, f"{_TASK}.noise_density", 0.15)
    if not isinstance(source, (str, dict)) or objective is None or vocabulary is None:
        return None
    if extra_ids is not None and not isinstance(extra_ids, int):
        return None
    if lengths is None or span is None or density is None:
        return None
    if not isinstance(evaluated, (str, dict)):
        evaluated = None
    return _Data(source, evaluated, objective, vocabulary, extra_ids, lengths, span, density)


def _read_lengths(configuration: Configuration, *, trains: bool) -> dict[str, int] | None:
    scope = "train/" if trains else ""
    lengths = configuration.value(f"{scope}{_DATA_SET}.task_feature_lengths")
    return lengths if isinstance(lengths, dict) else None


def _read_number(configuration: Configuration, name: str, default: float) -> float | None:
    value = configuration.value(name) if configuration.binds(name) else default
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def check_data(
    configuration: Configuration,
    environment: Mapping[str, str],
    *,
    trains: bool = False,
    answered: bool = True,
) -> None:
    """Check data, vocabulary and lengths, as far as they are set in a way that can be read; see
    check.

    Training's first records are read, and every record that is evaluated or inferred from.

    Args:
      configuration: see check.
      environment: see check.
      trains: whether the run trains.
      answered: whether the records need answers, which inference's may lack.

    Raises:
      UserError: one line.
    """
    found = _read_data(configuration, trains=trains)
    if found is None:
        return
    root = find_dataset_folder(environment)
    if (
        found.source == "tfds:the_pile"
        and not is_address(root)
        and not Path(root, "the_pile").is_dir()
    ):
        do = "name a prepared copy, or other data: DATA=text:GLOB and VOCAB=FILE, or DATA=synthetic"
        raise UserError(
            "it has no the_pile, which has been offline since October 2023",
            f"TFDS_DATA_DIR={root}",
            do,
            kind=MISSING,
        )
    text_field = configuration.text(f"{_TASK}.text_field")
    kept = os.environ.get("TFDS_DATA_DIR")
    os.environ["TFDS_DATA_DIR"] = root  # where the data's own checks look
    try:
        data_checks.check_data(
            data=found.source,
            objective=found.objective,
            vocab=found.vocabulary,
            vocab_size=network_fields.read_count(configuration, "vocab_size"),
            lengths=found.lengths,
            eval_data=found.evaluated,
            extra_ids=found.extra_ids,
            mean_noise_span_length=found.span,
            noise_density=found.density,
            text_field=text_field if trains and text_field else "",
        )
        if found.objective in PAIR_OBJECTIVES and found.evaluated is not None:
            from rosetta.data import data_spec, task_records

            task_records.check_all_records(
                data_spec.describe_data(found.evaluated),
                found.objective,
                "validation",
                answered=answered,
            )
    finally:
        if kept is None:
            del os.environ["TFDS_DATA_DIR"]
        else:
            os.environ["TFDS_DATA_DIR"] = kept


def check_resumed_data(checkpoint: str, start: str, configuration: Configuration) -> None:
    """Check that a run that goes on makes the rows that it began with, as far as that can be read;
    the trainer looks at files and vocabulary, too.

    Args:
      checkpoint: the newest in its folder.
      start: what a finetuning starts from; "" in pretraining. A checkpoint with another one is not
        this run's.
      configuration: see check.

    Raises:
      UserError: what has changed.
    """
    record = checkpoint_record.read_record(checkpoint)
    source = configuration.value(f"{_TASK}.data")
    if (
        not record
        or not record.data
        or record.start != start
        or not isinstance(source, (str, dict))
        or configuration.value("MIXTURE_OR_TASK_NAME") != Reference(_TASK)
    ):
        return
    from rosetta.data import pipeline
    from rosetta.data.data_spec import describe_data

    objective = configuration.text(f"{_TASK}.objective")
    now = {
        "objective": objective,
        "pack": configuration.value(f"train/{_DATA_SET}.pack"),
        "mean_noise_span_length": configuration.value(f"{_TASK}.mean_noise_span_length"),
    }
    if lengths := _read_lengths(configuration, trains=True):
        now |= {
            "inputs": 0 if objective == "lm" else lengths.get("inputs", 0),
            "targets": lengths.get("targets"),
        }
    if not describe_data(source).startswith("task:"):  # SeqIO's keep no place
        pipeline.check_same_recipe(
            record.data,
            {name: value for name, value in now.items() if value not in (None, NOT_KNOWN)},
            describe_data(source),
        )


def check_last_step(
    configuration: Configuration, begun: int, step: int, folder: str
) -> tuple[str, ...]:
    """Check that a run ends no earlier than the checkpoint it resumes; return a line if no step is
    left.

    Args:
      configuration: see check.
      begun: the step of the checkpoint that a finetuning starts from; 0 if it is not known.
      step: of the newest checkpoint in the run's folder.
      folder: the name of the folder's variable.

    Raises:
      UserError: the checkpoint is past the end.
    """
    end = parameter_count.find_last_step(configuration, begun)
    if end is None:
        return ()
    more = configuration.integer(f"{parameter_count.FINETUNING_STEPS}.more")
    counts_from_start = configuration.integer(parameter_count.TOTAL_STEPS) is None
    shown = f"FT_STEPS={more}" if counts_from_start else f"TRAIN_STEPS={end}"
    return run_folders.check_last_step(shown, end, step, folder)


def describe_precision_change(checkpoint: str, configuration: Configuration) -> tuple[str, ...]:
    """Return a line if a run continues in another precision than the one it was saved in.

    Args:
      checkpoint: the newest in its folder.
      configuration: see check.
    """
    saved = checkpoint_record.read_record(checkpoint)
    before = saved.config.get("dtype") if saved else None
    now = network_fields.read_field(configuration, "dtype")
    if not before or not isinstance(now, str) or before == now:
        return ()
    return (f"this run was computed in {before} so far and continues in {now}",)


def find_dataset_folder(environment: Mapping[str, str]) -> str:
    """Return the folder of prepared data sets: TFDS_DATA_DIR, else where the image's documentation
    mounts it.
    """
    folder: str = setting_values.read_setting(environment, "TFDS_DATA_DIR", "t5x")
    return folder


def check_checkpoint_path(path: str, name: str) -> str:
    """Return the checkpoint_N, or folder with some, that a variable names, absolute; UserError
    where a folder of this machine is neither.
    """
    found = parse_path(name, path)
    if is_address(found):
        path_checks.check_remote_path(found)
    elif not Path(found).is_dir() or (
        not re.search(r"/checkpoint_\d+$", found) and folders.find_newest_checkpoint(found) is None
    ):
        raise UserError(
            "it is no checkpoint_N and holds none",
            f"{name}={found}",
            "name a checkpoint_N, or a folder of them",
            kind=MISSING,
        )
    return found
