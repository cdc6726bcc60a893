"""LLaMA's weights: what tensors a model has, by Meta's names, and how Pax stores them.

Every layout is read as, and written from, Meta's tensors: matrices [outputs, inputs], rotary pairs
side by side (2i, 2i+1). Pax rotates the same pairs, so its weights are these transposed and split
by heads; Hugging Face's rotate halves, which permutes the rows of q and k.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from rosetta.convert.config_fields import ROTARY_BASE
from rosetta.core.errors import DIFFERS, INVALID, UNSUPPORTED, UserError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

Array = Any  # a NumPy array, of bfloat16 too

EMBEDDING, NORM, OUTPUT = "tok_embeddings", "norm", "output"
_MOST_LAYERS, _LARGEST_SIZE = (
    10_000,
    1 << 31,
)  # far above any LLaMA, and so small that a table of all tensors is made at once
_QKV = ("attention.wq", "attention.wk", "attention.wv")


@dataclass(frozen=True)
class ModelShape:
    """A model's sizes.

    Attributes:
      layers: how many.
      dim: of the residual stream.
      heads, kv_heads: of queries, and of keys and values.
      head_dim: of each head.
      hidden: of the gated feed-forward layer.
      vocab: ids.
      epsilon: of the RMS norms.
    """

    layers: int
    dim: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    vocab: int
    epsilon: float = 1e-5

    def make_fdl_settings(self) -> dict[str, Any]:
        """Return the experiment's hyper-parameters that make this model, for `--fdl.NAME=VALUE`."""
        grouped = (
            {"USE_MQA": True, "NUM_KV_HEADS": self.kv_heads}
            if self.kv_heads != self.heads
            else {"USE_MQA": False}
        )
        return {
            "NUM_LAYERS": self.layers,
            "MODEL_DIMS": self.dim,
            "NUM_HEADS": self.heads,
            "DIMS_PER_HEAD": self.head_dim,
            "HIDDEN_DIMS": self.hidden,
            "VOCAB_SIZE": self.vocab,
            "RMS_NORM_EPSILON": self.epsilon,
            **grouped,
        }

    def check(self, where: str) -> ModelShape:
        """Return itself; UserError where the sizes make no model."""
        sizes = {name: value for name, value in vars(self).items() if name != "epsilon"}
        wrong = [
            f"{name} {value!r}"
            for name, value in sizes.items()
            if isinstance(value, bool) or not isinstance(value, int) or value < 1
        ]
        if wrong:
            raise UserError(
                f"no LLaMA has {', '.join(wrong)}", where, "name a LLaMA's folder", kind=UNSUPPORTED
            )
        for name, value in sizes.items():
            if value > (_MOST_LAYERS if name == "layers" else _LARGEST_SIZE):
                raise UserError(
                    f"no LLaMA has {name} {value}",
                    where,
                    "name a LLaMA's folder",
                    kind=UNSUPPORTED,
                    value=name,
                )
        if not (math.isfinite(self.epsilon) and 0 < self.epsilon <= 1):
            raise UserError(
                (
                    f"the epsilon of the norms is {self.epsilon}, and a number above 0 and at "
                    "most 1 is expected"
                ),
                where,
                "download or copy it again",
                kind=INVALID,
            )
        if self.heads % self.kv_heads or self.head_dim % 2:
            raise UserError(
                (
                    f"{self.heads} heads, {self.kv_heads} for keys, of {self.head_dim} each, make "
                    "no LLaMA"
                ),
                where,
                "name a LLaMA's folder",
                kind=UNSUPPORTED,
            )
        return self


def list_layer_sizes(shape: ModelShape) -> dict[str, tuple[int, ...]]:
    """Return the sizes of one layer's tensors, by Meta's names within a layer."""
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    return {
        "attention.wq": (queries, shape.dim),
        "attention.wk": (keys, shape.dim),
        "attention.wv": (keys, shape.dim),
        "attention.wo": (shape.dim, queries),
        "feed_forward.w1": (shape.hidden, shape.dim),
        "feed_forward.w2": (shape.dim, shape.hidden),
        "feed_forward.w3": (shape.hidden, shape.dim),
        "attention_norm": (shape.dim,),
        "ffn_norm": (shape.dim,),
    }


def list_tensor_sizes(shape: ModelShape) -> dict[str, tuple[int, ...]]:
    """Return the size of every tensor, by Meta's names without `.weight`."""
    found: dict[str, tuple[int, ...]] = {EMBEDDING: (shape.vocab, shape.dim)}
    for layer in range(shape.layers):
        found |= {f"layers.{layer}.{name}": size for name, size in list_layer_sizes(shape).items()}
    return found | {NORM: (shape.dim,), OUTPUT: (shape.vocab, shape.dim)}


def count_parameters(shape: ModelShape) -> int:
    """Return the number of parameters."""
    return sum(math.prod(size) for size in list_tensor_sizes(shape).values())


# What Pax holds, by its dotted path, and of which of Meta's tensors it is made.
TOP_ARRAYS = {
    "embedding_lookup.emb_var": (EMBEDDING,),
    "final_ln.scale": (NORM,),
    "softmax.logits_ffn.linear.w": (OUTPUT,),
}


def list_layer_arrays(shape: ModelShape) -> dict[str, tuple[str, ...]]:
    """Return what Pax stores for one layer: its path there, and the tensors it holds."""
    qkv: dict[str, tuple[str, ...]] = {"self_attention.combined_qkv.w": _QKV}
    if shape.kv_heads != shape.heads:
        qkv = {
            f"self_attention.{theirs}.w": (ours,)
            for theirs, ours in zip(("query", "key", "value"), _QKV, strict=True)
        }
    return qkv | {
        "self_attention.post.w": ("attention.wo",),
        "ff_layer.ffn_layer1_gate.linear.w": ("feed_forward.w1",),
        "ff_layer.ffn_layer1.linear.w": ("feed_forward.w3",),
        "ff_layer.ffn_layer2.linear.w": ("feed_forward.w2",),
        "layer_norm.scale": ("attention_norm",),
        "ff_layer.layer_norm.scale": ("ffn_norm",),
    }


def _list_head_dimensions(path: str, shape: ModelShape) -> tuple[int, ...]:
    """Return the dimensions of the heads in a projection of q, k or v; Pax has none for a single
    one of keys.
    """
    number = shape.kv_heads if path.endswith(("key.w", "value.w")) else shape.heads
    return (shape.head_dim,) if number == 1 and number != shape.heads else (number, shape.head_dim)


def pack_array(path: str, tensors: Sequence[Array], shape: ModelShape) -> Array:
    """Return what Pax stores at a path (TOP's or `stored`'s) for these tensors."""
    if path.endswith("linear.w"):
        return tensors[0].T
    if path.endswith("post.w"):
        return tensors[0].reshape(shape.dim, shape.heads, shape.head_dim)
    if path.startswith("self_attention."):
        split = [
            tensor.T.reshape(shape.dim, *_list_head_dimensions(path, shape)) for tensor in tensors
        ]
        return np.stack(split) if path.endswith("combined_qkv.w") else split[0]
    return tensors[0]


def unpack_array(path: str, value: Array, shape: ModelShape) -> tuple[Array, ...]:
    """Undo `pack`."""
    if path.endswith("linear.w"):
        return (value.T,)
    if path.endswith("post.w"):
        return (value.reshape(shape.dim, -1),)
    if path.startswith("self_attention."):
        return tuple(
            each.reshape(shape.dim, -1).T
            for each in (value if path.endswith("combined_qkv.w") else (value,))
        )
    return (value,)


def list_array_sizes(shape: ModelShape) -> dict[str, tuple[int, ...]]:
    """Return the sizes of what Pax stores at TOP's paths and, for one layer, at `stored`'s."""
    of = {
        **list_tensor_sizes(ModelShape(1, *list(vars(shape).values())[1:])),
        **list_layer_sizes(shape),
    }
    made = {**TOP_ARRAYS, **list_layer_arrays(shape)}
    # Without memory: strides of zero.
    return {
        path: tuple(
            pack_array(
                path, [np.broadcast_to(np.float32(0), of[name]) for name in names], shape
            ).shape
        )
        for path, names in made.items()
    }


class Source(Protocol):
    """A model in one of the layouts. Sizes are known without reading a tensor."""

    shape: ModelShape

    def size(self, name: str) -> tuple[int, ...]:
        """Return the size of a tensor by Meta's name.

        UserError where the source does not have it.
        """

    def read(self, name: str) -> Array:
        """Return a tensor by Meta's name."""

    def check_unused(self) -> None:
        """Raise UserError where the source holds a tensor that is neither one of the model's nor
        known to be harmless.
        """


def check_tensors(source: Source, where: str) -> None:
    """Check that a source holds each tensor of its model, in the expected size, and no other. No
    tensor is read.

    Raises:
      UserError: it names the tensor.
    """
    for name, size in list_tensor_sizes(source.shape).items():
        held = source.size(name)
        if held != size:
            raise UserError(
                f"{name} is {list(held)}, where {list(size)} is expected",
                where,
                "use a whole copy of the model",
                kind=DIFFERS,
            )
    source.check_unused()


def check_no_leftover(leftover: Iterable[str], where: str) -> None:
    """Raise UserError where tensors are left that nothing uses: without them the result would be
    another model.
    """
    names = sorted(leftover)
    if names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        advice = (
            "merge adapters into the weights and convert a plain LLaMA or LLaMA-2, with the "
            "number of layers that its configuration says"
        )
        raise UserError(
            f"it holds {names[0]!r}{more}, which a LLaMA of its configuration does not have",
            where,
            advice,
            kind=UNSUPPORTED,
            value=names[0],
        )


def read_tensors(source: Source, where: str) -> Iterator[tuple[str, Array]]:
    """Yield every tensor by name; UserError where one has another size."""
    for name, size in list_tensor_sizes(source.shape).items():
        tensor = source.read(name)
        if tuple(tensor.shape) != size:
            raise UserError(
                f"{name} is {list(tensor.shape)}, where {list(size)} is expected",
                where,
                "use a whole copy of the model",
                kind=DIFFERS,
            )
        yield name, tensor


def compute_rotary_frequencies(head_dim: int) -> Array:
    """Return the frequencies of LLaMA-2's rotary embedding, which some checkpoints hold as a
    tensor, too.
    """
    return 1.0 / ROTARY_BASE ** (np.arange(0, head_dim, 2) / head_dim)


def check_rotary(held: Array, shape: ModelShape, name: str, where: str) -> None:
    """Raise UserError where stored rotary frequencies are others than LLaMA-2's.

    They may have been rounded to bfloat16.
    """
    expected = compute_rotary_frequencies(shape.head_dim)
    if held.shape != expected.shape or not np.allclose(
        held.astype(np.float64), expected, rtol=1e-2, atol=0
    ):
        raise UserError(
            f"{name} holds other rotary frequencies than LLaMA-2 has",
            where,
            "convert a LLaMA or LLaMA-2",
            kind=UNSUPPORTED,
            value=name,
        )
