"""Run by test_compiled_bytes.py where the CUDA plugin is.

Compiles small programs for H100s that are not here, and prints the bytes of their kernels and the
work beside their collectives as JSON.
"""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any

from rosetta.plan import hlo_text, step_kernels, t5x_step

t5x_step.prepare_compilation({}, "h100")

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

if TYPE_CHECKING:
    from collections.abc import Callable

STACK, ROW, INDEX = ((64, 512, 128), jnp.bfloat16), ((512, 128), jnp.bfloat16), ((), jnp.int32)
Shape = tuple[tuple[int, ...], Any]


def take_layer(stack: jax.Array, index: jax.Array) -> jax.Array:
    """Take a layer of a view of a stack, in another type."""
    return stack.reshape(64, -1)[index].astype(jnp.float32)


def put_layer(stack: jax.Array, row: jax.Array, index: jax.Array) -> jax.Array:
    """Put a layer into a stack in place."""
    return jax.lax.dynamic_update_index_in_dim(stack, row * 2, index, 0)


def add(left: jax.Array, right: jax.Array) -> jax.Array:
    """Add two arrays."""
    return left + right


def find_largest(stack: jax.Array) -> jax.Array:
    """Find the largest value of each row."""
    return jnp.max(stack, axis=-1)


PROGRAMS: dict[str, tuple[Callable[..., jax.Array], tuple[Shape, ...], tuple[int, ...]]] = {
    "take_layer": (take_layer, (STACK, INDEX), ()),
    "put_layer": (put_layer, (STACK, ROW, INDEX), (0,)),
    "add": (add, (STACK, STACK), ()),
    "find_largest": (find_largest, (STACK,), ()),
}


def count_bytes(name: str, device: Any) -> float:
    """Return the bytes that the kernels of a program move."""
    function, shapes, donated = PROGRAMS[name]
    where = SingleDeviceSharding(device)
    arguments = [jax.ShapeDtypeStruct(shape, dtype, sharding=where) for shape, dtype in shapes]
    compiled = jax.jit(function, donate_argnums=donated).lower(*arguments).compile()
    module = hlo_text.parse_module(compiled.as_text())
    return sum(kernel.times * kernel.bytes for kernel in step_kernels.list_kernels(module))


def describe_overlap(devices: list[Any]) -> dict[str, Any]:
    """Return who computes the product of a program, and the products beside its all-reduces."""
    mesh = Mesh(devices, ("data",))

    @functools.partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=(PartitionSpec("data"), PartitionSpec("data")),
        out_specs=(PartitionSpec(), PartitionSpec("data")),
    )
    def reduce_and_multiply(gradient: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jax.lax.psum(gradient, "data"), x @ x

    where = NamedSharding(mesh, PartitionSpec("data"))
    gradient = jax.ShapeDtypeStruct((2, 1 << 24), jnp.float32, sharding=where)
    x = jax.ShapeDtypeStruct((2, 4096, 4096), jnp.bfloat16, sharding=where)
    compiled = jax.jit(reduce_and_multiply).lower(gradient, x).compile()
    module = hlo_text.parse_module(compiled.as_text())
    products = [
        kernel.instruction.opcode
        for kernel in step_kernels.list_kernels(module)
        if step_kernels.list_kernel_gemms(module, kernel)
    ]
    behind = [collective.behind for collective in step_kernels.list_collectives(module)]
    return {"products": products, "behind": behind}


if __name__ == "__main__":
    with jax.default_device(jax.devices("cpu")[0]):
        devices = t5x_step.describe_devices("h100", 1, 2)
        print(
            json.dumps(
                {
                    **{name: count_bytes(name, devices[0]) for name in PROGRAMS},
                    "overlap": describe_overlap(devices),
                }
            )
        )
