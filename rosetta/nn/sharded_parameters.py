"""Parameters that are sharded over the data axes, and gathered where the network uses them (FSDP).

The partitioner knows the layouts; it traces each step inside `use_layouts`. Outside of it, the
functions here change no layout. A parameter is cast to the type of its use while it is sharded, and
the narrow copy is gathered. Its gradient is scattered in that type.
"""

from __future__ import annotations

import contextlib
import functools
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from flax.linen import partitioning as flax_partitioning
from jax import lax

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from jax.sharding import NamedSharding

# The names of the parameters that are sharded: the last part of their path.
SHARDED_NAMES = frozenset({"kernel", "embedding"})


@dataclass(frozen=True)
class Layout:
    """The two layouts of a parameter.

    Attributes:
        sharded: The layout in the train state, over the data axes, too.
        gathered: The layout of the copy that the network computes with.
    """

    sharded: NamedSharding
    gathered: NamedSharding


_find_layout: ContextVar[Callable[[Sequence[str], Sequence[int]], Layout | None] | None] = (
    ContextVar("find_layout", default=None)
)


@contextlib.contextmanager
def use_layouts(
    find_layout: Callable[[Sequence[str], Sequence[int]], Layout | None] | None,
) -> Iterator[None]:
    """Have what is traced inside gather its parameters.

    Args:
        find_layout: Takes the logical names of a parameter's dimensions, and its shape. Returns the
            layouts, or None for a parameter that is not sharded over the data axes. None gathers
            nothing, as inside `shard_map`, where each device has whole parameters.
    """
    token = _find_layout.set(find_layout)
    try:
        yield
    finally:
        _find_layout.reset(token)


def find_layout(axes: Sequence[str], shape: Sequence[int]) -> Layout | None:
    """Return the layouts of a parameter; None if it is not sharded over the data axes.

    Args:
        axes: The logical names of its dimensions; empty if they are not known.
        shape: Its shape.
    """
    finder = _find_layout.get()
    return finder(axes, shape) if finder and axes else None


def declare_parameter(
    name: str, initializer: Callable[..., Any], shape: tuple[int, ...], axes: tuple[str, ...]
) -> Any:
    """Declare a float32 parameter of the Flax module that calls this, and return it.

    Args:
        name: The name of the parameter, one of SHARDED_NAMES.
        initializer: Makes its initial value.
        shape: Its shape.
        axes: The logical names of its dimensions.
    """
    # Flax constrains a parameter to the layout of its axes, which would gather it as float32.
    without_constraint = (
        flax_partitioning.axis_rules(()) if find_layout(axes, shape) else contextlib.nullcontext()
    )
    with without_constraint:
        return flax_partitioning.param_with_axes(name, initializer, shape, jnp.float32, axes=axes)


def cast_parameter(parameter: Any, axes: Sequence[str], dtype: Any) -> Any:
    """Return a parameter in a type, gathered if it is sharded.

    Args:
        parameter: The parameter.
        axes: The logical names of its dimensions; empty if they are not known.
        dtype: The type.
    """
    layout = find_layout(axes, parameter.shape)
    if layout is None:
        return jnp.asarray(parameter, dtype)
    return _cast_and_gather(layout, jnp.dtype(dtype), parameter)


def gather_array(array: Any, layout: Layout | None) -> Any:
    """Return an array that was computed elementwise from a sharded parameter, gathered."""
    if layout is None:
        return array
    # Without the first constraint, XLA may gather the wider array from which this one was computed.
    array = lax.with_sharding_constraint(array, layout.sharded)
    return lax.with_sharding_constraint(array, layout.gathered)


def scatter_gradient(gradient: Any, layout: Layout | None) -> Any:
    """Return the gradient of a gathered parameter, sharded as the parameter."""
    return gradient if layout is None else lax.with_sharding_constraint(gradient, layout.sharded)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _cast_and_gather(layout: Layout, dtype: Any, parameter: Any) -> Any:
    """Return `cast_parameter` of a sharded parameter."""
    return gather_array(parameter.astype(dtype), layout)


def _cast_forward(layout: Layout, dtype: Any, parameter: Any) -> tuple[Any, Any]:
    """Return the gathered copy, and [0] in the type of the parameter."""
    return _cast_and_gather(layout, dtype, parameter), jnp.zeros((0,), parameter.dtype)


def _cast_backward(layout: Layout, _dtype: Any, parameter_like: Any, gradient: Any) -> tuple[Any]:
    """Return the gradient of the parameter, sharded and in its type."""
    return (scatter_gradient(gradient, layout).astype(parameter_like.dtype),)


_cast_and_gather.defvjp(_cast_forward, _cast_backward)
