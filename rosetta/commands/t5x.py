"""`rosetta t5x`: training, evaluation and inference by the settings of the scripts."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rosetta.core.errors import UserError
from rosetta.health import settings as health

if TYPE_CHECKING:
    import argparse

SCRIPTS = {"pretrain": "multiprocess_pretrain_pile", "finetune": "multiprocess_ft_frompile"}
_ALL = (
    "T5_SIZE",
    "PREC",
    "TP_SIZE",
    "ENC_SL",
    "DEC_SL",
    "DATA",
    "EVAL_DATA",
    "VOCAB",
    "EXTRA_IDS",
    "TEXT_FIELD",
    "TFDS_DATA_DIR",
    "ENABLE_FP8",
    "ENABLE_TE",
    "TRANSPOSE_BS",
    "FUSE_QKV",
    "ATTENTION",
    "REMAT",
    "SCAN_LAYERS",
    "ROSETTA_GIN",
    "ROSETTA_BATCH_LOG",
    "ROSETTA_DATA_WORKERS",
    "BASE_XLA_FLAGS",
    "XLA_FLAGS",
    "PYTHON",
    "JAX_PLATFORMS",
    "JAX_COMPILATION_CACHE_DIR",
    "XLA_PYTHON_CLIENT_MEM_FRACTION",
    "ROSETTA_PRESET",
    "ROSETTA_WITH",
    "ROSETTA_SITE",
    "ROSETTA_DOCTOR",
)
_TRAINING = (
    *_ALL,
    "NUM_GPUS",
    "BSIZE_PER_GPU",
    "NUM_MICROBATCHES",
    "FSDP",
    "GRADIENT_DTYPE",
    "TRAIN_STEPS",
    "WARMUP_STEPS",
    "LEARNING_RATE",
    "SAVE_PERIOD",
    "EVAL_PERIOD",
    "MODEL_DIR",
    "INITIAL_CHECKPOINT_PATH",
    "CHECKPOINT_DISABLE",
    "PACK",
    "BENCHMARK_MODE",
    "WITH_NSYS",
    "NSYS",
    "T5X_DIR",
    "T5X_WORKSPACE_DIR",
    *health.VARIABLES,
)
_READING = (*_ALL, "FT_TASK", "T5_FAMILY", "BSIZE", "CHECKPOINT_PATH", "OUTPUT_DIR", "NUM_DECODES")
VARIABLES = {
    "pretrain": _TRAINING,
    "finetune": (*_TRAINING, "FT_TASK", "FT_STEPS", "FT_DIR", "MAKE_FT_DIR"),
    "eval": _READING,
    "infer": _READING,
}


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command to a parser's subcommands."""
    about = (
        "T5_SIZE=small, DATA=text:FILES, ...: the variables of the scripts (docs/t5x.md), which "
        "the environment gives otherwise"
    )
    entry = commands.add_parser(
        "t5x", parents=[common], help="pretrain, finetune, evaluate a T5 or infer from one"
    )
    entry.add_argument("what", choices=(*SCRIPTS, "eval", "infer"))
    entry.add_argument("settings", nargs="*", metavar="NAME=VALUE", help=about)
    entry.add_argument(
        "--profile",
        metavar="A:B",
        help="trace steps A to B - 1, as PROFILE_STEPS=A:B does (docs/health.md)",
    )
    entry.add_argument(
        "--dry-run", action="store_true", help="check everything, print what would run, run nothing"
    )
    entry.set_defaults(flags_first=True)


def _t5x(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Become the trainer; with --dry-run, say what it would be."""
    from rosetta.core import (
        lock_record,
        value_parsing,
    )
    from rosetta.launch import (
        execution,
        t5x_evaluation,
        t5x_trainer,
    )
    from rosetta.t5x.run import settings

    given = (
        value_parsing.setting(
            word,
            VARIABLES[args.what],
            f"rosetta t5x {args.what}",
            "T5_SIZE=small",
            shown=settings.SHOWN,
        )
        for word in [*args.settings, *([f"PROFILE_STEPS={args.profile}"] if args.profile else [])]
    )
    environment = {**os.environ, **dict(given)}
    door = lock_record.path().parent / "bin" / "python"
    if door.is_file():
        environment.setdefault(
            "PYTHON", str(door)
        )  # it also finds what pip put beside a read-only environment
    wanted = (
        t5x_trainer.command(SCRIPTS[args.what], [], environment, _tree())
        if args.what in SCRIPTS
        else t5x_evaluation.command(args.what, environment)
    )
    if not args.dry_run:
        execution.execute(wanted)
    return execution.shown(wanted), execution.text(wanted)


def _tree() -> str:
    """Return the folder that the package t5x lies in."""
    found = find_spec("t5x")
    if found is None or not found.submodule_search_locations:
        raise UserError(
            "this environment has no t5x",
            "rosetta t5x",
            "use an image or environment of the distribution t5x",
        )
    return str(Path(next(iter(found.submodule_search_locations))).parent)


RUN = {"t5x": _t5x}
