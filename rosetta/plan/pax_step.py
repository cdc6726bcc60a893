"""Paxml's real train step of an experiment, compiled for a described GPU on a described cluster,
without a GPU and without making a parameter.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rosetta.core.errors import INVALID, MISSING, UserError
from rosetta.plan import hlo_text, step_report, t5x_step, traffic
from rosetta.presets import launch_flags

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


@dataclass(frozen=True)
class CompiledPaxStep:
    """A compiled step, and what is needed to read it.

    Attributes:
      compiled: the step.
      per_node: GPUs of a node.
      parameters: what they look like on a device, see `sizes`.
    """

    compiled: t5x_step.CompiledStep
    per_node: int
    parameters: frozenset[traffic.Dimensions]

    def report(self) -> dict[str, Any]:
        """Return the figures, per device and step: rosetta.plan.step_report's, and `traffic`."""
        return {
            **step_report.summarize_step(self.compiled),
            "traffic": traffic.report_traffic(
                hlo_text.parse_module(self.compiled.text), self.per_node, self.parameters
            ),
        }


def format_pax_report(found: dict[str, Any]) -> str:
    """Return a report's figures for people."""
    moved = found["traffic"]
    flows = [traffic.Flow(**each) for each in moved["flows"]]
    loops = [traffic.Loop(**each) for each in moved["loops"]]
    return f"{step_report.format_step_report(found)}\n{traffic.format_traffic(flows, loops)}"


def prepare_pax_compilation(config: str, card: str, hyper: Mapping[str, object]) -> None:
    """Set up JAX for compiling an experiment for a GPU that is not here; to be called before JAX
    is imported.

    XLA gets the flags that the scripts give it for this experiment with these hyper-parameters; see
    t5x_step.prepare_compilation.

    Raises:
      UserError: this environment has no Pax; or see t5x_step.require_compiler.
    """
    t5x_step.prepare_compilation(
        launch_flags.resolve_default_flags(
            "pax", config, precision="fp8-xla" if hyper.get("USE_FP8") else "bf16", accelerator=card
        ),
        card,
    )
    if not all(importlib.util.find_spec(name) for name in ("paxml", "praxis")):
        raise UserError(
            "this environment has no Pax",
            "paxml",
            "use an environment or image of the pax distribution",
            kind=MISSING,
        )


def make_experiment(config: str, hyper: Mapping[str, object]) -> Any:
    """Return an instance of an experiment with hyper-parameters set.

    Args:
      config: one of rosetta.pax.configs, or MODULE.CLASS.
      hyper: name -> value.

    Raises:
      UserError: there is none of this name.
    """
    from rosetta.pax.run import preflight

    module, _, name = preflight.resolve_experiment(config).rpartition(".")
    try:
        made = getattr(importlib.import_module(module), name)()
    except (ModuleNotFoundError, AttributeError) as error:
        raise UserError(
            f"it cannot be had: {error}",
            config,
            "name an experiment of rosetta.pax.configs, or MODULE.CLASS of your own",
            kind=INVALID,
            value=config,
        ) from None
    for key, value in hyper.items():
        setattr(made, key, value)
    return made


def compile_pax_step(experiment: Any, *, card: str, nodes: int, per_node: int) -> CompiledPaxStep:
    """Compile the train step of an experiment as paxml.main would run it.

    Args:
      experiment: an instance of an experiment class, its hyper-parameters set.
      card: by its short name.
      nodes: of the cluster.
      per_node: GPUs of one.

    Raises:
      UserError: the experiment's hyper-parameters are wrong, or not for this cluster.
    """
    started = time.monotonic()
    lowered, parameters = lower_pax_step(
        experiment, t5x_step.describe_devices(card, nodes, per_node)
    )
    return CompiledPaxStep(t5x_step.compile_step(lowered, started), per_node, parameters)


def lower_pax_step(
    experiment: Any, cluster: Sequence[Any]
) -> tuple[Any, frozenset[traffic.Dimensions]]:
    """Trace an experiment's train step, jitted by paxml's partitioner, for devices that need not
    exist.

    The state is laid out as the partitioner says, and of batch and state there are shapes only.

    Returns:
      JAX's lowered computation, and `sizes` of the parameters.

    Raises:
      UserError: the experiment's hyper-parameters are wrong, or not for so many devices.
    """
    import jax
    from jax.sharding import NamedSharding, PartitionSpec
    from paxml import partitioning, trainer_lib
    from praxis import pax_fiddle

    from rosetta.pax.run import experiment_checks

    experiment_checks.check_experiment(experiment, len(cluster))
    with jax.default_device(jax.devices("cpu")[0]):
        described = experiment.task()
        task = pax_fiddle.instantiate(described)
        layout = partitioning.PjitPartitioner(
            init_is_eval=False,
            reshard_inputs=True,
            task=task,
            device_mesh=make_mesh(described.model, cluster),
        )
        batch = make_batch_shapes(experiment, len(cluster))
        layout.setup(task, jax.random.PRNGKey(0), batch)
        state = layout.get_train_state_metadata()
        step, split = layout.partition(trainer_lib.train_step_single_learner, batch, is_eval=False)

        def placed(shape: Any, spec: Any) -> Any:
            return jax.ShapeDtypeStruct(
                shape.shape, shape.dtype, sharding=NamedSharding(layout.global_mesh, spec)
            )

        def place(shapes: Any, specs: Any) -> Any:
            return jax.tree.map(
                lambda spec, shape: placed(shape, spec),
                specs,
                shapes,
                is_leaf=lambda each: isinstance(each, PartitionSpec),
            )

        rows = trainer_lib.BaseStepFnStaticArgs(
            unpadded_global_batch_size=experiment_checks.compute_batch(
                experiment.PERCORE_BATCH_SIZE, len(cluster)
            )
        )
        key = placed(jax.eval_shape(lambda: jax.random.PRNGKey(0)), PartitionSpec())
        lowered = step.lower(
            place(state.padded_global_shapes, state.partition_specs), key, place(batch, split), rows
        )
        return lowered, find_parameter_dimensions(
            state.padded_global_shapes.mdl_vars,
            state.partition_specs.mdl_vars,
            dict(layout.global_mesh.shape),
        )


def count_devices(experiment: Any) -> int:
    """Return how many GPUs an experiment's meshes have."""
    return int(math.prod(experiment.ICI_MESH_SHAPE) * math.prod(experiment.DCN_MESH_SHAPE or (1,)))


def make_mesh(model: Any, cluster: Sequence[Any]) -> Any:
    """Return the devices as paxml lays them out on a cluster, where a node is a slice: axes within
    nodes first, those across them around.
    """
    from jax.experimental import mesh_utils

    within, across = (
        list(model.ici_mesh_shape),
        list(model.dcn_mesh_shape or [1] * len(model.ici_mesh_shape)),
    )
    if max(across) > 1:
        # Described devices say that they are one slice; their processes are the nodes.
        return mesh_utils.create_hybrid_device_mesh(
            within, across, devices=cluster, process_is_granule=True
        )
    return mesh_utils.create_device_mesh(within, devices=cluster)


def make_batch_shapes(experiment: Any, count: int) -> Any:
    """Return the shapes of the global batch of a causal language model on so many devices, a
    NestedMap; no data is read, and no vocabulary.
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
    """Return the dimensions that parameters have on a device: as they are kept, and gathered over
    any of the axes that split them.

    Parameters of layers that repeat lie in a stack, whose first dimension is the layers; a loop
    takes one of them, which counts too, as do neighbouring dimensions that are multiplied as one,
    and those that are padded for a product (rosetta.pax.softmax).

    Args:
      shapes: of the parameters, a tree.
      specs: their PartitionSpecs, a tree alike.
      axes: of the mesh, name -> size.
    """
    import jax

    from rosetta.pax import softmax

    found = set[traffic.Dimensions]()
    for shape, spec in zip(
        jax.tree.leaves(shapes),
        jax.tree.leaves(specs, is_leaf=lambda each: isinstance(each, jax.sharding.PartitionSpec)),
        strict=True,
    ):
        whole = shape.shape
        splits = [
            () if part is None else (part,) if isinstance(part, str) else tuple(part)
            for part in (*spec, *[None] * (len(whole) - len(spec)))
        ]
        kept = [
            {
                each // math.prod(chosen)
                for each in (size, softmax.compute_padded_size(size))
                for chosen in itertools.product(*((1, axes[axis]) for axis in split))
            }
            for size, split in zip(whole, splits, strict=True)
        ]
        for dimensions in itertools.product(*kept):
            for start in range(min(len(dimensions), 2)):
                found |= {
                    traffic.normalize_dimensions(each)
                    for each in _iterate_merged_dimensions(dimensions[start:])
                }
    return frozenset(found)


def _iterate_merged_dimensions(dimensions: Sequence[int]) -> Iterator[list[int]]:
    """Yield the dimensions with neighbours multiplied, in all ways."""
    for cuts in itertools.product((False, True), repeat=len(dimensions) - 1):
        merged = [dimensions[0]]
        for cut, size in zip(cuts, dimensions[1:], strict=True):
            merged[len(merged) if cut else -1 :] = [size] if cut else [merged[-1] * size]
        yield merged
