"""Projections: products of activations with a weight matrix (the kernel), for T5X's networks.

All products of the networks with a weight go through `apply_projections`. It decides whether
several of them (for example query, key and value) become one GEMM, and whether they are computed in
FP8. Each kernel stays a parameter of its own.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.linen.partitioning import param_with_axes
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from rosetta.nn import fp8, fused_kernels, lora, sharded_parameters, transformer_engine

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

# The checkpoint_name of the outputs of projections, by which rematerialisation policies keep them.
PROJECTION_OUTPUT = "projection"


@dataclass(frozen=True)
class Projection:
    """The parameters of one projection.

    Attributes:
        kernel: [inputs, outputs], in the type of the parameters (float32).
        state: The FP8 state of `rosetta.nn.fp8`; None if the product is not computed in FP8.
        name: The name of the projection's module.
        backend: What computes the FP8 product, "xla" or "te" (Transformer Engine).
        axes: The logical names of the kernel's dimensions; empty if it is not sharded over the
            data axes (see `rosetta.nn.sharded_parameters`).
        adapter: The low-rank adapter beside the kernel, or None.
        bias: [outputs], which is added to the product, or None.
    """

    kernel: Any
    state: Mapping[str, Any] | None = None
    name: str = ""
    backend: str = "xla"
    axes: tuple[str, ...] = ()
    adapter: lora.Adapter | None = None
    bias: Any = None

    def divide(self, divisor: Any) -> Projection:
        """Return the projection whose product is divided by a number; the bias stays."""
        return dataclasses.replace(
            self,
            kernel=self.kernel / divisor.astype(self.kernel.dtype),
            adapter=self.adapter.divide(divisor) if self.adapter else None,
        )


class Kernel(nn.Module):
    """A Flax module that has the parameter `kernel` of one projection, and its FP8 state.

    Attributes:
        inputs: The number of input features.
        outputs: The number of output features.
        axes: The logical names of the two dimensions, for partitioning.
        init: The initializer of the kernel.
        fp8: "off", or what computes the product in FP8: "xla" or "te" (Transformer Engine). The
            module has FP8 state unless this is "off".
        lora_rank: The rank of a low-rank adapter (`rosetta.nn.lora`); 0 for none.
        lora_alpha: The numerator of the adapter's scale.
        has_bias: Whether the module also has the parameter `bias`, float32 [outputs].
    """

    inputs: int
    outputs: int
    axes: tuple[str, str]
    init: Callable[..., Any]
    fp8: str = "off"
    lora_rank: int = 0
    lora_alpha: float = 0.0
    has_bias: bool = False

    @nn.compact
    def __call__(self) -> Projection:
        """Return the parameters, the FP8 state and the adapter."""
        kernel = sharded_parameters.declare_parameter(
            "kernel", self.init, (self.inputs, self.outputs), self.axes
        )
        bias = None
        if self.has_bias:
            bias = param_with_axes(
                "bias",
                nn.initializers.zeros,
                (self.outputs,),
                jnp.float32,
                axes=(self.axes[1],),
            )
        state = fp8.get_state(self) if self.fp8 != "off" else None
        adapter = None
        if self.lora_rank:
            adapter = lora.declare_adapter(
                self.inputs, self.outputs, self.axes, self.lora_rank, self.lora_alpha
            )
        return Projection(kernel, state, self.name or "", self.fp8, self.axes, adapter, bias)


def apply_projections(
    x: Any,
    projections: Sequence[Projection],
    dtype: Any,
    multiply_fp8: Callable[..., tuple[Any, ...]] = fp8.multiply_kernels,
) -> tuple[Any, ...]:
    """Multiply an input with one kernel or several, and add their biases.

    Several kernels are one GEMM (`rosetta.nn.fused_kernels`). Projections with FP8 state are
    multiplied in FP8, each with scales of its own. Adapters are multiplied in `dtype`.

    Args:
        x: [..., inputs].
        projections: The projections; either all or none have FP8 state.
        dtype: The type of the factors and of the outputs.
        multiply_fp8: What multiplies projections whose backend is "xla" in FP8, with the arguments
            and results of `fp8.multiply_kernels`.

    Returns:
        For each projection [..., outputs] in `dtype`.
    """
    # Profiles and `rosetta plan` recognise the products by this scope.
    with jax.named_scope("+".join(projection.name for projection in projections)):
        x = jnp.asarray(x, dtype)
        outputs = _multiply_projections(x, projections, dtype, multiply_fp8)
        return tuple(
            _add_parts(output, x, projection, dtype)
            for output, projection in zip(outputs, projections, strict=True)
        )


def _add_parts(output: Any, x: Any, projection: Projection, dtype: Any) -> Any:
    """Add what the adapter and the bias of a projection give to its product."""
    if projection.adapter:
        output = output + lora.apply_adapter(x, projection.adapter, dtype)
    if projection.bias is not None:
        output = output + jnp.asarray(projection.bias, dtype)
    return output


def _multiply_projections(
    x: Any,
    projections: Sequence[Projection],
    dtype: Any,
    multiply_fp8: Callable[..., tuple[Any, ...]],
) -> tuple[Any, ...]:
    """Multiply [..., inputs] in `dtype` with each kernel, in FP8 if the projections have state."""
    first = projections[0]
    if first.state is not None:
        if first.backend == "te":
            multiply_fp8 = transformer_engine.multiply_kernels
        outputs = multiply_fp8(
            x,
            [projection.kernel for projection in projections],
            [projection.state for projection in projections if projection.state is not None],
            dtype,
            [projection.axes for projection in projections],
        )
        return tuple(checkpoint_name(output, PROJECTION_OUTPUT) for output in outputs)
    kernels = [
        sharded_parameters.cast_parameter(projection.kernel, projection.axes, dtype)
        for projection in projections
    ]
    product = checkpoint_name(
        lax.dot_general(x, fused_kernels.join_parts(kernels), (((x.ndim - 1,), (0,)), ((), ()))),
        PROJECTION_OUTPUT,
    )
    return tuple(fused_kernels.split_parts(product, [kernel.shape[1] for kernel in kernels]))
