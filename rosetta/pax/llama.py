"""LLaMA: experiments with gated SiLU, RMS norms in float32, rotary positions and no biases.

The values are those of LLaMA-2. ROPE_THETA and ROPE_SCALING give the positions of LLaMA 3. With
USE_MQA, groups of NUM_HEADS / NUM_KV_HEADS query heads share keys and values.
"""

from __future__ import annotations

from typing import Any, ClassVar

from jax import numpy as jnp
from praxis import layers, pax_fiddle
from praxis.layers import activations, multi_query_attention

from rosetta.pax import embedding, rotary
from rosetta.pax.experiment import Difference, Experiment
from rosetta.pax.run.experiment_checks import SAVE_DOT_AND_ATTENTION
from rosetta.pax.switches import find_layer_stack


class LLaMA7B(Experiment):
    """LLaMA with 7 billion parameters. It was evaluated on 8 GPUs of a node."""

    MAX_SEQ_LEN = 4096
    PERCORE_BATCH_SIZE: Any = 16
    ICI_MESH_SHAPE: Any = (1, 8, 1)
    DCN_MESH_SHAPE: Any = (1, 1, 1)

    VOCAB_SIZE = 32000
    NUM_LAYERS = 32
    NUM_HEADS = 32
    MODEL_DIMS = 4096
    HIDDEN_DIMS = 11008
    DIMS_PER_HEAD: int | None = 128
    USE_MQA = False  # whether heads of queries share keys and values
    NUM_KV_HEADS: int | None = None
    # For repeated layers. The larger models keep nothing.
    CHECKPOINT_POLICY: Any = SAVE_DOT_AND_ATTENTION

    ACTIVATION_CLS = activations.SiLU
    USE_GATED_ACTIVATION = True
    SEPARATE_EMBEDDING = True
    RMS_NORM_EPSILON = 1e-5
    ROPE_THETA = 10_000
    ROPE_SCALING: Any = None  # LLaMA 3.1: [8, 1, 4, 8192]
    ATTEN_LOGIT_CAP = 0.0  # no cap
    SOFTMAX_CAP_LOGITS: float | None = 0.0  # no cap

    DIFFERENCES: ClassVar[tuple[Difference, ...]] = ()

    def adapt_model(self, task: Any) -> None:
        """Set the embedding, the softmax, the norms, the MLP and the attention of LLaMA."""
        lm = task.model.lm_tpl
        lm.packed_input = self.PACKED_INPUT
        lm.position_emb_tpl = None
        sizes = {"input_dims": self.MODEL_DIMS, "num_classes": self.VOCAB_SIZE}
        lm.softmax_tpl = pax_fiddle.Config(layers.FullSoftmax, name="output", **sizes)
        lm.softmax_tpl.feed_forward_tpl.has_bias = False
        lm.softmax_tpl.feed_forward_tpl.activation_tpl = pax_fiddle.Config(self.ACTIVATION_CLS)
        lm.separate_embedding_tpl = pax_fiddle.Config(
            layers.Embedding, name="tok_embeddings", **sizes
        )

        layer = find_layer_stack(lm).transformer_layer_params_tpl
        norm = pax_fiddle.Config(
            layers.RmsNorm,
            name="norm",
            direct_scale=True,
            epsilon=self.RMS_NORM_EPSILON,
            intermediate_dtype=jnp.float32,
        )
        lm.final_ln_tpl = norm
        layer.ln_tpl = norm.clone()
        layer.tr_fflayer_tpl.ln_tpl = norm.clone()
        layer.tr_fflayer_tpl.has_bias = False
        layer.tr_fflayer_tpl.fflayer_tpl.has_bias = False
        layer.tr_fflayer_tpl.fflayer_tpl.activation_tpl = pax_fiddle.Config(self.ACTIVATION_CLS)
        layer.tr_atten_tpl = self.make_attention()
        self.set_sharding(task)
        embedding.set_lookup_style(lm.separate_embedding_tpl, self.choose_lookup_style())
        task.train.always_use_train_for_model_init = False

    def make_attention(self) -> Any:
        """Return the configuration of the attention of a layer."""
        common = {
            "use_bias": False,
            "internal_enable_query_scale": True,
            "use_rotary_position_emb": True,
            "rotary_position_emb_tpl": rotary.configure_rotary_embedding(
                self.ROPE_THETA, self.ROPE_SCALING
            ),
        }
        if self.USE_MQA:
            attention = pax_fiddle.Config(
                multi_query_attention.MultiQueryDotProductAttention,
                num_kv_heads=self.NUM_KV_HEADS,
                combine_qkv=False,
                **common,
            )
            attention.proj_tpl.use_bias = False
            return attention
        attention = pax_fiddle.Config(
            layers.DotProductAttention,
            internal_enable_per_dim_scale=False,
            combine_qkv=True,
            **common,
        )
        attention.combined_qkv_proj_tpl.use_bias = False
        return attention


class LLaMA13B(LLaMA7B):
    """LLaMA with 13 billion parameters. It was evaluated on 8 GPUs of a node."""

    PERCORE_BATCH_SIZE: Any = 8
    CHECKPOINT_POLICY: Any = layers.AutodiffCheckpointType.SAVE_NOTHING
    NUM_LAYERS = 40
    NUM_HEADS = 40
    MODEL_DIMS = 5120
    HIDDEN_DIMS = 13824


class LLaMA70B(LLaMA7B):
    """LLaMA with 70 billion parameters and 8 heads of keys and values.

    It was evaluated on 16 GPUs in 2 nodes.
    """

    PERCORE_BATCH_SIZE: Any = 4
    DCN_MESH_SHAPE: Any = (1, 2, 1)
    CHECKPOINT_POLICY: Any = layers.AutodiffCheckpointType.SAVE_NOTHING
    NUM_LAYERS = 80
    NUM_HEADS = 64
    MODEL_DIMS = 8192
    HIDDEN_DIMS = 28672
    USE_MQA = True
    NUM_KV_HEADS = 8
