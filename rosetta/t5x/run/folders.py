"""The folders of a run: where it reads, where it writes, and that finetuning never touches what it
reads.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rosetta.core.errors import CONFLICT, MISSING, UNSUPPORTED, UserError
from rosetta.core.run_folders import list_checkpoint_steps, write_file
from rosetta.core.value_parsing import is_address, parse_path
from rosetta.core.variables import setting_values
from rosetta.t5x.run import checkpoint_record

if TYPE_CHECKING:
    from collections.abc import Mapping


def find_newest_checkpoint(folder: str) -> str | None:
    """Return the newest checkpoint_N of a folder of this machine, or None."""
    found = list_checkpoint_steps(folder)
    return f"{folder}/checkpoint_{found[-1]}" if found else None


def choose_finetuning_folders(
    model_dir: str, task: str, variables: Mapping[str, str], stamp: str
) -> tuple[str, str]:
    """Return the folder that finetuned checkpoints go to, and the checkpoint they start from.

    The pretrained folder is only read, unless MAKE_FT_DIR=false was typed. A run that is started
    again starts from what it started from, whatever has been saved since: a later checkpoint would
    move its end.

    Args:
      model_dir: the folder of the pretrained model.
      task: a value of FT_TASK.
      variables: MAKE_FT_DIR, FT_DIR, INITIAL_CHECKPOINT_PATH.
      stamp: distinguishes runs with MAKE_FT_DIR=true, each of which has a folder of its own.

    Raises:
      UserError: there is nothing to start from, or the folder belongs to another run.
    """
    own_folder = setting_values.read_setting(variables, "MAKE_FT_DIR")
    if own_folder is False:
        out = model_dir
    else:
        out = parse_path(
            "FT_DIR",
            variables.get("FT_DIR")
            or _make_sibling_path(model_dir, f"ft_{task}_", f"_{stamp}" if own_folder else ""),
        )
    if asked := variables.get("INITIAL_CHECKPOINT_PATH"):
        return out, parse_path("INITIAL_CHECKPOINT_PATH", asked)
    if is_address(model_dir):
        return out, model_dir
    kept = (
        find_start_file(out).read_text(encoding="utf-8")
        if not is_address(out) and find_start_file(out).is_file()
        else ""
    )
    if kept and (out == model_dir or list_checkpoint_steps(out)):
        if out != model_dir and Path(kept).parent != Path(model_dir):
            raise UserError(
                f"the finetuning in it started from {kept}",
                f"FT_DIR={out}",
                "name another FT_DIR, or that run's MODEL_DIR to go on",
                kind=CONFLICT,
            )
        if not Path(kept).is_dir():
            raise UserError(
                f"its finetuning started from {kept}, which is gone",
                out,
                "put it back, or start anew with another FT_DIR",
                kind=MISSING,
            )
        return out, kept
    start = find_newest_checkpoint(model_dir)
    if start is None:
        raise UserError(
            "it holds no checkpoint_N",
            f"MODEL_DIR={model_dir}",
            "name the folder of the pretrained model, or set INITIAL_CHECKPOINT_PATH",
            kind=MISSING,
        )
    return out, start


def _make_sibling_path(folder: str, before: str, after: str) -> str:
    parent, _, name = folder.rstrip("/").rpartition("/")
    if parent.endswith(":/"):
        raise UserError(
            "a bucket has no folder beside it",
            f"MODEL_DIR={folder}",
            "name where the finetuned model goes: FT_DIR=gs://BUCKET/FOLDER",
            kind=UNSUPPORTED,
        )
    return f"{parent}/{before}{name}{after}"


def find_start_file(out: str) -> Path:
    """Return the file that keeps which checkpoint the finetuning in a folder of this machine
    started from.
    """
    return Path(out, checkpoint_record.RECORD_FOLDER, "start")


def write_start_file(out: str, start: str) -> None:
    """Write that file. Several processes may: they write the same."""
    if is_address(out) or is_address(start):
        return
    write_file(find_start_file(out), start)
