"""praxis' products of activations with a kernel, in FP8: what its layers take for `einsum_tpl`.

A product is that of rosetta.nn.fp8, or of rosetta.nn.transformer_engine. The state that goes with
it has the names, shapes and place of praxis' own `Fp8EinsumOp`, so that checkpoints with one
restore in the other. That is one set for a whole kernel, also where the kernel is q, k and v in
one, or one matrix for each expert: all parts are quantised by the same scales, and what the parts
saw is put together by the largest.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from praxis import base_layer

from rosetta.nn import fallback_notice, fp8, transformer_engine

if TYPE_CHECKING:
    from collections.abc import Mapping

STATE_NAMES = tuple(
    f"{tensor}_{what}" for tensor in fp8.TENSORS for what in ("scale", "amax_history")
)
STATE_PATTERN = rf"^.*[/.]({'|'.join(STATE_NAMES)})$"  # of a state's variables, by their full names


class Einsum(base_layer.BaseLayer):
    """Multiplies activations with a kernel in FP8, as an einsum says.

    Attributes:
      by: who multiplies: "xla", or "te" for Transformer Engine.
    """

    by: str = "xla"

    def setup(self) -> None:
        kinds = base_layer.WeightHParamsCollection
        for name in STATE_NAMES:
            history = name.endswith("amax_history")
            self.create_variable(
                name,
                base_layer.WeightHParams(
                    shape=[fp8.HISTORY_LENGTH if history else 1],
                    init=base_layer.WeightInit.Constant(0.0 if history else 1.0),
                    dtype=jnp.float32,
                    mesh_shape=self.mesh_shape,
                    tensor_split_dims_mapping=None,
                    collections=[kinds.OVERWRITE_WITH_GRADIENT, kinds.DISALLOW_BFLOAT16_CONVERSION],
                ),
            )

    def __call__(self, equation: str, x: Any, kernel: Any) -> Any:
        """Return einsum(equation, x, kernel) in fprop_dtype; `equation` is one of what `multiply`
        takes.
        """
        return multiply_in_fp8(
            equation,
            x,
            kernel,
            {name: self.theta[name] for name in STATE_NAMES},
            self.fprop_dtype,
            self.by,
        )


def multiply_in_fp8(
    equation: str, x: Any, kernel: Any, state: Mapping[str, Any], dtype: Any, by: str = "xla"
) -> Any:
    """Return einsum(equation, x, kernel) in `dtype`, computed in FP8.

    The equation is of the form "ebi,ekio->ekbo", where each letter stands for none, one or several
    dimensions (e and k for one at most): e are experts, each with a kernel of its own; b, which may
    be "...", what x has of its own; k parts of the kernel, q, k and v; i what is summed over; o the
    outputs. The kernel's dimensions may stand in any order.

    Args:
      equation: as jax.numpy.einsum has it.
      x: activations.
      kernel: the kernel.
      state: the scales [1] and histories [n] of the product, float32 (rosetta.nn.fp8).
      dtype: of what is returned.
      by: "xla" or "te"; kernels of experts are multiplied by XLA, which a line says.

    Differentiated with respect to `state`, it gives what was seen.
    """
    left, right, out = _split_equation(equation, x.ndim)
    rows = [letter for letter in left if letter not in right]
    experts = [letter for letter in left if letter in right and letter in out]
    over = [letter for letter in left if letter in right and letter not in out]
    own = [letter for letter in out if letter not in left]
    parts = own[: out.index(rows[0])] if rows and not experts else []
    outputs = own[len(parts) :]
    if (
        left != [*experts, *rows, *over]
        or out != [*experts, *parts, *rows, *outputs]
        or len(experts) > 1
        or len(parts) > 1
    ):
        raise ValueError(f"no product of activations and a kernel: {equation}")

    sizes = dict(zip(right, kernel.shape, strict=True))
    wide = [[sizes[letter] for letter in group] for group in (experts, parts, over, outputs)]
    kernel = jnp.transpose(
        kernel,
        [right.index(letter) for group in (experts, parts, over, outputs) for letter in group],
    )
    kernel = kernel.reshape(*wide[0], *wide[1], math.prod(wide[2]), math.prod(wide[3]))
    before = x.shape[: len(experts) + len(rows)]
    x = jnp.asarray(x, dtype).reshape(*before, math.prod(wide[2]))
    if experts:
        if by == "te":
            fallback_notice.warn_once(
                "FP8 of experts by XLA instead of Transformer Engine",
                "its product takes one kernel",
            )

        def one(x: Any, kernel: Any, state: Any) -> Any:
            with jax.named_scope(
                "expert"
            ):  # else it is the product's own scope that gets vmap around its name
                return fp8.multiply_kernels(x, [kernel], [state], dtype)[0]

        product = jax.vmap(one)(x, kernel, _repeat_state(dict(state), kernel.shape[0]))
        return product.reshape(*before, *wide[3])
    contract = transformer_engine.multiply_kernels if by == "te" else fp8.multiply_kernels
    if parts:
        count = kernel.shape[0]
        states = _repeat_state(dict(state), count)
        products = contract(
            x,
            list(kernel),
            [jax.tree.map(lambda leaf, index=index: leaf[index], states) for index in range(count)],
            dtype,
        )
        return jnp.stack(products).reshape(count, *before, *wide[3])
    return contract(x, [kernel], [state], dtype)[0].reshape(*before, *wide[3])


def _split_equation(equation: str, rank: int) -> tuple[list[str], list[str], list[str]]:
    """Return the letters of x, the kernel and the result, with some of their own in the place of
    "...".
    """
    left, right, out = equation.replace("->", ",").split(",")
    dots = "".join(chr(ord("0") + index) for index in range(rank - len(left.replace("...", ""))))
    return list(left.replace("...", dots)), list(right), list(out.replace("...", dots))


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _repeat_state(state: dict[str, Any], count: int) -> dict[str, Any]:
    """Return a state for each of `count` products that share it, along a new first dimension."""
    return {name: jnp.broadcast_to(leaf, (count, *leaf.shape)) for name, leaf in state.items()}


def _repeat_state_forward(state: dict[str, Any], count: int) -> tuple[dict[str, Any], None]:
    return _repeat_state(state, count), None


def _repeat_state_backward(_: int, __: None, seen: dict[str, Any]) -> tuple[dict[str, Any]]:
    return ({name: jnp.max(leaf, axis=0) for name, leaf in seen.items()},)


_repeat_state.defvjp(_repeat_state_forward, _repeat_state_backward)
