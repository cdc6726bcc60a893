"""Compile the train step of a T5X run for a GPU that this machine does not have.

The step is the one that T5X's `train` runs. XLA gets a description of the GPU and of the cluster,
and no array is allocated. `pax_step` uses the functions here that do not depend on T5X:
`prepare_compilation`, `require_compiler`, `describe_devices` and `compile_step`.
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
from rosetta.plan import autotune_results, progress, xla_target
from rosetta.presets import t5x_model_options

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rosetta.core.gpus import Gpu

# Autotuning would run kernels on the GPU, which this machine does not have.
NO_AUTOTUNING_FLAG = "--xla_gpu_autotune_level=0"
VOCABULARY_ROWS = 32128  # rows of the embedding of T5 1.1


@dataclass(frozen=True)
class CompiledStep:
    """A compiled step, with what XLA says about its memory.

    Attributes:
        text: The optimised HLO module.
        arguments: Bytes of the arguments on each device.
        outputs: Bytes of the outputs on each device.
        aliased: Bytes of the outputs that reuse the memory of arguments, on each device.
        temporaries: Bytes of temporary arrays on each device.
        seconds: The time from `started` of compile_step until the step is compiled.
        rss: The peak memory (resident set size) of this process so far, in bytes.
        tuned: Whether XLA had the results of autotuning for the whole step.
    """

    text: str
    arguments: int
    outputs: int
    aliased: int
    temporaries: int
    seconds: float
    rss: int
    tuned: bool = False

    @property
    def peak(self) -> int:
        """The peak memory of a device in bytes, as XLA plans it."""
        return self.arguments + self.outputs - self.aliased + self.temporaries


def prepare_t5x_compilation(fp8: str, size: str, gpu_name: str) -> None:
    """Set up JAX to compile a T5X step for a GPU. Call this before JAX is imported.

    XLA gets the flags that a run of this model has.

    Args:
        fp8: The value of T5Config.fp8.
        size: The size of the model, as T5_SIZE names it.
        gpu_name: The short name of the GPU, as --card takes it.

    Raises:
        UserError: See `require_compiler`.
    """
    prepare_compilation(t5x_model_options.resolve_xla_flags(fp8, size, gpu_name), gpu_name)


def prepare_compilation(options: Mapping[str, object], gpu_name: str) -> None:
    """Set the environment variables that let JAX compile for a GPU which is not there.

    Call this before JAX is imported. The flags that the user has in XLA_FLAGS come last, so that
    they take precedence. They may load the results of autotuning.

    Args:
        options: The XLA flags of the run, flag without dashes -> value.
        gpu_name: The short name of the GPU, as --card takes it.

    Raises:
        UserError: See `require_compiler` and autotune_results.read_dnn_version.
    """
    jaxlib_version = xla_flags.find_jaxlib_version()
    user_flags, _notices = xla_flags.update_flags(os.environ.get("XLA_FLAGS", ""), jaxlib_version)
    run_flags, _notices = xla_flags.update_flags(
        xla_flags.join_flags(xla_flags.format_flags(options)), jaxlib_version
    )
    gpu = gpus.get_gpu(gpu_name, "--card")
    require_compiler(gpu)
    if results_file := autotune_results.find_results_file(user_flags):
        autotune_results.read_dnn_version(results_file, gpu)
        run_flags = [*run_flags, autotune_results.REQUIRE_ALL_FLAG]
    os.environ["JAX_PLATFORMS"] = "cuda,cpu"
    os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"
    os.environ["XLA_FLAGS"] = xla_flags.join_flags([*run_flags, NO_AUTOTUNING_FLAG, *user_flags])


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
    oldest_capability = min(
        gpus.OLDEST_CAPABILITY.get(version, (0, 0)) for version in cuda_versions
    )
    if gpu.capability < oldest_capability:
        raise UserError(
            f"CUDA {max(cuda_versions)} of this environment does not support {gpu.name}",
            f"--card {gpu.short_name}",
            "use an environment or image for cuda12",
            kind=UNSUPPORTED,
            value=gpu.short_name,
        )


def describe_devices(gpu_name: str, nodes: int, per_node: int) -> list[Any]:
    """Return JAX devices of a cluster that need not exist: JAX can only compile for them.

    Args:
        gpu_name: The short name of the GPU, as --card takes it.
        nodes: The number of nodes.
        per_node: The number of GPUs of each node.
    """
    from jax.experimental import topologies

    gpu, dnn_version = gpus.get_gpu(gpu_name, "--card"), xla_target.DNN_VERSION
    if results_file := _find_results_file():
        dnn_version = autotune_results.read_dnn_version(results_file, gpu)
    topology = topologies.get_topology_desc(
        platform="cuda",
        topology_name="",
        target_config=xla_target.describe_target(gpu, dnn_version),
        topology=f"1x{nodes}x{per_node}",  # partitions x nodes x GPUs
    )
    return list(topology.devices)


def _find_results_file() -> str:
    """Return the file with results of autotuning that XLA loads, "" if there is none."""
    return autotune_results.find_results_file(os.environ.get("XLA_FLAGS", "").split())


def make_batch_shapes(model: Any, batch_size: int, lengths: Mapping[str, int]) -> dict[str, Any]:
    """Return the shape and type of each feature of a batch, as `rosetta.data` makes it.

    A decoder-only model has inputs and targets in one sequence. The targets of an encoder are as
    long as its inputs, for hidden tokens, or are a label.

    Args:
        model: The T5X model.
        batch_size: The number of sequences of the global batch.
        lengths: "inputs" and "targets" -> tokens.
    """
    import jax
    import jax.numpy as jnp

    from rosetta.data import seqio_features
    from rosetta.t5x import dataset

    kind = dataset.find_feature_kind(model.FEATURE_CONVERTER_CLS)
    feature_lengths = seqio_features.compute_feature_lengths(kind, **lengths, pack=False)
    return {
        name: jax.ShapeDtypeStruct((batch_size, length), jnp.int32)
        for name, length in feature_lengths.items()
    }


def lower_step(
    model: Any, trainer_class: Any, partitioner: Any, batch_shapes: Mapping[str, Any]
) -> Any:
    """Return the lowered step of a trainer, as T5X's `train` builds and jits it.

    Args:
        model: The T5X model.
        trainer_class: The class of the trainer.
        partitioner: The partitioner.
        batch_shapes: The shapes of make_batch_shapes.
    """
    import jax
    from t5x import utils

    initializer = utils.TrainStateInitializer(
        optimizer_def=model.optimizer_def,
        init_fn=model.get_initial_variables,
        input_shapes={name: feature.shape for name, feature in batch_shapes.items()},
        input_types={name: feature.dtype for name, feature in batch_shapes.items()},
        partitioner=partitioner,
    )
    state_shapes = initializer.global_train_state_shape
    trainer = trainer_class(
        model=model,
        train_state=state_shapes,
        partitioner=partitioner,
        eval_names=[],
        summary_dir=None,
        train_state_axes=initializer.train_state_axes,
        rng=jax.random.PRNGKey(0),
    )
    try:
        # The jitted function that T5X's trainer calls for each step.
        step = trainer._partitioned_train_step  # noqa: SLF001
        return step.lower(state_shapes, dict(batch_shapes))
    finally:
        trainer.close()


def compile_step(lowered: Any, started: float) -> CompiledStep:
    """Compile a lowered step.

    Args:
        lowered: The step that lower_step returned.
        started: When the preparation of the step began (time.monotonic).

    Raises:
        UserError: The results of autotuning are not those of this step.
    """
    results_file = _find_results_file()
    try:
        with progress.show_phase("compiling the step, one to ten minutes"):
            compiled = lowered.compile()
    except RuntimeError as error:
        explained = autotune_results.explain_compile_error(str(error), results_file)
        if explained is None:
            raise
        raise explained from error
    memory = compiled.memory_analysis()
    return CompiledStep(
        compiled.as_text(),
        memory.argument_size_in_bytes,
        memory.output_size_in_bytes,
        memory.alias_size_in_bytes,
        memory.temp_size_in_bytes,
        time.monotonic() - started,
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        bool(results_file),
    )


def compile_t5x_step(
    files: Sequence[str],
    bindings: Sequence[str],
    *,
    gpu_name: str,
    nodes: int,
    per_node: int,
    tensor_parallel: int,
    batch_size: int,
    lengths: Mapping[str, int],
    fsdp: bool = False,
    change: Callable[[Any, Any], tuple[Any, Any]] | None = None,
) -> CompiledStep:
    """Compile the train step of a T5X run.

    Args:
        files: The gin files of the model and the run.
        bindings: Gin bindings that override them.
        gpu_name: The short name of the GPU, as --card takes it.
        nodes: The number of nodes.
        per_node: The number of GPUs of each node.
        tensor_parallel: The number of GPUs that share one copy of the model.
        batch_size: The number of sequences of the global batch.
        lengths: "inputs" and "targets" -> tokens.
        fsdp: Whether parameters and the optimizer's state are sharded over the data axes, too.
        change: Takes the run's model and trainer class, and returns those to compile instead.

    Raises:
        UserError: The gin files or the layout are not valid.
    """
    import jax

    from rosetta.t5x import gin_evaluation, partitioning

    started = time.monotonic()
    with (
        gin_evaluation.arguments(files, bindings) as run,
        # Small arrays, such as random keys, are made on the CPU: the GPU is not there.
        jax.default_device(jax.devices("cpu")[0]),
    ):
        partitioner = partitioning.PjitPartitioner(
            tensor_parallel,
            fsdp=fsdp,
            devices=describe_devices(gpu_name, nodes, per_node),
            logical_axis_rules=partitioning.standard_logical_axis_rules(),
        )
        model, trainer_class = run["model"], run["trainer_cls"]
        if change:
            model, trainer_class = change(model, trainer_class)
        batch_shapes = make_batch_shapes(model, batch_size, lengths)
        with progress.show_phase("tracing the step"):
            lowered = lower_step(model, trainer_class, partitioner, batch_shapes)
        return compile_step(lowered, started)
