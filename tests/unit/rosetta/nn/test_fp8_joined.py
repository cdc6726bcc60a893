"""Joined projections in FP8 with their own backward kernel, against XLA's, and when it is chosen."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import required_modules

required_modules.need_modules("jax", "flax", "t5x.utils")

import jax
import jax.numpy as jnp
import numpy as np
from flax.linen import partitioning as flax_partitioning
from jax.sharding import Mesh

from rosetta.core import log
from rosetta.nn import current_mesh, fp8_joined
from rosetta.nn.attention import Mask
from rosetta.t5x.layers import Attention, AttentionContext
from rosetta.t5x.run.model_config import T5Config
from tests.support import fp8_kernel_runs
from tests.support.fp8_kernel_gradients import RULES, VARIANTS

NAMES = ("batch", "length", "joined_kv")


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    """The differences of the projections from those without the kernel, for each variant."""
    return fp8_kernel_runs.compare_gradients("joined")


@pytest.mark.parametrize("variant", [name for name in VARIANTS if name != "bfloat16"])
def test_same_as_without(results: dict[str, Any], variant: str) -> None:
    """Outputs, gradients and observed states are those of XLA's kernels on one device."""
    differences = results[variant]["differences"]
    assert {"output", "input gradient", "params/query/kernel"} < set(differences)
    assert {name: value for name, value in differences.items() if not value <= 1e-5} == {}


def test_bfloat16(results: dict[str, Any]) -> None:
    """In bfloat16 only the sums of the kernels' gradients over the devices are rounded."""
    differences = dict(results["bfloat16"]["differences"])
    sums = {differences.pop(f"params/{name}/kernel") for name in ("query", "key", "value")}
    assert max(sums) < 0.01
    assert set(differences.values()) == {0.0}


@pytest.mark.parametrize("variant", VARIANTS)
def test_kernels(results: dict[str, Any], variant: str) -> None:
    """The backward pass has the kernel."""
    assert (results[variant]["kernels"], results[variant]["plain kernels"]) == (1, 0)


def make_mesh(capability: str) -> Any:
    """Return a stand-in for a mesh of 2 x 2 GPUs."""
    device = SimpleNamespace(platform="gpu", compute_capability=capability)
    return SimpleNamespace(
        devices=np.full((2, 2), device),
        shape={"data": 2, "model": 2},
        axis_names=("data", "model"),
    )


def plan(mesh: Any, shape: tuple[int, ...], *, length_first: bool = False) -> Any:
    """Return what `plan_gradients` returns on a mesh, for a shape with the batch first."""
    order = (1, 0, 2) if length_first else (0, 1, 2)
    with current_mesh.use_mesh(mesh), flax_partitioning.axis_rules(RULES):
        return fp8_joined.plan_gradients(
            [shape[axis] for axis in order],
            [NAMES[axis] for axis in order],
            3,
            length_first=length_first,
        )


@pytest.mark.parametrize("length_first", [False, True], ids=["batch first", "length first"])
@pytest.mark.parametrize("capability", ["8.9", "9.0", "10.0", "12.0"])
def test_gpus_with_fp8(capability: str, *, length_first: bool) -> None:
    """A GPU that has FP8 runs the kernel on each device's part, with the batch first."""
    gradients, problem = plan(make_mesh(capability), (8, 16, 64), length_first=length_first)
    assert problem == ""
    assert gradients.placement.axes == (("data",), (), ("model",))
    assert gradients.length_first == length_first


@pytest.mark.parametrize(
    ("mesh", "shape"),
    [
        pytest.param(make_mesh("8.0"), (8, 16, 64), id="A100"),
        pytest.param(make_mesh("9.0"), (7, 16, 64), id="batch"),
        pytest.param(make_mesh("9.0"), (8, 16, 65), id="features"),
        pytest.param(make_mesh("9.0"), (8, 24, 64), id="length"),
        pytest.param(make_mesh("9.0"), (8, 16, 48), id="features of a device"),
        pytest.param(None, (8, 16, 64), id="no mesh"),
    ],
)
def test_not_chosen(mesh: Any, shape: tuple[int, ...]) -> None:
    """What the kernel cannot read is left to XLA, with a reason."""
    gradients, problem = plan(mesh, shape)
    assert gradients is None
    assert problem


def count_kernels(length: int = 16, **settings: Any) -> int:
    """Return the kernels in the backward pass of an attention on a mesh of one CPU."""
    sizes = {"emb_dim": 32, "num_heads": 2, "head_dim": 16, "fp8": "xla", "fuse_qkv": True}
    module = Attention(T5Config(vocab_size=1, **{**sizes, **settings}))
    x = jnp.ones((2, length, 32))
    valid = jnp.ones((2, length), bool)
    context = AttentionContext(Mask(valid, valid), None, None, "xla")
    variables = module.init(jax.random.key(0), x, x, context)

    def compute(variables: Any) -> Any:
        return module.apply(variables, x, x, context).sum()

    mesh = Mesh(np.asarray(jax.devices()[:1]).reshape(1, 1), ("data", "model"))
    with current_mesh.use_mesh(mesh), flax_partitioning.axis_rules(RULES):
        return str(jax.make_jaxpr(jax.grad(compute))(variables)).count("name=join_gradients")


def test_cpu_by_default() -> None:
    """A CPU does not interpret the kernel unless it is asked to."""
    assert count_kernels() == 0
    assert count_kernels(fused_qkv_gradients=True) == 1
    assert count_kernels(fused_qkv_gradients=False) == 0


@pytest.mark.parametrize(
    "settings", [{"fp8": "off"}, {"length": 15}], ids=["without FP8", "odd length"]
)
def test_other_attention(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA computes other gradients, and a line says so if the kernel is asked for."""
    lines: list[str] = []
    monkeypatch.setattr(log, "warn", lambda text, **_options: lines.append(text))
    assert count_kernels(**settings) == 0
    assert lines == []
    assert count_kernels(**settings, fused_qkv_gradients=True) == 0
    assert lines
