"""Time a training step of rosetta's T5 network on synthetic tokens, without T5X, in several modes.

`rosetta bench t5` uses this module. The modes take turns and train one shared state, because they
all have the same parameters. The memory is therefore that of one model, plus the small state that
FP8 keeps for each mode.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import time
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.linen import partitioning as flax_partitioning

from rosetta.bench import modes, timing
from rosetta.core import gpus
from rosetta.core.errors import INVALID, TOO_BIG, UNSUPPORTED, UserError
from rosetta.core.gpu_query import DetectedGpu, parse_capability
from rosetta.health import progress
from rosetta.nn import current_mesh, fp8
from rosetta.nn.loss import LossSettings, chunked_cross_entropy
from rosetta.nn.mesh_axes import DATA
from rosetta.presets import resolution, t5x_model_options
from rosetta.t5x.network import Transformer, compute_logits_scale
from rosetta.t5x.run import flops
from rosetta.t5x.run.model_config import T5Config

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

Z_LOSS = 1e-4
# The devices share the batch alone.
AXIS_RULES = (("batch", DATA),)


@dataclasses.dataclass(frozen=True)
class Task:
    """The training step to measure.

    Attributes:
        size: The size of T5 1.1, for example "large".
        batch: Sequences per step, on all devices together.
        inputs: Tokens of an encoder sequence.
        targets: Tokens of a decoder sequence.
        dropout: The dropout rate.
        steps: Steps of a mode in one turn.
        turns: How often each mode is measured.
        devices: The number of devices that share the batch.
        layers: Layers of the encoder, and of the decoder; 0 for those of the size.
    """

    size: str
    batch: int
    inputs: int = 512
    targets: int = 128
    dropout: float = 0.0
    steps: int = 10
    turns: int = 5
    devices: int = 1
    layers: int = 0


def read_model_fields(task: Task) -> dict[str, Any]:
    """Return the fields of T5Config that describe the model of a task.

    Raises:
        UserError: The size is not known.
    """
    fields = modes.read_size_fields(task.size) | {"dropout_rate": task.dropout}
    if task.layers:
        fields |= {"num_encoder_layers": task.layers, "num_decoder_layers": task.layers}
    return fields


def make_random_batch(task: Task, vocabulary: int) -> dict[str, np.ndarray[Any, Any]]:
    """Return a batch of random tokens without padding.

    The batch is the same on every call. The decoder's inputs are its targets, shifted right by one.

    Args:
        task: The training step to measure.
        vocabulary: The number of token ids.

    Returns:
        The arrays by name, int32 [batch, length] each.
    """
    random = np.random.default_rng(0)
    inputs = random.integers(2, vocabulary, (task.batch, task.inputs), dtype=np.int32)
    targets = random.integers(2, vocabulary, (task.batch, task.targets), dtype=np.int32)
    shifted = np.concatenate([np.zeros((task.batch, 1), np.int32), targets[:, :-1]], axis=1)
    return {
        "encoder_input_tokens": inputs,
        "decoder_input_tokens": shifted,
        "decoder_target_tokens": targets,
    }


def compute_mean_loss(config: T5Config, variables: Any, batch: Any, key: Any) -> Any:
    """Return the mean over all target tokens of the cross entropy plus T5's z-loss.

    Args:
        config: The network.
        variables: The network's Flax variables.
        batch: The arrays of `make_random_batch`.
        key: The random key of dropout.
    """
    options = {"enable_dropout": config.dropout_rate > 0, "rngs": {"dropout": key}}
    targets = batch["decoder_target_tokens"]
    if config.loss_chunks:
        hidden, kernel = Transformer(config).apply(variables, **batch, hidden_only=True, **options)
        terms = LossSettings(
            config.vocab_size,
            config.loss_chunks,
            0.0,
            Z_LOSS,
            compute_logits_scale(config),
            jnp.dtype(config.logits_dtype),
        )
        token_losses = chunked_cross_entropy(
            hidden.reshape(-1, hidden.shape[-1]), kernel, targets.reshape(-1), terms
        )[0]
        return jnp.mean(token_losses)
    logits = Transformer(config).apply(variables, **batch, **options).astype(jnp.float32)
    log_normalizer = jax.nn.logsumexp(logits, axis=-1)
    target_logits = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    return jnp.mean(log_normalizer - target_logits + Z_LOSS * jnp.square(log_normalizer))


def make_optimizer() -> Any:
    """Return the optimizer of the benchmark: AdamW with clipped gradients."""
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-4, weight_decay=0.01))


def run_training_step(
    config: T5Config, state: Any, fp8_state: Any, batch: Any, key: Any
) -> tuple[Any, Any, Any]:
    """Compute one training step.

    Args:
        config: The network.
        state: The parameters and the optimizer's state, which all modes share.
        fp8_state: The mode's own Flax collections; empty without FP8.
        batch: The arrays of `make_random_batch`.
        key: The random key of dropout.

    Returns:
        The new state, the mode's new collections, and the loss before the step.
    """
    params, optimizer_state = state
    loss, (gradients, magnitudes) = jax.value_and_grad(
        lambda both: compute_mean_loss(config, {"params": both[0], **both[1]}, batch, key)
    )((params, fp8_state))
    updates, optimizer_state = make_optimizer().update(gradients, optimizer_state, params)
    if fp8_state:
        count = optax.tree_utils.tree_get(optimizer_state, "count")
        fp8_state = fp8.advance_states(fp8_state, magnitudes, count)
    return (optax.apply_updates(params, updates), optimizer_state), fp8_state, loss


class Candidate:
    """One compiled mode. A call trains some steps on the shared state, and waits for them.

    Args:
        mode: The mode.
        config: The network.
        shared: What all modes share.
        xla_flags: Flags that replace those of the presets, without dashes.
        compiled: The compiled step; None to compile it here.
    """

    def __init__(
        self,
        mode: modes.Mode,
        config: T5Config,
        shared: SharedState,
        xla_flags: Mapping[str, Any] | None = None,
        compiled: Any = None,
    ) -> None:
        self.mode, self.config, self.shared = mode, config, shared
        self.fp8_state = jax.device_put(
            _make_fp8_state(config, shared.batch), shared.place.replicated
        )
        start = time.perf_counter()
        self.compiled = compiled or _compile_step(
            config,
            shared.place,
            (shared.state, self.fp8_state, shared.batch, shared.key),
            xla_flags or {},
        )
        self.compile_seconds = time.perf_counter() - start
        self.loss = self.first_loss = float("nan")

    def __call__(self) -> None:
        """Train `task.steps` steps, and wait until the last one is done."""
        shared = self.shared
        for _ in range(shared.task.steps):
            shared.state, self.fp8_state, loss = self.compiled(
                shared.state, self.fp8_state, shared.batch, shared.key
            )
        self.loss = float(loss)
        if math.isnan(self.first_loss):
            self.first_loss = self.loss

    def estimate_peak_bytes(self) -> int | None:
        """Return the compiler's figure for the peak memory of a device, or None without one."""
        memory = self.compiled.memory_analysis()
        if memory is None:
            return None
        return int(
            memory.argument_size_in_bytes
            + memory.output_size_in_bytes
            - memory.alias_size_in_bytes
            + memory.temp_size_in_bytes
        )


def _make_fp8_state(config: T5Config, batch: Any) -> Any:
    """Return the initial FP8 collection; empty if the network has none.

    Scales start at one and magnitudes at zero, as the network declares them.
    """
    shapes = jax.eval_shape(
        functools.partial(_initialize_variables, config), jax.random.key(0), batch
    )
    if fp8.COLLECTION not in shapes:
        return {}

    def make_leaf(path: Any, leaf: Any) -> Any:
        fill = jnp.ones if path[-1].key.endswith("_scale") else jnp.zeros
        return fill(leaf.shape, leaf.dtype)

    return jax.tree_util.tree_map_with_path(make_leaf, {fp8.COLLECTION: shapes[fp8.COLLECTION]})


def _compile_step(
    config: T5Config, place: Place, arguments: tuple[Any, ...], xla_flags: Mapping[str, Any]
) -> Any:
    """Compile the training step of a network.

    Args:
        config: The network.
        place: Where the step will run.
        arguments: Those of `run_training_step` after the network, as arrays or as their shapes.
        xla_flags: Flags that replace those of the presets, without dashes.
    """
    jitted = jax.jit(functools.partial(run_training_step, config), donate_argnums=(0, 1))
    # As in the trainer's partitioner: kernels that XLA cannot divide are chosen from the mesh.
    with (
        place.mesh,
        flax_partitioning.axis_rules(AXIS_RULES),
        current_mesh.use_mesh(place.mesh),
    ):
        lowered = jitted.lower(*arguments)
    options: dict[str, Any] = dict(xla_flags)
    if place.platform == "gpu":
        options = (
            t5x_model_options.resolve_xla_flags(config.fp8, place.task.size, place.accelerator)
            | options
        )
    return lowered.compile(compiler_options=options)


def compile_mode(
    task: Task,
    mode: modes.Mode,
    xla_flags: Mapping[str, Any] | None = None,
    devices: Sequence[Any] | None = None,
) -> Any:
    """Compile the step of a mode without its arrays, and keep it in JAX's cache of programs.

    A Candidate of the same mode in another process then takes it from the cache.

    Args:
        task: The training step to measure.
        mode: The mode.
        xla_flags: Flags that replace those of the presets, without dashes.
        devices: The devices to compile for, which need not exist; None for those of this process.

    Returns:
        The compiled step.

    Raises:
        UserError: There are fewer devices than the task wants, or the size is not known.
    """
    place = Place(task, devices)
    fields = read_model_fields(task)
    config = T5Config(**fields | mode.fields)
    batch = make_random_batch(task, config.vocab_size)

    def describe(tree: Any, sharding: Any) -> Any:
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), tree
        )

    state = jax.eval_shape(_make_state_initializer(T5Config(**fields), batch), jax.random.key(0))
    fp8_state = jax.eval_shape(lambda: _make_fp8_state(config, batch))
    arguments = (
        describe(state, place.replicated),
        describe(fp8_state, place.replicated),
        describe(batch, place.rows),
        describe(jax.eval_shape(lambda: jax.random.key(0)), place.replicated),
    )
    return _compile_step(config, place, arguments, xla_flags or {})


def _initialize_variables(config: T5Config, key: Any, batch: Any) -> Any:
    """Return the network's initial Flax variables."""
    return Transformer(config).init({"params": key, "dropout": key}, **batch, enable_dropout=False)


class Place:
    """The devices of a task, and how arrays are laid out on them.

    Args:
        task: The training step.
        devices: The devices; None for those of this process.

    Raises:
        UserError: There are fewer devices than the task wants, or the batch is not a multiple of
            their number.
    """

    def __init__(self, task: Task, devices: Sequence[Any] | None = None) -> None:
        devices = jax.devices() if devices is None else devices
        _check_devices(task, len(devices))
        self.task, self.platform, self.gpu = task, devices[0].platform, devices[0].device_kind
        self.accelerator = resolution.find_accelerator(
            [DetectedGpu(self.gpu, read_compute_capability(devices[0]))]
        )
        self.mesh = jax.sharding.Mesh(np.array(devices[: task.devices]), (DATA,))
        self.replicated = jax.sharding.NamedSharding(self.mesh, jax.sharding.PartitionSpec())
        self.rows = jax.sharding.NamedSharding(self.mesh, jax.sharding.PartitionSpec(DATA))


class SharedState:
    """What all modes share: the devices, the batch, and the state that they train in turn.

    Raises:
        UserError: See Place.
    """

    def __init__(self, task: Task, config: T5Config) -> None:
        self.task, self.place = task, Place(task)
        self.batch = jax.device_put(make_random_batch(task, config.vocab_size), self.place.rows)
        self.key = jax.device_put(jax.random.key(0), self.place.replicated)
        self.state = jax.jit(
            _make_state_initializer(config, self.batch), out_shardings=self.place.replicated
        )(self.key)


def _make_state_initializer(config: T5Config, batch: Any) -> Callable[[Any], tuple[Any, Any]]:
    """Return the function that makes the parameters and the optimizer's state from a key."""

    def initialize_state(key: Any) -> tuple[Any, Any]:
        params = _initialize_variables(config, key, batch)["params"]
        return params, make_optimizer().init(params)

    return initialize_state


def _check_devices(task: Task, visible: int) -> None:
    """Refuse a number of devices that is not there, or that the batch is not a multiple of."""
    if task.devices > visible:
        raise UserError(
            f"{task.devices} devices are wanted, but JAX sees only {visible}",
            "bench t5 --devices",
            f"give at most {visible}",
            kind=TOO_BIG,
            value=task.devices,
        )
    if task.batch % task.devices:
        raise UserError(
            f"the batch of {task.batch} sequences is not a multiple of {task.devices} devices",
            "bench t5 --batch",
            f"give a multiple of {task.devices}",
            kind=INVALID,
            value=task.batch,
        )


def read_compute_capability(device: Any) -> tuple[int, int]:
    """Return a GPU's compute capability, and (0, 0) for other devices."""
    return parse_capability(getattr(device, "compute_capability", None) or "")


def run_benchmark(
    task: Task, names: Sequence[str], *, skip: bool, say: Callable[[str], None]
) -> dict[str, Any]:
    """Measure modes, and compare each with the first one.

    Args:
        task: The training step to measure.
        names: The names of the modes, as `modes.parse_mode` reads them.
        skip: Leave out a mode that this device cannot run, with a line; otherwise refuse it.
        say: Called with each line about the progress.

    Returns:
        The result of `rosetta bench t5 --json`: the device, the FLOPs of a step, and for each mode
        its seconds, its ratio to the first mode (below 1 is faster), rates, MFU, peak memory and
        loss.

    Raises:
        UserError: A mode or the size does not exist, the device cannot run a mode, the batch is
            not a multiple of the devices, or the memory is not enough.
    """
    chosen = _select_modes(names, jax.devices()[0], skip=skip, say=say)
    return measure_modes(task, {mode.name: (mode, {}) for mode in chosen}, say=say)[0]


def measure_modes(
    task: Task,
    chosen: Mapping[str, tuple[modes.Mode, Mapping[str, Any]]],
    *,
    say: Callable[[str], None],
) -> tuple[dict[str, Any], dict[str, Candidate]]:
    """Measure modes that this device can run, and compare each with the first one.

    Args:
        task: The training step to measure.
        chosen: Name of a row -> a mode, and the flags of XLA that replace those of the presets.
        say: Called with each line about the progress.

    Returns:
        The result as `run_benchmark` returns it, and the compiled modes by name.

    Raises:
        UserError: See run_benchmark.
    """
    fields = read_model_fields(task)
    config = T5Config(**fields)
    with _report_exhausted_memory(task, "the model"):
        shared = SharedState(task, config)
    candidates: dict[str, Candidate] = {}
    for name, (mode, xla_flags) in chosen.items():
        with _report_exhausted_memory(task, name):
            candidate = Candidate(mode, T5Config(**fields | mode.fields), shared, xla_flags)
            candidate()  # warms up
        candidates[name] = candidate
        say(f"{name}: compiled in {candidate.compile_seconds:.1f} s, loss {candidate.loss:.3f}")
    timings = timing.time_in_turns(candidates, task.turns)
    step_flops = flops.count_train_flops(config, task.inputs, task.targets, task.batch)
    first = next(iter(timings.values()))
    result = {
        "card": shared.place.gpu,
        "platform": shared.place.platform,
        "devices": task.devices,
        "jax": jax.__version__,
        "task": dataclasses.asdict(task),
        "flops": step_flops,
        "modes": [
            _describe_candidate(name, candidates[name], timings[name], first, step_flops)
            for name in candidates
        ],
        "ok": all(np.isfinite(candidate.loss) for candidate in candidates.values()),
    }
    return result, candidates


def _select_modes(
    names: Sequence[str], device: Any, *, skip: bool, say: Callable[[str], None]
) -> list[modes.Mode]:
    """Return the modes that the device can run; refuse the others unless `skip` is set."""
    chosen = []
    for mode in [modes.parse_mode(name) for name in names]:
        reason = modes.explain_unsupported_mode(
            mode, device.platform, read_compute_capability(device)
        )
        if not reason:
            chosen.append(mode)
        elif skip:
            say(f"{mode.name} is left out: {reason}")
        else:
            raise UserError(
                reason,
                f"bench t5 --modes {mode.name}",
                "leave this mode out",
                kind=UNSUPPORTED,
            )
    return chosen


@contextlib.contextmanager
def _report_exhausted_memory(task: Task, subject: str) -> Iterator[None]:
    """Turn JAX's error about exhausted device memory into a UserError."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise UserError(
            f"{subject} does not fit into the device's memory",
            f"bench t5 --batch {task.batch}",
            "give a smaller --batch or --size, or modes with remat",
            kind=TOO_BIG,
        ) from None


def _describe_candidate(
    name: str,
    candidate: Candidate,
    timings: timing.Timings,
    first: timing.Timings,
    step_flops: int,
) -> dict[str, Any]:
    """Return the row of a mode in the result."""
    task, mode = candidate.shared.task, candidate.mode
    seconds = timings.median / task.steps
    peak_flops = gpus.find_peak_flops(candidate.shared.place.gpu, mode.arithmetic)
    return {
        "mode": name,
        "fields": mode.fields,
        "seconds": seconds,
        "samples": [turn_seconds / task.steps for turn_seconds in timings.seconds],
        "ratio": timings.ratio(first),
        "sequences_per_second": task.batch / seconds,
        "tokens_per_second": task.batch * (task.inputs + task.targets) / seconds,
        "peak_flops": peak_flops,
        "peak_of": mode.arithmetic,
        "mfu": progress.compute_mfu(step_flops, seconds, task.devices, peak_flops),
        "peak_bytes": candidate.estimate_peak_bytes(),
        "compile_seconds": candidate.compile_seconds,
        "loss": progress.encode_non_finite(candidate.loss),
    }
