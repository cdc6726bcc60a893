"""Print as JSON how a layer with the FP8 kernels of `rosetta.nn` differs from one without.

Usage: python -m tests.support.fp8_kernel_gradients LAYER. test_fp8_mlp.py and test_fp8_joined.py
run this with four virtual devices. The kernels are interpreted.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax.core import unfreeze
from flax.linen import partitioning as flax_partitioning
from flax.traverse_util import flatten_dict
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rosetta.nn import (
    current_mesh,
    fp8,
    fp8_joined,
    fp8_mlp,
    kernel_placement,
    mlp_kernels,
    remat,
    sharded_parameters,
)
from rosetta.nn.dense import Projection, apply_projections
from rosetta.nn.mesh_axes import DATA, MODEL
from rosetta.nn.sharded_parameters import Layout
from rosetta.t5x.layers import Mlp
from rosetta.t5x.run.model_config import T5Config

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

LENGTH, BATCH, WIDTH, HIDDEN = 48, 8, 32, 192
PROJECTIONS = ("query", "key", "value")
# The scales of each projection, relative to those of the others.
FACTORS = {"wi_0": 1.0, "wi_1": 1.3, "wo": 0.7, "query": 1.0, "key": 1.3, "value": 0.7}
RULES = (
    ("batch", DATA),
    ("mlp", MODEL),
    ("joined_kv", MODEL),
    ("embed", None),
    ("length", None),
)
# The devices of the data and of the model axis, and what else differs.
VARIANTS: dict[str, dict[str, Any]] = {
    "one device": {"devices": (1, 1)},
    "data": {"devices": (4, 1)},
    "tensor parallel": {"devices": (1, 4)},
    "data and tensor parallel": {"devices": (2, 2)},
    "fsdp": {"devices": (4, 1), "fsdp": True},
    "transposed": {"devices": (4, 1), "transposed": True},
    "rematerialised": {"devices": (1, 1), "rematerialised": True},
    "bfloat16": {"devices": (4, 1), "dtype": "bfloat16"},
}


def choose_scale(path: Any, array: Any) -> Any:
    """Return a state array; the scales of each projection differ, and some clip their tensor."""
    names = [key.key for key in path]
    scales = {"input_scale": 0.005, "kernel_scale": 0.001, "output_grad_scale": 1e-5}
    factor = FACTORS[names[-2]]
    return array * scales.get(names[-1], 1.0) * factor


def make_config(**settings: Any) -> T5Config:
    """Return the configuration of a network with this MLP."""
    sizes: dict[str, Any] = {
        "emb_dim": WIDTH,
        "mlp_dim": HIDDEN,
        "mlp_activations": ("gelu", "linear"),
    }
    return T5Config(vocab_size=1, **sizes, fp8="xla", fuse_mlp=True, **settings)


def make_layout(mesh: Mesh, names: Sequence[str], _shape: Any = None) -> Layout:
    """Return the layouts of a kernel, with FSDP over the data axis."""
    gathered = flax_partitioning.logical_to_mesh_axes(tuple(names), RULES)
    sharded = PartitionSpec(*(axis or DATA for axis in gathered))
    return Layout(NamedSharding(mesh, sharded), NamedSharding(mesh, gathered))


@dataclass(frozen=True)
class Step:
    """A forward and backward pass of the MLP.

    Attributes:
        fused: Whether it has the kernels.
        devices: The sizes of the data and the model axis.
        fsdp: Whether the parameters are sharded over the data axis.
        transposed: Whether activations have the length first.
        rematerialised: Whether the backward pass computes the hidden features again.
        dtype: The type of activations.
    """

    fused: bool
    devices: tuple[int, int]
    fsdp: bool = False
    transposed: bool = False
    rematerialised: bool = False
    dtype: str = "float32"

    kernel_name: ClassVar[str] = "geglu"

    def make_variables(self) -> Any:
        """Return the parameters, and the FP8 state before its scales are chosen."""
        x = jnp.zeros((BATCH, LENGTH, WIDTH))
        return Mlp(make_config()).init(jax.random.key(0), x)

    def make_arrays(self, length: int = LENGTH) -> tuple[Any, Any, Any]:
        """Return the variables, the input, and the gradient of the output."""
        random = np.random.default_rng(0)
        batch = (length, BATCH) if self.transposed else (BATCH, length)
        shapes = ((*batch, WIDTH), (*batch, *self.output_shape))
        x, gradient = (jnp.asarray(random.normal(size=shape), jnp.float32) for shape in shapes)
        variables = self.make_variables()
        variables = {
            "params": variables["params"],
            fp8.COLLECTION: jax.tree.map_with_path(choose_scale, variables[fp8.COLLECTION]),
        }
        return variables, x, gradient

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The shape of the output, without the batch and the length."""
        return (WIDTH,)

    def make_mesh(self, devices: Sequence[Any]) -> Mesh:
        """Return the mesh of the first devices."""
        used_devices = np.asarray(devices[: self.devices[0] * self.devices[1]])
        return Mesh(used_devices.reshape(self.devices), (DATA, MODEL))

    @contextlib.contextmanager
    def trace_on(self, mesh: Mesh) -> Iterator[None]:
        """Have what is traced inside know the mesh and the layouts, as T5X's partitioner does."""
        find_layout = functools.partial(make_layout, mesh)
        with (
            mesh,
            flax_partitioning.axis_rules(RULES),
            current_mesh.use_mesh(mesh),
            sharded_parameters.use_layouts(find_layout if self.fsdp else None),
        ):
            yield

    def make_shardings(self, mesh: Mesh, variables: Any) -> tuple[Any, Any, Any]:
        """Return the layouts of the arguments of `compute`."""

        def shard_variable(path: Any, _array: Any) -> NamedSharding:
            module, name = (key.key for key in path[-2:])
            if name == "bias":
                return NamedSharding(mesh, PartitionSpec(MODEL))
            if name != "kernel":
                return NamedSharding(mesh, PartitionSpec())
            layout = make_layout(mesh, ("mlp", "embed") if module == "wo" else ("embed", "mlp"))
            return layout.sharded if self.fsdp else layout.gathered

        rows = NamedSharding(mesh, PartitionSpec(*[None] * self.transposed, DATA))
        return jax.tree.map_with_path(shard_variable, variables), rows, rows

    def compute(self, variables: Any, x: Any, gradient: Any) -> Any:
        """Return the output, and the gradients of the variables and the input."""
        apply: Any = self.apply
        if self.rematerialised:
            apply = jax.checkpoint(apply, policy=remat.make_policy("minimal"))
        output, pull_back = jax.vjp(apply, variables, x)
        return output, pull_back(gradient.astype(output.dtype))

    def apply(self, variables: Any, x: Any) -> Any:
        """Return the output."""
        module = Mlp(make_config(dtype=self.dtype, fused_geglu=self.fused), self.transposed)
        return module.apply(variables, x)


@dataclass(frozen=True)
class JoinedStep(Step):
    """A forward and backward pass of the projections to queries, keys and values."""

    kernel_name: ClassVar[str] = "join_gradients"

    def make_variables(self) -> Any:
        """Return the parameters, and the FP8 state before its scales are chosen."""
        random = np.random.default_rng(1)
        kernels = {
            name: {"kernel": jnp.asarray(random.normal(size=(WIDTH, HIDDEN)), jnp.float32)}
            for name in PROJECTIONS
        }
        return {"params": kernels, fp8.COLLECTION: dict.fromkeys(PROJECTIONS, make_state())}

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The shape of the output, without the batch and the length."""
        return (len(PROJECTIONS), HIDDEN)

    def apply(self, variables: Any, x: Any) -> Any:
        """Return the products, stacked."""
        projections = [
            Projection(
                variables["params"][name]["kernel"],
                variables[fp8.COLLECTION][name],
                name,
                axes=("embed", "joined_kv"),
            )
            for name in PROJECTIONS
        ]
        multiply: Any = fp8.multiply_kernels
        if self.fused:
            names = ("length", "batch") if self.transposed else ("batch", "length")
            gradients, problem = fp8_joined.plan_gradients(
                (*x.shape[:-1], HIDDEN),
                (*names, "joined_kv"),
                len(PROJECTIONS),
                length_first=self.transposed,
            )
            assert gradients, problem
            multiply = functools.partial(fp8_joined.multiply_kernels, gradients=gradients)
        outputs = apply_projections(x, projections, self.dtype, multiply)
        # The gradients of the outputs are arrays, as those that cuDNN writes.
        return jnp.stack(outputs, axis=-2)


@dataclass(frozen=True)
class BiasedStep(Step):
    """A forward and backward pass of an MLP with a bias and GELU, in which each eighth row is 0."""

    kernel_name: ClassVar[str] = "gelu_"

    def make_variables(self) -> Any:
        """Return the parameters, and the FP8 state before its scales are chosen."""
        random = np.random.default_rng(1)
        shapes: dict[str, dict[str, tuple[int, ...]]] = {
            "wi_0": {"kernel": (WIDTH, HIDDEN), "bias": (HIDDEN,)},
            "wo": {"kernel": (HIDDEN, WIDTH)},
        }
        params = {
            name: {
                leaf: jnp.asarray(0.1 * random.normal(size=shape), jnp.float32)
                for leaf, shape in leaves.items()
            }
            for name, leaves in shapes.items()
        }
        return {"params": params, fp8.COLLECTION: dict.fromkeys(shapes, make_state())}

    def apply(self, variables: Any, x: Any) -> Any:
        """Return the output."""
        params, states = variables["params"], variables[fp8.COLLECTION]
        first, second = (
            Projection(
                params[name]["kernel"],
                states[name],
                name,
                axes=axes,
                bias=params[name].get("bias"),
            )
            for name, axes in (("wi_0", ("embed", "mlp")), ("wo", ("mlp", "embed")))
        )
        rows = jnp.sign(jnp.arange(math.prod(x.shape[:-1])) % 8).reshape(x.shape[:-1])
        weights = rows.astype(self.dtype)
        if not self.fused:
            (hidden,) = apply_projections(x, [first], self.dtype)
            hidden = jax.nn.gelu(hidden) * weights[..., None]
            return apply_projections(hidden, [second], self.dtype)[0]
        names = ("length", "batch") if self.transposed else ("batch", "length")
        placement, problem = fp8_mlp.choose_placement(
            mlp_kernels.GELU,
            current_mesh.find_mesh(),
            (*x.shape[:-1], HIDDEN),
            kernel_placement.find_logical_axes((*names, "mlp")),
        )
        assert placement, problem
        return fp8_mlp.apply_mlp(
            mlp_kernels.GELU, x, [first, second], self.dtype, placement, weights=weights
        )


def make_state() -> dict[str, Any]:
    """Return the FP8 state of a projection before its scales are chosen."""
    shapes = {f"{tensor}_scale": 1 for tensor in fp8.TENSORS}
    shapes |= {f"{tensor}_amax_history": fp8.HISTORY_LENGTH for tensor in fp8.TENSORS}
    return {name: jnp.ones(size) for name, size in shapes.items()}


LAYERS: dict[str, type[Step]] = {"mlp": Step, "biased mlp": BiasedStep, "joined": JoinedStep}


def differentiate(step: Step) -> tuple[dict[str, np.ndarray], int]:
    """Return the output, its gradients and the observed states by name, and the kernels."""
    arguments = step.make_arrays()
    mesh = step.make_mesh(jax.devices())
    arguments = jax.device_put(arguments, step.make_shardings(mesh, arguments[0]))
    with step.trace_on(mesh):
        traced = jax.jit(step.compute).trace(*arguments)
        output, (variable_gradients, input_gradient) = traced.lower().compile()(*arguments)
    arrays = {"output": output, "input gradient": input_gradient}
    arrays |= flatten_dict(unfreeze(variable_gradients), sep="/")
    results = {name: np.asarray(array, np.float32) for name, array in arrays.items()}
    return results, str(traced.jaxpr).count(f"name={step.kernel_name}")


def compute_difference(left: np.ndarray, right: np.ndarray) -> float:
    """Return the largest difference, relative to the largest element."""
    return float(np.max(np.abs(left - right)) / np.max(np.abs(right)))


def compute_error(arrays: dict[str, np.ndarray], exact: dict[str, np.ndarray]) -> float:
    """Return the root of the summed squares of all relative errors."""
    errors = [
        np.linalg.norm(arrays[name] - exact[name]) / np.linalg.norm(exact[name]) for name in exact
    ]
    return float(np.linalg.norm(errors))


def main() -> None:
    """Compare each variant with the same without the kernels, on one device."""
    layer = LAYERS[sys.argv[1]]
    results: dict[str, Any] = {}
    for name, settings in VARIANTS.items():
        step = layer(fused=True, **settings)
        fused, kernels = differentiate(step)
        plain_step = dataclasses.replace(step, fused=False, devices=(1, 1), fsdp=False)
        plain, plain_kernels = differentiate(plain_step)
        differences = {array: compute_difference(fused[array], plain[array]) for array in plain}
        results[name] = {
            "differences": differences,
            "kernels": kernels,
            "plain kernels": plain_kernels,
        }
        if step.dtype != "float32":
            exact, _kernels = differentiate(dataclasses.replace(plain_step, dtype="float32"))
            results[name]["errors"] = [compute_error(arrays, exact) for arrays in (fused, plain)]
    print(json.dumps(results))


if __name__ == "__main__":
    main()
