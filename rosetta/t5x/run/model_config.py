"""The hyper-parameters of a T5 network, and the switches that choose how it is computed."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

from rosetta.core.errors import CONFLICT, INVALID, MISSING, UNKNOWN, UserError
from rosetta.core.variables import choices
from rosetta.t5x.run import sparse_attention

RELATIVE_BIASES = ("stack", "layer")
FP8_MODES = ("off", "xla", "te")
ACTIVATIONS = (
    "linear",
    "relu",
    "gelu",
    "silu",
    "swish",
    "tanh",
    "sigmoid",
    "softplus",
    "elu",
    "leaky_relu",
    "gelu_exact",
)
NORMS = ("rms", "layer")
NORM_ORDERS = ("pre", "post")
POSITIONS = ("relative", "absolute", "rotary", "none")
HEADS = ("none", "mlm", "classification", "regression")
# The fields that only a network without a decoder reads, and T5's values of them.
ENCODER_FIELDS = {
    "use_biases": False,
    "norm": "rms",
    "norm_order": "pre",
    "positions": "relative",
    "token_types": 0,
    "head": "none",
    "sentence_head": False,
    "sparse_attention": None,
}
MINIMUMS = {
    "vocab_size": 1,
    "emb_dim": 1,
    "num_heads": 1,
    "head_dim": 1,
    "mlp_dim": 1,
    "num_encoder_layers": 0,
    "num_decoder_layers": 0,
    "loss_chunks": 0,
    "max_positions": 1,
    "token_types": 0,
    "classes": 0,
}


def is_whole_number(value: Any, least: int) -> bool:
    """Return whether a value is a whole number of at least `least`."""
    return hasattr(value, "__index__") and operator.index(value) >= least


# The kernels that each word of `Lora.targets` stands for.
_TARGET_KERNELS = {
    **{name: (name,) for name in ("query", "key", "value", "out", "wo")},
    "wi": ("wi", "wi_0", "wi_1"),
    "attention": ("query", "key", "value", "out"),
    "mlp": ("wi", "wi_0", "wi_1", "wo"),
}
_TARGET_KERNELS["all"] = (*_TARGET_KERNELS["attention"], *_TARGET_KERNELS["mlp"])


@dataclass(frozen=True)
class Lora:
    """The low-rank adapters of a network (see rosetta.nn.lora).

    Attributes:
      rank: the narrow dimension of each adapter.
      alpha: the numerator of the scale alpha / rank.
      targets: the kernels with an adapter, words of choices.LORA_TARGETS.

    Raises:
      UserError: a value is not valid.
    """

    rank: int
    alpha: float
    targets: tuple[str, ...] = choices.LORA_DEFAULT_TARGETS

    def __post_init__(self) -> None:
        object.__setattr__(self, "targets", tuple(self.targets))
        if not is_whole_number(self.rank, 1):
            raise UserError(
                f"the rank is {self.rank!r}",
                "LORA_RANK",
                "give a whole number of at least 1",
                kind=INVALID,
                value=self.rank,
            )
        if not isinstance(self.alpha, (int, float)) or not self.alpha > 0:
            raise UserError(
                f"alpha is {self.alpha!r}",
                "LORA_ALPHA",
                "give a number above 0",
                kind=INVALID,
                value=self.alpha,
            )
        unknown = [name for name in self.targets if name not in choices.LORA_TARGETS]
        if unknown or not self.targets:
            raise UserError(
                f"there is no such target: {unknown[0]}" if unknown else "names no target",
                "LORA_TARGETS",
                f"choose one or more of: {', '.join(choices.LORA_TARGETS)}",
                kind=UNKNOWN,
                value=unknown[0] if unknown else None,
            )

    def has_target(self, kernel: str) -> bool:
        """Return whether a kernel has an adapter.

        Args:
          kernel: the name of the kernel's module, for example query or wi_0.
        """
        return kernel in self.list_kernels()

    def list_kernels(self) -> list[str]:
        """Return the names of the modules whose kernels have an adapter, each once and sorted."""
        return sorted({kernel for target in self.targets for kernel in _TARGET_KERNELS[target]})

    def format_variables(self) -> str:
        """Return the variables that set these values: LORA_RANK=8 LORA_ALPHA=16 ..."""
        alpha, targets = f"{self.alpha:g}", ",".join(self.targets)
        return f"LORA_RANK={self.rank} LORA_ALPHA={alpha} LORA_TARGETS={targets}"


@dataclass(frozen=True)
class T5Config:
    """The configuration of a T5 network: the fields of the model, then rosetta's switches.

    The fields of the model are those of T5X's T5Config, `relative_bias` and `lora`. The switches
    start with `fp8`. No switch changes the tree of parameters, or the model's results beyond
    rounding. FP8 rounds coarsely. docs/reference/t5x-switches.md has a table of the effects.

    Attributes:
      vocab_size: the rows of the embedding, which are also the tokens of the logits.
      dtype: the type of activations, and of kernels in matrix products, stored as its name.
        Parameters are float32.
      emb_dim: the features of activations.
      num_heads: the attention heads.
      num_encoder_layers: the layers of the encoder; a decoder-only network does not read it.
      num_decoder_layers: the layers of the decoder.
      head_dim: the features of a head.
      mlp_dim: the hidden features of the MLP.
      mlp_activations: names of flax.linen: one for T5 1.0, two for the gated units of T5 1.1.
        "linear" is the identity, and "gelu_exact" the GELU that is not approximated, as in BERT.
      dropout_rate: the dropout after the embedding and each block, of attention weights and in the
        MLP.
      logits_via_embedding: compute logits with the embedding's table (T5 1.0), not with a separate
        kernel (T5 1.1).
      float32_attention_logits: multiply queries and keys in float32.
      scale_attn_logits: divide attention logits by sqrt(head_dim). The value must be that of the
        checkpoint's training; public checkpoints need False.
      relative_bias: who owns a bias of relative positions: each "stack" of layers (T5, mT5, byT5),
        or each "layer" of a stack (umT5).
      lora: the low-rank adapters beside the kernels; None for none.
      use_biases: whether projections have biases, as in BERT. This field and those up to
        `sparse_attention` are read by EncoderOnly alone.
      norm: T5's "rms", or BERT's "layer" norm with a mean and a bias.
      norm_order: whether the norm comes before each block ("pre"), or after its residual ("post").
      norm_epsilon: what a norm adds to the variance.
      positions: T5's "relative" bias, an "absolute" table, "rotary" embeddings, or "none".
      max_positions: the rows of the table of absolute positions.
      token_types: the kinds of texts in a row that have vectors of their own; 0 for none.
      head: what is computed from the hidden vectors: "mlm" predicts the tokens, "classification" a
        class and "regression" a number of the row; "none" returns the vectors.
      sentence_head: whether "mlm" also predicts how the two texts of a row belong together.
      classes: the number of classes.
      sparse_attention: block-sparse attention, by the fields of SparseAttention; None for dense.
      fp8: "off", or who computes the projections in FP8: "xla" or "te" (Transformer Engine).
      fuse_qkv: use one matrix product for queries, keys and values, and for keys and values of the
        attention to the encoder.
      fuse_mlp: use one matrix product for both halves of a gated MLP; None for the value of
        `fuse_qkv`.
      fused_geglu: compute the gated unit of an MLP in FP8, with its casts, in one GPU kernel; None
        for wherever that is possible. A CPU interprets the kernel if this is True, for tests.
      fused_qkv_gradients: join the gradients of queries, keys and values in FP8, with their casts,
        in one GPU kernel; None for wherever that is possible and cuDNN computes the attention. A
        CPU interprets the kernel if this is True, for tests.
      transpose_batch_sequence: use activations [length, batch, features].
      attention: the implementation of attention: "xla", "cudnn" or "te".
      scan_layers: compile one layer, and loop over it.
      remat: what the backward pass computes again: "none", all but matrix products ("minimal"), or
        whole layers ("full").
      logits_dtype: the type of the factors of the last matrix product, which is summed in float32.
      loss_chunks: the slices of the vocabulary in which the loss is computed; 0 for one pass.

    Raises:
      UserError: a field is not valid.
    """

    vocab_size: int
    dtype: Any = "float32"
    emb_dim: int = 512
    num_heads: int = 8
    num_encoder_layers: int = 6
    num_decoder_layers: int = 6
    head_dim: int = 64
    mlp_dim: int = 2048
    mlp_activations: tuple[str, ...] = ("relu",)
    dropout_rate: float = 0.1
    logits_via_embedding: bool = False
    float32_attention_logits: bool = False
    scale_attn_logits: bool = False
    relative_bias: str = "stack"
    lora: Lora | None = None
    use_biases: bool = False
    norm: str = "rms"
    norm_order: str = "pre"
    norm_epsilon: float = 1e-6
    positions: str = "relative"
    max_positions: int = 512
    token_types: int = 0
    head: str = "none"
    sentence_head: bool = False
    classes: int = 0
    sparse_attention: Any = None
    fp8: str = "off"
    fuse_qkv: bool = False
    fuse_mlp: bool | None = None
    fused_geglu: bool | None = None
    fused_qkv_gradients: bool | None = None
    transpose_batch_sequence: bool = False
    attention: str = "xla"
    scan_layers: bool = False
    remat: str = "none"
    logits_dtype: str = "float32"
    loss_chunks: int = 0

    @property
    def joins_mlp_halves(self) -> bool:
        """Whether both halves of a gated MLP are one matrix product."""
        return self.fuse_qkv if self.fuse_mlp is None else self.fuse_mlp

    def __post_init__(self) -> None:
        self._normalize()
        for name, valid in (
            ("relative_bias", RELATIVE_BIASES),
            ("norm", NORMS),
            ("norm_order", NORM_ORDERS),
            ("positions", POSITIONS),
            ("head", HEADS),
            ("fp8", FP8_MODES),
            ("attention", choices.ATTENTION),
            ("remat", choices.REMAT),
            ("logits_dtype", choices.LOGITS_TYPES),
            ("dtype", choices.T5X_PRECISIONS),
        ):
            value = getattr(self, name)
            if value not in valid:
                raise _make_field_error(name, value, f"choose one of: {', '.join(valid)}")
        self._check_activations()
        if not isinstance(self.dropout_rate, (int, float)) or not 0 <= self.dropout_rate < 1:
            raise _make_field_error(
                "dropout_rate", self.dropout_rate, "give a share below 1, 0 for none"
            )
        for name, minimum in MINIMUMS.items():
            value = getattr(self, name)
            if not is_whole_number(value, minimum):
                remedy = f"give a whole number of at least {minimum}"
                raise _make_field_error(name, value, remedy)
        self._check_head()
        if self.loss_chunks > self.vocab_size:
            remedy = f"give 0 for none, or at most the vocabulary's {self.vocab_size}"
            raise _make_field_error("loss_chunks", self.loss_chunks, remedy)
        if "te" in (self.fp8, self.attention) and self.scan_layers:
            raise UserError(
                "layers of Transformer Engine cannot be scanned over",
                "T5Config.scan_layers",
                "set scan_layers to False, or fp8 and attention to other values than te",
                kind=CONFLICT,
            )

    def _check_head(self) -> None:
        """Raise UserError if the head of an encoder cannot be computed."""
        if self.head == "classification" and self.classes < 2:
            raise UserError(
                "the classes are not set",
                "LABELS",
                "name them in their order, as in LABELS=negative,positive",
                kind=MISSING,
            )
        if self.head != "none" and self.loss_chunks:
            remedy = "set it to 0: an encoder's loss is computed in one pass"
            raise _make_field_error("loss_chunks", self.loss_chunks, remedy)

    def check_has_decoder(self) -> None:
        """Check that no field is set that only a network without a decoder reads.

        Raises:
          UserError: such a field has another value than T5's, or there is no decoder.
        """
        if not self.num_decoder_layers:
            raise _make_field_error(
                "num_decoder_layers", 0, "give a number of layers of at least 1"
            )
        for name, value in ENCODER_FIELDS.items():
            if getattr(self, name) != value:
                remedy = f"set it to {value!r}, or choose a network without a decoder"
                raise _make_field_error(name, getattr(self, name), remedy)

    def _normalize(self) -> None:
        """Store the activations as a tuple, and the type as its name."""
        activations: Any = self.mlp_activations
        if isinstance(activations, str) or not hasattr(activations, "__iter__"):
            remedy = "give a list of names, as ('relu',)"
            raise _make_field_error("mlp_activations", activations, remedy)
        object.__setattr__(self, "mlp_activations", tuple(activations))
        if self.sparse_attention is not None:
            sparse = sparse_attention.parse_sparse_attention(self.sparse_attention)
            object.__setattr__(self, "sparse_attention", sparse)
        object.__setattr__(self, "dtype", getattr(self.dtype, "__name__", str(self.dtype)))

    def _check_activations(self) -> None:
        """Raise UserError if there is no activation, or one that is not known."""
        unknown = [name for name in self.mlp_activations if name not in ACTIVATIONS]
        if unknown or not self.mlp_activations:
            names = ", ".join(map(repr, unknown)) or "none"
            raise UserError(
                f"mlp_activations has {names}",
                "T5Config.mlp_activations",
                f"choose one or more of: {', '.join(ACTIVATIONS)}",
                kind=INVALID,
            )


def _make_field_error(name: str, value: Any, remedy: str) -> UserError:
    """Return the error for a field with a value that is not valid."""
    return UserError(f"{name} is {value!r}", f"T5Config.{name}", remedy, kind=INVALID, value=value)
