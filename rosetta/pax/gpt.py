"""GPT: experiments with decoder-only language models that have learned positions.

Layer norms reduce in float32. ROTARY_FRACTION and PARALLEL_RESIDUAL turn the model into a GPT-NeoX.
"""

from __future__ import annotations

from typing import Any, ClassVar

from paxml import experiment_registry
from praxis import base_layer, layers, pax_fiddle

from rosetta.pax import embedding, gpt_layers, partitioning, rotary, softmax
from rosetta.pax.data import PileUnsupervisedDataset
from rosetta.pax.experiment import Difference, Experiment
from rosetta.pax.switches import find_layer_stack

EOS_ID = 1  # the end token of the vocabulary of the published runs


class GPT126M(Experiment):
    """GPT with 126 million parameters.

    The published run has 64 GPUs in 8 nodes, data parallel.
    """

    MAX_STEPS = 600_000
    PERCORE_BATCH_SIZE: Any = 4
    ICI_MESH_SHAPE: Any = (8, 1, 1)
    DCN_MESH_SHAPE: Any = (8, 1, 1)

    VOCAB_SIZE = 50304
    NUM_LAYERS = 12
    NUM_HEADS = 12
    MODEL_DIMS = 768
    HIDDEN_DIMS = 3072
    DIMS_PER_HEAD: int | None = 64

    ACTIVATION_CLS = layers.GELU
    TRAINABLE_POSITION_EMB = True
    ROTARY_FRACTION: float | None = None
    ROPE_THETA = 10_000
    PARALLEL_RESIDUAL = False
    USE_BIAS = True
    LAYERNORM_EPSILON = 1e-5
    ATTEN_LOGIT_CAP = -1.0  # no cap
    SOFTMAX_CAP_LOGITS: float | None = None
    INIT_STD = 0.023
    SOFTMAX_INIT_STD = 0.023
    INPUT_DROPOUT_PROB = 0.0  # of the input of a stack; each repeated layer is a stack

    LEARNING_RATE = 6e-4
    ADAM_BETA2 = 0.95
    ADAM_EPSILON = 1e-8
    ADAM_CLIP_THRESHOLD = -1.0
    WEIGHT_DECAY = 0.1
    CLIP_GRADIENT_NORM_TO_VALUE = 1.0
    LR_SCHEDULE = "linear_rampup_cosine_decay"
    LR_COS_WARMUP = 636
    LR_COS_DECAY_START: int | None = None
    LR_COS_DECAY_END = 500_000

    DIFFERENCES: ClassVar[tuple[Difference, ...]] = (
        Difference("PACKED_INPUT", theirs=True, why="the published runs do not pack"),
    )

    def task(self) -> Any:
        """Return the configuration of the task."""
        self.TRAINABLE_PE_MAX_SEQ_LEN = self.MAX_SEQ_LEN
        return super().task()

    def list_differences(self) -> list[str]:
        """Return a line for each difference from upstream's experiment."""
        lines = super().list_differences()
        if self._pads_vocabulary():
            size, padded_size = self.VOCAB_SIZE, softmax.compute_padded_size(self.VOCAB_SIZE)
            lines.append(
                f"VOCAB_SIZE={size} is {padded_size} in products, unlike upstream's; checkpoints "
                f"have {size}"
            )
        return lines

    def _pads_vocabulary(self) -> bool:
        """Return whether products have a larger vocabulary than the parameters."""
        return bool(self.VOCAB_SIZE % softmax.MULTIPLE) and not self.SEPARATE_EMBEDDING

    def adapt_model(self, task: Any) -> None:
        """Set the initial weights, embeddings, norms and projections of GPT."""
        model = task.model
        model.decoder_tpl.eos_id = EOS_ID
        model.decoder_tpl.seqlen = self.MAX_SEQ_LEN
        task.train.compute_steps_per_sec_interval_steps = self.SUMMARY_INTERVAL_STEPS
        model.params_init = base_layer.WeightInit.Gaussian(self.INIT_STD)
        self._set_embeddings(model.lm_tpl)
        partitioning.gather_position_table(model)

        stack = find_layer_stack(model.lm_tpl)
        stack.input_dropout_prob = self.INPUT_DROPOUT_PROB
        layer = stack.transformer_layer_params_tpl
        for norm in (layer.ln_tpl, layer.tr_fflayer_tpl.ln_tpl, model.lm_tpl.final_ln_tpl):
            norm.epsilon = self.LAYERNORM_EPSILON
            norm.reductions_in_fp32 = True
        layer.tr_atten_tpl.use_bias = self.USE_BIAS
        layer.tr_atten_tpl.internal_enable_per_dim_scale = False
        for attention in (layer.tr_atten_tpl, layer.cross_atten_tpl):
            if attention is not None:
                attention.weight_split_dims_mapping.proj = ["data", "mdl", None]
        self._set_neox_layers(model.lm_tpl, stack)

    def _set_neox_layers(self, lm: Any, stack: Any) -> None:
        """Set the rotary positions and the parallel residual of GPT-NeoX."""
        layer = stack.transformer_layer_params_tpl
        if self.ROTARY_FRACTION is not None:
            head_dim = self.DIMS_PER_HEAD or self.MODEL_DIMS // self.NUM_HEADS
            lm.position_emb_tpl = None
            layer.tr_atten_tpl.use_rotary_position_emb = True
            layer.tr_atten_tpl.rotary_position_emb_tpl = rotary.configure_partial_embedding(
                self.ROPE_THETA, self.ROTARY_FRACTION, head_dim
            )
        if self.PARALLEL_RESIDUAL:
            parallel_layer = pax_fiddle.Config(gpt_layers.ParallelTransformer)
            parallel_layer.copy_fields_from(layer)
            stack.transformer_layer_params_tpl = parallel_layer

    def _set_embeddings(self, lm: Any) -> None:
        """Set the embeddings of tokens and positions, and the softmax."""
        lm.softmax_tpl.params_init = base_layer.WeightInit.Gaussian(self.SOFTMAX_INIT_STD)
        lm.softmax_tpl.feed_forward_tpl.has_bias = False
        token_embedding = lm.separate_embedding_tpl if self.SEPARATE_EMBEDDING else lm.softmax_tpl
        token_embedding.scale_sqrt_depth = False
        style = self.choose_lookup_style()
        embedding.set_lookup_style(token_embedding, style)
        if self.TRAINABLE_POSITION_EMB:
            # The product of positions is small, and its table is gathered for it.
            lm.position_emb_tpl.lookup_style = "matmul" if style == embedding.EXACT else style
        if self._pads_vocabulary():
            lm.softmax_tpl = softmax.pad_vocabulary(lm.softmax_tpl)


class GPT5B(GPT126M):
    """GPT with 5 billion parameters.

    The published run has 256 GPUs in 32 nodes, fully sharded.
    """

    MAX_STEPS = 75_000
    PERCORE_BATCH_SIZE: Any = 8
    ICI_MESH_SHAPE: Any = (1, 8, 1)
    DCN_MESH_SHAPE: Any = (1, 32, 1)

    USE_REPEATED_LAYER = True
    CHECKPOINT_POLICY = layers.AutodiffCheckpointType.SAVE_DOT_WITH_NO_BATCH_DIM
    NUM_LAYERS = 24
    NUM_HEADS = 32
    MODEL_DIMS = 4096
    HIDDEN_DIMS = 16384
    DIMS_PER_HEAD = 128
    INIT_STD = 0.01
    SOFTMAX_INIT_STD = 0.01

    LEARNING_RATE = 1.6e-4
    LR_COS_WARMUP = 115
    LR_COS_DECAY_END = 62_500
    CHECKPOINT_EVERY_N_STEPS = 250
    SUMMARY_INTERVAL_STEPS = 10

    DIFFERENCES = (
        *GPT126M.DIFFERENCES,
        Difference(
            "INPUT_DROPOUT_PROB",
            theirs=0.1,
            why=(
                "the published 5B has no dropout in its layers, and this dropout is in each "
                "repeated layer"
            ),
        ),
    )


class GPT175B(GPT126M):
    """GPT with 175 billion parameters.

    The published run has 256 GPUs in 32 nodes, fully sharded.
    """

    MAX_STEPS = 75_000
    PERCORE_BATCH_SIZE: Any = 6
    ICI_MESH_SHAPE: Any = (1, 8, 1)
    DCN_MESH_SHAPE: Any = (1, 32, 1)

    USE_REPEATED_LAYER = True
    VOCAB_SIZE = 50257
    NUM_LAYERS = 96
    NUM_HEADS = 96
    MODEL_DIMS = 12288
    HIDDEN_DIMS = 49152
    DIMS_PER_HEAD: int | None = None  # MODEL_DIMS / NUM_HEADS

    LEARNING_RATE = 2e-5
    LR_COS_WARMUP = 265
    LR_COS_DECAY_END = 108_600
    SUMMARY_INTERVAL_STEPS = 10
    CHECKPOINT_EVERY_N_STEPS = 100


@experiment_registry.register
class Tiny(GPT126M, PileUnsupervisedDataset):
    """A GPT of two layers for the selftest, which learns within 20 steps on one CPU core."""

    ICI_MESH_SHAPE: Any = (1, 1, 1)
    DCN_MESH_SHAPE: Any = (1, 1, 1)
    VOCAB = "byte"
    VOCAB_SIZE = 264  # the 259 ids of `byte`, rounded up so that 8 devices can share the embedding
    NUM_LAYERS = 2
    USE_REPEATED_LAYER = True
    NUM_HEADS = 4
    MODEL_DIMS = 64
    HIDDEN_DIMS = 256
    DIMS_PER_HEAD: int | None = None
    MAX_SEQ_LEN = 64
    PERCORE_BATCH_SIZE: Any = 4
    FPROP_DTYPE: Any = "float32"
    LEARNING_RATE = 3e-3
    LR_COS_WARMUP = 2
    LR_COS_DECAY_END = 1000
    SUMMARY_INTERVAL_STEPS = 5
    CHECKPOINT_EVERY_N_STEPS = 20
