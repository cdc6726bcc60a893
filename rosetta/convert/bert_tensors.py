"""The tensors of a BERT: their names and shapes in Hugging Face's files and in a checkpoint of T5X.

Hugging Face stores a matrix as [outputs, inputs] and T5X as [inputs, outputs].
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rosetta.convert.bert_config import ROW_HEADS, BertArchitecture
from rosetta.convert.t5_tensors import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterator


def list_bert_tensors(architecture: BertArchitecture) -> list[Tensor]:
    """Return the tensors of a BERT, in the order of a conversion."""
    width = architecture.emb_dim
    tables = (
        ("word_embeddings", "token_embedder", architecture.vocab_size),
        ("position_embeddings", "encoder/position_embedder", architecture.max_positions),
        ("token_type_embeddings", "encoder/type_embedder", architecture.token_types),
    )
    shape: tuple[int, ...]
    tensors: list[Tensor] = []
    for name, array, rows in tables:
        module, shape = f"bert.embeddings.{name}.weight", (rows, width)
        tensors.append(Tensor(module, f"{array}/embedding", shape, is_transposed=False))
    tensors += _list_norm("bert.embeddings.LayerNorm", "encoder/embedding_norm", width)
    for layer in range(architecture.num_encoder_layers):
        tensors += _list_layer(architecture, layer)
    has_row_head = architecture.sentence_head or architecture.head in ROW_HEADS
    if architecture.has_pooler or has_row_head:
        tensors += _list_dense("bert.pooler.dense", "row_head/pooler", width, width)
    if architecture.head == "mlm":
        module = "cls.predictions.transform"
        tensors += _list_dense(f"{module}.dense", "masked_head/dense", width, width)
        tensors += _list_norm(f"{module}.LayerNorm", "masked_head/norm", width)
        shape = (architecture.vocab_size,)
        tensors.append(
            Tensor("cls.predictions.bias", "masked_head/logits_bias", shape, is_transposed=False)
        )
    if architecture.sentence_head:
        tensors += _list_dense("cls.seq_relationship", "row_head/sentence_output", width, 2)
    if architecture.head in ROW_HEADS:
        outputs = max(architecture.classes, 1)
        tensors += _list_dense("classifier", "row_head/output", width, outputs)
    return tensors


def _list_layer(architecture: BertArchitecture, layer: int) -> Iterator[Tensor]:
    """Yield the tensors of one layer."""
    module, array = f"bert.encoder.layer.{layer}", f"encoder/layers_{layer}"
    width, mlp_dim = architecture.emb_dim, architecture.mlp_dim
    for name in ("query", "key", "value"):
        yield from _list_dense(
            f"{module}.attention.self.{name}", f"{array}/attention/{name}", width, width
        )
    out = f"{module}.attention.output"
    yield from _list_dense(f"{out}.dense", f"{array}/attention/out", width, width)
    yield from _list_norm(f"{out}.LayerNorm", f"{array}/post_attention_layer_norm", width)
    yield from _list_dense(f"{module}.intermediate.dense", f"{array}/mlp/wi", width, mlp_dim)
    yield from _list_dense(f"{module}.output.dense", f"{array}/mlp/wo", mlp_dim, width)
    yield from _list_norm(f"{module}.output.LayerNorm", f"{array}/post_mlp_layer_norm", width)


def _list_dense(module: str, array: str, inputs: int, outputs: int) -> list[Tensor]:
    """Return the kernel and the bias of a dense layer."""
    return [
        Tensor(f"{module}.weight", f"{array}/kernel", (outputs, inputs)),
        Tensor(f"{module}.bias", f"{array}/bias", (outputs,), is_transposed=False),
    ]


def _list_norm(module: str, array: str, width: int) -> list[Tensor]:
    """Return the scale and the bias of a norm."""
    return [
        Tensor(f"{module}.weight", f"{array}/scale", (width,), is_transposed=False),
        Tensor(f"{module}.bias", f"{array}/bias", (width,), is_transposed=False),
    ]
