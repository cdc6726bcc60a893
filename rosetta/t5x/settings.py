"""What a run of the scripts is asked to do, from positionals or from variables, checked before anything starts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rosetta.errors import UserError
from rosetta.t5x.folders import absolute
from rosetta.t5x.switches import one_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TASKS = {"mnli2": "mnli", "squad1": "squad"}  # name -> objective
LENGTHS = {"ENC_SL": "inputs", "DEC_SL": "targets"}
_SWITCHES = ("ENABLE_FP8", "TRANSPOSE_BS", "FUSE_QKV", "PACK")
# The scripts with positionals, in their documented order; those after the bar may be left out.
POSITIONALS = {
    "singlenode_pretrain_pile": ("T5_SIZE", "PREC", "NUM_GPUS", "BSIZE_PER_GPU", "LOGDIR", "|", "MODEL_DIR", "NUM_MICROBATCHES", *_SWITCHES),
    "singlenode_ft_frompile": (
        "FT_TASK", "T5_SIZE", "PREC", "NUM_GPUS", "BSIZE_PER_GPU", "LOGDIR", "|", "MODEL_DIR", "NUM_MICROBATCHES", "MAKE_FT_DIR", *_SWITCHES,
    ),
    "multiprocess_pretrain_pile": ("|",),
    "multiprocess_ft_frompile": ("|",),
}  # fmt: skip
SHOWN = {"T5_SIZE": "SIZE", "NUM_MICROBATCHES": "GRAD_ACCUM"}  # what the positionals are called where they are documented


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
    model_dir: str
    log_dir: str
    variables: Mapping[str, str]

    @property
    def batch(self) -> int:
        """The global batch: GPUs times sequences a GPU, over tensor parallelism."""
        return self.gpus * self.batch_per_gpu // self.tensor_parallel


def read(script: str, words: Sequence[str], environment: Mapping[str, str], devices: int) -> Settings:
    """Read a script's settings.

    Args:
      script: its name without suffix.
      words: its positionals; an empty one is not given.
      environment: its variables; positionals win.
      devices: how many a process has, for NUM_GPUS where it is not given.

    Raises:
      UserError: one line for the first thing that is wrong.
    """
    order = POSITIONALS[script]
    needed, allowed = order.index("|"), len(order) - 1
    names = [name for name in order if name != "|"]
    if not needed <= len(words) <= allowed:
        shown = [SHOWN.get(name, name) for name in names]
        hint = f"give {' '.join(shown[:needed])}, then {' '.join(shown[needed:])} if need be" if names else "settings come from the environment: T5_SIZE, PREC, BSIZE_PER_GPU, MODEL_DIR, ..."
        raise UserError(f"got {len(words)} arguments", f"{script}.sh", hint)
    given = {**environment, **{name: word for name, word in zip(names, words, strict=False) if word}}
    single, finetune = script.startswith("singlenode"), "_ft_" in script
    task = one_of("FT_TASK", given.get("FT_TASK", ""), list(TASKS)) if finetune else ""
    numbers = {
        name: positive(name, given.get(name) or default)
        for name, default in (("BSIZE_PER_GPU", "32"), ("NUM_MICROBATCHES", "1"), ("TP_SIZE", "1"), ("SLURM_NTASKS", "1"))
    }
    # Inside a Slurm job SLURM_NTASKS is set for all that runs there, also for what is one process by its name.
    processes = 1 if single else numbers["SLURM_NTASKS"]
    size = given.get("T5_SIZE") or "large"
    model_dir = given.get("MODEL_DIR") or ("model_dir" if single else f"{given.get('T5X_WORKSPACE_DIR') or '.'}/model_dir_{size}")
    settings = Settings(
        script=script, finetune=finetune, processes=processes, task=task, size=size,
        gpus=positive("NUM_GPUS", given["NUM_GPUS"]) if given.get("NUM_GPUS") else processes if processes > 1 else devices,
        batch_per_gpu=numbers["BSIZE_PER_GPU"], microbatches=numbers["NUM_MICROBATCHES"], tensor_parallel=numbers["TP_SIZE"],
        steps=positive("TRAIN_STEPS", given["TRAIN_STEPS"]) if given.get("TRAIN_STEPS") else None,
        lengths=lengths(given),
        model_dir=absolute(model_dir), log_dir=given.get("LOGDIR", "") if single else "", variables=given,
    )  # fmt: skip
    arithmetic(settings)
    return settings


def lengths(given: Mapping[str, str]) -> dict[str, int]:
    """Return the lengths that are given, in tokens; UserError where one is no number."""
    return {what: positive(name, given[name]) for name, what in LENGTHS.items() if given.get(name)}


def arithmetic(settings: Settings) -> None:
    """Check that GPUs divide into groups that share a model, and a group's sequences into microbatches.

    Raises:
      UserError: they do not; it says what would.
    """
    gpus, split, sequences = settings.gpus, settings.tensor_parallel, settings.batch_per_gpu
    if gpus % split:
        raise UserError(f"{gpus} GPUs do not divide into groups of {split}", f"TP_SIZE={split}", fitting(gpus))
    if sequences % settings.microbatches:
        raise UserError(
            f"a global batch of {settings.batch}, {sequences} for each group of {split} GPU(s), does not divide by it",
            f"NUM_MICROBATCHES={settings.microbatches}", fitting(sequences),
        )  # fmt: skip


def fitting(*whole: int) -> str:
    """Return advice: the numbers that divide all of these."""
    return "choose one of: " + ", ".join(str(each) for each in range(1, min(whole) + 1) if not any(number % each for number in whole))


def positive(name: str, text: str) -> int:
    """Return a whole number of at least 1.

    Raises:
      UserError: the text is none.
    """
    if not re.fullmatch(r"[1-9][0-9]{0,8}", text):
        raise UserError(f"it is {text!r}", name, "give a whole number, at least 1")
    return int(text)
