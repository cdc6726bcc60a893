"""GLaM: experiments with a mixture of experts in every second layer (arXiv:2112.06905).

Each token goes through two experts.
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
    """GPT126M with 64 experts, 1.9 billion parameters.

    The published run has 64 GPUs, fully sharded.
    """

    NUM_EXPERTS = 64
    CAPACITY_FACTOR = 2.0  # the tokens that an expert takes, relative to even routing
    # Groups of tokens that are routed together, in each part that data and fsdp make of a batch.
    GROUPS_PER_PART = 1
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
        """Replace the language model by Praxis' GLaM.

        Raises:
          UserError: The layers are not repeated, and Praxis 1.4.0 has no other GLaM.
        """
        super().adapt_model(task)
        options = {"repeat": self.USE_REPEATED_LAYER}
        if "repeat" not in inspect.signature(glam.GlamUniTransformerLmHParams).parameters:
            if not self.USE_REPEATED_LAYER:
                raise UserError(
                    "Praxis 1.4.0 only has GLaM with layers that repeat",
                    "USE_REPEATED_LAYER=False",
                    "set USE_REPEATED_LAYER to True, or use the pax distribution",
                    kind=UNSUPPORTED,
                )
            options = {}
        # Tokens are routed within a group, on the devices that have its part of the batch.
        data_axes = zip(self.ICI_MESH_SHAPE[:-1], self.DCN_MESH_SHAPE[:-1], strict=True)
        parts = math.prod(within * across for within, across in data_axes)
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
            num_groups=self.GROUPS_PER_PART * parts,
            moe_gating_func="top2",
            # The loss is the sum over the layers of experts, half of all layers.
            moe_load_balance_loss_weight=self.LOAD_BALANCING_WEIGHT / (self.NUM_LAYERS / 2),
            z_loss_weight=self.Z_LOSS_WEIGHT,
            checkpoint_policy=self.CHECKPOINT_POLICY,
            **options,
        )
        task.model.lm_tpl.packed_input = self.PACKED_INPUT
        self.set_sharding(task)
        task.train.always_use_train_for_model_init = False


class GLaM64B64E(GLaM126M64E):
    """64 experts, 1.14 trillion parameters.

    The published run has 512 GPUs in 64 nodes, sharded over nodes, tensor parallel within a node.
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

    ADAM_BETA1 = 0.9  # upstream sets 0, which its Adam takes for 0.9
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
                "the routing arrays grow with the square of a group: 17 GB each at this length, "
                "too much for a GPU of 80 GB"
            ),
        ),
    )
