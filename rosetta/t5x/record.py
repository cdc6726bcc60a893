"""What a checkpoint says of itself: rosetta.json, beside it when it is saved and inside it once it is whole.

Upstream's checkpoints hold arrays only. Some of what they were trained with decides how they must be read: whether attention's
logits were divided, the batch that the loss belongs to, the vocabulary. Public weights have no record.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import uuid
from typing import Any

from rosetta.data import checks
from rosetta.errors import UserError
from rosetta.health.saves import NoRoomError
from rosetta.launch import folders, space

FILE = "rosetta.json"
FOLDER = "rosetta"  # in the folder of the checkpoints
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
      data: what rosetta.t5x.dataset.state gave, for the run to go on by; None for data of others.
      run: name of the run that saved it, which is the same for all its checkpoints.
      config: every field of the network's configuration, as text.
      versions: package -> version.
      start: the checkpoint_N that the run finetunes; "" in pretraining.
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


def read(checkpoint: str) -> Record | None:
    """Return what a checkpoint_N says of itself; None where it says nothing.

    Raises:
      UserError: what it says cannot be understood.
    """
    folder, name = folders.split(checkpoint)
    for place in (f"{folder}/{name}/{FILE}", f"{folder}/{FOLDER}/{name}.json"):
        path = folders.path(place)
        if not path.exists():
            continue
        try:
            found = json.loads(path.read_text())
            if found.pop("schema") != SCHEMA:
                raise UserError("it was written by a newer release", place, "use that release, or remove the file and set network.T5Config.scale_attn_logits")
            return Record(**found)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UserError(f"it cannot be read ({type(error).__name__})", place, "restore the file, or remove it and set network.T5Config.scale_attn_logits") from None
    return None


def write(folder: str, record: Record) -> None:
    """Put a record beside the checkpoint that is being saved in `folder`, whole or not at all."""
    beside = folders.path(f"{folder}/{FOLDER}")
    beside.mkdir(parents=True, exist_ok=True)
    _replace(beside / f"checkpoint_{record.step}.json", json.dumps({"schema": SCHEMA, **dataclasses.asdict(record)}, indent=1))


def _replace(path: Any, text: str) -> None:
    whole = path.with_name(path.name + ".tmp")
    try:
        whole.write_text(text)
        whole.replace(path)
    finally:
        whole.unlink(missing_ok=True)


def stamp(folder: str, *, idle: bool = False) -> None:
    """Put each record inside its checkpoint, so that a copy of that alone takes it along; forget those whose checkpoint is gone.

    Args:
      folder: of the checkpoints.
      idle: nothing is being saved in it. Else a record later than all checkpoints may be that of one which is.
    """
    beside = folders.path(f"{folder}/{FOLDER}")
    if not beside.is_dir():
        return
    there = folders.steps(folder)
    for path in sorted(beside.iterdir(), key=str):
        step = folders.step_of(path.name.removesuffix(".json")) if path.name.endswith(".json") else None
        if step is None:
            continue
        if step in there:
            inside = folders.path(f"{folder}/checkpoint_{step}/{FILE}")
            if not inside.exists():
                _replace(inside, path.read_text())
        elif idle or (there and step < there[-1]):
            path.unlink()


def run(folder: str) -> str:
    """Return the name of the run that saves in `folder`, given to it when it is first asked for."""
    path = folders.path(f"{folder}/{FOLDER}/run")
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        _replace(path, uuid.uuid4().hex)
    return str(path.read_text())


def made_here(folder: str, step: int) -> bool:
    """Return whether the run that saves in `folder` made this checkpoint: not one without a record, nor one copied from another run."""
    name = folders.path(f"{folder}/{FOLDER}/run")
    found = read(f"{folder}/checkpoint_{step}")
    return found is not None and bool(found.run) and name.exists() and found.run == name.read_text()


def make(folder: str) -> None:
    """Make a folder, and those above it, where it is missing."""
    folders.path(folder).mkdir(parents=True, exist_ok=True)


def require_folder(folder: str) -> None:
    """UserError where checkpoints cannot be saved in a folder: its path is relative, or it cannot be written to or made."""
    if "://" in folder:
        return
    if not os.path.isabs(folder):
        raise UserError("the path is relative, which Orbax does not save under", folder, f"give it whole: {os.path.abspath(folder)}")
    checks.writable(folder)


def require_room(folder: str, needed: int) -> None:
    """NoRoomError where the next checkpoint of `needed` bytes does not fit. Object stores are not asked."""
    if "://" in folder:
        return
    existing = os.path.abspath(folder)
    while not os.path.isdir(existing):
        existing = os.path.dirname(existing)
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise NoRoomError(f"a checkpoint takes {space.shown(needed)}, and {space.shown(free)} are free", folder, "make room, or name another MODEL_DIR")
