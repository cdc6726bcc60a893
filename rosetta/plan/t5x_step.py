"""The real train step, compiled for a described GPU on a described cluster, without a GPU and
without allocating an array.
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

NO_AUTOTUNING_FLAG = "--xla_gpu_autotune_level=0"  # autotuning wants the GPU


@dataclass(frozen=True)
class CompiledStep:
    """A compiled step.

    Attributes:
      text: optimised HLO.
      arguments, outputs, aliased, temporaries: bytes on each device; what is aliased is in both of
        the first two.
      seconds: that lowering and compiling took; rss: the most memory of this process so far, bytes.
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
        """The most memory in use on a device at once, bytes: as XLA planned it."""
        return self.arguments + self.outputs - self.aliased + self.temporaries


def prepare_t5x_compilation(fp8: str, size: str, card: str) -> None:
    """Set up JAX for compiling a T5X step for a GPU that is not here; to be called before JAX is
    imported.

    XLA gets the flags that the scripts give it for a size with this T5Config.fp8; see
    prepare_compilation.

    Raises:
      UserError: see require_compiler.
    """
    prepare_compilation(t5x_model_options.resolve_xla_flags(fp8, size, card), card)


def prepare_compilation(options: Mapping[str, object], card: str) -> None:
    """Set up JAX's environment for compiling for a GPU that is not here; to be called before JAX
    is imported.

    XLA gets these options and no autotuning; the flags of XLA_FLAGS come last, where they win.

    Raises:
      UserError: see require_compiler.
    """
    given, _ = xla_flags.update_flags(
        os.environ.get("XLA_FLAGS", ""), xla_flags.find_jaxlib_version()
    )
    flags, _ = xla_flags.update_flags(
        xla_flags.join_flags(xla_flags.format_flags(options)), xla_flags.find_jaxlib_version()
    )
    require_compiler(gpus.get_gpu(card, "--card"))
    os.environ["JAX_PLATFORMS"] = "cuda,cpu"
    os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"
    os.environ["XLA_FLAGS"] = xla_flags.join_flags([*flags, NO_AUTOTUNING_FLAG, *given])


def require_compiler(gpu: Gpu) -> None:
    """UserError where this environment has no CUDA plugin, or its CUDA does not know the GPU."""
    from importlib import metadata

    names = ((each.metadata["Name"] or "").lower() for each in metadata.distributions())
    matches = (re.fullmatch(r"jax-cuda(\d+)-plugin", name) for name in names)
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
            f"CUDA {max(cuda_versions)} of this environment has no code for {gpu.name}",
            f"--card {gpu.short_name}",
            "use an environment or image for cuda12",
            kind=UNSUPPORTED,
            value=gpu.short_name,
        )


def describe_devices(card: str, nodes: int, per_node: int) -> list[Any]:
    """Return the devices of a described cluster."""
    from jax.experimental import topologies

    found = topologies.get_topology_desc(
        platform="cuda",
        topology_name="",
        target_config=xla_target.describe_target(gpus.get_gpu(card, "--card")),
        topology=f"1x{nodes}x{per_node}",
    )
    return list(found.devices)


def make_batch_shapes(model: Any, batch: int, lengths: Mapping[str, int]) -> dict[str, Any]:
    """Return the shapes of a batch as rosetta.data makes it for an encoder-decoder, or for a
    decoder, whose inputs and targets are one sequence.
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
    """Lower the step of a trainer class, as T5X's `train` would build and jit it.

    Returns JAX's lowered computation.
    """
    import jax
    from t5x import utils

    initializer = utils.TrainStateInitializer(
        optimizer_def=model.optimizer_def,
        init_fn=model.get_initial_variables,
        input_shapes={name: each.shape for name, each in batch.items()},
        input_types={name: each.dtype for name, each in batch.items()},
        partitioner=partitioner,
    )
    state = initializer.global_train_state_shape
    made = trainer(
        model=model,
        train_state=state,
        partitioner=partitioner,
        eval_names=[],
        summary_dir=None,
        train_state_axes=initializer.train_state_axes,
        rng=jax.random.PRNGKey(0),
    )
    try:
        return made._partitioned_train_step.lower(state, dict(batch))  # noqa: SLF001 - what its train() calls
    finally:
        made.close()


def compile_step(lowered: Any, started: float) -> CompiledStep:
    """Compile a lowered step. `started`: time.monotonic() before it was lowered."""
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
    """Compile the step of a T5X run.

    Args:
      files: gin files, as for rosetta.t5x.gin_evaluation: a model's and a run's.
      bindings: gin bindings over them.
      card: by its short name.
      nodes: of the cluster.
      per_node: GPUs of one.
      tensor_parallel: devices that share a model.
      batch: global, in sequences.
      lengths: of inputs and targets, in tokens.
      fsdp: shard the optimizer's state over the data axis.
      change: from the run's model and trainer class to those that are compiled in their place.

    Raises:
      UserError: the gin files or the layout are wrong.
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
