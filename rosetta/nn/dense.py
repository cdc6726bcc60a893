"""Projections: a kernel that a module holds, and one contraction of an input with one or several of
them.

All products of the networks with a weight go through `contract`, so that fusing them (q, k and v in
one GEMM) and doing them in FP8 are decided in one place, while every kernel stays a parameter of
its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.linen.partitioning import param_with_axes
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from rosetta.nn import fp8, fused_kernels, transformer_engine

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

PROJECTION_OUTPUT = "projection"  # the name that remat policies save outputs of `contract` by


@dataclass(frozen=True)
class Projection:
    """One projection: its kernel, [in, out] in the parameters' dtype, and its FP8 state if it has
    one, and who then multiplies.
    """

    kernel: Any
    state: Mapping[str, Any] | None = None
    name: str = ""
    backend: str = "xla"


class Kernel(nn.Module):
    """Holds one projection's parameter `kernel` of shape [inputs, outputs], and its FP8 state.

    Attributes:
      axes: the logical names of both dimensions.
      init: makes the kernel.
      fp8: "off", or who multiplies in FP8, "xla" or "te"; then it keeps the state that this needs.
    """

    inputs: int
    outputs: int
    axes: tuple[str, str]
    init: Callable[..., Any]
    fp8: str = "off"

    @nn.compact
    def __call__(self) -> Projection:
        kernel = param_with_axes(
            "kernel", self.init, (self.inputs, self.outputs), jnp.float32, axes=self.axes
        )
        return Projection(
            kernel, fp8.get_state(self) if self.fp8 != "off" else None, self.name or "", self.fp8
        )


def apply_projections(x: Any, parts: Sequence[Projection], dtype: Any) -> tuple[Any, ...]:
    """Multiply [..., inputs] with each part's [inputs, outputs]; returns a [..., outputs] in
    `dtype` for each.

    Several parts are one GEMM over their joined kernels (rosetta.nn.fused_kernels). Parts with FP8
    state are multiplied in FP8, with a scale of their own each.
    """
    with jax.named_scope(
        "+".join(part.name for part in parts)
    ):  # what profiles and rosetta.plan know the products by
        return _multiply(jnp.asarray(x, dtype), parts, dtype)


def _multiply(x: Any, parts: Sequence[Projection], dtype: Any) -> tuple[Any, ...]:
    if parts[0].state is not None:
        multiply = (
            transformer_engine.multiply_kernels
            if parts[0].backend == "te"
            else fp8.multiply_kernels
        )
        outputs = multiply(
            x,
            [part.kernel for part in parts],
            [part.state for part in parts if part.state is not None],
            dtype,
        )
        return tuple(checkpoint_name(each, PROJECTION_OUTPUT) for each in outputs)
    kernels = [jnp.asarray(part.kernel, dtype) for part in parts]
    whole = checkpoint_name(
        lax.dot_general(x, fused_kernels.join_parts(kernels), (((x.ndim - 1,), (0,)), ((), ()))),
        PROJECTION_OUTPUT,
    )
    return tuple(fused_kernels.split_parts(whole, [kernel.shape[1] for kernel in kernels]))
