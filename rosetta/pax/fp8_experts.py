"""Praxis' feed-forward layer of experts with its two products in FP8.

rosetta.pax.switches puts the layer in the place of Praxis' own if FP8 is on. The router, and the
einsums that send tokens to experts and combine their results, stay in the type of the activations.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from praxis import base_layer, gshard_utils, pax_fiddle
from praxis.layers import transformers

from rosetta.core.errors import INVALID, UNSUPPORTED, UserError
from rosetta.pax.einsum import Einsum


class Experts(transformers.TransformerFeedForwardMoe):
    """Praxis' TransformerFeedForwardMoe with products in FP8.

    It routes each token to two experts, which are not gated, as in GLaM.

    Attributes:
      product_tpl: The layer that multiplies with the kernels of the experts.
    """

    product_tpl: pax_fiddle.Config[base_layer.BaseLayer] = base_layer.template_field(Einsum)

    def setup(self) -> None:
        """Create the layer.

        Raises:
          UserError: The experts are gated, or are not routed by tokens to two of them.
        """
        if (
            self.gating_func != "top2"
            or self.moe_gating_embedding_level != "token"
            or self.use_gated_activation
        ):
            raise UserError(
                "FP8 needs experts that are not gated, and top-2 routing by tokens",
                "FP8 of experts",
                "switch FP8 off",
                kind=UNSUPPORTED,
            )
        super().setup()
        self.create_child("ffn1_product", self.product_tpl.clone())
        self.create_child("ffn2_product", self.product_tpl.clone())

    def _dispatch_and_combine_expert_outputs(
        self, inputs: Any, paddings: Any, segment_ids: Any
    ) -> tuple[Any, Any]:
        """Send tokens through the experts.

        Args:
          inputs: [batch, length, features].
          paddings: [batch, length], 1 at padding, or None.
          segment_ids: Not used.

        Returns:
          The results in the shape of the inputs, and the loss that balances the load of the
          experts, [].
        """
        del segment_ids
        groups = self._count_groups(inputs.size // inputs.shape[-1])
        layout = self.activation_split_dims_mapping
        x = self._split(inputs.reshape(groups, -1, inputs.shape[-1]), layout.gsm)
        if paddings is not None:
            paddings = self._split(paddings.reshape(groups, -1), layout.gs)
        balance_loss, combine, dispatch = self._route_tokens(x, paddings)
        expert_inputs = self.dispatch_einsum("gsec,gsm->egcm", dispatch, x)
        expert_outputs = self._apply_experts(expert_inputs, dispatch)
        combined = self.combine_einsum("gecm,gsec->gsm", expert_outputs, combine)
        return self._split(combined, layout.gsm).reshape(inputs.shape), balance_loss

    def _route_tokens(self, x: Any, paddings: Any) -> tuple[Any, Any, Any]:
        """Decide by the router which expert gets which token.

        Args:
          x: [groups, tokens, features].
          paddings: [groups, tokens], 1 at padding, or None.

        Returns:
          The loss that balances the load of the experts, []. Then two arrays [groups, tokens,
          experts, places]: the weights with which a token takes the results of the places of an
          expert, and 1 at the place that the token is sent to.
        """
        names = (
            "expert_capacity_dim",
            "fprop_dtype",
            "gating_func",
            "second_expert_policy",
            "gating_logit_cap",
        )
        options = {name: getattr(self, name) for name in names}
        options["experts_dim"] = self.num_experts
        options["capacity_factor"] = self.unadjusted_expert_capacity_factor
        scores = jnp.einsum("gsm,me->gse", x, self.theta.gate).astype(jnp.float32)
        key = None if self.second_expert_policy == "all" else self.next_prng_key()
        balance_loss, combine, dispatch, statistics = gshard_utils.compute_gating(
            paddings=None if paddings is None else paddings.astype(self.fprop_dtype),
            logits=scores,
            prng_key=key,
            **options,
        )
        self._report_dispatch(statistics)
        layout = self.activation_split_dims_mapping.gsec
        combine = self._split(combine.astype(self.fprop_dtype), layout)
        dispatch = self._split(dispatch.astype(self.fprop_dtype), layout)
        return balance_loss, combine, dispatch

    def _apply_experts(self, inputs: Any, dispatch: Any) -> Any:
        """Return the results of the experts: two products in FP8 each.

        Args:
          inputs: [experts, groups, places, features].
          dispatch: 1 at the place that a token is sent to, [groups, tokens, experts, places].

        Returns:
          [groups, experts, places, features].
        """
        layout = self.activation_split_dims_mapping
        inputs = self._split(inputs, layout.egcm)
        hidden = self.ffn1_product("egcm,emh->egch", inputs, self.theta.wi_0)
        hidden = self._split(hidden, layout.egch)
        self._count_dead_neurons(hidden, dispatch)
        activated = self.relu_dropout(self.activation(hidden))
        outputs = self.ffn2_product("egch,ehm->egcm", activated, self.theta.wo_0)
        outputs = self._split(outputs, layout.egcm)
        return self._split(jnp.swapaxes(outputs, 0, 1), layout.gecm)

    def _count_groups(self, tokens: int) -> int:
        """Return the number of groups that tokens are routed in; UserError if it divides none."""
        groups: int = self.num_groups
        if self.min_group_size is not None and tokens < groups * self.min_group_size:
            groups = -(-tokens // self.min_group_size)
        if tokens % groups:
            raise UserError(
                f"{tokens} tokens of a batch do not divide into {groups} groups",
                "PERCORE_BATCH_SIZE",
                "give a batch that divides among the mesh's data axes",
                kind=INVALID,
                value=tokens,
            )
        return groups

    def _report_dispatch(self, statistics: tuple[Any, ...]) -> None:
        """Write summaries of the routing.

        They are the shares of tokens that went to no, one and two experts, and the shares of what
        was sent beyond the capacity of an expert.
        """
        over_capacity_1, over_capacity_2, *token_counts = statistics
        total = sum(token_counts).astype(jnp.float32)
        for expert_count, tokens in enumerate(token_counts):
            self.add_summary(f"dispatch_{expert_count}", tokens / total)
        self.add_summary("over_capacity_1_ratio", over_capacity_1)
        self.add_summary("over_capacity_2_ratio", over_capacity_2)


def convert_to_fp8(experts: Any, by: str) -> Any:
    """Return the configuration of a layer of experts, with its products in FP8.

    Args:
      experts: The configuration of Praxis' layer.
      by: What computes the products, see Einsum.
    """
    converted = pax_fiddle.Config(Experts, product_tpl=pax_fiddle.Config(Einsum, by=by))
    converted.copy_fields_from(experts)
    return converted
