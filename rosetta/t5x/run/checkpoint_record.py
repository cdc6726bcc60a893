"""What a checkpoint says of itself: rosetta.json, beside it when it is saved and inside it once it
is whole.

Upstream's checkpoints hold arrays only. Some of what they were trained with decides how they must
be read: whether attention's logits were divided, the batch that the loss belongs to, the
vocabulary. Public weights have no record.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import uuid
from typing import Any

from rosetta.core import disk_space, path_checks, run_folders
from rosetta.core.errors import DAMAGED, INVALID, MISSING, TOO_BIG, UNSUPPORTED, UserError
from rosetta.core.value_parsing import is_address
from rosetta.health.checkpoint_saves import DiskFullError

RECORD_FILE = "rosetta.json"
RECORD_FOLDER = "rosetta"  # in the folder of the checkpoints
SCHEMA = 1


@dataclasses.dataclass(frozen=True)
class Record:
    """What a checkpoint was trained with.

    Attributes:
      step: the step it was saved at.
      scale_attn_logits: whether attention's logits are divided by the root of the head's size.
      batch_size: sequences of a batch in pretraining: finetuning hands it on as it found it.
      targets_length: tokens of a target in pretraining, likewise.
      vocabulary: what changes with anything that changes an id; "" where it is not known.
      data: what rosetta.t5x.dataset.get_data_state returned, from which the run resumes; None for
        data that rosetta does not read.
      run: name of the run that saved it, which is the same for all its checkpoints.
      config: every field of the network's configuration, as text.
      versions: package -> version.
      start: the checkpoint_N that the run finetunes; "" in pretraining.
      warmup_steps: over which the learning rate rises in pretraining; None where it is not known.
    """

    step: int
    scale_attn_logits: bool
    batch_size: int | None = None
    targets_length: int | None = None
    vocabulary: str = ""
    data: dict[str, Any] | None = None
    run: str = ""
    config: dict[str, str] = dataclasses.field(default_factory=dict)
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    start: str = ""
    warmup_steps: int | None = None


def read_record(checkpoint: str) -> Record | None:
    """Return what a checkpoint_N says of itself; None where it says nothing.

    Raises:
      UserError: what it says cannot be understood.
    """
    folder, name = run_folders.split_checkpoint_path(checkpoint)
    for place in (f"{folder}/{name}/{RECORD_FILE}", f"{folder}/{RECORD_FOLDER}/{name}.json"):
        path = run_folders.make_path(place)
        if not path.exists():
            continue
        try:
            found = json.loads(path.read_text())
            if found.pop("schema") != SCHEMA:
                raise UserError(
                    "it was written by a newer release",
                    place,
                    (
                        "use that release, or remove the file and set "
                        "network.T5Config.scale_attn_logits"
                    ),
                    kind=UNSUPPORTED,
                )
            return Record(**found)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            do = "restore the file, or remove it and set network.T5Config.scale_attn_logits"
            beside = f"{folder}/{RECORD_FOLDER}/{name}.json"
            if place != beside and run_folders.make_path(beside).exists():
                do = f"copy {beside} over it, a copy of it"
            raise UserError(
                f"it cannot be read ({type(error).__name__})", place, do, kind=DAMAGED
            ) from None
    return None


def write_record(folder: str, record: Record) -> None:
    """Put a record beside the checkpoint that is being saved in `folder`, whole or not at all."""
    beside = run_folders.make_path(f"{folder}/{RECORD_FOLDER}")
    beside.mkdir(parents=True, exist_ok=True)
    run_folders.write_file(
        beside / f"checkpoint_{record.step}.json",
        json.dumps({"schema": SCHEMA, **dataclasses.asdict(record)}, indent=1),
    )


def copy_into_checkpoint(folder: str, step: int, checkpoint: str) -> None:
    """Put the record of a step's checkpoint into the folder it is being written to, before it
    counts as whole.

    Args:
      folder: of the checkpoints; `write` has put the record there.
      step: the checkpoint's.
      checkpoint: where its files are now. Orbax gives it its name afterwards.
    """
    beside = run_folders.make_path(f"{folder}/{RECORD_FOLDER}/checkpoint_{step}.json")
    if beside.exists():
        run_folders.write_file(
            run_folders.make_path(f"{checkpoint}/{RECORD_FILE}"), beside.read_text()
        )


def is_orbax_checkpoint(checkpoint: str) -> bool:
    """Return whether a checkpoint_N is in Orbax's format, as ours are.

    Public weights are in T5X's older one.
    """
    marks = ("_CHECKPOINT_METADATA", "state/_METADATA", "_METADATA")
    return any(run_folders.make_path(f"{checkpoint}/{mark}").exists() for mark in marks)


def require_record(checkpoint: str, setting: str) -> Record | None:
    """Return a checkpoint's record, None for public weights.

    Args:
      checkpoint: a checkpoint_N.
      setting: what has to be known of it, for the error.

    Raises:
      UserError: it has no record and is not in the format of public weights: nothing says what it
        was trained with.
    """
    found = read_record(checkpoint)
    if found is None and is_orbax_checkpoint(checkpoint):
        known = {
            "schema": SCHEMA,
            "step": run_folders.parse_checkpoint_step(checkpoint),
            "scale_attn_logits": True,
            "batch_size": 128,
            "targets_length": 114,
        }
        do = (
            f"copy {RECORD_FILE} from the folder of the run that wrote it, or write one with the "
            f"values it was trained with: {json.dumps(known)}"
        )
        raise UserError(
            f"{RECORD_FILE} is missing, and {setting} can't be known without it",
            checkpoint,
            do,
            kind=MISSING,
        )
    return found


def distribute_records(folder: str, *, idle: bool = False) -> None:
    """Put each record inside its checkpoint, so that a copy of that alone takes it along; forget
    those whose checkpoint is gone.

    Args:
      folder: of the checkpoints.
      idle: nothing is being saved in it. Else a record later than all checkpoints may be that of
        one which is.
    """
    beside = run_folders.make_path(f"{folder}/{RECORD_FOLDER}")
    if not beside.is_dir():
        return
    there = run_folders.list_checkpoint_steps(folder)
    for path in sorted(beside.iterdir(), key=str):
        step = (
            run_folders.parse_checkpoint_step(path.name.removesuffix(".json"))
            if path.name.endswith(".json")
            else None
        )
        if step is None:
            continue
        if step in there:
            inside = run_folders.make_path(f"{folder}/checkpoint_{step}/{RECORD_FILE}")
            if not inside.exists():
                run_folders.write_file(inside, path.read_text())
        elif idle or (there and step < there[-1]):
            path.unlink()


def ensure_run_name(folder: str) -> str:
    """Return the name of the run that saves in `folder`, given to it when it is first asked for."""
    path = run_folders.make_path(f"{folder}/{RECORD_FOLDER}/run")
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        run_folders.write_file(path, uuid.uuid4().hex)
    return str(path.read_text())


def has_run_name(folder: str) -> bool:
    """Return whether a run of ours has saved in a folder."""
    return bool(run_folders.make_path(f"{folder}/{RECORD_FOLDER}/run").exists())


def was_saved_by_run(folder: str, step: int) -> bool:
    """Return whether the run that saves in `folder` made this checkpoint: not one without a record,
    nor one copied from another run.
    """
    name = run_folders.make_path(f"{folder}/{RECORD_FOLDER}/run")
    found = read_record(f"{folder}/checkpoint_{step}")
    return found is not None and bool(found.run) and name.exists() and found.run == name.read_text()


def make_folder(folder: str) -> None:
    """Make a folder, and those above it, where it is missing."""
    run_folders.make_path(folder).mkdir(parents=True, exist_ok=True)


def check_folder(folder: str) -> None:
    """UserError where checkpoints cannot be saved in a folder: its path is relative, or it cannot
    be written to or made.
    """
    if is_address(folder):
        return
    if not os.path.isabs(folder):
        raise UserError(
            "the path is relative, which Orbax does not save under",
            folder,
            f"give it whole: {os.path.abspath(folder)}",
            kind=INVALID,
        )
    path_checks.check_local_folder_writable(folder)


def check_free_space(folder: str, needed: int) -> None:
    """NoRoomError where the next checkpoint of `needed` bytes does not fit.

    Object stores are not asked.
    """
    if is_address(folder):
        return
    existing = os.path.abspath(folder)
    while not os.path.isdir(existing):
        existing = os.path.dirname(existing)
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise DiskFullError(
            f"a checkpoint takes {disk_space.format_size(needed)}, and "
            f"{disk_space.format_size(free)} are free",
            folder,
            "make room, or name another MODEL_DIR",
            kind=TOO_BIG,
        )
