"""What a run of the scripts is asked to do, from positionals or from variables, checked before
anything starts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rosetta.core.errors import INVALID, MISSING, UserError
from rosetta.core.value_parsing import parse_path, suggest_common_divisors
from rosetta.core.variables import lookup, setting_values

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LENGTH_VARIABLES = {"ENC_SL": "inputs", "DEC_SL": "targets"}
# Macros of the gin files that are variables by the same name, and numbers.
MACRO_VARIABLES = ("WARMUP_STEPS", "SAVE_PERIOD", "EVAL_PERIOD", "LEARNING_RATE")
_SWITCHES = ("ENABLE_FP8", "TRANSPOSE_BS", "FUSE_QKV", "PACK")
# The scripts' words, in their documented order; any of them may be left out from the end, or be
# empty.
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
    """A run.

    Attributes:
      script: the name of the script it is asked of.
      finetune: rather than pretrain.
      processes: in the run, one a GPU; 1 where this is the only one.
      task: a value of FT_TASK, "" in pretraining.
      gpus: in the run.
      batch_per_gpu: sequences.
      lengths: tokens; only those that were given.
      macros: of the gin files, by their names, which are variables' too; only those that were
        given.
      steps: at which the run ends, None for what the gin file says.
      model_dir: absolute, or the address of an object store.
      log_dir: "" for none.
      variables: every switch and path as given.
      values: every variable that the script reads, as its type; None where it is not set and its
        default is not a fixed value.
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
    script: str, words: Sequence[str], environment: Mapping[str, str], devices: int
) -> Settings:
    """Read a script's settings.

    Args:
      script: its name without suffix.
      words: its positionals; an empty one is not given.
      environment: its variables; positionals win.
      devices: how many a process has, for NUM_GPUS where it is not given.

    Raises:
      UserError: one line for the first thing that is wrong.
    """
    variables = {**environment, **_read_words(script, words)}
    values = setting_values.read_settings(variables, script)
    single, finetune = script.startswith("singlenode"), "_ft_" in script
    # Inside a Slurm job SLURM_NTASKS is set for all that runs there, also for what is one process
    # by its name.
    processes = 1 if single else values["SLURM_NTASKS"]
    size = values["T5_SIZE"]
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
        log_dir=values["LOGDIR"] or "" if single else "",
        variables=variables,
        values=values,
    )
    check_batch_split(
        settings.gpus, settings.tensor_parallel, settings.batch_per_gpu, settings.microbatches
    )
    return settings


def _read_words(script: str, words: Sequence[str]) -> dict[str, str]:
    """Return variable -> the word of a script that sets it; UserError for too many words."""
    names = POSITIONALS[script]
    if len(words) > len(names):
        shown = " ".join(lookup.find_variable(name, "t5x").argument_name or name for name in names)
        remedy = (
            f"there are only {shown}"
            if names
            else "settings come from the environment: T5_SIZE, PREC, BSIZE_PER_GPU, MODEL_DIR, ..."
        )
        raise UserError(
            f"got {len(words)} arguments", f"{script}.sh", remedy, kind=INVALID, value=len(words)
        )
    return {name: word for name, word in zip(names, words) if word}  # noqa: B905 (Python 3.9, which a login node may have)


def require_task(values: Mapping[str, Any]) -> str:
    """Return the task that FT_TASK names; UserError where it is not set."""
    task: str | None = values["FT_TASK"]
    if task is None:
        choices = ", ".join(lookup.find_variable("FT_TASK").type.choices)
        raise UserError("it is not set", "FT_TASK", f"choose one of: {choices}", kind=MISSING)
    return task


def select_lengths(values: Mapping[str, Any]) -> dict[str, int]:
    """Return the lengths that are set, in tokens.

    Args:
      values: see Settings.
    """
    return {
        what: values[name] for name, what in LENGTH_VARIABLES.items() if values[name] is not None
    }


def check_batch_split(
    gpus: int,
    split: int,
    sequences: int = 1,
    microbatches: int = 1,
    names: tuple[str, str] = ("TP_SIZE=", "NUM_MICROBATCHES="),
) -> None:
    """Check that GPUs divide into groups that share a model, and a group's sequences into
    microbatches.

    Args:
      gpus: of the run.
      split: GPUs of a group.
      sequences: of a group.
      microbatches: of a step.
      names: what `split` and `microbatches` are called, for the error.

    Raises:
      UserError: they do not; it says what would.
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
                "not divide by it"
            ),
            f"{names[1]}{microbatches}",
            suggest_common_divisors(sequences),
            kind=INVALID,
            value=microbatches,
        )
