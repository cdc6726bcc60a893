"""The settings of a run of T5X's scripts, read from positional arguments and variables.

rosetta.launch checks them before anything starts.
"""

from __future__ import annotations

import difflib
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rosetta.core.errors import CONFLICT, INVALID, MISSING, UNKNOWN, UserError
from rosetta.core.value_parsing import parse_path, suggest_common_divisors
from rosetta.core.variables import choices, lookup, setting_values
from rosetta.data import glue_records
from rosetta.t5x.run import own_model_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LENGTH_VARIABLES = {"ENC_SL": "inputs", "DEC_SL": "targets"}
# Macros of the gin files that have a number, and are variables of the same name.
MACRO_VARIABLES = (
    "WARMUP_STEPS",
    "SAVE_PERIOD",
    "EVAL_PERIOD",
    "STATS_PERIOD",
    "LEARNING_RATE",
    "LAST_RATE",
)
TERMINAL_LOG = "-"  # the value of LOGDIR that sends all output to the terminal
_SWITCHES = ("ENABLE_FP8", "TRANSPOSE_BS", "FUSE_QKV", "PACK")
# The variables that the scripts' positional arguments set, in the documented order. Arguments may
# be empty, or left out at the end.
POSITIONALS = {
    "singlenode_pretrain_pile": (
        "T5_SIZE",
        "PREC",
        "NUM_GPUS",
        "BSIZE_PER_GPU",
        "LOGDIR",
        "MODEL_DIR",
        "NUM_MICROBATCHES",
        *_SWITCHES,
    ),
    "singlenode_ft_frompile": (
        "FT_TASK",
        "T5_SIZE",
        "PREC",
        "NUM_GPUS",
        "BSIZE_PER_GPU",
        "LOGDIR",
        "MODEL_DIR",
        "NUM_MICROBATCHES",
        "MAKE_FT_DIR",
        *_SWITCHES,
    ),
    "multiprocess_pretrain_pile": (),
    "multiprocess_ft_frompile": (),
}


@dataclass(frozen=True)
class Settings:
    """The settings of a run.

    Attributes:
      script: the name of the script.
      finetune: whether the run finetunes.
      processes: the processes of the run, one for each GPU; 1 if one process has all GPUs.
      task: the value of FT_TASK; "" in pretraining.
      size: the size of the model, for example small.
      gpus: the GPUs of the run.
      batch_per_gpu: the sequences of a batch for each GPU.
      microbatches: the microbatches of a step.
      tensor_parallel: the GPUs over which a model is split.
      steps: the step at which the run ends; None for that of the gin files.
      lengths: the lengths that are set, in tokens, by feature.
      macros: the values of gin macros that are set, by name.
      model_dir: the folder of the checkpoints: an absolute path, or an address in an object store.
      log_dir: the folder of the log; "" for the default, TERMINAL_LOG for no file.
      variables: every variable and positional argument, as text.
      values: the value of each variable that the script reads. None if the variable is not set and
        has no fixed default.
    """

    script: str
    finetune: bool
    processes: int
    task: str
    size: str
    gpus: int
    batch_per_gpu: int
    microbatches: int
    tensor_parallel: int
    steps: int | None
    lengths: dict[str, int]
    macros: dict[str, float]
    model_dir: str
    log_dir: str
    variables: Mapping[str, str]
    values: Mapping[str, Any]

    @property
    def batch(self) -> int:
        """The global batch: GPUs times sequences a GPU, over tensor parallelism."""
        return self.gpus * self.batch_per_gpu // self.tensor_parallel


def read_script_settings(
    script: str, arguments: Sequence[str], environment: Mapping[str, str], devices: int
) -> Settings:
    """Read the settings of a run.

    Args:
      script: the name of the script without its suffix.
      arguments: the positional arguments; an empty one counts as not set.
      environment: the variables; positional arguments take precedence.
      devices: the GPUs of this process, for NUM_GPUS if it is not set.

    Raises:
      UserError: a setting is not valid. The error names the first one.
    """
    variables = {**environment, **_read_arguments(script, arguments)}
    values = setting_values.read_settings(variables, script)
    is_single_node = script.startswith("singlenode")
    finetune = "_ft_" in script
    # A Slurm job sets SLURM_NTASKS for everything in it, including the scripts for one process.
    processes = 1 if is_single_node else values["SLURM_NTASKS"]
    size = own_model_name.SIZE if values[own_model_name.VARIABLE] else values["T5_SIZE"]
    workspace = values["T5X_WORKSPACE_DIR"] or "."
    settings = Settings(
        script=script,
        finetune=finetune,
        processes=processes,
        task=require_task(values) if finetune else "",
        size=size,
        gpus=values["NUM_GPUS"] or (processes if processes > 1 else devices),
        batch_per_gpu=values["BSIZE_PER_GPU"],
        microbatches=values["NUM_MICROBATCHES"],
        tensor_parallel=values["TP_SIZE"],
        steps=values["TRAIN_STEPS"],
        lengths=select_lengths(values),
        macros={name: values[name] for name in MACRO_VARIABLES if values[name] is not None},
        model_dir=parse_path("MODEL_DIR", values["MODEL_DIR"] or f"{workspace}/model_dir_{size}"),
        log_dir=values["LOGDIR"] or "",
        variables=variables,
        values=values,
    )
    check_batch_split(
        settings.gpus, settings.tensor_parallel, settings.batch_per_gpu, settings.microbatches
    )
    return settings


def _read_arguments(script: str, arguments: Sequence[str]) -> dict[str, str]:
    """Return the positional arguments of a script by the variables that they set.

    Raises:
      UserError: there are too many arguments.
    """
    names = POSITIONALS[script]
    if len(arguments) > len(names):
        shown = " ".join(lookup.find_variable(name, "t5x").argument_name or name for name in names)
        remedy = "set environment variables instead: T5_SIZE, PREC, BSIZE_PER_GPU, MODEL_DIR, ..."
        if names:
            remedy = f"give at most {shown}"
        raise UserError(
            f"got {len(arguments)} arguments",
            f"{script}.sh",
            remedy,
            kind=INVALID,
            value=len(arguments),
        )
    return {name: value for name, value in zip(names, arguments) if value}  # noqa: B905 (Python 3.9, which a login node may have)


def require_task(values: Mapping[str, Any]) -> str:
    """Return the value of FT_TASK: mnli2, squad1, pairs, or task:NAME.

    Args:
      values: as in Settings.

    Raises:
      UserError: FT_TASK is not set, or is not the name of a task.
    """
    task: str | None = values["FT_TASK"]
    names = choices.FINETUNING_TASKS
    remedy = f"choose one of: {', '.join(names)}; or {choices.SEQIO_PREFIX}NAME for one of SeqIO"
    if task is None:
        raise UserError("is not set", "FT_TASK", remedy, kind=MISSING)
    if task in names:
        return choices.PAIRS if task == choices.TEXT_TO_TEXT else task
    if re.fullmatch(rf"{choices.SEQIO_PREFIX}[\w.-]+", task):
        return task
    if name := glue_records.suggest_name(task):
        remedy = f"did you mean {name}? ({remedy})"
    elif near := difflib.get_close_matches(task, names, 1):
        remedy = f"did you mean {near[0]}? ({remedy})"
    raise UserError("there is no such task", f"FT_TASK={task}", remedy, kind=UNKNOWN, value=task)


def is_seqio_task(task: str) -> bool:
    """Return whether a task of FT_TASK is one of SeqIO, by the form of its name."""
    return task.startswith(choices.SEQIO_PREFIX)


def make_task_bindings(
    variables: Mapping[str, str], task: str, *, evaluates: bool = False, trains: bool = False
) -> dict[str, object]:
    """Return the gin bindings of a task that is registered with SeqIO, and of its module.

    Args:
      variables: of the run.
      task: what require_task returned; "" in pretraining.
      evaluates: whether the program is "eval", which can read GLUE and SuperGLUE from files.
      trains: whether the run finetunes, on files of GLUE and SuperGLUE or on the task's own data.

    Raises:
      UserError: the file of TASK_MODULE does not exist, or DATA or INPUT_PREFIX
        changes the data of a task of SeqIO.
    """
    bindings: dict[str, object] = {}
    if module := variables.get("TASK_MODULE"):
        if module.endswith(".py"):
            module = parse_path("TASK_MODULE", module)
            if not os.path.isfile(module):
                raise UserError(
                    "the file does not exist",
                    f"TASK_MODULE={module}",
                    "name a Python file, or a module that can be imported",
                    kind=MISSING,
                )
        bindings["TASK_MODULE"] = module
    if not is_seqio_task(task):
        return bindings
    is_local = glue_records.is_glue_task(task) and bool(variables.get("DATA"))
    allowed = []
    if is_local and evaluates:
        allowed = ["DATA"]
    elif is_local and trains:
        allowed = ["DATA", "EVAL_DATA"]
    for name in ("EVAL_DATA", "INPUT_PREFIX", "DATA"):
        if variables.get(name) and name not in allowed:
            raise UserError(
                f"FT_TASK={task} has its own data and inputs",
                f"{name}={variables[name]}",
                "leave it out, or set FT_TASK=pairs for records of your own",
                kind=CONFLICT,
                value=variables[name],
            )
    if allowed:
        bindings["TRAIN_FILES" if trains else "EVAL_DATA"] = variables["DATA"]
    return {**bindings, "DATA": task}


def select_lengths(values: Mapping[str, Any]) -> dict[str, int]:
    """Return the lengths that are set, in tokens, by feature.

    Args:
      values: as in Settings.
    """
    return {
        feature: values[name]
        for name, feature in LENGTH_VARIABLES.items()
        if values[name] is not None
    }


def check_batch_split(
    gpus: int,
    split: int,
    sequences: int = 1,
    microbatches: int = 1,
    names: tuple[str, str] = ("TP_SIZE=", "NUM_MICROBATCHES="),
) -> None:
    """Check that the GPUs divide into groups, and the sequences of a group into microbatches.

    Args:
      gpus: the GPUs of the run.
      split: the GPUs of a group, which share a model.
      sequences: the sequences of a group in each step.
      microbatches: the microbatches of a step.
      names: what `split` and `microbatches` are called, for the error.

    Raises:
      UserError: a number does not divide. The error lists the numbers that do.
    """
    if gpus % split:
        raise UserError(
            f"{gpus} GPUs do not divide into groups of {split}",
            f"{names[0]}{split}",
            suggest_common_divisors(gpus),
            kind=INVALID,
            value=split,
        )
    if sequences % microbatches:
        batch = gpus // split * sequences
        raise UserError(
            (
                f"a global batch of {batch}, {sequences} for each group of {split} GPU(s), does "
                "not divide by this number"
            ),
            f"{names[1]}{microbatches}",
            suggest_common_divisors(sequences),
            kind=INVALID,
            value=microbatches,
        )
