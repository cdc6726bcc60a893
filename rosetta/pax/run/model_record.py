"""The record of a model of Pax, in the file model.json beside its checkpoints.

Training and `rosetta convert` write the file, because a checkpoint has neither the hyper-parameters
of its model nor the name of its vocabulary. `rosetta pax generate` reads it.
"""

from __future__ import annotations

import enum
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rosetta.core import run_folders
from rosetta.core.errors import DAMAGED, UserError
from rosetta.core.not_known import NOT_KNOWN

if TYPE_CHECKING:
    from collections.abc import Mapping

FILE = "model.json"
# Hyper-parameters that say where data and weights are, on disk and on GPUs.
_NOT_OF_MODEL = frozenset(
    {
        "DATA",
        "EVAL_DATA",
        "VOCAB",
        "CHECKPOINT_RESTORE_PATH",
        "CHECKPOINT_IGNORE_RULES",
        "ICI_MESH_SHAPE",
        "DCN_MESH_SHAPE",
    }
)


@dataclass(frozen=True)
class ModelRecord:
    """What is needed to build the model of a checkpoint, and is not in the checkpoint.

    Attributes:
      experiment: The full name of the experiment's class.
      hyper_parameters: The hyper-parameters that differ from the values of the class.
      vocabulary: The vocabulary, see rosetta.data.vocabularies.load_vocabulary; None if it is not
        known.
      bos: The id that begins each text in training; None if it is not known.
    """

    experiment: str
    hyper_parameters: Mapping[str, Any]
    vocabulary: str | None = None
    bos: int | None = None


def collect_hyper_parameters(experiment: object) -> dict[str, Any]:
    """Return the hyper-parameters of an experiment that differ from its class, as JSON has them.

    Values that are not data, such as functions, are left out.
    """
    values = {}
    for name, value in vars(experiment).items():
        if name.isupper() and name not in _NOT_OF_MODEL:
            stored = _convert_value(value)
            default = _convert_value(getattr(type(experiment), name, NOT_KNOWN))
            if stored is not NOT_KNOWN and stored != default:
                values[name] = stored
    return values


def _convert_value(value: Any) -> Any:
    """Return a value as JSON has it, or NOT_KNOWN; a class, such as an activation, as its name."""
    if value is NOT_KNOWN:
        return NOT_KNOWN
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, type):
        return value.__name__
    if isinstance(value, (list, tuple)):
        items = [_convert_value(item) for item in value]
        return NOT_KNOWN if NOT_KNOWN in items else items
    return value if isinstance(value, (str, int, float, type(None))) else NOT_KNOWN


def write_record(folder: str, record: ModelRecord) -> None:
    """Write the record of a model into the folder of a run, or replace it."""
    text = json.dumps(asdict(record), indent=1)
    run_folders.write_file(run_folders.make_path(f"{folder}/{FILE}"), f"{text}\n")


def read_record(folder: str) -> ModelRecord | None:
    """Return the record in the folder of a run; None if there is no record.

    Raises:
      UserError: The file is damaged.
    """
    path = run_folders.make_path(f"{folder}/{FILE}")
    if not path.exists():
        return None
    try:
        document = json.loads(path.read_text())
        record = ModelRecord(**document)
        if not isinstance(record.experiment, str) or not isinstance(record.hyper_parameters, dict):
            raise TypeError(document)
    except (ValueError, TypeError) as error:
        raise UserError(
            f"the record of the model cannot be read ({type(error).__name__})",
            str(path),
            "restore the file, or remove it and give --config and --fdl",
            kind=DAMAGED,
        ) from None
    return record
