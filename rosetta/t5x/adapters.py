"""The low-rank adapters of a run (LoRA): what its settings or its checkpoint say of them.

The gin files call make_lora and read_lora. rosetta.nn.lora has the adapters themselves.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from rosetta.core.errors import CONFLICT, DIFFERS, MISSING, UserError
from rosetta.core.variables import choices
from rosetta.nn import lora
from rosetta.t5x import pretrained
from rosetta.t5x.run import checkpoint_record
from rosetta.t5x.run.model_config import Lora

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rosetta.t5x.run.checkpoint_record import Record


def make_lora(
    rank: int | None, alpha: float | None = None, targets: str | Sequence[str] | None = None
) -> Lora | None:
    """Return the adapters that the settings of a run ask for; None for none.

    Args:
      rank: the rank; None or 0 for no adapters.
      alpha: the numerator of the scale alpha / rank; None for the rank.
      targets: the kernels with an adapter, words of choices.LORA_TARGETS; None for the default. A
        text has them separated by commas.

    Raises:
      UserError: a value is not valid, or there is no rank and one of the others is set.
    """
    if isinstance(targets, str):
        targets = targets.split(",")
    if not rank:
        for name, value in (("LORA_ALPHA", alpha), ("LORA_TARGETS", targets)):
            if value is not None:
                raise UserError(
                    "only adapters with a rank read it",
                    name,
                    f"set LORA_RANK, or leave {name} out",
                    kind=CONFLICT,
                    value=value,
                )
        return None
    return Lora(
        rank,
        float(rank if alpha is None else alpha),
        tuple(choices.LORA_DEFAULT_TARGETS if targets is None else targets),
    )


def read_lora(checkpoint: str | None) -> Lora | None:
    """Return the adapters of a checkpoint, by its record; None if it has none.

    Args:
      checkpoint: a checkpoint_N, or a folder of them, of which the newest counts.
    """
    record = checkpoint_record.read_record(pretrained.find_checkpoint(checkpoint))
    return parse_lora(record)


def parse_lora(record: Record | None) -> Lora | None:
    """Return the adapters that a checkpoint's record names; None for none."""
    return Lora(**record.lora) if record and record.lora else None


def describe_lora(config: Any) -> dict[str, Any] | None:
    """Return what a checkpoint's record says of the adapters of a network; None for none."""
    return dataclasses.asdict(config.lora) if config.lora else None


def _list_kernels(config: Lora | None) -> tuple[int, float, list[str]] | None:
    """Return the rank, the alpha and the kernels of adapters, however their targets are written."""
    if config is None:
        return None
    return config.rank, config.alpha, config.list_kernels()


def check_checkpoint(
    checkpoint: str, saved_names: Iterable[str], record: Record | None, config: Any, *, starts: bool
) -> None:
    """Check that the adapters of a checkpoint are those of the network.

    Args:
      checkpoint: a checkpoint_N.
      saved_names: the names of its arrays.
      record: its record.
      config: the network's configuration.
      starts: whether a run starts from the checkpoint. It may then add adapters.

    Raises:
      UserError: the adapters differ.
    """
    has_adapters = any(lora.is_adapter(name) for name in saved_names)
    saved = parse_lora(record)
    if _list_kernels(saved) == _list_kernels(config.lora) and has_adapters == (saved is not None):
        return
    if not has_adapters and starts:
        return
    wanted = config.lora.format_variables() if config.lora else "no LORA_RANK"
    if not has_adapters:
        raise UserError(
            f"the run began without LoRA adapters, and now has {wanted}",
            checkpoint,
            "leave LORA_RANK out to resume, or name another folder for a new run",
            kind=DIFFERS,
        )
    if saved is None:
        raise UserError(
            f"the checkpoint has LoRA adapters, and its {checkpoint_record.RECORD_FILE}, which "
            "says how to use them, is missing",
            checkpoint,
            "copy the file from the folder of the run that wrote the checkpoint",
            kind=MISSING,
        )
    raise UserError(
        f"the checkpoint has LoRA adapters ({saved.format_variables()}), and the run has {wanted}",
        checkpoint,
        "set these values to train the adapters further, or merge them: rosetta convert t5",
        kind=DIFFERS,
    )
