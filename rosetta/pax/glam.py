"""Experiments with GLaM, which has a mixture of experts in every second layer (arXiv:2112.06905).

The router sends each token to two experts.
"""

from __future__ import annotations

import inspect
import math
from typing import Any, ClassVar

from praxis.layers import glam

from rosetta.core.errors import UNSUPPORTED, UserError
from rosetta.pax.experiment import Difference
from rosetta.pax.gpt import GPT126M

_UNPACKED_INPUT = Difference("PACKED_INPUT", theirs=True, why="the published runs do not pack")


class GLaM126M64E(GPT126M):
    """GPT126M with 64 experts, 1.9 billion parameters.

    The published run used 64 GPUs, with fully sharded parameters.
    """

    NUM_EXPERTS = 64
    CAPACITY_FACTOR = 2.0  # the most tokens that an expert takes, relative to even routing
    # The mesh axes data and fsdp split a batch into parts. The tokens of a part are split into this
    # number of groups, and each group is routed on its own.
    GROUPS_PER_PART = 1
    LOAD_BALANCING_WEIGHT = 0.01
    Z_LOSS_WEIGHT = 0
    PERCORE_BATCH_SIZE: Any = 8
    ICI_MESH_SHAPE: Any = (1, 64, 1)
    DCN_MESH_SHAPE: Any = (1, 1, 1)

    DIFFERENCES: ClassVar[tuple[Difference, ...]] = (
        _UNPACKED_INPUT,
        Difference("PERCORE_BATCH_SIZE", theirs=4, why="the published run's batch"),
    )

    def adapt_model(self, task: Any) -> None:
        """Replace the language model by Praxis' GLaM.

        Raises:
          UserError: The experiment does not repeat layers, but GLaM of Praxis 1.4.0 always does.
        """
        super().adapt_model(task)
        repeat_option = {"repeat": self.USE_REPEATED_LAYER}
        # In Praxis 1.4.0, GLaM lacks the option and always repeats its layers.
        if "repeat" not in inspect.signature(glam.GlamUniTransformerLmHParams).parameters:
            if not self.USE_REPEATED_LAYER:
                raise UserError(
                    "GLaM of Praxis 1.4.0 can only have repeated layers",
                    "USE_REPEATED_LAYER=False",
                    "set USE_REPEATED_LAYER to True, or use the pax distribution",
                    kind=UNSUPPORTED,
                )
            repeat_option = {}
        # All mesh axes but the last, tensor, split the batch. A group never spans two parts of the
        # batch, so its tokens are routed on the devices that have them.
        batch_axes = zip(self.ICI_MESH_SHAPE[:-1], self.DCN_MESH_SHAPE[:-1], strict=True)
        batch_parts = math.prod(within * across for within, across in batch_axes)
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
            num_groups=self.GROUPS_PER_PART * batch_parts,
            moe_gating_func="top2",
            # Praxis adds up the load-balancing losses of all layers with experts. These are half of
            # the layers, and the division makes the sum a mean.
            moe_load_balance_loss_weight=self.LOAD_BALANCING_WEIGHT / (self.NUM_LAYERS / 2),
            z_loss_weight=self.Z_LOSS_WEIGHT,
            checkpoint_policy=self.CHECKPOINT_POLICY,
            **repeat_option,
        )
        task.model.lm_tpl.packed_input = self.PACKED_INPUT
        self.set_sharding(task)
        task.train.always_use_train_for_model_init = False


class GLaM64B64E(GLaM126M64E):
    """64 experts, 1.14 trillion parameters.

    The published run used 512 GPUs in 64 nodes. Parameters were sharded across the nodes, and
    tensor parallelism was used within a node.
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

    ADAM_BETA1 = 0.9  # upstream sets 0, but its code reads 0 as "not set" and uses 0.9
    ADAM_BETA2 = 0.99
    LEARNING_RATE = 2e-5
    LR_COS_WARMUP = 398
    LR_COS_DECAY_END = 162_900
    SUMMARY_INTERVAL_STEPS = 10
    CHECKPOINT_EVERY_N_STEPS = 100
    CHECKPOINT_MAX_TO_KEEP = 2

    DIFFERENCES = (
        _UNPACKED_INPUT,
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
