"""What a run of the scripts is asked to do, from positionals or from variables, checked before anything starts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rosetta.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PRECISIONS = ("bfloat16", "float32", "float16")
TASKS = {"mnli2": {"inputs": 512, "targets": 16}, "squad1": {"inputs": 956, "targets": 256}}
PRETRAIN_LENGTHS = {"inputs": 512, "targets": 128}
_SWITCHES = ("ENABLE_FP8", "TRANSPOSE_BS", "FUSE_QKV", "PACK")
# The scripts with positionals, in their documented order; those after the bar may be left out.
POSITIONALS = {
    "singlenode_pretrain_pile": ("SIZE", "PREC", "NUM_GPUS", "BSIZE_PER_GPU", "LOGDIR", "|", "MODEL_DIR", "GRAD_ACCUM", *_SWITCHES),
    "singlenode_ft_frompile": (
        "FT_TASK", "SIZE", "PREC", "NUM_GPUS", "BSIZE_PER_GPU", "LOGDIR", "|", "MODEL_DIR", "GRAD_ACCUM", "MAKE_FT_DIR", *_SWITCHES,
    ),
    "multiprocess_pretrain_pile": ("|",),
    "multiprocess_ft_frompile": ("|",),
}  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """A run. Batch sizes are in sequences, lengths in tokens; `variables` holds every switch and path as given."""

    finetune: bool
    single: bool
    task: str
    size: str
    precision: str
    gpus: int
    batch_per_gpu: int
    microbatches: int
    tensor_parallel: int
    steps: int | None
    lengths: dict[str, int] | None
    model_dir: str
    log_dir: str
    variables: Mapping[str, str]

    @property
    def batch(self) -> int:
        """The global batch: GPUs times sequences a GPU, over tensor parallelism."""
        return self.gpus * self.batch_per_gpu // self.tensor_parallel


def read(script: str, words: Sequence[str], environment: Mapping[str, str], count: int) -> Settings:
    """Read a script's settings.

    Args:
      script: its name without suffix.
      words: its positionals.
      environment: its variables; positionals win.
      count: how many GPUs the run has, where nothing says so.

    Raises:
      UserError: one line for the first thing that is wrong.
    """
    order = POSITIONALS[script]
    needed, allowed = order.index("|"), len(order) - 1
    names = [name for name in order if name != "|"]
    if not needed <= len(words) <= allowed:
        hint = f"give {' '.join(names[:needed])}, then {' '.join(names[needed:])} if need be" if names else "settings come from the environment: T5_SIZE, PREC, BSIZE_PER_GPU, MODEL_DIR, ..."
        raise UserError(f"got {len(words)} arguments", f"{script}.sh", hint)
    given = {**environment, **{name: word for name, word in zip(names, words, strict=False) if word}}
    single, finetune = script.startswith("singlenode"), "_ft_" in script
    if single:
        given = {**given, "T5_SIZE": given["SIZE"], "NUM_MICROBATCHES": given.get("GRAD_ACCUM") or "1"}
    task = given.get("FT_TASK", "")
    if finetune and task not in TASKS:
        raise UserError(f"it is {task!r}", "FT_TASK", f"choose {' or '.join(TASKS)}")
    precision = given.get("PREC") or "bfloat16"
    if precision not in PRECISIONS:
        raise UserError(f"the precision is {precision!r}", "PREC", f"choose {', '.join(PRECISIONS)}")
    numbers = {name: positive(name, given.get(name) or default) for name, default in (("BSIZE_PER_GPU", "32"), ("NUM_MICROBATCHES", "1"), ("TP_SIZE", "1"))}
    lengths = None
    if given.get("ENC_SL") or given.get("DEC_SL"):
        usual = TASKS[task] if finetune else PRETRAIN_LENGTHS
        lengths = {"inputs": positive("ENC_SL", given.get("ENC_SL") or str(usual["inputs"])), "targets": positive("DEC_SL", given.get("DEC_SL") or str(usual["targets"]))}
    size = given.get("T5_SIZE") or "large"
    model_dir = given.get("MODEL_DIR") or ("model_dir" if single else f"{given.get('T5X_WORKSPACE_DIR') or '.'}/model_dir_{size}")
    settings = Settings(
        finetune=finetune, single=single, task=task, size=size, precision=precision,
        gpus=positive("NUM_GPUS", given["NUM_GPUS"]) if given.get("NUM_GPUS") else count,
        batch_per_gpu=numbers["BSIZE_PER_GPU"], microbatches=numbers["NUM_MICROBATCHES"], tensor_parallel=numbers["TP_SIZE"],
        steps=positive("TRAIN_STEPS", given["TRAIN_STEPS"]) if given.get("TRAIN_STEPS") else None,
        lengths=lengths, model_dir=absolute(model_dir), log_dir=given.get("LOGDIR", ""), variables=given,
    )  # fmt: skip
    arithmetic(settings)
    return settings


def arithmetic(settings: Settings) -> None:
    """Check that the batch divides over devices and microbatches; the message says what would.

    Raises:
      UserError: it does not.
    """
    gpus, split = settings.gpus, settings.tensor_parallel
    if gpus % split:
        fitting = ", ".join(str(each) for each in range(1, gpus + 1) if gpus % each == 0)
        raise UserError(f"{gpus} GPUs do not divide into groups of {split}", f"TP_SIZE={split}", f"choose one of: {fitting}")
    if gpus * settings.batch_per_gpu % split:
        raise UserError(f"{gpus} GPUs x {settings.batch_per_gpu} sequences do not divide by TP_SIZE={split}", "BSIZE_PER_GPU", f"give a multiple of {split}")
    groups = gpus // split
    for what, parts in (("NUM_MICROBATCHES", settings.microbatches), ("groups of GPUs x NUM_MICROBATCHES", groups * settings.microbatches)):
        if settings.batch % parts:
            fitting = ", ".join(str(each) for each in range(1, settings.batch // groups + 1) if settings.batch % (groups * each) == 0)
            raise UserError(f"a global batch of {settings.batch} does not divide by {parts} ({what})", f"NUM_MICROBATCHES={settings.microbatches}", f"choose one of: {fitting}")


def positive(name: str, text: str) -> int:
    """Return a whole number of at least 1.

    Raises:
      UserError: the text is none.
    """
    if not re.fullmatch(r"[1-9][0-9]{0,8}", text):
        raise UserError(f"it is {text!r}", name, "give a whole number, at least 1")
    return int(text)


def absolute(folder: str) -> str:
    """Return a folder's absolute name; an address such as gs://bucket/folder stays what it is."""
    return folder if re.match(r"[a-z0-9]+://", folder) else str(Path(folder).resolve())
