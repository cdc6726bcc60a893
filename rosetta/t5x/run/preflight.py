"""Checks of a run of T5X before JAX starts: its model, its data and its checkpoints.

They read the gin files (see gin_reader). What the files leave open is not checked.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rosetta.core import path_checks, run_folders, value_parsing
from rosetta.core.errors import CONFLICT, DIFFERS, INVALID, MISSING, UNKNOWN, UserError
from rosetta.core.not_known import NOT_KNOWN
from rosetta.core.value_parsing import is_address, parse_path
from rosetta.core.variables import choices, setting_values
from rosetta.data import data_checks, glue_records
from rosetta.data.data_spec import ENCODER_OBJECTIVES, PAIR_OBJECTIVES
from rosetta.t5x.run import (
    checkpoint_record,
    evaluation_history,
    folders,
    network_fields,
    parameter_count,
)
from rosetta.t5x.run.gin_text import Reference
from rosetta.t5x.run.model_config import T5Config

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rosetta.t5x.run.gin_reader import Configuration
    from rosetta.t5x.run.settings import Settings

_TRAIN = "__main__.train"
_TASK = "rosetta.t5x.dataset.task"
_VOCABULARY = "rosetta.t5x.dataset.vocabulary"
_DATA_SET = "t5x.utils.DatasetConfig"
_PARTITIONER = "rosetta.t5x.partitioning.PjitPartitioner"
# The fields of T5Config that state a precision, their variables, and what is computed in them.
_PRECISIONS = (
    ("dtype", "PREC", "activations"),
    ("logits_dtype", "LOGITS_DTYPE", "logits"),
)
_STANDARD_RULES = Reference("rosetta.t5x.partitioning.standard_logical_axis_rules")


def check_split(
    configuration: Configuration,
    ways: int,
    devices: int | None,
    *,
    size: str,
    name: str = "TP_SIZE=",
) -> None:
    """Check that a model can be split over devices (tensor parallelism).

    The trainer checks the arrays themselves.

    Args:
      configuration: the run's gin files and bindings.
      ways: the devices that share a model.
      devices: the devices of the run; None if they are not known.
      size: the size of the model, for the error.
      name: the name of `ways` in the error.

    Raises:
      UserError: a size of the model does not divide. The error lists the numbers that fit.
    """
    if configuration.value(f"{_PARTITIONER}.logical_axis_rules") != _STANDARD_RULES:
        return
    # T5X's rules split these dimensions over the model axis.
    sizes: dict[str, int] = {}
    for field, label in (
        ("num_heads", "number of heads"),
        ("mlp_dim", "MLP width"),
        ("vocab_size", "vocabulary size"),
    ):
        count = network_fields.read_count(configuration, field)
        if count is not None:
            sizes[label] = count
    for label, count in sizes.items():
        if count % ways:
            numbers = [*([devices] if devices else []), *sizes.values()]
            raise UserError(
                f"the {size} model's {label}, {count}, does not divide by this number",
                f"{name}{ways}",
                value_parsing.suggest_common_divisors(*numbers),
                kind=INVALID,
                value=ways,
            )


def check_training(
    settings: Settings, configuration: Configuration, environment: Mapping[str, str]
) -> None:
    """Check the model and the data of a training run.

    Args:
      settings: the settings of the run.
      configuration: the run's gin files and bindings.
      environment: the run's variables.

    Raises:
      UserError: the model or the data does not fit the run.
    """
    if not configuration.missing and not configuration.binds(f"{_TASK}.data"):
        raise UserError(
            "the gin files in this folder are not those of rosetta",
            "T5X_DIR",
            "use a T5X that rosetta has built (python build.py), or unset T5X_DIR",
            kind=DIFFERS,
        )
    check_split(configuration, settings.tensor_parallel, settings.gpus, size=settings.size)
    check_best_metric(configuration)
    check_periods(configuration)
    check_data(configuration, environment, trains=True)


def _has_evaluation(configuration: Configuration) -> bool:
    """Return whether the gin files say that the run evaluates during training."""
    for name in ("train_eval_dataset_cfg", "infer_eval_dataset_cfg"):
        data_set = configuration.value(f"{_TRAIN}.{name}")
        if data_set == Reference("rosetta.t5x.values.when"):
            data_set = configuration.value("rosetta.t5x.values.when.condition")
        if data_set and data_set is not NOT_KNOWN:
            return True
    return False


def read_periods(configuration: Configuration) -> tuple[int, int] | None:
    """Return the periods of checkpoints and of evaluation, in steps.

    They are None if one of them is not known, or if the run writes no checkpoints or does not
    evaluate.
    """
    save = configuration.integer(f"{parameter_count.SAVE_CONFIG}.period")
    evaluate = configuration.integer(f"{_TRAIN}.eval_period")
    saves = configuration.value(parameter_count.SAVE_SETTING) == Reference(
        parameter_count.SAVE_CONFIG
    )
    if not saves or not save or not evaluate or not _has_evaluation(configuration):
        return None
    return save, evaluate


def needs_evaluated_checkpoints(configuration: Configuration) -> bool:
    """Return whether each step that is evaluated needs a checkpoint: one may be the best."""
    return configuration.value(f"{parameter_count.TRACKER}.keep_best") not in (None, NOT_KNOWN)


def do_periods_fit(configuration: Configuration, save: int, evaluate: int) -> bool:
    """Return whether the periods of checkpoints and of evaluation, in steps, fit each other."""
    if needs_evaluated_checkpoints(configuration):
        return not evaluate % save
    return not max(save, evaluate) % min(save, evaluate)


def check_best_metric(configuration: Configuration) -> None:
    """Check that the run evaluates the metric by which it looks for its best checkpoint.

    The trainer also knows the metrics of tasks.

    Args:
      configuration: the run's gin files and bindings.

    Raises:
      UserError: the metric is not valid, or the run does not evaluate it or write checkpoints.
    """
    keep_best = configuration.value(f"{parameter_count.TRACKER}.keep_best")
    patience = configuration.value(f"{parameter_count.TRACKER}.patience")
    if not {keep_best, patience} - {None, NOT_KNOWN}:
        return
    text = keep_best if isinstance(keep_best, str) else evaluation_history.DEFAULT_METRIC
    metric = evaluation_history.parse_metric(text)
    setting = f"{evaluation_history.SETTING}={keep_best}"
    if not keep_best:
        setting = f"{evaluation_history.PATIENCE_SETTING}={patience}"
    if not _has_evaluation(configuration):
        raise UserError(
            "the run evaluates nothing",
            setting,
            "name the data to evaluate on: EVAL_DATA",
            kind=MISSING,
        )
    if keep_best and configuration.value(parameter_count.SAVE_SETTING) is None:
        raise UserError(
            "the run writes no checkpoints", setting, "leave CHECKPOINT_DISABLE out", kind=CONFLICT
        )
    known = evaluation_history.LOSS_METRICS
    has_answers = configuration.value(f"{_TRAIN}.infer_eval_dataset_cfg") is not None
    if not has_answers and metric.name.rpartition("/")[2] not in known:
        raise UserError(
            "there is no such metric",
            setting,
            f"choose one of: {', '.join(known)}",
            kind=UNKNOWN,
            value=metric.name,
        )


def check_periods(configuration: Configuration) -> None:
    """Check the periods of checkpoints and evaluation: T5X needs one to be a multiple of the other.

    Args:
      configuration: the run's gin files and bindings.

    Raises:
      UserError: neither period is a multiple of the other.
    """
    periods = read_periods(configuration)
    if periods is None:
        return
    save, evaluate = periods
    if do_periods_fit(configuration, save, evaluate):
        return
    if needs_evaluated_checkpoints(configuration):
        raise UserError(
            f"steps without a checkpoint would be evaluated, and one of them may be the best: "
            f"EVAL_PERIOD={evaluate} is not a multiple of this period",
            f"SAVE_PERIOD={save}",
            f"set both, as in SAVE_PERIOD={evaluate}",
            kind=CONFLICT,
            value=save,
        )
    if max(save, evaluate) % min(save, evaluate):
        raise UserError(
            f"neither this period nor EVAL_PERIOD={evaluate} is a multiple of the other",
            f"SAVE_PERIOD={save}",
            f"set both, as in EVAL_PERIOD={save}",
            kind=CONFLICT,
            value=save,
        )


@dataclass(frozen=True)
class _Data:
    """The arguments of a task, see rosetta.t5x.dataset.task, and the sequence lengths."""

    source: str | dict[str, float]
    evaluated: str | dict[str, float] | None
    objective: str
    vocabulary: str
    extra_ids: int | None
    lengths: dict[str, int]
    span: float
    density: float
    modes: str | None
    prefix: str


def _read_data(configuration: Configuration, *, trains: bool) -> _Data | None:
    """Return the data of a run; None if the gin files leave a part of it open.

    Raises:
      UserError: the gin files do not set DATA.
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
    return _Data(
        source,
        evaluated,
        objective,
        vocabulary,
        extra_ids,
        lengths,
        span,
        density,
        modes=configuration.text(f"{_TASK}.mode_tokens"),
        prefix=configuration.text(f"{_TASK}.input_prefix") or "",
    )


def _read_lengths(configuration: Configuration, *, trains: bool) -> dict[str, int] | None:
    """Return the sequence lengths by feature, in tokens; None if they are not known."""
    scope = "train/" if trains else ""
    lengths = configuration.value(f"{scope}{_DATA_SET}.task_feature_lengths")
    return lengths if isinstance(lengths, dict) else None


def _read_number(configuration: Configuration, name: str, default: float) -> float | None:
    """Return a number, or the default if it is not bound; None if it is not known."""
    value = configuration.value(name) if configuration.binds(name) else default
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def check_data(
    configuration: Configuration,
    environment: Mapping[str, str],
    *,
    trains: bool = False,
    answered: bool = True,
) -> None:
    """Check the data, the vocabulary and the lengths of a run.

    The first records of the training data are read, and every record for evaluation or inference.

    Args:
      configuration: the run's gin files and bindings.
      environment: the run's variables.
      trains: whether the run trains.
      answered: whether the records need answers; those of inference may have none.

    Raises:
      UserError: the data cannot be used for the run.
    """
    source, evaluated = (configuration.value(f"{_TASK}.{name}") for name in ("data", "eval_data"))
    _check_glue_files(configuration, source, evaluated)
    task = _read_data(configuration, trains=trains)
    if task is None:
        return
    _check_objective_of_network(configuration, task.objective)
    root = find_dataset_folder(environment)
    if (
        task.source == "tfds:the_pile"
        and not is_address(root)
        and not Path(root, "the_pile").is_dir()
    ):
        raise UserError(
            "the folder has no the_pile, which has been offline since October 2023",
            f"TFDS_DATA_DIR={root}",
            "name a prepared copy, or other data: DATA=text:GLOB and VOCAB=FILE, or DATA=synthetic",
            kind=MISSING,
        )
    text_field = configuration.text(f"{_TASK}.text_field")
    root_before = os.environ.get("TFDS_DATA_DIR")
    os.environ["TFDS_DATA_DIR"] = root  # the checks of rosetta.data read it
    try:
        data_checks.check_data(
            data=task.source,
            objective=task.objective,
            vocab=task.vocabulary,
            vocab_size=network_fields.read_count(configuration, "vocab_size"),
            lengths=task.lengths,
            eval_data=task.evaluated,
            extra_ids=task.extra_ids,
            mean_noise_span_length=task.span,
            noise_density=task.density,
            mode_tokens=task.modes,
            input_prefix=task.prefix,
            text_field=text_field if trains and text_field else "",
        )
        if task.objective in PAIR_OBJECTIVES and task.evaluated is not None:
            from rosetta.data import data_spec, labelled_records, task_records

            field = text_field or data_spec.DEFAULT_FIELD
            typed_labels = configuration.value(f"{_TASK}.labels")
            labels = None
            if task.objective in data_spec.LABEL_OBJECTIVES:
                text_count = len(data_spec.parse_label_fields(field)) - 1
                labelled_records.check_length(task.lengths["inputs"], text_count)
                if typed_labels is None or isinstance(typed_labels, str):
                    labels = labelled_records.split_labels(typed_labels)
            task_records.check_all_records(
                data_spec.describe_data(task.evaluated),
                task.objective,
                "validation",
                answered=answered,
                field=field,
                labels=labels,
            )
    finally:
        if root_before is None:
            del os.environ["TFDS_DATA_DIR"]
        else:
            os.environ["TFDS_DATA_DIR"] = root_before


def _check_glue_files(configuration: Configuration, source: Any, evaluated: Any) -> None:
    """Read the files of GLUE or SuperGLUE that a run trains on, and those that it evaluates.

    Args:
      configuration: the run's gin files and bindings.
      source: the data of the run, which may be a task of GLUE.
      evaluated: the data of evaluation.

    Raises:
      UserError: the files cannot be used.
    """
    trained = configuration.value(f"{_TASK}.train_files")
    variable = "DATA"  # of the program "eval"
    if isinstance(trained, str):
        _check_glue_split(str(source), trained, "train", variable)
        variable = "EVAL_DATA"
    if isinstance(evaluated, str) and evaluated != source:
        _check_glue_split(str(source), evaluated, "validation", variable)


def _check_glue_split(task: str, files: str, split: str, variable: str) -> None:
    """Read the files of a split, see glue_records.check_files; errors name the variable."""
    try:
        glue_records.check_files(task, files, split)
    except UserError as error:
        raise data_checks.name_source_variable(error, variable) from None


def _check_objective_of_network(configuration: Configuration, objective: str) -> None:
    """Check that an encoder has an objective of encoders, and another network has none.

    Raises:
      UserError: the objective does not fit the network, or rows of an encoder would be packed.
    """
    network = network_fields.find_network(configuration)
    is_encoder = network == network_fields.ENCODER_ONLY
    if network is not None and is_encoder != (objective in ENCODER_OBJECTIVES):
        remedy = f"choose one of: {', '.join(choices.MASKED_OBJECTIVES)}"
        if not is_encoder:
            remedy = "leave it out, or train an encoder: T5_FAMILY=bert or t5_encoder"
        raise UserError(
            "this network does not have this objective",
            f"OBJECTIVE={objective}",
            remedy,
            kind=CONFLICT,
            value=objective,
        )
    if is_encoder and configuration.value(f"train/{_DATA_SET}.pack") is True:
        raise UserError(
            "the rows of an encoder are not packed",
            "PACK=1",
            "leave it out",
            kind=CONFLICT,
        )


def check_resumed_data(checkpoint: str, start: str, configuration: Configuration) -> None:
    """Check that a resumed run makes the same rows of data as before.

    The trainer also compares the data files and the vocabulary.

    Args:
      checkpoint: the newest checkpoint in the run's folder.
      start: the checkpoint that finetuning starts from; "" in pretraining. A record with another
        start belongs to another run, and is not checked.
      configuration: the run's gin files and bindings.

    Raises:
      UserError: a setting of the data has changed. The error names the setting.
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
        "mode_tokens": configuration.value(f"{_TASK}.mode_tokens"),
        "input_prefix": configuration.value(f"{_TASK}.input_prefix"),
    }
    if lengths := _read_lengths(configuration, trains=True):
        now |= {
            "inputs": 0 if objective == "lm" else lengths.get("inputs", 0),
            "targets": lengths.get("targets"),
        }
    if not describe_data(source).startswith(
        "task:"
    ):  # checkpoints have no position of SeqIO's own tasks
        pipeline.check_same_recipe(
            record.data,
            {name: value for name, value in now.items() if value not in (None, NOT_KNOWN)},
            describe_data(source),
        )


def check_last_step(
    configuration: Configuration, first_step: int, step: int, folder: str
) -> tuple[str, ...]:
    """Check that the checkpoint that a run resumes from is not after the run's last step.

    Args:
      configuration: the run's gin files and bindings.
      first_step: the step of the checkpoint that finetuning starts from; 0 if it is not known.
      step: the step of the newest checkpoint in the run's folder.
      folder: the name of the folder's variable.

    Returns:
      A line if no step is left, else nothing.

    Raises:
      UserError: the checkpoint is after the last step.
    """
    end = parameter_count.find_last_step(configuration, first_step)
    if end is None:
        return ()
    more = configuration.integer(f"{parameter_count.FINETUNING_STEPS}.more")
    counts_from_start = configuration.integer(parameter_count.TOTAL_STEPS) is None
    shown = f"FT_STEPS={more}" if counts_from_start else f"TRAIN_STEPS={end}"
    return run_folders.check_last_step(shown, end, step, folder)


def describe_precision_change(checkpoint: str, configuration: Configuration) -> tuple[str, ...]:
    """Return a line for each precision in which a resumed run does not continue as it began.

    Args:
      checkpoint: the newest checkpoint in the run's folder.
      configuration: the run's gin files and bindings.
    """
    saved = checkpoint_record.read_record(checkpoint)
    lines = []
    for field, variable, what in _PRECISIONS:
        before = saved.config.get(field) if saved else None
        now = network_fields.read_field(configuration, field)
        if now is None:
            now = getattr(T5Config, field)
        if before and isinstance(now, str) and before != now:
            lines.append(
                f"{what} were computed in {before} so far and continue in {now} "
                f"({variable}={before} keeps them as they were)"
            )
    return tuple(lines)


def find_dataset_folder(environment: Mapping[str, str]) -> str:
    """Return the folder of prepared data sets: TFDS_DATA_DIR, or the folder in rosetta's images."""
    folder: str = setting_values.read_setting(environment, "TFDS_DATA_DIR", "t5x")
    return folder


def check_checkpoint_path(path: str, name: str) -> str:
    """Check that a variable names a checkpoint_N or a folder of them, and return the absolute path.

    Args:
      path: the value of the variable, which may be an address in an object store.
      name: the name of the variable, for the error.

    Raises:
      UserError: a local path has no checkpoint.
    """
    absolute = parse_path(name, path)
    if is_address(absolute):
        path_checks.check_remote_path(absolute)
        return absolute
    is_checkpoint = re.search(r"/checkpoint_\d+$", absolute) is not None
    if not Path(absolute).is_dir() or (
        not is_checkpoint and folders.find_newest_checkpoint(absolute) is None
    ):
        raise UserError(
            run_folders.describe_missing_checkpoint(absolute),
            f"{name}={absolute}",
            "name a checkpoint_N, or a folder of them",
            kind=MISSING,
        )
    return absolute
