"""The tensors of a GPT: their names in the files of Hugging Face, and the arrays of Pax.

Each tensor is made of one array. Two layouts of Hugging Face have the networks of Pax's GPT: GPT-2,
with a table of learned positions, and GPT-NeoX, with rotary positions. They differ in the names, in
the order of the queries, keys and values in one tensor, and in whether a matrix is [inputs,
outputs].

Praxis adds 1 to the scale of a norm, so an array has the tensor minus 1.

Sources: transformers, models/{gpt2,gpt_neox}/modeling_*.py; Praxis, layers/{attentions,
normalizations}.py.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from rosetta.core.errors import DIFFERS, UNSUPPORTED, UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Array = Any  # a NumPy array, which may be of ml_dtypes.bfloat16

GPT2, GPT_NEOX = "gpt2", "gpt_neox"  # the layouts, and `model_type` of config.json
# Limits far above any GPT. With them, a list of all tensors fits into memory.
_MAX_LAYERS = 10_000
_MAX_SIZE = 1 << 31
_SIZES = ("layers", "dim", "heads", "hidden", "vocab")
POSITIONS_ARRAY, SEPARATE_EMBEDDING_ARRAY = "position_emb.emb_var", "embedding_lookup.emb_var"
OUTPUT_ARRAY = "softmax.logits_ffn.linear.w"


@dataclass(frozen=True)
class Architecture:
    """What decides the shapes of a GPT's tensors, and what the network computes from them.

    Attributes:
        layout: GPT2 or GPT_NEOX.
        layers: The number of layers.
        dim: The width of the model.
        heads: The number of heads, which divides the width.
        hidden: The width of the MLP.
        vocab: The rows of the embedding.
        positions: The rows of the table of positions (GPT2), or the longest text of the training
            (GPT_NEOX).
        activation: The activation of the MLP, by Pax's name.
        epsilon: The epsilon of the layer norms.
        is_tied: Whether the embedding is also the output layer.
        rotary_fraction: The share of a head's features that rotary positions turn (GPT_NEOX).
        rotary_base: The base of the wavelengths (GPT_NEOX).
        parallel_residual: Whether attention and MLP read the same input (GPT_NEOX).
    """

    layout: str
    layers: int
    dim: int
    heads: int
    hidden: int
    vocab: int
    positions: int
    activation: str
    epsilon: float
    is_tied: bool
    rotary_fraction: float = 1.0
    rotary_base: float = 10_000.0
    parallel_residual: bool = False

    @property
    def head_dim(self) -> int:
        """The features of a head."""
        return self.dim // self.heads

    def check(self, where: str) -> Architecture:
        """Check that a GPT can have these sizes, and return the architecture.

        Args:
            where: The file or folder that states the sizes, for the error.

        Raises:
            UserError: A size is not a whole number or out of bounds, or the heads do not fit.
        """
        for name in (*_SIZES, "positions"):
            value = getattr(self, name)
            maximum = _MAX_LAYERS if name == "layers" else _MAX_SIZE
            if type(value) is not int or not 1 <= value <= maximum:
                raise self._make_error(f"{name} is {str(value)[:80]}", where, name)
        if self.dim % self.heads:
            raise self._make_error(
                f"{self.heads} heads do not divide a width of {self.dim}", where, "heads"
            )
        if self.layout == GPT_NEOX:
            rotary_dim = int(self.head_dim * self.rotary_fraction)
            if not 0 < self.rotary_fraction <= 1 or rotary_dim < 2 or rotary_dim % 2:
                raise self._make_error(
                    f"rotary positions turn {self.rotary_fraction:g} of the {self.head_dim} "
                    "features of a head, which is not an even number",
                    where,
                    "rotary_fraction",
                )
        return self

    def _make_error(self, what: str, where: str, value: str) -> UserError:
        """Return the error for a value that no GPT has."""
        return UserError(
            f"not valid for a GPT: {what}",
            where,
            "choose the folder of a complete GPT-2 or GPT-NeoX",
            kind=UNSUPPORTED,
            value=value,
        )

    def make_fdl_settings(self) -> dict[str, Any]:
        """Return the hyper-parameters of Pax's GPT for this model."""
        settings: dict[str, Any] = {
            "NUM_LAYERS": self.layers,
            "MODEL_DIMS": self.dim,
            "NUM_HEADS": self.heads,
            "DIMS_PER_HEAD": self.head_dim,
            "HIDDEN_DIMS": self.hidden,
            "VOCAB_SIZE": self.vocab,
            "MAX_SEQ_LEN": self.positions,
            "ACTIVATION_CLS": self.activation,
            "LAYERNORM_EPSILON": self.epsilon,
            "SEPARATE_EMBEDDING": not self.is_tied,
        }
        if self.layout == GPT_NEOX:
            settings |= {
                "ROTARY_FRACTION": self.rotary_fraction,
                "ROPE_THETA": self.rotary_base,
                "PARALLEL_RESIDUAL": self.parallel_residual,
            }
        return settings

    def as_document(self) -> dict[str, Any]:
        """Return the fields for a JSON document."""
        return asdict(self)


@dataclass(frozen=True)
class _Form:
    """How the values of a tensor and of its array are arranged.

    Both functions take the values and the architecture.

    Attributes:
        to_hf: Make the tensor of the array.
        to_pax: Make the array of the tensor.
    """

    to_hf: Callable[[Array, Architecture], Array]
    to_pax: Callable[[Array, Architecture], Array]


def _split_heads(architecture: Architecture) -> tuple[int, int]:
    """Return the shape into which the width of a model is split."""
    return architecture.heads, architecture.head_dim


_SAME = _Form(lambda array, _: array, lambda tensor, _: tensor)
_TRANSPOSED = _Form(lambda array, _: array.T, lambda tensor, _: tensor.T)
_NORM_SCALE = _Form(
    lambda array, _: array + array.dtype.type(1), lambda tensor, _: tensor - tensor.dtype.type(1)
)
# Arrays of queries, keys and values are [3, inputs, heads, head_dim], and their biases [3, heads,
# head_dim]. GPT-2 has all queries before all keys, and GPT-NeoX has them head by head.
_GPT2_QKV = _Form(
    lambda array, _: array.swapaxes(0, 1).reshape(array.shape[1], -1),
    lambda tensor, architecture: tensor.reshape(
        architecture.dim, 3, *_split_heads(architecture)
    ).swapaxes(0, 1),
)
_GPT2_QKV_BIAS = _Form(
    lambda array, _: array.reshape(-1),
    lambda tensor, architecture: tensor.reshape(3, *_split_heads(architecture)),
)
_NEOX_QKV = _Form(
    lambda array, _: array.transpose(2, 0, 3, 1).reshape(-1, array.shape[1]),
    lambda tensor, architecture: tensor.reshape(
        architecture.heads, 3, architecture.head_dim, architecture.dim
    ).transpose(1, 3, 0, 2),
)
_NEOX_QKV_BIAS = _Form(
    lambda array, _: array.swapaxes(0, 1).reshape(-1),
    lambda tensor, architecture: tensor.reshape(
        architecture.heads, 3, architecture.head_dim
    ).swapaxes(0, 1),
)
# The array of the output of attention is [outputs, heads, head_dim].
_GPT2_POST = _Form(
    lambda array, _: array.reshape(len(array), -1).T,
    lambda tensor, architecture: tensor.T.reshape(architecture.dim, *_split_heads(architecture)),
)
_NEOX_POST = _Form(
    lambda array, _: array.reshape(len(array), -1),
    lambda tensor, architecture: tensor.reshape(architecture.dim, *_split_heads(architecture)),
)


@dataclass(frozen=True)
class Tensor:
    """A tensor of Hugging Face's files, and its array.

    Attributes:
        name: The name of the tensor.
        shape: The shape of the tensor.
        array: The path of the array: within the layer, or in the model.
        layer: The number of the layer; None outside the layers.
        form: How the values are arranged.
    """

    name: str
    shape: tuple[int, ...]
    array: str
    layer: int | None
    form: _Form

    @property
    def is_norm_scale(self) -> bool:
        """Whether the tensor is the scale of a norm."""
        return self.form is _NORM_SCALE

    def find_array_shape(self, architecture: Architecture) -> tuple[int, ...]:
        """Return the shape of the array, of stacked layers that of one layer."""
        # This tensor takes no memory: its strides are zero.
        empty = np.broadcast_to(np.float32(0), self.shape)
        return tuple(self.form.to_pax(empty, architecture).shape)


def _list_layer_tensors(
    architecture: Architecture,
) -> list[tuple[str, str, tuple[int, ...], _Form]]:
    """Return name within the layer, path of the array, shape and form of a layer's tensors."""
    dim, hidden = architecture.dim, architecture.hidden
    if architecture.layout == GPT2:
        qkv, qkv_bias, post, matrix = _GPT2_QKV, _GPT2_QKV_BIAS, _GPT2_POST, _SAME
        names = ("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj")
    else:
        qkv, qkv_bias, post, matrix = _NEOX_QKV, _NEOX_QKV_BIAS, _NEOX_POST, _TRANSPOSED
        names = (
            "input_layernorm",
            "attention.query_key_value",
            "attention.dense",
            "post_attention_layernorm",
            "mlp.dense_h_to_4h",
            "mlp.dense_4h_to_h",
        )
    norm_1, attention, projection, norm_2, expansion, contraction = names

    def find_shape(inputs: int, outputs: int) -> tuple[int, int]:
        return (inputs, outputs) if architecture.layout == GPT2 else (outputs, inputs)

    return [
        (f"{norm_1}.weight", "layer_norm.scale", (dim,), _NORM_SCALE),
        (f"{norm_1}.bias", "layer_norm.bias", (dim,), _SAME),
        (f"{attention}.weight", "self_attention.combined_qkv.w", find_shape(dim, 3 * dim), qkv),
        (f"{attention}.bias", "self_attention.combined_qkv.b", (3 * dim,), qkv_bias),
        (f"{projection}.weight", "self_attention.post.w", find_shape(dim, dim), post),
        (f"{projection}.bias", "self_attention.post.b", (dim,), _SAME),
        (f"{norm_2}.weight", "ff_layer.layer_norm.scale", (dim,), _NORM_SCALE),
        (f"{norm_2}.bias", "ff_layer.layer_norm.bias", (dim,), _SAME),
        (
            f"{expansion}.weight",
            "ff_layer.ffn_layer1.linear.w",
            find_shape(dim, hidden),
            matrix,
        ),
        (f"{expansion}.bias", "ff_layer.ffn_layer1.bias.b", (hidden,), _SAME),
        (
            f"{contraction}.weight",
            "ff_layer.ffn_layer2.linear.w",
            find_shape(hidden, dim),
            matrix,
        ),
        (f"{contraction}.bias", "ff_layer.ffn_layer2.bias.b", (dim,), _SAME),
    ]


def list_tensors(architecture: Architecture) -> list[Tensor]:
    """Return the tensors of a GPT, in the order of a conversion."""
    dim, vocab = architecture.dim, architecture.vocab
    is_gpt2 = architecture.layout == GPT2
    prefix, layer_prefix = ("transformer", "h") if is_gpt2 else ("gpt_neox", "layers")
    embedding = f"{prefix}.wte.weight" if is_gpt2 else f"{prefix}.embed_in.weight"
    output = "lm_head.weight" if is_gpt2 else "embed_out.weight"
    final_norm = f"{prefix}.ln_f" if is_gpt2 else f"{prefix}.final_layer_norm"
    if architecture.is_tied:
        tensors = [Tensor(embedding, (vocab, dim), OUTPUT_ARRAY, None, _TRANSPOSED)]
    else:
        tensors = [Tensor(embedding, (vocab, dim), SEPARATE_EMBEDDING_ARRAY, None, _SAME)]
    if is_gpt2:
        shape = (architecture.positions, dim)
        tensors.append(Tensor(f"{prefix}.wpe.weight", shape, POSITIONS_ARRAY, None, _SAME))
    for layer in range(architecture.layers):
        tensors += [
            Tensor(f"{prefix}.{layer_prefix}.{layer}.{name}", shape, array, layer, form)
            for name, array, shape, form in _list_layer_tensors(architecture)
        ]
    tensors += [
        Tensor(f"{final_norm}.weight", (dim,), "final_ln.scale", None, _NORM_SCALE),
        Tensor(f"{final_norm}.bias", (dim,), "final_ln.bias", None, _SAME),
    ]
    if not architecture.is_tied:
        tensors.append(Tensor(output, (vocab, dim), OUTPUT_ARRAY, None, _TRANSPOSED))
    return tensors


def count_parameters(architecture: Architecture) -> int:
    """Return the number of parameters of the model."""
    return sum(math.prod(tensor.shape) for tensor in list_tensors(architecture))


class Model(Protocol):
    """A GPT to convert.

    Attributes:
        architecture: The architecture.
        dropped: What the conversion leaves out.
    """

    architecture: Architecture
    dropped: list[str]

    def read(self, tensor: Tensor) -> Array:
        """Return the values of a tensor as Hugging Face's files have them, in the stored type."""


def check_no_leftover(names: Iterable[str], where: str) -> None:
    """Check that a conversion uses all weights, because without one it would make another model.

    Args:
        names: The names of the weights that it does not use.
        where: The folder that contains them, for the error.

    Raises:
        UserError: There is such a weight.
    """
    leftover = sorted(names)
    if leftover:
        more = f" and {len(leftover) - 1} more" if len(leftover) > 1 else ""
        raise UserError(
            f"a GPT with this configuration does not have {leftover[0]!r}{more}",
            where,
            "convert a plain GPT, with the number of layers that its configuration says",
            kind=UNSUPPORTED,
            value=leftover[0],
        )


def make_shape_error(name: str, shape: tuple[int, ...], expected: Any, where: str) -> UserError:
    """Return the error for a tensor with another shape than expected."""
    return UserError(
        f"{name} has the shape {list(shape)}, and {list(expected)} is expected",
        where,
        "use a complete copy of the model",
        kind=DIFFERS,
        value=name,
    )
