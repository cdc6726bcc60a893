"""A training step of rosetta's T5 on synthetic tokens, without T5X: what its network costs in each
mode, the modes taking turns.

All modes train one and the same state, since the tree of the parameters does not depend on them:
memory is that of one model, and FP8's own state is small.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from rosetta.bench import modes, timing
from rosetta.core import gpus
from rosetta.core.errors import INVALID, TOO_BIG, UNSUPPORTED, UserError
from rosetta.core.gpu_query import DetectedGpu, parse_capability
from rosetta.health import progress
from rosetta.nn import fp8
from rosetta.nn import loss as loss_
from rosetta.presets import layers, t5x_switches
from rosetta.t5x.network import Transformer, logits_scale
from rosetta.t5x.run import flops
from rosetta.t5x.run.model_config import T5Config

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

Z_LOSS = 1e-4


@dataclasses.dataclass(frozen=True)
class Task:
    """What is measured: `size` names a T5 1.1; batch is of all devices together; lengths are tokens
    of inputs and targets.
    """

    size: str
    batch: int
    inputs: int = 512
    targets: int = 128
    dropout: float = 0.0
    steps: int = 10
    turns: int = 5
    devices: int = 1


def make_random_batch(task: Task, vocabulary: int) -> dict[str, np.ndarray[Any, Any]]:
    """Return a batch of random tokens without padding, int32 [batch, length] each."""
    random = np.random.default_rng(0)
    inputs = random.integers(2, vocabulary, (task.batch, task.inputs), dtype=np.int32)
    targets = random.integers(2, vocabulary, (task.batch, task.targets), dtype=np.int32)
    moved = np.concatenate([np.zeros((task.batch, 1), np.int32), targets[:, :-1]], axis=1)
    return {
        "encoder_input_tokens": inputs,
        "decoder_input_tokens": moved,
        "decoder_target_tokens": targets,
    }


def compute_mean_loss(config: T5Config, variables: Any, batch: Any, key: Any) -> Any:
    """Return the cross entropy a target token has on average, with T5's z-loss."""
    how = {"enable_dropout": config.dropout_rate > 0, "rngs": {"dropout": key}}
    targets = batch["decoder_target_tokens"]
    if config.loss_chunks:
        hidden, kernel = Transformer(config).apply(variables, **batch, hidden_only=True, **how)
        terms = loss_.Terms(
            config.vocab_size,
            config.loss_chunks,
            0.0,
            Z_LOSS,
            logits_scale(config),
            jnp.dtype(config.logits_dtype),
        )
        each = loss_.chunked_cross_entropy(
            hidden.reshape(-1, hidden.shape[-1]), kernel, targets.reshape(-1), terms
        )[0]
        return jnp.mean(each)
    logits = Transformer(config).apply(variables, **batch, **how).astype(jnp.float32)
    total = jax.nn.logsumexp(logits, axis=-1)
    hit = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    return jnp.mean(total - hit + Z_LOSS * jnp.square(total))


def make_optimizer() -> Any:
    """Return the optimizer of the benchmark: AdamW with clipped gradients."""
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-4, weight_decay=0.01))


def run_training_step(
    config: T5Config, state: Any, own: Any, batch: Any, key: Any
) -> tuple[Any, Any, Any]:
    """Do one step: state (params, optimizer's) and a mode's own collections to the next ones, and
    the loss.
    """
    params, moments = state
    value, (gradients, seen) = jax.value_and_grad(
        lambda both: compute_mean_loss(config, {"params": both[0], **both[1]}, batch, key)
    )((params, own))
    updates, moments = make_optimizer().update(gradients, moments, params)
    following = fp8.advance(own, seen, optax.tree_utils.tree_get(moments, "count")) if own else own
    return (optax.apply_updates(params, updates), moments), following, value


class Candidate:
    """One mode, compiled: call it to train some steps on the shared state and wait for them."""

    def __init__(self, mode: modes.Mode, config: T5Config, run: SharedState) -> None:
        self.mode, self.config, self.run = mode, config, run
        shapes = jax.eval_shape(
            functools.partial(_initialize_variables, config), jax.random.key(0), run.batch
        )
        own = {fp8.COLLECTION: shapes[fp8.COLLECTION]} if fp8.COLLECTION in shapes else {}
        # Scales start at one and magnitudes at zero, as the network itself declares them.
        self.own = jax.tree_util.tree_map_with_path(
            lambda path, leaf: (jnp.ones if path[-1].key.endswith("_scale") else jnp.zeros)(
                leaf.shape, leaf.dtype
            ),
            own,
        )
        self.own = jax.device_put(self.own, run.everywhere)
        jitted = jax.jit(functools.partial(run_training_step, config), donate_argnums=(0, 1))
        begin = time.perf_counter()
        lowered = jitted.lower(run.state, self.own, run.batch, run.key)
        options = (
            t5x_switches.xla_options(config.fp8, run.task.size, run.accelerator)
            if run.platform == "gpu"
            else {}
        )
        self.compiled = lowered.compile(compiler_options=options)
        self.compile_seconds = time.perf_counter() - begin
        self.loss = float("nan")

    def __call__(self) -> None:
        run = self.run
        for _ in range(run.task.steps):
            run.state, self.own, value = self.compiled(run.state, self.own, run.batch, run.key)
        self.loss = float(value)

    def peak_bytes(self) -> int | None:
        found = self.compiled.memory_analysis()
        if found is None:
            return None
        return int(
            found.argument_size_in_bytes
            + found.output_size_in_bytes
            - found.alias_size_in_bytes
            + found.temp_size_in_bytes
        )


def _initialize_variables(config: T5Config, key: Any, batch: Any) -> Any:
    return Transformer(config).init({"params": key, "dropout": key}, **batch, enable_dropout=False)


class SharedState:
    """What all modes work on: devices, batch, and the state that goes from one to the next."""

    def __init__(self, task: Task, config: T5Config) -> None:
        devices = jax.devices()
        if task.devices > len(devices):
            raise UserError(
                f"{task.devices} devices are asked for and {len(devices)} visible",
                "bench t5 --devices",
                f"give at most {len(devices)}",
                kind=TOO_BIG,
                value=task.devices,
            )
        if task.batch % task.devices:
            raise UserError(
                f"a batch of {task.batch} does not divide by {task.devices} devices",
                "bench t5 --batch",
                f"give a multiple of {task.devices}",
                kind=INVALID,
                value=task.batch,
            )
        self.task, self.platform, self.card = task, devices[0].platform, devices[0].device_kind
        self.accelerator = layers.find_accelerator(
            [DetectedGpu(self.card, read_compute_capability(devices[0]))]
        )
        mesh = jax.sharding.Mesh(np.array(devices[: task.devices]), ("data",))
        self.everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
        rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
        self.batch = jax.device_put(make_random_batch(task, config.vocab_size), rows)
        self.key = jax.device_put(jax.random.key(0), self.everywhere)

        def fresh(key: Any) -> tuple[Any, Any]:
            params = _initialize_variables(config, key, self.batch)["params"]
            return params, make_optimizer().init(params)

        self.state = jax.jit(fresh, out_shardings=self.everywhere)(self.key)


def read_compute_capability(device: Any) -> tuple[int, int]:
    """Return a GPU's compute capability, (0, 0) for other devices."""
    return parse_capability(getattr(device, "compute_capability", None) or "")


def run_benchmark(
    task: Task, names: Sequence[str], *, skip: bool, say: Callable[[str], None]
) -> dict[str, Any]:
    """Measure modes against the first of them.

    Args:
      task: what to train.
      names: of modes, as modes.parse has them.
      skip: leave out, with a line said, what this device cannot do, rather than refuse.
      say: takes a line of progress.

    Returns:
      the card, the FLOPs of a step, and for each mode seconds, ratio to the first (below 1 is
      faster), rates, MFU, peak memory and loss.

    Raises:
      UserError: a mode or size that does not exist or that this device cannot do, a batch that does
        not divide, or too little memory.
    """
    asked, device = [modes.parse_mode(name) for name in names], jax.devices()[0]
    chosen = []
    for mode in asked:
        reason = modes.explain_unsupported_mode(
            mode, device.platform, read_compute_capability(device)
        )
        if reason and not skip:
            raise UserError(
                f"{reason}", f"bench t5 --modes {mode.name}", "leave it out", kind=UNSUPPORTED
            )
        if reason:
            say(f"{mode.name} is left out: {reason}")
        else:
            chosen.append(mode)
    base = modes.read_size_fields(task.size) | {"dropout_rate": task.dropout}
    plain = T5Config(**base)
    with _report_exhausted_memory(task, "the model"):
        run = SharedState(task, plain)
    candidates: dict[str, Candidate] = {}
    for mode in chosen:
        with _report_exhausted_memory(task, mode.name):
            candidates[mode.name] = made = Candidate(mode, T5Config(**base | mode.fields), run)
            made()
        say(f"{mode.name}: compiled in {made.compile_seconds:.1f} s, loss {made.loss:.3f}")
    samples = timing.time_in_turns(candidates, task.turns)
    work = flops.train_flops(plain, task.inputs, task.targets, task.batch)
    first = samples[chosen[0].name]
    rows = [
        _describe_candidate(candidates[name], found, found.ratio(first), work)
        for name, found in samples.items()
    ]
    return {
        "card": run.card,
        "platform": run.platform,
        "devices": task.devices,
        "jax": jax.__version__,
        "task": dataclasses.asdict(task),
        "flops": work,
        "modes": rows,
        "ok": all(np.isfinite(candidate.loss) for candidate in candidates.values()),
    }


@contextlib.contextmanager
def _report_exhausted_memory(task: Task, what: str) -> Iterator[None]:
    """Turn running out of a device's memory into a UserError."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise UserError(
            f"{what} does not fit into the device's memory",
            f"bench t5 --batch {task.batch}",
            "give a smaller --batch or --size, or modes with remat",
            kind=TOO_BIG,
        ) from None


def _describe_candidate(
    candidate: Candidate, samples: timing.Timings, ratio: float, work: int
) -> dict[str, Any]:
    task, mode = candidate.run.task, candidate.mode
    seconds = samples.median / task.steps
    peak = gpus.find_peak_flops(candidate.run.card, mode.arithmetic)
    return {
        "mode": mode.name,
        "fields": mode.fields,
        "seconds": seconds,
        "samples": [each / task.steps for each in samples.seconds],
        "ratio": ratio,
        "sequences_per_second": task.batch / seconds,
        "tokens_per_second": task.batch * (task.inputs + task.targets) / seconds,
        "peak_flops": peak,
        "peak_of": mode.arithmetic,
        "mfu": progress.compute_mfu(work, seconds, task.devices, peak),
        "peak_bytes": candidate.peak_bytes(),
        "compile_seconds": candidate.compile_seconds,
        "loss": progress.finite(candidate.loss),
    }
