"""What a run of the scripts is asked to do, from positionals or from variables, checked before
anything starts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rosetta.core.errors import INVALID, UserError
from rosetta.core.run_folders import absolute
from rosetta.core.value_parsing import (
    list_common_divisors,
    parse_choice,
    parse_number,
    parse_whole_number,
)
from rosetta.health import settings as health

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TASKS = ("mnli2", "squad1")
LENGTHS = {"ENC_SL": "inputs", "DEC_SL": "targets"}
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
SHOWN = {
    "T5_SIZE": "SIZE",
    "NUM_MICROBATCHES": "GRAD_ACCUM",
}  # what the positionals are called where they are documented


@dataclass(frozen=True)
class Settings:
    """A run.

    Attributes:
      script: the name of the script it is asked of.
      finetune: rather than pretrain.
      processes: in the run, one a GPU; 1 where this is the only one.
      task: of TASKS, "" in pretraining.
      gpus: in the run.
      batch_per_gpu: sequences.
      lengths: tokens; only those that were given.
      macros: of the gin files, by their names, which are variables' too; only those that were
        given.
      steps: at which the run ends, None for what the gin file says.
      model_dir: absolute, or the address of an object store.
      log_dir: "" for none.
      variables: every switch and path as given.
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

    @property
    def batch(self) -> int:
        """The global batch: GPUs times sequences a GPU, over tensor parallelism."""
        return self.gpus * self.batch_per_gpu // self.tensor_parallel


def read(
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
    names = POSITIONALS[script]
    if len(words) > len(names):
        order = f"there are only {' '.join(SHOWN.get(name, name) for name in names)}"
        raise UserError(
            f"got {len(words)} arguments",
            f"{script}.sh",
            order
            if names
            else "settings come from the environment: T5_SIZE, PREC, BSIZE_PER_GPU, MODEL_DIR, ...",
            kind=INVALID,
            value=len(words),
        )
    given = {**environment, **{name: word for name, word in zip(names, words) if word}}  # noqa: B905 (Python 3.9, which a login node may have)
    health.read(given)
    health.check_process_variables(given)
    single, finetune = script.startswith("singlenode"), "_ft_" in script
    task = (
        parse_choice("FT_TASK", given.get("FT_TASK") or (TASKS[0] if single else ""), TASKS)
        if finetune
        else ""
    )
    numbers = {
        name: parse_whole_number(name, given.get(name) or default)
        for name, default in (
            ("BSIZE_PER_GPU", "32"),
            ("NUM_MICROBATCHES", "1"),
            ("TP_SIZE", "1"),
            ("SLURM_NTASKS", "1"),
        )
    }
    # Inside a Slurm job SLURM_NTASKS is set for all that runs there, also for what is one process
    # by its name.
    processes = 1 if single else numbers["SLURM_NTASKS"]
    size = given.get("T5_SIZE") or "large"
    model_dir = given.get("MODEL_DIR") or (
        "model_dir" if single else f"{given.get('T5X_WORKSPACE_DIR') or '.'}/model_dir_{size}"
    )
    settings = Settings(
        script=script,
        finetune=finetune,
        processes=processes,
        task=task,
        size=size,
        gpus=parse_whole_number("NUM_GPUS", given["NUM_GPUS"])
        if given.get("NUM_GPUS")
        else processes
        if processes > 1
        else devices,
        batch_per_gpu=numbers["BSIZE_PER_GPU"],
        microbatches=numbers["NUM_MICROBATCHES"],
        tensor_parallel=numbers["TP_SIZE"],
        steps=parse_whole_number("TRAIN_STEPS", given["TRAIN_STEPS"])
        if given.get("TRAIN_STEPS")
        else None,
        lengths=lengths(given),
        macros=macros(given),
        model_dir=absolute(model_dir),
        log_dir=given.get("LOGDIR", "") if single else "",
        variables=given,
    )
    arithmetic(
        settings.gpus, settings.tensor_parallel, settings.batch_per_gpu, settings.microbatches
    )
    return settings


def lengths(given: Mapping[str, str]) -> dict[str, int]:
    """Return the lengths that are given, in tokens; UserError where one is no number."""
    return {
        what: parse_whole_number(name, given[name])
        for name, what in LENGTHS.items()
        if given.get(name)
    }


def read_extra_ids(given: Mapping[str, str]) -> dict[str, int]:
    """Return the number of sentinels to add to the vocabulary, where EXTRA_IDS gives it; UserError
    where it is not a number.
    """
    text = given.get("EXTRA_IDS")
    if not text:
        return {}
    return {"EXTRA_IDS": parse_whole_number("EXTRA_IDS", text, minimum=0)}


def macros(given: Mapping[str, str]) -> dict[str, float]:
    """Return the macros of the gin files that are given as variables: steps, and a learning rate.

    UserError where one is no number above 0.
    """
    found: dict[str, float] = {
        name: parse_whole_number(name, given[name])
        for name in ("WARMUP_STEPS", "SAVE_PERIOD", "EVAL_PERIOD")
        if given.get(name)
    }
    if text := given.get("LEARNING_RATE"):
        found["LEARNING_RATE"] = parse_number(
            "LEARNING_RATE", text, above_zero=True, example="1e-3"
        )
    return found


def arithmetic(
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
            list_common_divisors(gpus),
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
            list_common_divisors(sequences),
            kind=INVALID,
            value=microbatches,
        )
