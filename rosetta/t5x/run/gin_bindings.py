"""The gin bindings for the settings of a run of T5X's scripts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rosetta.core.errors import CONFLICT, MISSING, UserError
from rosetta.t5x.run import network_fields, settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rosetta.t5x.run.gin_reader import Configuration
    from rosetta.t5x.run.settings import Settings


def make_size_bindings(run_settings: Settings, configuration: Configuration) -> dict[str, object]:
    """Return the bindings for the batch, the lengths and the layout.

    Args:
      run_settings: the settings of the run.
      configuration: the run's gin files.

    Raises:
      UserError: only one of two lengths is set, and the gin files do not give the other.
    """
    bindings: dict[str, object] = {
        "BATCH_SIZE": run_settings.batch,
        "EVAL_BATCH_SIZE": run_settings.batch,
        "trainer.Trainer.num_microbatches": run_settings.microbatches,
        "NUM_PARTITIONS": run_settings.tensor_parallel,
    }
    return {**bindings, **make_length_bindings(run_settings.lengths, configuration)}


def make_length_bindings(
    lengths: Mapping[str, int], configuration: Configuration
) -> dict[str, object]:
    """Return the binding for the lengths that are set; the gin files' stay for the others.

    Args:
      lengths: the lengths that are set, in tokens, by feature.
      configuration: the run's gin files.

    Raises:
      UserError: a length is not set, and the gin files do not give it.
    """
    if not lengths:
        return {}
    file_lengths = configuration.value("TASK_FEATURE_LENGTHS")
    if network_fields.find_network(configuration) == network_fields.ENCODER_ONLY:
        return _make_encoder_lengths(lengths, file_lengths)
    if isinstance(file_lengths, dict):
        return {"TASK_FEATURE_LENGTHS": {**file_lengths, **lengths}}
    for name, feature in settings.LENGTH_VARIABLES.items():
        if feature not in lengths:
            raise UserError(
                f"the gin files do not set the length of {feature}",
                name,
                f"give {' and '.join(settings.LENGTH_VARIABLES)}, or neither",
                kind=MISSING,
            )
    return {"TASK_FEATURE_LENGTHS": dict(lengths)}


def _make_encoder_lengths(lengths: Mapping[str, int], file_lengths: object) -> dict[str, object]:
    """Return the binding for the length of an encoder's rows. Its targets follow from them.

    Raises:
      UserError: a length of targets is set.
    """
    if "targets" in lengths:
        raise UserError(
            "the targets of an encoder are as long as its inputs, or one label",
            f"DEC_SL={lengths['targets']}",
            "leave it out, and set ENC_SL",
            kind=CONFLICT,
            value=lengths["targets"],
        )
    is_label = isinstance(file_lengths, dict) and file_lengths.get("targets") == 1
    targets = 1 if is_label else lengths["inputs"]
    return {"TASK_FEATURE_LENGTHS": {**lengths, "targets": targets}}
