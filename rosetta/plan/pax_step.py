"""Compile the train step of a Pax experiment for a GPU that this machine does not have.

The step is the real one of Paxml. XLA gets a description of the GPU and of the cluster, and no
parameter is initialised.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import math
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rosetta.core.errors import INVALID, MISSING, UserError
from rosetta.plan import hlo_text, progress, step_report, t5x_step, traffic
from rosetta.presets import launch_flags

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


@dataclass(frozen=True)
class CompiledPaxStep:
    """A compiled step, and what is needed to report its traffic.

    Attributes:
        compiled: The step.
        per_node: GPUs of each node.
        parameters: The dimensions of the parameters, see `find_parameter_dimensions`.
    """

    compiled: t5x_step.CompiledStep
    per_node: int
    parameters: frozenset[traffic.Dimensions]

    def report(self) -> dict[str, Any]:
        """Return the figures of step_report.summarize_step, and `traffic`."""
        return {
            **step_report.summarize_step(self.compiled),
            "traffic": traffic.report_traffic(
                hlo_text.parse_module(self.compiled.text), self.per_node, self.parameters
            ),
        }


def format_pax_report(report: dict[str, Any]) -> str:
    """Return the figures of a step as text."""
    flows = [traffic.Flow(**entry) for entry in report["traffic"]["flows"]]
    loops = [traffic.Loop(**entry) for entry in report["traffic"]["loops"]]
    return f"{step_report.format_step_report(report)}\n{traffic.format_traffic(flows, loops)}"


def prepare_pax_compilation(config: str, gpu_name: str, hyper: Mapping[str, object]) -> None:
    """Set up JAX to compile an experiment for a GPU. Call this before JAX is imported.

    XLA gets the flags and the optimisation level that a run of this experiment has. The user's
    JAX_OPTIMIZATION_LEVEL takes precedence.

    Args:
        config: The experiment.
        gpu_name: The short name of the GPU, as --card takes it.
        hyper: Hyper-parameter -> value.

    Raises:
        UserError: Pax is not installed; or see t5x_step.require_compiler.
    """
    preset = launch_flags.resolve_default_preset(
        "pax",
        config,
        precision="fp8-xla" if hyper.get("USE_FP8") else "bf16",
        accelerator=gpu_name,
    )
    t5x_step.prepare_compilation(preset.group("xla_flags"), gpu_name)
    if level := preset.group("env").get(launch_flags.OPTIMIZATION_LEVEL):
        os.environ.setdefault(launch_flags.OPTIMIZATION_LEVEL, str(level))
    require_pax()


def require_pax() -> None:
    """Check that this environment has Pax.

    Raises:
        UserError: It does not.
    """
    if not all(importlib.util.find_spec(name) for name in ("paxml", "praxis")):
        raise UserError(
            "this environment has no Pax",
            "paxml",
            "use an environment or image of the pax distribution",
            kind=MISSING,
        )


def make_experiment(config: str, hyper: Mapping[str, object]) -> Any:
    """Return an instance of an experiment, with its hyper-parameters set.

    Args:
        config: The name of an experiment of rosetta.pax.configs, or MODULE.CLASS.
        hyper: Hyper-parameter -> value.

    Raises:
        UserError: The experiment is unknown.
    """
    from rosetta.pax.run import preflight

    module, _, name = preflight.resolve_experiment(config).rpartition(".")
    try:
        experiment = getattr(importlib.import_module(module), name)()
    except (ModuleNotFoundError, AttributeError) as error:
        raise UserError(
            f"the experiment cannot be loaded: {error}",
            config,
            "name an experiment of rosetta.pax.configs, or MODULE.CLASS of your own",
            kind=INVALID,
            value=config,
        ) from None
    for key, value in hyper.items():
        setattr(experiment, key, value)
    return experiment


def compile_pax_step(
    experiment: Any, *, gpu_name: str, nodes: int, per_node: int
) -> CompiledPaxStep:
    """Compile the train step of an experiment, as paxml.main would run it.

    Args:
        experiment: An instance of an experiment class, with its hyper-parameters set.
        gpu_name: The short name of the GPU, as --card takes it.
        nodes: The number of nodes.
        per_node: GPUs of each node.

    Raises:
        UserError: The hyper-parameters are not valid, or do not fit the cluster.
    """
    started = time.monotonic()
    with progress.show_phase("tracing the step"):
        lowered, parameters = lower_pax_step(
            experiment, t5x_step.describe_devices(gpu_name, nodes, per_node)
        )
    return CompiledPaxStep(t5x_step.compile_step(lowered, started), per_node, parameters)


def lower_pax_step(
    experiment: Any, cluster: Sequence[Any]
) -> tuple[Any, frozenset[traffic.Dimensions]]:
    """Lower the train step of an experiment for devices that need not exist.

    Paxml's partitioner jits the step and lays out the state. Batch and state are shapes only.

    Args:
        experiment: An instance of an experiment class.
        cluster: The devices.

    Returns:
        JAX's lowered computation, and the dimensions of the parameters (see
        `find_parameter_dimensions`).

    Raises:
        UserError: The hyper-parameters are not valid, or do not fit the number of devices.
    """
    import jax
    from jax.sharding import NamedSharding, PartitionSpec
    from paxml import partitioning, trainer_lib
    from praxis import pax_fiddle

    from rosetta.pax.run import experiment_checks

    experiment_checks.check_experiment(experiment, len(cluster))
    with jax.default_device(jax.devices("cpu")[0]):
        task_config = experiment.task()
        task = pax_fiddle.instantiate(task_config)
        layout = partitioning.PjitPartitioner(
            init_is_eval=False,
            reshard_inputs=True,
            task=task,
            device_mesh=make_mesh(task_config.model, cluster),
        )
        batch = make_batch_shapes(experiment, len(cluster))
        layout.setup(task, jax.random.PRNGKey(0), batch)
        state = layout.get_train_state_metadata()
        step, batch_specs = layout.partition(
            trainer_lib.train_step_single_learner, batch, is_eval=False
        )

        def add_sharding(shape: Any, spec: Any) -> Any:
            return jax.ShapeDtypeStruct(
                shape.shape, shape.dtype, sharding=NamedSharding(layout.global_mesh, spec)
            )

        def add_shardings(shapes: Any, specs: Any) -> Any:
            return jax.tree.map(
                lambda spec, shape: add_sharding(shape, spec),
                specs,
                shapes,
                is_leaf=lambda node: isinstance(node, PartitionSpec),
            )

        static_arguments = trainer_lib.BaseStepFnStaticArgs(
            unpadded_global_batch_size=experiment_checks.compute_batch(
                experiment.PERCORE_BATCH_SIZE, len(cluster)
            )
        )
        key = add_sharding(jax.eval_shape(lambda: jax.random.PRNGKey(0)), PartitionSpec())
        lowered = step.lower(
            add_shardings(state.padded_global_shapes, state.partition_specs),
            key,
            add_shardings(batch, batch_specs),
            static_arguments,
        )
        return lowered, find_parameter_dimensions(
            state.padded_global_shapes.mdl_vars,
            state.partition_specs.mdl_vars,
            dict(layout.global_mesh.shape),
        )


def count_devices(experiment: Any) -> int:
    """Return the number of GPUs in the meshes of an experiment."""
    return int(math.prod(experiment.ICI_MESH_SHAPE) * math.prod(experiment.DCN_MESH_SHAPE or (1,)))


def make_mesh(model: Any, cluster: Sequence[Any]) -> Any:
    """Return the devices as Paxml lays them out, where a node is a slice.

    Axes within a node are the inner ones, axes across nodes the outer ones.

    Args:
        model: The configuration of the model, with its mesh shapes.
        cluster: The devices.
    """
    from jax.experimental import mesh_utils

    within, across = (
        list(model.ici_mesh_shape),
        list(model.dcn_mesh_shape or [1] * len(model.ici_mesh_shape)),
    )
    if max(across) > 1:
        # Described devices claim to be one slice. Their processes are the nodes.
        return mesh_utils.create_hybrid_device_mesh(
            within, across, devices=cluster, process_is_granule=True
        )
    return mesh_utils.create_device_mesh(within, devices=cluster)


def make_batch_shapes(experiment: Any, count: int) -> Any:
    """Return the shapes of the global batch of a causal language model, a NestedMap.

    No data and no vocabulary are read.

    Args:
        experiment: An instance of an experiment class.
        count: The number of devices.
    """
    from rosetta.pax import inputs
    from rosetta.pax.run import experiment_checks

    rows = experiment_checks.compute_batch(experiment.PERCORE_BATCH_SIZE, count)
    return inputs.Shapes(
        objective=getattr(experiment, "objective", "lm"),
        seq_len=experiment.MAX_SEQ_LEN,
        batch_size=-(-rows // count) * count,
    ).get_input_specs()


def find_parameter_dimensions(
    shapes: Any, specs: Any, axes: dict[str, int]
) -> frozenset[traffic.Dimensions]:
    """Return the dimensions that the parameters can have on a device.

    These are the dimensions of the shard, and those after it is gathered over some of the axes that
    split it. XLA changes dimensions further, so these variants are included:

    - Layers that repeat are stacked, with the layers as first dimension. A loop takes one of them.
    - XLA multiplies neighbouring dimensions.
    - Some are padded for a product (see rosetta.pax.softmax).

    Args:
        shapes: A tree of the parameters' shapes.
        specs: A tree of their PartitionSpecs.
        axes: Axis of the mesh -> size.
    """
    import jax

    from rosetta.pax import softmax

    variants = set[traffic.Dimensions]()
    leaves = zip(
        jax.tree.leaves(shapes),
        jax.tree.leaves(specs, is_leaf=lambda node: isinstance(node, jax.sharding.PartitionSpec)),
        strict=True,
    )
    for shape, spec in leaves:
        whole = shape.shape
        # A spec may be shorter than the shape.
        split_axes = [_list_axes(part) for part in (*spec, *[None] * (len(whole) - len(spec)))]
        sizes_by_dimension = []
        for size, names in zip(whole, split_axes, strict=True):
            parts = _list_split_counts([axes[name] for name in names])
            sizes_by_dimension.append(
                {
                    full // part
                    for full in (size, softmax.compute_padded_size(size))
                    for part in parts
                }
            )
        for dimensions in itertools.product(*sizes_by_dimension):
            for start in range(min(len(dimensions), 2)):
                variants |= {
                    traffic.normalize_dimensions(merged)
                    for merged in _iterate_merged_dimensions(dimensions[start:])
                }
    return frozenset(variants)


def _list_axes(part: Any) -> tuple[str, ...]:
    """Return the axes in an element of a PartitionSpec: None, an axis or several axes."""
    if part is None:
        return ()
    return (part,) if isinstance(part, str) else tuple(part)


def _list_split_counts(sizes: Sequence[int]) -> list[int]:
    """Return the number of parts for each subset of the axes that split a dimension."""
    choices = [(1, size) for size in sizes]
    return [math.prod(chosen) for chosen in itertools.product(*choices)]


def _iterate_merged_dimensions(dimensions: Sequence[int]) -> Iterator[list[int]]:
    """Yield the dimensions with neighbours multiplied, in all ways."""
    for cuts in itertools.product((False, True), repeat=len(dimensions) - 1):
        merged = [dimensions[0]]
        for cut, size in zip(cuts, dimensions[1:], strict=True):
            if cut:
                merged.append(size)
            else:
                merged[-1] *= size
        yield merged
