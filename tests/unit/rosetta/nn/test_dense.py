"""Several projections in one product equal separate products, also with tensor parallelism."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import required_modules

required_modules.need_modules("jax", "flax")

import jax
import jax.numpy as jnp
import numpy as np

from rosetta.nn import dense, fused_kernels

ROOT = Path(__file__).resolve().parents[4]
ON_TWO = """\
import sys

import jax, jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rosetta.nn import dense, fp8

mesh = Mesh(jax.devices(), ("model",))
place = lambda *spec: NamedSharding(mesh, PartitionSpec(*spec))
state = {f"{t}_{n}": jnp.ones(s) for t in fp8.TENSORS for n, s in (("scale", 1), ("amax_history", fp8.HISTORY_LENGTH))} if sys.argv[1] == "xla" else None

def loss(x, kernels, targets):
    outputs = dense.apply_projections(x, [dense.Projection(kernel, state, str(index)) for index, kernel in enumerate(kernels)], "float32")
    return sum(jnp.sum(jax.lax.with_sharding_constraint(y, place(None, None, "model")) * t) for y, t in zip(outputs, targets))

given = (jnp.ones((2, 8, 16)), [jnp.ones((16, 32))] * 3, [jnp.ones((2, 8, 32))] * 3)
placed = (place(), [place(None, "model")] * 3, [place(None, None, "model")] * 3)
print(jax.jit(jax.grad(loss, argnums=(0, 1)), in_shardings=placed, out_shardings=placed[:2]).lower(*given).compile().as_text())
"""


def _arrays(widths: list[int]) -> tuple[Any, list[Any]]:
    rng = np.random.default_rng(0)
    return jnp.asarray(rng.normal(size=(2, 5, 8)), jnp.float32), [
        jnp.asarray(rng.normal(size=(8, width)), jnp.float32) for width in widths
    ]


@pytest.mark.parametrize("widths", [[6], [6, 6, 6], [4, 6, 2]], ids=["one", "equal", "unequal"])
def test_joined_kernels_can_be_split(widths: list[int]) -> None:
    _, kernels = _arrays(widths)
    whole = fused_kernels.join_parts(kernels)
    np.testing.assert_array_equal(
        whole.reshape(8, -1), np.concatenate(kernels, axis=1)
    )  # the same memory as side by side
    for found, kernel in zip(fused_kernels.split_parts(whole, widths), kernels, strict=True):
        np.testing.assert_array_equal(found, kernel)


@pytest.mark.parametrize("widths", [[6], [6, 6, 6], [4, 6, 2]], ids=["one", "equal", "unequal"])
def test_one_joined_product_equals_separate_products(widths: list[int]) -> None:
    x, kernels = _arrays(widths)

    def total(x: Any, kernels: list[Any]) -> Any:
        found = dense.apply_projections(
            x, [dense.Projection(kernel) for kernel in kernels], "float32"
        )
        return sum(jnp.sum(jnp.sin(each)) for each in found), found

    (_, found), gradients = jax.value_and_grad(total, argnums=(0, 1), has_aux=True)(x, kernels)
    expected = jax.grad(
        lambda x, kernels: sum(jnp.sum(jnp.sin(x @ kernel)) for kernel in kernels), argnums=(0, 1)
    )(x, kernels)
    for one, kernel in zip(found, kernels, strict=True):
        np.testing.assert_allclose(one, x @ kernel, rtol=1e-5, atol=1e-6)
    for one, other in zip(jax.tree.leaves(gradients), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    assert (
        sum(each.primitive.name == "dot_general" for each in jax.make_jaxpr(total)(x, kernels).eqns)
        == 1
    )


@pytest.mark.parametrize("by", ["off", "xla"])
def test_tensor_parallelism_moves_no_part_between_devices(by: str) -> None:
    """On two devices, only all-reduces are allowed: of the input gradient, and of FP8 amaxes."""
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
    }
    done = subprocess.run(
        [sys.executable, "-c", ON_TWO, by],
        env=env,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert re.search(r"all-reduce(-start)?\(", done.stdout)
    assert not re.findall(
        r"(?:all-to-all|collective-permute|all-gather|reduce-scatter)(?:-start)?\(", done.stdout
    )
