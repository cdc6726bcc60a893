"""The record of a checkpoint: the file rosetta.json, which says what it was trained with.

T5X's checkpoints hold only arrays. How they must be used depends on the training: on the scale of
the attention logits, on the batch that the loss was divided by, and on the vocabulary. Public
weights have no record.

The record is first written to MODEL_DIR/rosetta/checkpoint_N.json, beside the checkpoint that is
being saved. It is copied into the checkpoint before the checkpoint is complete.
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
RECORD_FOLDER = "rosetta"  # inside the folder of the checkpoints
SCHEMA = 1


@dataclasses.dataclass(frozen=True)
class Record:
    """What a checkpoint was trained with.

    Attributes:
      step: the step of the checkpoint.
      scale_attn_logits: whether attention logits are divided by the root of the head size.
      batch_size: the sequences of a batch in pretraining; finetuning copies it.
      targets_length: the tokens of a target sequence in pretraining; finetuning copies it.
      vocabulary: a fingerprint that changes if any token gets another id; "" if it is not known.
      data: what rosetta.t5x.dataset.get_data_state returned, from which the run resumes; None for
        data that rosetta does not read.
      run: the random name of the run that saved the checkpoint, see ensure_run_name.
      config: every field of the network's configuration, as text.
      versions: the versions of packages, by their names.
      start: the checkpoint_N that the run finetunes; "" in pretraining.
      warmup_steps: the steps over which the learning rate rises in pretraining; None if it is not
        known.
      unpadded_vocab_size: the rows of the embedding before `rosetta convert` added rows of zeros;
        None if it added none. Finetuning copies it.
      lora: the rank, alpha and targets of the LoRA adapters, see model_config.Lora; None for none.
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
    unpadded_vocab_size: int | None = None
    lora: dict[str, Any] | None = None


def read_record(checkpoint: str) -> Record | None:
    """Return the record of a checkpoint_N; None if it has none.

    Raises:
      UserError: the record is damaged, or from a newer release.
    """
    folder, name = run_folders.split_checkpoint_path(checkpoint)
    for place in (f"{folder}/{name}/{RECORD_FILE}", f"{folder}/{RECORD_FOLDER}/{name}.json"):
        path = run_folders.make_path(place)
        if not path.exists():
            continue
        try:
            fields = json.loads(path.read_text())
            if fields.pop("schema") != SCHEMA:
                raise UserError(
                    "a newer release of rosetta wrote this file",
                    place,
                    (
                        "use that release, or remove the file and set "
                        "network.T5Config.scale_attn_logits"
                    ),
                    kind=UNSUPPORTED,
                )
            return Record(**fields)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            remedy = "restore the file, or remove it and set network.T5Config.scale_attn_logits"
            beside = f"{folder}/{RECORD_FOLDER}/{name}.json"
            if place != beside and run_folders.make_path(beside).exists():
                remedy = f"replace it with its copy {beside}"
            raise UserError(
                f"the record cannot be read ({type(error).__name__})", place, remedy, kind=DAMAGED
            ) from None
    return None


def write_record(folder: str, record: Record) -> None:
    """Write a record beside the checkpoint that is being saved in a folder."""
    beside = run_folders.make_path(f"{folder}/{RECORD_FOLDER}")
    beside.mkdir(parents=True, exist_ok=True)
    run_folders.write_file(beside / f"checkpoint_{record.step}.json", render_record(record))


def render_record(record: Record) -> str:
    """Return the content of a record's file."""
    fields = dataclasses.asdict(record)
    if record.lora is None:
        del fields["lora"]  # which earlier releases do not know
    return json.dumps({"schema": SCHEMA, **fields}, indent=1)


def copy_into_checkpoint(folder: str, step: int, checkpoint: str) -> None:
    """Copy the record of a checkpoint into the checkpoint, before the checkpoint is complete.

    Args:
      folder: the folder of the checkpoints, where write_record has written the record.
      step: the step of the checkpoint.
      checkpoint: the temporary folder of its files, which Orbax renames afterwards.
    """
    beside = run_folders.make_path(f"{folder}/{RECORD_FOLDER}/checkpoint_{step}.json")
    if beside.exists():
        run_folders.write_file(
            run_folders.make_path(f"{checkpoint}/{RECORD_FILE}"), beside.read_text()
        )


def is_orbax_checkpoint(checkpoint: str) -> bool:
    """Return whether a checkpoint_N is in Orbax's format, which rosetta saves in.

    Public weights are in T5X's older format.
    """
    metadata_files = ("_CHECKPOINT_METADATA", "state/_METADATA", "_METADATA")
    return any(run_folders.make_path(f"{checkpoint}/{name}").exists() for name in metadata_files)


def require_record(checkpoint: str, setting: str) -> Record | None:
    """Return the record of a checkpoint; None for public weights.

    Args:
      checkpoint: a checkpoint_N.
      setting: what the record is needed for, for the error.

    Raises:
      UserError: the checkpoint has no record, and is not in the format of public weights.
    """
    record = read_record(checkpoint)
    if record is None and is_orbax_checkpoint(checkpoint):
        example = {
            "schema": SCHEMA,
            "step": run_folders.parse_checkpoint_step(checkpoint),
            "scale_attn_logits": True,
            "batch_size": 128,
            "targets_length": 114,
        }
        remedy = (
            f"copy {RECORD_FILE} from the folder of the run that wrote it, or write one with the "
            f"values it was trained with: {json.dumps(example)}"
        )
        raise UserError(
            f"{RECORD_FILE} is missing, and {setting} can't be known without it",
            checkpoint,
            remedy,
            kind=MISSING,
        )
    return record


def distribute_records(folder: str, *, idle: bool = False) -> None:
    """Copy each record into its checkpoint, and delete the records of deleted checkpoints.

    A copy of a checkpoint then includes its record.

    Args:
      folder: the folder of the checkpoints.
      idle: whether nothing is being saved in it. Otherwise, a record that is later than all
        checkpoints may belong to the checkpoint that is being saved.
    """
    beside = run_folders.make_path(f"{folder}/{RECORD_FOLDER}")
    if not beside.is_dir():
        return
    saved_steps = run_folders.list_checkpoint_steps(folder)
    for path in sorted(beside.iterdir(), key=str):
        if not path.name.endswith(".json"):
            continue
        step = run_folders.parse_checkpoint_step(path.name.removesuffix(".json"))
        if step is None:
            continue
        if step in saved_steps:
            inside = run_folders.make_path(f"{folder}/checkpoint_{step}/{RECORD_FILE}")
            if not inside.exists():
                run_folders.write_file(inside, path.read_text())
        elif idle or (saved_steps and step < saved_steps[-1]):
            path.unlink()


def ensure_run_name(folder: str) -> str:
    """Return the name of the run that saves in a folder; a new run gets a random name."""
    path = run_folders.make_path(f"{folder}/{RECORD_FOLDER}/run")
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        run_folders.write_file(path, uuid.uuid4().hex)
    return str(path.read_text())


def has_run_name(folder: str) -> bool:
    """Return whether a run of rosetta has saved in a folder."""
    return bool(run_folders.make_path(f"{folder}/{RECORD_FOLDER}/run").exists())


def was_saved_by_run(folder: str, step: int) -> bool:
    """Return whether the run that saves in a folder also saved one of its checkpoints.

    A checkpoint without a record, or a copy from another run, was not saved by it.
    """
    name_file = run_folders.make_path(f"{folder}/{RECORD_FOLDER}/run")
    record = read_record(f"{folder}/checkpoint_{step}")
    if record is None or not record.run or not name_file.exists():
        return False
    return bool(record.run == name_file.read_text())


def make_folder(folder: str) -> None:
    """Make a folder and its parents, if they are missing."""
    run_folders.make_path(folder).mkdir(parents=True, exist_ok=True)


def check_folder(folder: str) -> None:
    """Check that checkpoints can be saved in a folder.

    Raises:
      UserError: the path is relative, or the folder cannot be made or written to.
    """
    if is_address(folder):
        return
    if not os.path.isabs(folder):
        raise UserError(
            "Orbax cannot save under a relative path",
            folder,
            f"give the absolute path: {os.path.abspath(folder)}",
            kind=INVALID,
        )
    path_checks.check_local_folder_writable(folder)


def check_free_space(folder: str, needed: int) -> None:
    """Check that the next checkpoint fits on the disk; object stores are not checked.

    Args:
      folder: the folder of the checkpoints.
      needed: the size of a checkpoint in bytes.

    Raises:
      NoRoomError: the checkpoint does not fit.
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
