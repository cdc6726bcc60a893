"""Read and write a GPT as a checkpoint of Paxml; see `rosetta.convert.pax_checkpoint`."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from rosetta.convert import pax_checkpoint
from rosetta.convert.gpt import (
    GPT2,
    GPT_NEOX,
    OUTPUT_ARRAY,
    POSITIONS_ARRAY,
    SEPARATE_EMBEDDING_ARRAY,
    Architecture,
    Tensor,
    check_no_leftover,
    list_tensors,
)
from rosetta.core.errors import CONFLICT, MISSING, UNSUPPORTED, UserError
from rosetta.pax.run import model_record

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_EXPERIMENT = "rosetta.pax.configs.Pile126M"  # whose class computes all of these models
_QKV_ARRAY = "self_attention.combined_qkv.w"
_COMPLETE_CHECKPOINT = "name a complete checkpoint of a GPT, saved without OCDBT"


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a checkpoint does not have of a GPT.

    Attributes:
        activation: The activation of the MLP, by Pax's name.
        epsilon: The epsilon of the layer norms.
        rotary_fraction: The share of a head's features that rotary positions turn, or None.
        rotary_base: The base of the wavelengths.
        parallel_residual: Whether attention and MLP read the same input.
        positions: The longest text of a model with rotary positions.
    """

    activation: str
    epsilon: float
    rotary_fraction: float | None
    rotary_base: float
    parallel_residual: bool
    positions: int


class PaxGPT:
    """A GPT in a checkpoint of Paxml; see `rosetta.convert.gpt.Model`.

    Attributes:
        architecture: The architecture.
        dropped: What a conversion leaves out.
        adapted: The number of arrays that have a LoRA adapter, which is added to them.
        name: The name of the checkpoint.
    """

    def __init__(self, path: Path, settings: Settings) -> None:
        """Read everything but the values of the arrays.

        Args:
            path: The folder of a run or of a checkpoint.
            settings: What checkpoints do not have.

        Raises:
            UserError: The folder has no checkpoint of a GPT that Hugging Face's layouts have.
        """
        self._checkpoint = pax_checkpoint.Checkpoint(path)
        self._where = self._checkpoint.where
        self.name = self._checkpoint.folder.parent.name
        self.dropped = self._checkpoint.describe_dropped()
        self.adapted = self._checkpoint.adapted
        self._check_kind()
        self.architecture = self._find_architecture(settings).check(self._where)
        tensors = list_tensors(self.architecture)
        for tensor in tensors:
            shape = tensor.find_array_shape(self.architecture)
            self._checkpoint.check_array(tensor.array, tensor.layer, shape)
        unused = self._checkpoint.list_unused(
            [tensor.array for tensor in tensors if tensor.layer is None],
            [tensor.array for tensor in tensors if tensor.layer == 0],
            self.architecture.layers,
        )
        check_no_leftover(unused, self._where)

    def _check_kind(self) -> None:
        """Raise UserError if the arrays show a network that Hugging Face's layouts do not have."""
        find_shape = self._checkpoint.find_shape
        refused = {
            "self_attention.query.w": ("COMBINE_QKV=False", "COMBINE_QKV=True"),
            "ff_layer.ffn_layer1_gate.linear.w": ("USE_GATED_ACTIVATION=True", "False"),
            "self_attention.relative_bias.wrb": ("RELATIVE_BIAS=True", "False"),
            "self_attention.per_dim_scale.per_dim_scale": ("a scale for each feature", "none"),
        }
        for path, (setting, expected) in refused.items():
            if find_shape(path):
                raise self._make_setting_error(path, f"{setting}, and {expected}")
        if find_shape(_QKV_ARRAY) and not find_shape("self_attention.combined_qkv.b"):
            raise self._make_setting_error("USE_BIAS", "USE_BIAS=False, and USE_BIAS=True")

    def _make_setting_error(self, value: str, what: str) -> UserError:
        """Return the error for a setting that Hugging Face's layouts do not have."""
        return UserError(
            f"the model was trained with {what} is what GPT-2 and GPT-NeoX have",
            self._where,
            "convert a GPT of rosetta.pax.gpt without this change",
            kind=UNSUPPORTED,
            value=value,
        )

    def _find_architecture(self, settings: Settings) -> Architecture:
        """Return the architecture, from the shapes of the arrays and the settings.

        Raises:
            UserError: The arrays are not those of a GPT, or contradict the settings.
        """
        shapes, find_shape = self._checkpoint.shapes, self._checkpoint.find_shape
        try:
            dim, vocab = shapes[OUTPUT_ARRAY]
            _, _, heads, _ = find_shape(_QKV_ARRAY)
            _, hidden = find_shape("ff_layer.ffn_layer1.linear.w")
        except (KeyError, ValueError):
            raise UserError(
                "not a checkpoint of a GPT of Pax's",
                self._where,
                _COMPLETE_CHECKPOINT,
                kind=UNSUPPORTED,
            ) from None
        architecture = Architecture(
            layout=GPT2,
            layers=self._checkpoint.layer_count,
            dim=dim,
            heads=heads,
            hidden=hidden,
            vocab=vocab,
            positions=settings.positions,
            activation=settings.activation,
            epsilon=settings.epsilon,
            is_tied=SEPARATE_EMBEDDING_ARRAY not in shapes,
        )
        fraction = settings.rotary_fraction
        if POSITIONS_ARRAY in shapes:
            if fraction is not None or settings.parallel_residual:
                raise UserError(
                    "the checkpoint has a table of learned positions, and GPT-NeoX has none",
                    self._where,
                    "leave out --rotary-fraction and --parallel-residual",
                    kind=CONFLICT,
                    value=POSITIONS_ARRAY,
                )
            return dataclasses.replace(architecture, positions=shapes[POSITIONS_ARRAY][0])
        if fraction is None:
            raise UserError(
                "the checkpoint has no table of learned positions",
                self._where,
                "give --rotary-fraction with the run's ROTARY_FRACTION; without it the positions "
                "are sinusoids, which GPT-2 and GPT-NeoX do not have",
                kind=MISSING,
                value=POSITIONS_ARRAY,
            )
        return dataclasses.replace(
            architecture,
            layout=GPT_NEOX,
            rotary_fraction=fraction,
            rotary_base=settings.rotary_base,
            parallel_residual=settings.parallel_residual,
        )

    def read(self, tensor: Tensor) -> Any:
        """Return the values of a tensor as Hugging Face's files have them.

        Raises:
            UserError: The array is damaged.
        """
        array = self._checkpoint.read(tensor.array, tensor.layer)
        return tensor.form.to_hf(array, self.architecture)


def write_checkpoint(
    folder: Path, architecture: Architecture, tensors: Iterable[Any], *, repeated: bool
) -> None:
    """Write a checkpoint and the record of its model; see `rosetta.convert.pax_checkpoint.Writer`.

    Args:
        folder: The folder to write into.
        architecture: The architecture.
        tensors: The values of each tensor, in the order of `list_tensors` and in float32.
        repeated: Stack the layers, as USE_REPEATED_LAYER needs them.
    """
    listed = list_tensors(architecture)
    shapes = {tensor.array: tensor.find_array_shape(architecture) for tensor in listed}
    writer = pax_checkpoint.Writer(folder, shapes, architecture.layers, repeated=repeated)
    for tensor, values in zip(listed, tensors, strict=True):
        array = tensor.form.to_pax(values, architecture)
        writer.write(tensor.array, tensor.layer, array)
    writer.finish()
    record = model_record.ModelRecord(_EXPERIMENT, architecture.make_fdl_settings())
    model_record.write_record(str(folder), record)
