"""The folders of a run of T5X's scripts: where it reads checkpoints and where it writes them.

Finetuning writes to a folder of its own, unless the user asks for the pretrained model's folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rosetta.core.errors import CONFLICT, MISSING, UNSUPPORTED, UserError
from rosetta.core.run_folders import (
    describe_missing_checkpoint,
    list_checkpoint_steps,
    write_file,
)
from rosetta.core.value_parsing import is_address, parse_path
from rosetta.core.variables import setting_values
from rosetta.t5x.run import checkpoint_record

if TYPE_CHECKING:
    from collections.abc import Mapping


def find_newest_checkpoint(folder: str) -> str | None:
    """Return the newest checkpoint_N of a local folder; None if there is none."""
    checkpoint_steps = list_checkpoint_steps(folder)
    return f"{folder}/checkpoint_{checkpoint_steps[-1]}" if checkpoint_steps else None


def choose_finetuning_folders(
    model_dir: str, task: str, variables: Mapping[str, str], stamp: str
) -> tuple[str, str]:
    """Return the folder for finetuned checkpoints, and the checkpoint that finetuning starts from.

    The pretrained folder is only read, unless MAKE_FT_DIR=false is set. A run that is started again
    uses the same first checkpoint, even if pretraining has saved a newer one. A later checkpoint
    would change the last step of the run.

    Args:
      model_dir: the folder of the pretrained model.
      task: a value of FT_TASK.
      variables: the run's variables, of which MAKE_FT_DIR, FT_DIR and INITIAL_CHECKPOINT_PATH are
        read.
      stamp: the end of the folder's name with MAKE_FT_DIR=true, where each run has its own folder.

    Returns:
      The folder, and the checkpoint or a folder of checkpoints.

    Raises:
      UserError: there is nothing to start from, or the folder belongs to another run.
    """
    own_folder = setting_values.read_setting(variables, "MAKE_FT_DIR")
    if own_folder is False:
        out = model_dir
    else:
        name = task.rpartition(":")[2]  # task:NAME is a task of SeqIO
        out = parse_path(
            "FT_DIR",
            variables.get("FT_DIR")
            or _make_sibling_path(model_dir, f"ft_{name}_", f"_{stamp}" if own_folder else ""),
        )
    if initial_checkpoint := variables.get("INITIAL_CHECKPOINT_PATH"):
        return out, parse_path("INITIAL_CHECKPOINT_PATH", initial_checkpoint)
    if is_address(model_dir):
        return out, model_dir
    recorded_start = ""
    if not is_address(out) and find_start_file(out).is_file():
        recorded_start = find_start_file(out).read_text(encoding="utf-8")
    if recorded_start and (out == model_dir or list_checkpoint_steps(out)):
        if out != model_dir and Path(recorded_start).parent != Path(model_dir):
            raise UserError(
                f"the finetuning in this folder started from {recorded_start}",
                f"FT_DIR={out}",
                "name another FT_DIR, or the MODEL_DIR of that finetuning to resume it",
                kind=CONFLICT,
            )
        if not Path(recorded_start).is_dir():
            raise UserError(
                f"its finetuning started from {recorded_start}, which no longer exists",
                out,
                "restore the checkpoint, or start a new run with another FT_DIR",
                kind=MISSING,
            )
        return out, recorded_start
    start = find_newest_checkpoint(model_dir)
    if start is None:
        raise UserError(
            describe_missing_checkpoint(model_dir),
            f"MODEL_DIR={model_dir}",
            "name the folder of the pretrained model, or set INITIAL_CHECKPOINT_PATH",
            kind=MISSING,
        )
    return out, start


def _make_sibling_path(folder: str, before: str, after: str) -> str:
    """Return the path of a folder beside another one, with a longer name."""
    parent, _, name = folder.rstrip("/").rpartition("/")
    if parent.endswith(":/"):
        raise UserError(
            "a bucket cannot have a folder beside it",
            f"MODEL_DIR={folder}",
            "set the folder of the finetuned model: FT_DIR=gs://BUCKET/FOLDER",
            kind=UNSUPPORTED,
        )
    return f"{parent}/{before}{name}{after}"


def find_start_file(out: str) -> Path:
    """Return the file in a local folder that says which checkpoint its finetuning started from."""
    return Path(out, checkpoint_record.RECORD_FOLDER, "start")


def write_start_file(out: str, start: str) -> None:
    """Write the file of find_start_file, unless a path is in an object store.

    Several processes may write it at the same time, because they write the same text.

    Args:
      out: the folder of the finetuned checkpoints.
      start: the checkpoint that finetuning starts from.
    """
    if is_address(out) or is_address(start):
        return
    write_file(find_start_file(out), start)
