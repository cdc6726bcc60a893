"""The gin files that are shipped, as rosetta reads them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rosetta.t5x.run import gin_files, gin_reader

if TYPE_CHECKING:
    from collections.abc import Mapping

OVERLAY = gin_files.ROOT / "overlay" / "t5x"
EXAMPLES = OVERLAY / gin_files.EXAMPLE_FOLDER


def read_configuration(
    *names: str, values: Mapping[str, object] | None = None
) -> gin_reader.Configuration:
    """Return what files of rosetta/t5x/gin bind, and --gin words after them.

    Args:
      names: as "t5_1_1/small".
      values: of the words, by macro or parameter.
    """
    files = [gin_files.ROOT / gin_files.GIN_FOLDER / f"{name}.gin" for name in names]
    return gin_reader.read_configuration(files, [Path.cwd(), gin_files.ROOT]).bind(values or {})


def read_pretraining(
    values: Mapping[str, object] | None = None, size: str = "small"
) -> gin_reader.Configuration:
    """Return what a T5 1.1's pretraining on the Pile binds; see `read`."""
    return read_configuration(f"t5_1_1/{size}", "runs/pretrain_pile", values=values)


def read_finetuning(values: Mapping[str, object] | None = None) -> gin_reader.Configuration:
    """Return what a small T5 1.1's finetuning on MNLI binds; see `read`."""
    return read_configuration("t5_1_1/small", "runs/finetune_mnli2", values=values)
