"""The gin bindings that the settings of a run become."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rosetta.core.errors import MISSING, UserError
from rosetta.t5x.run import settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rosetta.t5x.run.gin_reader import Configuration
    from rosetta.t5x.run.settings import Settings


def make_size_bindings(given: Settings, configuration: Configuration) -> dict[str, object]:
    """Return the bindings for batch, lengths and layout."""
    bindings: dict[str, object] = {
        "BATCH_SIZE": given.batch,
        "EVAL_BATCH_SIZE": given.batch,
        "trainer.Trainer.num_microbatches": given.microbatches,
        "NUM_PARTITIONS": given.tensor_parallel,
    }
    return {**bindings, **make_length_bindings(given.lengths, configuration)}


def make_length_bindings(
    given: Mapping[str, int], configuration: Configuration
) -> dict[str, object]:
    """Return the binding for the lengths that are given, the others staying the gin files'.

    Raises:
      UserError: a length is not given, and the gin files' is not known here.
    """
    if not given:
        return {}
    usual = configuration.value("TASK_FEATURE_LENGTHS")
    if isinstance(usual, dict):
        return {"TASK_FEATURE_LENGTHS": {**usual, **given}}
    for name, feature in settings.LENGTH_VARIABLES.items():
        if feature not in given:
            raise UserError(
                f"the gin files leave open the length of {feature}",
                name,
                f"give {' and '.join(settings.LENGTH_VARIABLES)}, or neither",
                kind=MISSING,
            )
    return {"TASK_FEATURE_LENGTHS": dict(given)}
