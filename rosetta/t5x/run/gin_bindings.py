"""The gin bindings that the settings of a run become."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rosetta.t5x.run import gin_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rosetta.t5x.run.settings import Settings


def sizes(given: Settings, bound: dict[str, str]) -> dict[str, object]:
    """Return the bindings for batch, lengths and layout."""
    bindings: dict[str, object] = {
        "BATCH_SIZE": given.batch,
        "EVAL_BATCH_SIZE": given.batch,
        "trainer.Trainer.num_microbatches": given.microbatches,
        "NUM_PARTITIONS": given.tensor_parallel,
    }
    return {**bindings, **lengths(given.lengths, bound)}


def lengths(given: Mapping[str, int], bound: dict[str, str]) -> dict[str, object]:
    """Return the binding for the lengths that are given, the others staying the gin files'."""
    usual = gin_text.value(bound, "TASK_FEATURE_LENGTHS")
    return (
        {"TASK_FEATURE_LENGTHS": {**(usual if isinstance(usual, dict) else {}), **given}}
        if given
        else {}
    )
