"""praxis' feed-forward layer of experts with its two products in FP8; router, dispatch and
combination stay in the activations' type.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from praxis import base_layer, gshard_utils, pax_fiddle
from praxis.layers import transformers

from rosetta.core.errors import INVALID, UNSUPPORTED, UserError
from rosetta.pax.einsum import Einsum


class Experts(transformers.TransformerFeedForwardMoe):
    """praxis' TransformerFeedForwardMoe, top-2 routing of tokens to experts that are not gated, as
    GLaM's are.

    Attributes:
      product_tpl: of what multiplies with the experts' kernels.
    """

    product_tpl: pax_fiddle.Config[base_layer.BaseLayer] = base_layer.template_field(Einsum)

    def setup(self) -> None:
        if (
            self.gating_func != "top2"
            or self.moe_gating_embedding_level != "token"
            or self.use_gated_activation
        ):
            raise UserError(
                "it is for experts that are not gated and top-2 routing by tokens",
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
        """Send [batch, length, features] through the experts; returns the same shape, and the loss
        that balances their load, [].
        """
        del segment_ids
        groups = self._count_groups(inputs.size // inputs.shape[-1])
        layout = self.activation_split_dims_mapping
        x = self._split(inputs.reshape(groups, -1, inputs.shape[-1]), layout.gsm)
        blank = None if paddings is None else self._split(paddings.reshape(groups, -1), layout.gs)
        balance, back, there = self._route_tokens(x, blank)
        whole = self.combine_einsum(
            "gecm,gsec->gsm",
            self._apply_experts(self.dispatch_einsum("gsec,gsm->egcm", there, x), there),
            back,
        )
        return self._split(whole, layout.gsm).reshape(inputs.shape), balance

    def _route_tokens(self, x: Any, blank: Any) -> tuple[Any, Any, Any]:
        """Decide by the router which expert sees what.

        Args:
          x: [groups, tokens, features].
          blank: [groups, tokens], 1 at padding, or None.

        Returns:
          The loss that balances the experts' load, []; and [groups, tokens, experts, places]: the
          weights by which a token takes what comes back from an expert's places, and 1 at the place
          it is sent to.
        """
        how = {
            name: getattr(self, name)
            for name in (
                "expert_capacity_dim",
                "fprop_dtype",
                "gating_func",
                "second_expert_policy",
                "gating_logit_cap",
            )
        }
        how |= {
            "experts_dim": self.num_experts,
            "capacity_factor": self.unadjusted_expert_capacity_factor,
        }
        scores = jnp.einsum("gsm,me->gse", x, self.theta.gate).astype(jnp.float32)
        key = None if self.second_expert_policy == "all" else self.next_prng_key()
        balance, back, there, shares = gshard_utils.compute_gating(
            paddings=None if blank is None else blank.astype(self.fprop_dtype),
            logits=scores,
            prng_key=key,
            **how,
        )
        self._report_dispatch(shares)
        back, there = (
            self._split(each.astype(self.fprop_dtype), self.activation_split_dims_mapping.gsec)
            for each in (back, there)
        )
        return balance, back, there

    def _apply_experts(self, given: Any, there: Any) -> Any:
        """Return what the experts, two products in FP8 each, make of [experts, groups, places,
        features], with groups first.
        """
        layout = self.activation_split_dims_mapping
        hidden = self._split(
            self.ffn1_product("egcm,emh->egch", self._split(given, layout.egcm), self.theta.wi_0),
            layout.egch,
        )
        self._count_dead_neurons(hidden, there)
        made = self.ffn2_product(
            "egch,ehm->egcm", self.relu_dropout(self.activation(hidden)), self.theta.wo_0
        )
        return self._split(jnp.swapaxes(self._split(made, layout.egcm), 0, 1), layout.gecm)

    def _count_groups(self, tokens: int) -> int:
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

    def _report_dispatch(self, shares: tuple[Any, ...]) -> None:
        """Write how many tokens went to no, one and two experts, as shares, and how much of what
        was sent was beyond an expert's capacity.
        """
        first, second, *sent = shares
        total = sum(sent).astype(jnp.float32)
        for count, each in enumerate(sent):
            self.add_summary(f"dispatch_{count}", each / total)
        self.add_summary("over_capacity_1_ratio", first)
        self.add_summary("over_capacity_2_ratio", second)


def convert_to_fp8(experts: Any, by: str) -> Any:
    """Return the configuration of a layer of experts whose products are in FP8, by `by` (see
    Einsum).
    """
    made = pax_fiddle.Config(Experts, product_tpl=pax_fiddle.Config(Einsum, by=by))
    made.copy_fields_from(experts)
    return made
