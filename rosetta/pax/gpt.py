"""GPT: decoder-only language models. Every size is stated once, as a class attribute that a subclass or `--fdl.NAME=` sets."""

from __future__ import annotations

import math
from typing import Any

import jax
from jax import numpy as jnp
from paxml import base_experiment, experiment_registry
from paxml.tasks.lm import model_params
from praxis import layers, optimizers, pax_fiddle, schedules

from rosetta.pax import text, windows


class TextData(base_experiment.BaseExperiment):
    """Local text files, byte by byte. The batch is PERCORE_BATCH_SIZE a device; a fraction lets devices share a row."""

    TEXT_FILES: Any = None  # glob pattern
    TEXT_SEED = 0
    MAX_SEQ_LEN = 2048
    PERCORE_BATCH_SIZE: Any = 1

    def datasets(self) -> list[Any]:
        local = math.ceil(self.PERCORE_BATCH_SIZE * jax.local_device_count())
        overall = max(1, round(self.PERCORE_BATCH_SIZE * jax.device_count()))
        return [
            pax_fiddle.Config(
                text.LocalText,
                name="train",
                is_training=True,
                files=self.TEXT_FILES,
                seq_len=self.MAX_SEQ_LEN,
                batch_size=local,
                num_infeed_hosts=max(1, overall // local),
                infeed_host_index=jax.process_index(),
                input_random_seed=self.TEXT_SEED,
            )
        ]


class GPT(model_params.TransformerLmSpmdAdafactor):
    """A GPT trained by Adam with a linear warm-up and a cosine decay; meshes are [replica, data (fsdp), model]."""

    MAX_SEQ_LEN = 2048
    MAX_STEPS = 100_000
    VOCAB_SIZE = windows.VOCABULARY

    DIMS_PER_HEAD: Any = None  # MODEL_DIMS / NUM_HEADS
    ACTIVATION_CLS = layers.GELU
    TRAINABLE_POSITION_EMB = True
    ATTEN_LOGIT_CAP = -1.0  # no cap
    SOFTMAX_CAP_LOGITS: Any = None
    FPROP_DTYPE: Any = jnp.bfloat16
    INIT_STD = 0.02

    LEARNING_RATE = 6e-4
    ADAM_BETA1 = 0.9
    ADAM_BETA2 = 0.95
    ADAM_EPSILON = 1e-8
    ADAM_CLIP_THRESHOLD = -1.0  # no clipping of updates
    WEIGHT_DECAY = 0.1
    CLIP_GRADIENT_NORM_TO_VALUE = 1.0
    LR_COS_WARMUP = 600
    LR_COS_DECAY_END = 500_000
    LR_COS_MIN_RATIO = 0.1

    ICI_MESH_SHAPE: Any = (1, 1, 1)
    DCN_MESH_SHAPE: Any = (1, 1, 1)

    def task(self) -> Any:
        self.TRAINABLE_PE_MAX_SEQ_LEN = self.MAX_SEQ_LEN
        task = super().task()
        task.model.params_init = model_params.WeightInit.Gaussian(self.INIT_STD)
        task.model.lm_tpl.softmax_tpl.params_init = model_params.WeightInit.Gaussian(self.INIT_STD)
        task.train.num_train_steps = self.MAX_STEPS
        task.train.enable_input_checkpointing = True
        task.train.learner.optimizer = pax_fiddle.Config(
            optimizers.Adam,
            learning_rate=self.LEARNING_RATE,
            beta1=self.ADAM_BETA1,
            beta2=self.ADAM_BETA2,
            epsilon=self.ADAM_EPSILON,
            clip_threshold=self.ADAM_CLIP_THRESHOLD,
            weight_decay=self.WEIGHT_DECAY,
            clip_gradient_norm_to_value=self.CLIP_GRADIENT_NORM_TO_VALUE,
            lr_schedule=pax_fiddle.Config(
                schedules.LinearRampupCosineDecay,
                warmup_steps=self.LR_COS_WARMUP,
                decay_start=self.LR_COS_WARMUP + 1,
                decay_end=self.LR_COS_DECAY_END,
                min_ratio=self.LR_COS_MIN_RATIO,
                max=1.0,
            ),
        )
        return task


@experiment_registry.register
class Tiny(GPT, TextData):
    """Two layers, for the selftest: it learns something within 20 steps on one CPU core."""

    NUM_LAYERS = 2
    USE_REPEATED_LAYER = True
    NUM_HEADS = 4
    MODEL_DIMS = 64
    HIDDEN_DIMS = 256
    MAX_SEQ_LEN = 64
    PERCORE_BATCH_SIZE = 4
    FPROP_DTYPE = jnp.float32
    LEARNING_RATE = 3e-3
    LR_COS_WARMUP = 2
    LR_COS_DECAY_END = 1000
    SUMMARY_INTERVAL_STEPS = 5
    CHECKPOINT_EVERY_N_STEPS = 20
