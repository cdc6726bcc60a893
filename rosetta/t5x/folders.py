"""The folders of a run: where it reads, where it writes, and that finetuning never touches what it reads."""

from __future__ import annotations

import re
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from rosetta.data import checks
from rosetta.errors import UserError
from rosetta.t5x import record, switches

if TYPE_CHECKING:
    from collections.abc import Mapping


def absolute(folder: str) -> str:
    """Return a folder's absolute name; an address such as gs://bucket/folder stays what it is."""
    return folder if re.match(r"[a-z0-9]+://", folder) else str(Path(folder).resolve())


def newest(folder: str) -> str | None:
    """Return the newest checkpoint_N of a folder of this machine, or None."""
    steps = record.steps(folder)
    return f"{folder}/checkpoint_{steps[-1]}" if steps else None


def writable(folder: str) -> None:
    """UserError where a folder cannot be written to or made. Makes nothing."""
    if "://" in folder:
        checks.remote_path(folder)
    else:
        record.require_folder(folder)


def finetuning(model_dir: str, task: str, variables: Mapping[str, str], stamp: str) -> tuple[str, str]:
    """Return the folder that finetuned checkpoints go to, and the checkpoint they start from.

    The pretrained folder is only read, unless MAKE_FT_DIR=false was typed. A run that is started again starts from what it started from,
    whatever has been saved since: a later checkpoint would move its end.

    Args:
      model_dir: the folder of the pretrained model.
      task: of settings.TASKS.
      variables: MAKE_FT_DIR, FT_DIR, INITIAL_CHECKPOINT_PATH.
      stamp: distinguishes runs with MAKE_FT_DIR=true, each of which has a folder of its own.

    Raises:
      UserError: there is nothing to start from, or the folder belongs to another run.
    """
    said = variables.get("MAKE_FT_DIR", "")
    if said and not switches.flag("MAKE_FT_DIR", said):
        out = model_dir
    else:
        out = absolute(variables.get("FT_DIR") or _beside(model_dir, f"ft_{task}_", f"_{stamp}" if said else ""))
    if asked := variables.get("INITIAL_CHECKPOINT_PATH"):
        return out, absolute(asked)
    if "://" in model_dir:
        return out, model_dir
    kept = start_file(out).read_text(encoding="utf-8") if "://" not in out and start_file(out).is_file() else ""
    if kept and (out == model_dir or record.steps(out)):
        if out != model_dir and Path(kept).parent != Path(model_dir):
            raise UserError(f"the finetuning in it started from {kept}", f"FT_DIR={out}", "name another FT_DIR, or that run's MODEL_DIR to go on")
        if not Path(kept).is_dir():
            raise UserError(f"its finetuning started from {kept}, which is gone", out, "put it back, or start anew with another FT_DIR")
        return out, kept
    start = newest(model_dir)
    if start is None:
        raise UserError("it holds no checkpoint_N", f"MODEL_DIR={model_dir}", "name the folder of the pretrained model, or set INITIAL_CHECKPOINT_PATH")
    return out, start


def _beside(folder: str, before: str, after: str) -> str:
    parent, _, name = folder.rstrip("/").rpartition("/")
    if parent.endswith(":/"):
        raise UserError("a bucket has no folder beside it", f"MODEL_DIR={folder}", "name where the finetuned model goes: FT_DIR=gs://BUCKET/FOLDER")
    return f"{parent}/{before}{name}{after}"


def start_file(out: str) -> Path:
    """Return the file that keeps which checkpoint the finetuning in a folder of this machine started from."""
    return Path(out, record.FOLDER, "start")


def keep_start(out: str, start: str) -> None:
    """Write that file. Several processes may: they write the same."""
    if "://" in out or "://" in start:
        return
    write(start_file(out), start)


def write(path: Path, text: str) -> None:
    """Write a file in a folder that need not be there yet, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
    try:
        whole.write_text(text, encoding="utf-8")
        whole.replace(path)
    finally:
        whole.unlink(missing_ok=True)
