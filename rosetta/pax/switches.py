"""The switches of an experiment: how its model is computed, and what of the model is trained.

The switches are hyper-parameters, so `--fdl.NAME=VALUE` sets them. A switch that is on puts
rosetta's layers or learner in the place of Praxis' and Paxml's. With all switches off, the
configuration of an experiment has no layer of this kind.
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


@dataclass(frozen=True)
class ChosenSwitches:
    """What the switches of an experiment result in.

    Attributes:
      fp8: What computes products in FP8: "off", "xla" or "te" (Transformer Engine).
      attention: What computes attention: "xla", "cudnn" or "te".
      rank: The rank of LoRA, 0 without LoRA.
      adapted: The layers that LoRA adapts, one of choices.LORA_LAYERS.
      microbatches: The number of parts in which a batch is computed.
      fused_gelu: Whether one kernel computes bias and GELU in FP8. None: where it can.
    """

    fp8: str = "off"
    attention: str = "xla"
    rank: int = 0
    adapted: str = "all"
    microbatches: int = 1
    fused_gelu: bool | None = None


class Switches:
    """A mixin of experiments that adds the switches.

    Attributes:
      USE_FP8: Whether XLA computes the products with kernels in FP8.
      ENABLE_TE: Whether Transformer Engine computes attention, and products in FP8. None: the
        variable of this name.
      ENABLE_FP8: Whether products are in FP8, by Transformer Engine if ENABLE_TE is on, or else by
        XLA. None: the variable of this name.
      ATTENTION: What computes the products between queries, keys and values: xla, cudnn or te.
        None: te if ENABLE_TE is on and NVTE_FUSED_ATTN is not 0, or else xla.
      USE_CUDNN_FLASH_ATTENTION: Upstream's name for ATTENTION=cudnn.
      USE_LORA: Whether to train low-rank adapters, and nothing else.
      LORA_RANK: The rank of the adapters.
      LORA_TARGET_LAYERS: The layers that get adapters: all, attention or mlp.
      NUM_MICROBATCHES: The number of parts in which the batch of a step is computed, one after
        another.
      FUSED_GELU: Whether one kernel computes bias and GELU of a feed-forward layer in FP8. None: on
        GPUs, where it can. True: the same, and a line says why if XLA computes them; a CPU
        interprets the kernel.
      keeps_attention: Whether CHECKPOINT_POLICY is experiment_checks.SAVE_DOT_AND_ATTENTION.
    """

    keeps_attention = False
    USE_FP8: Any = False
    ENABLE_TE: Any = None
    ENABLE_FP8: Any = None
    ATTENTION: str | None = None
    USE_CUDNN_FLASH_ATTENTION: Any = False
    USE_LORA: Any = False
    LORA_RANK = 8
    LORA_TARGET_LAYERS = "all"
    NUM_MICROBATCHES = 1
    FUSED_GELU: Any = None

    def task(self) -> Any:
        """Return the configuration of the base class's task, without any switch.

        Paxml's base class knows two of the switches, and would use layers of its own for them.
        """
        switches = self.USE_FP8, self.USE_CUDNN_FLASH_ATTENTION
        self.USE_FP8 = self.USE_CUDNN_FLASH_ATTENTION = False
        try:
            return super().task()  # type: ignore[misc]  # of the class that this is mixed into
        finally:
            self.USE_FP8, self.USE_CUDNN_FLASH_ATTENTION = switches

    def resolve_switches(self) -> ChosenSwitches:
        """Return what the switches result in.

        Raises:
          UserError: A value is not valid, or the switches cannot be combined.
        """
        with_te = _is_switched_on("ENABLE_TE", self.ENABLE_TE)
        fp8_by_xla = _is_switched_on("USE_FP8", self.USE_FP8)
        fp8_enabled = _is_switched_on("ENABLE_FP8", self.ENABLE_FP8)
        if fp8_by_xla and with_te:
            raise UserError(
                "USE_FP8 is FP8 by XLA, and Transformer Engine is on",
                "USE_FP8=True",
                "set ENABLE_TE=0, or set ENABLE_FP8=1 instead of USE_FP8 for FP8 by Transformer "
                "Engine",
                kind=CONFLICT,
            )
        rank = 0
        if _is_switched_on("USE_LORA", self.USE_LORA):
            rank = experiment_checks.check_count("LORA_RANK", self.LORA_RANK)
        fp8 = "off"
        if fp8_by_xla or fp8_enabled:
            fp8 = "te" if with_te else "xla"
        fused_gelu = None
        if self.FUSED_GELU is not None:
            fused_gelu = experiment_checks.read_switch("FUSED_GELU", self.FUSED_GELU)
        return ChosenSwitches(
            fp8=fp8,
            attention=self._choose_attention(with_te=with_te),
            rank=rank,
            adapted=parse_choice(
                "LORA_TARGET_LAYERS", self.LORA_TARGET_LAYERS, choices.LORA_LAYERS
            ),
            microbatches=experiment_checks.check_count("NUM_MICROBATCHES", self.NUM_MICROBATCHES),
            fused_gelu=fused_gelu,
        )

    def check_resume(self, folder: str) -> None:
        """Check that the run can resume from the checkpoints in its folder with its switches.

        Args:
          folder: The folder of the run.

        Raises:
          UserError: The run was started with other switches.
        """
        chosen = self.resolve_switches()
        stored_checkpoint.check_switches(folder, fp8=chosen.fp8 != "off", lora=chosen.rank > 0)

    def _choose_attention(self, *, with_te: bool) -> str:
        """Return what computes attention: "xla", "cudnn" or "te".

        Args:
          with_te: Whether Transformer Engine is on.

        Raises:
          UserError: A value is not valid, or the settings contradict each other.
        """
        te_disabled = transformer_engine.disables_fused_attention(os.environ)
        wants_cudnn = _is_switched_on("USE_CUDNN_FLASH_ATTENTION", self.USE_CUDNN_FLASH_ATTENTION)
        if self.ATTENTION is None:
            if wants_cudnn:
                return "cudnn"
            return "te" if with_te and not te_disabled else "xla"
        choice = parse_choice("ATTENTION", self.ATTENTION, choices.ATTENTION)
        if wants_cudnn and choice != "cudnn":
            raise UserError(
                f"ATTENTION is {choice}",
                "USE_CUDNN_FLASH_ATTENTION=True",
                "leave out ATTENTION or USE_CUDNN_FLASH_ATTENTION",
                kind=CONFLICT,
                value=choice,
            )
        if choice == "te" and te_disabled:
            raise UserError(
                "NVTE_FUSED_ATTN is 0",
                "ATTENTION=te",
                "unset NVTE_FUSED_ATTN, or set ATTENTION to xla or cudnn",
                kind=CONFLICT,
            )
        return choice

    def apply_switches(self, task: Any) -> Any:
        """Change the configuration of a task, in place, to what the switches say.

        Args:
          task: The configuration.

        Returns:
          The same configuration.

        Raises:
          UserError: The switches cannot be combined, or need something that is missing.
        """
        chosen = self.resolve_switches()
        if chosen == ChosenSwitches(adapted=chosen.adapted):
            return task
        if problem := experiment_checks.find_switch_problem(jax.__version__):
            raise UserError(
                problem,
                "the switches",
                "use the pax distribution, not pax-1.4, or leave the switches off",
                kind=UNSUPPORTED,
                value=jax.__version__,
            )
        if "te" in (chosen.fp8, chosen.attention):
            transformer_engine.require_transformer_engine()
        stack = _require_layer_stack(task.model.lm_tpl)
        if chosen.attention != "xla":
            self._set_attention(task.model, stack, chosen.attention)
            if self.keeps_attention:
                from rosetta.nn import remat  # not for the JAX of pax-1.4

                stacked = task.model.lm_tpl.stacked_transformer_tpl
                stacked.checkpoint_policy = remat.keep_products_and_attention
        if chosen.rank:
            _add_lora(task.train.learner, stack, chosen)
        if chosen.fp8 != "off":
            _set_fp8(task, stack, chosen)
        if chosen.fused_gelu and chosen.fp8 != "xla":
            from rosetta.pax import feed_forward

            feed_forward.warn_of_fallback("the fused kernel needs FP8 by XLA")
        if chosen.microbatches > 1:
            _set_microbatches(task, chosen.microbatches)
        return task

    def _set_attention(self, model: Any, stack: Any, by: str) -> None:
        """Set the layers of attention of rosetta.pax.attention.

        Args:
          model: The configuration of the model.
          stack: The configuration of its stack of layers.
          by: "cudnn" or "te".

        Raises:
          UserError: The model is not causal, or its precision is not one of cuDNN's.
        """
        from rosetta.pax import attention, einsum

        if model.lm_tpl.model_type != transformer_models.LanguageModelType.CAUSAL:
            raise UserError(
                "the model is not causal",
                f"ATTENTION={by}",
                "set ATTENTION to xla",
                kind=UNSUPPORTED,
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
            praxis_class = fdl.get_callable(layer.tr_atten_tpl)
            if "num_kv_heads" in praxis_class.__dataclass_fields__:
                fused_class = attention.MultiQueryAttention
            else:
                fused_class = attention.DotProductAttention
            layer.tr_atten_tpl = _change_class(
                layer.tr_atten_tpl, fused_class, by=by, packed=packed
            )
            if hasattr(layer.tr_atten_tpl, "combined_qkv_proj_tpl"):
                layer.tr_atten_tpl.combined_qkv_proj_tpl.einsum_tpl = pax_fiddle.Config(
                    einsum.RowMajorEinsum
                )


def _is_switched_on(name: str, value: Any) -> bool:
    """Return whether a switch is on; if its value is None, the variable of its name counts."""
    if value is None:
        return read_truth_value(os.environ, name)
    return experiment_checks.read_switch(name, value)


def find_layer_stack(lm: Any) -> Any:
    """Return the configuration of the stack of layers of a language model.

    Args:
      lm: The configuration of the language model. If its layers are repeated, the result is the
        stack that is repeated.
    """
    stack = lm.stacked_transformer_tpl
    if issubclass(fdl.get_callable(stack), layers.StackedTransformerRepeated):
        return stack.block
    return stack


def _require_layer_stack(lm: Any) -> Any:
    """Return `find_layer_stack(lm)`; UserError if the switches do not support its class."""
    stack = find_layer_stack(lm)
    stack_class = fdl.get_callable(stack)
    if not issubclass(stack_class, layers.StackedTransformer):
        raise UserError(
            f"the switches do not support {stack_class.__name__}",
            "the switches",
            "use layers in a row or repeated, without a pipeline",
            kind=UNSUPPORTED,
        )
    return stack


def _list_layers(stack: Any) -> list[Any]:
    """Return the configurations of the layers of a stack; one if all layers share it."""
    templates = stack.transformer_layer_params_tpl
    return list(templates) if isinstance(templates, (list, tuple)) else [templates]


def _change_class(template: Any, new_class: Any, **more: Any) -> Any:
    """Return a configuration of another class with the same values, and some more."""
    config = pax_fiddle.Config(new_class, **more)
    config.copy_fields_from(template)
    return config


_PROJECTIONS = ("proj_tpl", "combined_qkv_proj_tpl", "headless_proj_tpl")


def _list_projections(attention: Any) -> list[str]:
    """Return the names of the projections that a configuration of attention has."""
    return [name for name in _PROJECTIONS if hasattr(attention, name)]


def _add_lora(learner: Any, stack: Any, chosen: ChosenSwitches) -> None:
    """Give the layers of a stack adapters, and let the learner train nothing else.

    Raises:
      UserError: A layer has no adapter.
    """
    from rosetta.pax import lora

    if chosen.adapted != "attention" and stack.moe_layers:
        raise UserError(
            "experts cannot have adapters",
            f"LORA_TARGET_LAYERS={chosen.adapted}",
            "set LORA_TARGET_LAYERS to attention",
            kind=UNSUPPORTED,
        )

    def adapt(template: Any) -> Any:
        praxis_class = fdl.get_callable(template)
        adapted_class = lora.ADAPTED_CLASSES.get(praxis_class)
        if adapted_class is None:
            raise UserError(
                f"{praxis_class.__name__} cannot have adapters",
                "USE_LORA=True",
                "leave USE_LORA out",
                kind=UNSUPPORTED,
            )
        return _change_class(template, adapted_class, rank=chosen.rank)

    for layer in _list_layers(stack):
        if chosen.adapted != "attention":
            mlp = layer.tr_fflayer_tpl.fflayer_tpl
            mlp.linear_tpl = adapt(mlp.linear_tpl)
        if chosen.adapted != "mlp":
            attention = layer.tr_atten_tpl
            for name in _list_projections(attention):
                setattr(attention, name, adapt(getattr(attention, name)))
    learner.bprop_variable_inclusion = [lora.KERNEL_PATTERN]


def _set_fp8(task: Any, stack: Any, chosen: ChosenSwitches) -> None:
    """Let the products with kernels be in FP8, and the learner keep their state."""
    from rosetta.pax import einsum, fp8_experts, learner

    for layer in _list_layers(stack):
        attention = layer.tr_atten_tpl
        projections = [getattr(attention, name) for name in _list_projections(attention)]
        for template in (*projections, layer.tr_fflayer_tpl.fflayer_tpl.linear_tpl):
            template.einsum_tpl = pax_fiddle.Config(einsum.Einsum, by=chosen.fp8)
        if chosen.fp8 == "xla" and chosen.fused_gelu is not False:
            _set_fused_gelu(layer, is_asked=bool(chosen.fused_gelu))
    if stack.moe_layers:
        stack.moe_layer_tpl = fp8_experts.convert_to_fp8(stack.moe_layer_tpl, chosen.fp8)
    task.train.learner = _change_class(task.train.learner, learner.Learner)
    if chosen.rank:
        task.train.learner.bprop_variable_inclusion = [
            *task.train.learner.bprop_variable_inclusion,
            einsum.STATE_PATTERN,
        ]
    # Paxml's summary of norms would count the state. The learner above writes the summary.
    task.train.variable_norm_summary = False


def _set_fused_gelu(layer: Any, *, is_asked: bool) -> None:
    """Let one kernel compute the bias and GELU of a layer, if its configuration permits.

    Args:
      layer: The configuration of the layer, with its products in FP8.
      is_asked: Whether the kernel was asked for.
    """
    from rosetta.pax import feed_forward

    problem = feed_forward.find_problem(layer.tr_fflayer_tpl)
    if not problem:
        layer.tr_fflayer_tpl = _change_class(
            layer.tr_fflayer_tpl, feed_forward.FusedFeedForward, is_asked=is_asked
        )
    elif is_asked:
        feed_forward.warn_of_fallback(problem)


def _set_microbatches(task: Any, count: int) -> None:
    """Let a batch be computed in `count` parts."""
    from rosetta.pax import learner

    softmax = task.model.lm_tpl.softmax_tpl
    # With this option the loss is a sum over a batch of one size, so all parts count the same.
    counts_rows = getattr(softmax, "use_tgt_labels_size_as_loss_denominator", False)
    task.train.learner.stochastic_gradient = pax_fiddle.Config(
        learner.Microbatches,
        count=count,
        loss_name=task.train.learner.loss_name,
        by_weight=not counts_rows,
    )
