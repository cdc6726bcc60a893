"""Compile the train step of a T5X run for a GPU that this machine does not have.

The step is the real one of T5X's `train`. XLA gets a description of the GPU and of the cluster, and
no array is allocated.
"""

from __future__ import annotations

import os
import re
import resource
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rosetta.core import gpus, xla_flags
from rosetta.core.errors import UNSUPPORTED, UserError
from rosetta.plan import xla_target
from rosetta.presets import t5x_model_options

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rosetta.core.gpus import Gpu

# Autotuning measures kernels on the GPU.
NO_AUTOTUNING_FLAG = "--xla_gpu_autotune_level=0"


@dataclass(frozen=True)
class CompiledStep:
    """A compiled step.

    Attributes:
        text: The optimised HLO module.
        arguments: Bytes of the arguments on each device.
        outputs: Bytes of the outputs on each device.
        aliased: Bytes that are both arguments and outputs.
        temporaries: Bytes of temporary arrays on each device.
        seconds: The time for lowering and compiling.
        rss: The most memory of this process so far, in bytes.
    """

    text: str
    arguments: int
    outputs: int
    aliased: int
    temporaries: int
    seconds: float
    rss: int

    @property
    def peak(self) -> int:
        """The most bytes that are in use on a device at once, as XLA plans it."""
        return self.arguments + self.outputs - self.aliased + self.temporaries


def prepare_t5x_compilation(fp8: str, size: str, card: str) -> None:
    """Set up JAX to compile a T5X step for a GPU. Call this before JAX is imported.

    XLA gets the flags that a run of this model has.

    Args:
        fp8: The value of T5Config.fp8.
        size: T5_SIZE.
        card: The short name of the GPU.

    Raises:
        UserError: See `require_compiler`.
    """
    prepare_compilation(t5x_model_options.resolve_xla_flags(fp8, size, card), card)


def prepare_compilation(options: Mapping[str, object], card: str) -> None:
    """Set up the environment variables with which JAX compiles for a GPU without having it.

    Call this before JAX is imported. The flags in XLA_FLAGS come last, where they take precedence.

    Args:
        options: The XLA flags, flag without dashes -> value.
        card: The short name of the GPU.

    Raises:
        UserError: See `require_compiler`.
    """
    user_flags, _ = xla_flags.update_flags(
        os.environ.get("XLA_FLAGS", ""), xla_flags.find_jaxlib_version()
    )
    flags, _ = xla_flags.update_flags(
        xla_flags.join_flags(xla_flags.format_flags(options)), xla_flags.find_jaxlib_version()
    )
    require_compiler(gpus.get_gpu(card, "--card"))
    os.environ["JAX_PLATFORMS"] = "cuda,cpu"
    os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"
    os.environ["XLA_FLAGS"] = xla_flags.join_flags([*flags, NO_AUTOTUNING_FLAG, *user_flags])


def require_compiler(gpu: Gpu) -> None:
    """Check that this environment can compile for a GPU.

    Raises:
        UserError: JAX's CUDA plugin is not installed, or its CUDA is too new for the GPU.
    """
    from importlib import metadata

    names = [(package.metadata["Name"] or "").lower() for package in metadata.distributions()]
    matches = [re.fullmatch(r"jax-cuda(\d+)-plugin", name) for name in names]
    cuda_versions = [int(match[1]) for match in matches if match]
    if not cuda_versions:
        raise UserError(
            "this environment cannot compile for GPUs",
            "jax-cuda13-plugin",
            "use an environment or image for cuda12 or cuda13",
            kind=UNSUPPORTED,
        )
    oldest = min(gpus.OLDEST_CAPABILITY.get(version, (0, 0)) for version in cuda_versions)
    if gpu.capability < oldest:
        raise UserError(
            f"CUDA {max(cuda_versions)} of this environment does not support {gpu.name}",
            f"--card {gpu.short_name}",
            "use an environment or image for cuda12",
            kind=UNSUPPORTED,
            value=gpu.short_name,
        )


def describe_devices(card: str, nodes: int, per_node: int) -> list[Any]:
    """Return the devices of a cluster that is only described.

    Args:
        card: The short name of the GPU.
        nodes: The number of nodes.
        per_node: GPUs of each node.
    """
    from jax.experimental import topologies

    topology = topologies.get_topology_desc(
        platform="cuda",
        topology_name="",
        target_config=xla_target.describe_target(gpus.get_gpu(card, "--card")),
        topology=f"1x{nodes}x{per_node}",
    )
    return list(topology.devices)


def make_batch_shapes(model: Any, batch: int, lengths: Mapping[str, int]) -> dict[str, Any]:
    """Return feature -> shape of a batch, as `rosetta.data` makes it.

    A decoder-only model has inputs and targets in one sequence.

    Args:
        model: The T5X model.
        batch: The number of sequences.
        lengths: "inputs" and "targets" -> tokens.
    """
    import jax
    import jax.numpy as jnp
    from t5x import models

    from rosetta.data import seqio_features

    kind = (
        seqio_features.DECODER
        if isinstance(model, models.DecoderOnlyModel)
        else seqio_features.ENCODER_DECODER
    )
    return {
        name: jax.ShapeDtypeStruct((batch, length), jnp.int32)
        for name, length in seqio_features.compute_feature_lengths(
            kind, **lengths, pack=False
        ).items()
    }


def lower_step(model: Any, trainer: Any, partitioner: Any, batch: Mapping[str, Any]) -> Any:
    """Return the lowered step of a trainer class, as T5X's `train` builds and jits it.

    Args:
        model: The T5X model.
        trainer: The trainer class.
        partitioner: The partitioner.
        batch: Feature -> shape.
    """
    import jax
    from t5x import utils

    initializer = utils.TrainStateInitializer(
        optimizer_def=model.optimizer_def,
        init_fn=model.get_initial_variables,
        input_shapes={name: feature.shape for name, feature in batch.items()},
        input_types={name: feature.dtype for name, feature in batch.items()},
        partitioner=partitioner,
    )
    state = initializer.global_train_state_shape
    instance = trainer(
        model=model,
        train_state=state,
        partitioner=partitioner,
        eval_names=[],
        summary_dir=None,
        train_state_axes=initializer.train_state_axes,
        rng=jax.random.PRNGKey(0),
    )
    try:
        return instance._partitioned_train_step.lower(state, dict(batch))  # noqa: SLF001 - its train() calls this
    finally:
        instance.close()


def compile_step(lowered: Any, started: float) -> CompiledStep:
    """Compile a lowered step. `started` is time.monotonic() before it was lowered."""
    compiled = lowered.compile()
    memory = compiled.memory_analysis()
    return CompiledStep(
        compiled.as_text(),
        memory.argument_size_in_bytes,
        memory.output_size_in_bytes,
        memory.alias_size_in_bytes,
        memory.temp_size_in_bytes,
        time.monotonic() - started,
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )


def compile_t5x_step(
    files: Sequence[str],
    bindings: Sequence[str],
    *,
    card: str,
    nodes: int,
    per_node: int,
    tensor_parallel: int,
    batch: int,
    lengths: Mapping[str, int],
    fsdp: bool = False,
    change: Callable[[Any, Any], tuple[Any, Any]] | None = None,
) -> CompiledStep:
    """Compile the train step of a T5X run.

    Args:
        files: The gin files of the model and the run.
        bindings: Gin bindings that override them.
        card: The short name of the GPU.
        nodes: The number of nodes.
        per_node: GPUs of each node.
        tensor_parallel: The number of GPUs that share a model.
        batch: The number of sequences of the global batch.
        lengths: "inputs" and "targets" -> tokens.
        fsdp: Whether the optimizer's state is sharded over the data axis.
        change: Returns the model and the trainer class to compile instead of the run's.

    Raises:
        UserError: The gin files or the layout are not valid.
    """
    import jax

    from rosetta.t5x import gin_evaluation, partitioning

    started = time.monotonic()
    with (
        gin_evaluation.arguments(files, bindings) as run,
        jax.default_device(jax.devices("cpu")[0]),
    ):
        layout = partitioning.PjitPartitioner(
            tensor_parallel,
            fsdp=fsdp,
            devices=describe_devices(card, nodes, per_node),
            logical_axis_rules=partitioning.standard_logical_axis_rules(),
        )
        model, trainer = run["model"], run["trainer_cls"]
        if change:
            model, trainer = change(model, trainer)
        return compile_step(
            lower_step(model, trainer, layout, make_batch_shapes(model, batch, lengths)), started
        )
