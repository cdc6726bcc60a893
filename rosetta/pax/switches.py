"""The switches of an experiment: how its model is computed, and what of it is trained.

They are hyper-parameters, so `--fdl.NAME=VALUE` sets them. With all of them off, an experiment is
what it is without this.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import fiddle as fdl
import jax
from praxis import layers, pax_fiddle
from praxis.layers import transformer_models

from rosetta.core import transformer_engine
from rosetta.core.errors import CONFLICT, UNSUPPORTED, UserError
from rosetta.core.value_parsing import parse_choice, read_truth_value
from rosetta.core.variables import choices
from rosetta.pax.run import experiment_checks, stored_checkpoint

_OLDEST_JAX = (0, 5)  # JAX with what rosetta.nn takes of it


@dataclass(frozen=True)
class ChosenSwitches:
    """What the switches come to.

    Attributes:
      fp8: who multiplies in FP8: "off", "xla" or "te".
      attention: who attends: "xla", "cudnn" or "te".
      rank: of LoRA, 0 for none.
      adapted: what LoRA adapts, one of choices.LORA_LAYERS.
      microbatches: in how many parts a batch is computed.
    """

    fp8: str = "off"
    attention: str = "xla"
    rank: int = 0
    adapted: str = "all"
    microbatches: int = 1


class Switches:
    """A mixin of experiments.

    Attributes:
      USE_FP8: products with kernels in FP8, by XLA.
      ENABLE_TE: Transformer Engine computes attention, and products in FP8. Left at None, the
        variable of this name says.
      ENABLE_FP8: products in FP8, by Transformer Engine where ENABLE_TE is on, otherwise by XLA.
      Left at None, the variable of this name says.
      ATTENTION: who computes the products between queries, keys and values: xla, cudnn or te; None:
        te where ENABLE_TE is on and NVTE_FUSED_ATTN is not 0, otherwise xla.
      USE_CUDNN_FLASH_ATTENTION: upstream's word for ATTENTION=cudnn.
      USE_LORA, LORA_RANK, LORA_TARGET_LAYERS: train low-rank adaptations of all layers, of
        attention or of mlp, and nothing else.
      NUM_MICROBATCHES: compute a batch in so many parts, one after another, for one step.
    """

    USE_FP8: Any = False
    ENABLE_TE: Any = None
    ENABLE_FP8: Any = None
    ATTENTION: str | None = None
    USE_CUDNN_FLASH_ATTENTION: Any = False
    USE_LORA: Any = False
    LORA_RANK = 8
    LORA_TARGET_LAYERS = "all"
    NUM_MICROBATCHES = 1

    def task(self) -> Any:
        """Return the base class's task without any switch: it knows two of them, and would put
        layers of its own.
        """
        asked = self.USE_FP8, self.USE_CUDNN_FLASH_ATTENTION
        self.USE_FP8 = self.USE_CUDNN_FLASH_ATTENTION = False
        try:
            return super().task()  # type: ignore[misc]  # what this is mixed into
        finally:
            self.USE_FP8, self.USE_CUDNN_FLASH_ATTENTION = asked

    def resolve_switches(self) -> ChosenSwitches:
        """Return what the switches come to.

        Raises:
          UserError: a value is none, or they cannot be combined.
        """
        with_te = _is_switched_on("ENABLE_TE", self.ENABLE_TE)
        native, enabled = (
            _is_switched_on("USE_FP8", self.USE_FP8),
            _is_switched_on("ENABLE_FP8", self.ENABLE_FP8),
        )
        if native and with_te:
            raise UserError(
                "FP8 is by XLA and Transformer Engine is on",
                "USE_FP8=True",
                "set ENABLE_TE=0, or ENABLE_FP8=1 in place of USE_FP8 for Transformer Engine's",
                kind=CONFLICT,
            )
        rank = 0
        if _is_switched_on("USE_LORA", self.USE_LORA):
            rank = experiment_checks.check_count("LORA_RANK", self.LORA_RANK)
        return ChosenSwitches(
            fp8=("te" if with_te else "xla") if native or enabled else "off",
            attention=self._choose_attention(with_te=with_te),
            rank=rank,
            adapted=parse_choice(
                "LORA_TARGET_LAYERS", self.LORA_TARGET_LAYERS, choices.LORA_LAYERS
            ),
            microbatches=experiment_checks.check_count("NUM_MICROBATCHES", self.NUM_MICROBATCHES),
        )

    def check_resume(self, folder: str) -> None:
        """UserError where the run cannot go on from the checkpoints in its folder, which it was
        begun with other switches in.
        """
        chosen = self.resolve_switches()
        stored_checkpoint.check_switches(folder, fp8=chosen.fp8 != "off", lora=chosen.rank > 0)

    def _choose_attention(self, *, with_te: bool) -> str:
        kept_off = transformer_engine.disables_fused_attention(os.environ)
        fused = _is_switched_on("USE_CUDNN_FLASH_ATTENTION", self.USE_CUDNN_FLASH_ATTENTION)
        if self.ATTENTION is None:
            return "cudnn" if fused else "te" if with_te and not kept_off else "xla"
        asked = parse_choice("ATTENTION", self.ATTENTION, choices.ATTENTION)
        if fused and asked != "cudnn":
            raise UserError(
                f"ATTENTION is {asked}",
                "USE_CUDNN_FLASH_ATTENTION=True",
                "leave one of them out",
                kind=CONFLICT,
                value=asked,
            )
        if asked == "te" and kept_off:
            raise UserError(
                "NVTE_FUSED_ATTN is 0",
                "ATTENTION=te",
                "unset NVTE_FUSED_ATTN, or set ATTENTION to xla or cudnn",
                kind=CONFLICT,
            )
        return asked

    def apply_switches(self, task: Any) -> Any:
        """Change a task's configuration to what the switches say, in place; returns it.

        Raises:
          UserError: what was asked for cannot be combined, or is not here.
        """
        chosen = self.resolve_switches()
        if chosen == ChosenSwitches(adapted=chosen.adapted):
            return task
        if jax.__version_info__ < _OLDEST_JAX:
            raise UserError(
                f"JAX {jax.__version__} of this line is too old for any",
                "the switches",
                "use the pax distribution, not pax-1.4, or leave them off",
                kind=UNSUPPORTED,
                value=jax.__version__,
            )
        if "te" in (chosen.fp8, chosen.attention):
            transformer_engine.require_transformer_engine()
        stack = _require_layer_stack(task.model.lm_tpl)
        if chosen.attention != "xla":
            self._set_attention(task.model, stack, chosen.attention)
        if chosen.rank:
            _add_lora(task.train.learner, stack, chosen)
        if chosen.fp8 != "off":
            _set_fp8(task, stack, chosen)
        if chosen.microbatches > 1:
            _set_microbatches(task, chosen.microbatches)
        return task

    def _set_attention(self, model: Any, stack: Any, by: str) -> None:
        from rosetta.pax import attention

        if model.lm_tpl.model_type != transformer_models.LanguageModelType.CAUSAL:
            raise UserError(
                "the model is not causal", f"ATTENTION={by}", "set it to xla", kind=UNSUPPORTED
            )
        if by == "cudnn" and experiment_checks.read_precision(model.fprop_dtype) == "float32":
            raise UserError(
                "cuDNN's attention is for bfloat16",
                "FPROP_DTYPE=float32",
                "set ATTENTION=xla, or FPROP_DTYPE=bfloat16",
                kind=UNSUPPORTED,
            )
        packed = bool(model.lm_tpl.packed_input and getattr(self, "PACKED_INPUT", True))
        for layer in _list_layers(stack):
            kind = fdl.get_callable(layer.tr_atten_tpl)
            ours = (
                attention.MultiQueryAttention
                if "num_kv_heads" in kind.__dataclass_fields__
                else attention.DotProductAttention
            )
            layer.tr_atten_tpl = _change_class(layer.tr_atten_tpl, ours, by=by, packed=packed)


def _is_switched_on(name: str, value: Any) -> bool:
    """Return whether a switch is on; left at None, as the variable says."""
    if value is None:
        return read_truth_value(os.environ, name)
    return experiment_checks.read_switch(name, value)


def find_layer_stack(lm: Any) -> Any:
    """Return the configuration of a language model's stack of layers: where layers repeat, of what
    is repeated.
    """
    stack = lm.stacked_transformer_tpl
    return (
        stack.block
        if issubclass(fdl.get_callable(stack), layers.StackedTransformerRepeated)
        else stack
    )


def _require_layer_stack(lm: Any) -> Any:
    """Return `block`; UserError where the switches are not for what it is."""
    stack = find_layer_stack(lm)
    if not issubclass(fdl.get_callable(stack), layers.StackedTransformer):
        raise UserError(
            f"they are not for {fdl.get_callable(stack).__name__}",
            "the switches",
            "use layers in a row or repeated, without a pipeline",
            kind=UNSUPPORTED,
        )
    return stack


def _list_layers(stack: Any) -> list[Any]:
    found = stack.transformer_layer_params_tpl
    return list(found) if isinstance(found, (list, tuple)) else [found]


def _change_class(template: Any, kind: Any, **more: Any) -> Any:
    """Return a configuration of another class with the same values."""
    made = pax_fiddle.Config(kind, **more)
    made.copy_fields_from(template)
    return made


_PROJECTIONS = ("proj_tpl", "combined_qkv_proj_tpl", "headless_proj_tpl")


def _add_lora(learner: Any, stack: Any, chosen: ChosenSwitches) -> None:
    from rosetta.pax import lora

    if chosen.adapted != "attention" and stack.moe_layers:
        raise UserError(
            "experts have no adaptation",
            f"LORA_TARGET_LAYERS={chosen.adapted}",
            "set it to attention",
            kind=UNSUPPORTED,
        )

    def adapted(template: Any) -> Any:
        kind = lora.ADAPTED_CLASSES.get(fdl.get_callable(template))
        if kind is None:
            raise UserError(
                f"there is no adaptation of {fdl.get_callable(template).__name__}",
                "USE_LORA=True",
                "leave it out",
                kind=UNSUPPORTED,
            )
        return _change_class(template, kind, rank=chosen.rank)

    for layer in _list_layers(stack):
        if chosen.adapted != "attention":
            feed = layer.tr_fflayer_tpl.fflayer_tpl
            feed.linear_tpl = adapted(feed.linear_tpl)
        if chosen.adapted != "mlp":
            for name in _PROJECTIONS:
                if hasattr(layer.tr_atten_tpl, name):
                    setattr(layer.tr_atten_tpl, name, adapted(getattr(layer.tr_atten_tpl, name)))
    learner.bprop_variable_inclusion = [lora.KERNEL_PATTERN]


def _set_fp8(task: Any, stack: Any, chosen: ChosenSwitches) -> None:
    from rosetta.pax import einsum, fp8_experts, learner

    for layer in _list_layers(stack):
        projections = [
            getattr(layer.tr_atten_tpl, name)
            for name in _PROJECTIONS
            if hasattr(layer.tr_atten_tpl, name)
        ]
        for template in (*projections, layer.tr_fflayer_tpl.fflayer_tpl.linear_tpl):
            template.einsum_tpl = pax_fiddle.Config(einsum.Einsum, by=chosen.fp8)
    if stack.moe_layers:
        stack.moe_layer_tpl = fp8_experts.convert_to_fp8(stack.moe_layer_tpl, chosen.fp8)
    task.train.learner = _change_class(task.train.learner, learner.Learner)
    if chosen.rank:
        task.train.learner.bprop_variable_inclusion = [
            *task.train.learner.bprop_variable_inclusion,
            einsum.STATE_PATTERN,
        ]
    task.train.variable_norm_summary = False  # it would count the state; our learner writes it


def _set_microbatches(task: Any, count: int) -> None:
    from rosetta.pax import learner

    softmax = task.model.lm_tpl.softmax_tpl
    rows = getattr(
        softmax, "use_tgt_labels_size_as_loss_denominator", False
    )  # the loss is then a sum over a batch of one size
    task.train.learner.stochastic_gradient = pax_fiddle.Config(
        learner.Microbatches,
        count=count,
        loss_name=task.train.learner.loss_name,
        by_weight=not rows,
    )
