"""GLaM: in every second layer a mixture of experts, two of them for each token
(https://arxiv.org/abs/2112.06905).
"""

from __future__ import annotations

import inspect
import math
from typing import Any, ClassVar

from praxis.layers import glam

from rosetta.core.errors import UNSUPPORTED, UserError
from rosetta.pax.experiment import Difference
from rosetta.pax.gpt import GPT126M

_PACKED = Difference("PACKED_INPUT", theirs=True, why="the published runs do not pack")


class GLaM126M64E(GPT126M):
    """GPT126M with 64 experts, 1.9 billion parameters; the published run has 64 GPUs, fully
    sharded.
    """

    NUM_EXPERTS = 64
    CAPACITY_FACTOR = 2.0  # tokens an expert takes, over their share if routing were even
    GROUPS_PER_PART = (
        1  # of tokens that are routed together, of each part that data and fsdp make of the batch
    )
    LOAD_BALANCING_WEIGHT = 0.01
    Z_LOSS_WEIGHT = 0
    PERCORE_BATCH_SIZE: Any = 8
    ICI_MESH_SHAPE: Any = (1, 64, 1)
    DCN_MESH_SHAPE: Any = (1, 1, 1)

    DIFFERENCES: ClassVar[tuple[Difference, ...]] = (
        _PACKED,
        Difference("PERCORE_BATCH_SIZE", theirs=4, why="the published run's batch"),
    )

    def adapt_model(self, task: Any) -> None:
        super().adapt_model(task)
        repeated = {"repeat": self.USE_REPEATED_LAYER}
        if "repeat" not in inspect.signature(glam.GlamUniTransformerLmHParams).parameters:
            if not self.USE_REPEATED_LAYER:
                raise UserError(
                    "Praxis 1.4.0 only has GLaM with layers that repeat",
                    "USE_REPEATED_LAYER=False",
                    "set it to True, or use the pax distribution",
                    kind=UNSUPPORTED,
                )
            repeated = {}
        task.model.lm_tpl = glam.GlamUniTransformerLmHParams(
            name="glam_lm",
            vocab_size=self.VOCAB_SIZE,
            num_transformer_layers=self.NUM_LAYERS,
            model_dim=self.MODEL_DIMS,
            attention_num_heads=self.NUM_HEADS,
            attention_key_value_dim=self.MODEL_DIMS // self.NUM_HEADS,
            ff_dim=self.HIDDEN_DIMS,
            use_gated_activation=True,
            moe=True,
            moe_hidden_dim=self.HIDDEN_DIMS,
            e_dim=self.NUM_EXPERTS,
            c_dim=None,
            capacity_factor=self.CAPACITY_FACTOR,
            # Tokens are routed within a group, on the devices of its part of the batch.
            num_groups=self.GROUPS_PER_PART
            * math.prod(
                a * b
                for a, b in zip(self.ICI_MESH_SHAPE[:-1], self.DCN_MESH_SHAPE[:-1], strict=True)
            ),
            moe_gating_func="top2",
            # The loss is added up over the layers of experts, half of all.
            moe_load_balance_loss_weight=self.LOAD_BALANCING_WEIGHT / (self.NUM_LAYERS / 2),
            z_loss_weight=self.Z_LOSS_WEIGHT,
            checkpoint_policy=self.CHECKPOINT_POLICY,
            **repeated,
        )
        task.model.lm_tpl.packed_input = self.PACKED_INPUT
        self.set_sharding(task)
        task.train.always_use_train_for_model_init = False


class GLaM64B64E(GLaM126M64E):
    """64 experts, 1.14 trillion parameters; the published run has 512 GPUs in 64 nodes, sharded
    over nodes, tensor parallel within.
    """

    GROUPS_PER_PART = 8
    PERCORE_BATCH_SIZE: Any = 4
    ICI_MESH_SHAPE: Any = (1, 1, 8)
    DCN_MESH_SHAPE: Any = (1, 64, 1)

    USE_REPEATED_LAYER = True
    NUM_LAYERS = 64
    NUM_HEADS = 64
    MODEL_DIMS = 8192
    HIDDEN_DIMS = 32768
    DIMS_PER_HEAD: int | None = 128

    ADAM_BETA1 = 0.9  # upstream's says 0, which its Adam takes for 0.9
    ADAM_BETA2 = 0.99
    LEARNING_RATE = 2e-5
    LR_COS_WARMUP = 398
    LR_COS_DECAY_END = 162_900
    SUMMARY_INTERVAL_STEPS = 10
    CHECKPOINT_EVERY_N_STEPS = 100
    CHECKPOINT_MAX_TO_KEEP = 2

    DIFFERENCES = (
        _PACKED,
        Difference("MAX_SEQ_LEN", theirs=1024, why="the published run's length"),
        Difference(
            "GROUPS_PER_PART",
            theirs=1,
            why=(
                "what routes grows with a group's square: 17 GB an array at this length, too much "
                "for 80 GB cards"
            ),
        ),
    )
