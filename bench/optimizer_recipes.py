"""Compare recipes of optimizer and learning rate for T5: the loss on held-out text at equal steps.

    PYTHONPATH=.:T5X PYTHON -m bench.optimizer_recipes [--steps 200] [--seeds 3] [--sweep]

PYTHON is the Python of a baked environment of T5X, and T5X its tree of T5X. The text are the
docstrings of the standard library of that Python. Each tenth module is held out. The model is a
tiny T5 over bytes in float32, with 64 inputs and 24 targets, and learns to fill gaps. A seed
decides the first weights, the order of the text and the gaps. The held-out batches are the same
for all runs.

Each recipe has a learning rate that its users take. With --sweep, it tries a few rates first, with
a seed of their own, and goes on with the best. The program prints a table of the mean and the
spread (standard deviation) of the held-out loss over the seeds, in nats per token. With --out FILE,
losses are also written to a file of JSON lines, and a second call goes on with what is missing.
"""

from __future__ import annotations

import argparse
import ast
import functools
import json
import os
import platform
import statistics
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import seqio
from absl import logging
from t5x import adafactor, train_state, utils

from rosetta.data import data_recipe, pipeline
from rosetta.t5x import model, muon, network, optimizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WARMUP_SHARE = 20  # the warm-up takes one step in so many
HELD_OUT = 10  # one module in so many
HELD_OUT_BATCHES = 32
RATE_SEED = 100  # of the runs that choose a rate; the others have the seeds 0, 1, ...


class Setup(NamedTuple):
    """What is trained, and on which rows.

    Attributes:
      config: the network.
      vocabulary: "byte" or a SentencePiece model, as data_recipe.Recipe has it.
      sentinels: the number of sentinels added to the vocabulary.
      inputs: the tokens of an input.
      targets: the tokens of a target.
      batch: the rows of a step.
    """

    config: network.T5Config
    vocabulary: str
    sentinels: int
    inputs: int
    targets: int
    batch: int


SETUP = Setup(
    network.T5Config(
        vocab_size=384,
        dtype="float32",
        emb_dim=64,
        num_heads=4,
        num_encoder_layers=2,
        num_decoder_layers=2,
        head_dim=16,
        mlp_dim=128,
        mlp_activations=("gelu", "linear"),
        dropout_rate=0.0,
        scale_attn_logits=True,
    ),
    vocabulary="byte",
    sentinels=100,
    inputs=64,
    targets=24,
    batch=8,
)


class Recipe(NamedTuple):
    """A recipe.

    Attributes:
      name: what the table calls it.
      make_optimizer: makes the optimizer, as its gin file does.
      schedule: the learning rate falls in a line ("linear") or as a cosine ("cosine").
      last: the share of the learning rate at the last step.
      rates: learning rates; without a sweep, the first is taken.
    """

    name: str
    make_optimizer: Callable[[], Any]
    schedule: str
    last: float
    rates: tuple[float, ...]


def make_adafactor() -> Any:
    """Return Adafactor with the settings of optimizers/adafactor.gin."""
    return adafactor.Adafactor(
        decay_rate=0.8,
        step_offset=0,
        logical_factor_rules=adafactor.standard_logical_factor_rules(),
    )


RECIPES = (
    Recipe("Adafactor, linear", make_adafactor, "linear", 0.1, (0.02, 0.01, 0.05)),
    Recipe("AdamW, linear", optimizer.adamw, "linear", 0.1, (0.005, 0.002, 0.01)),
    Recipe("AdamW-RMS, cosine", optimizer.adamw_rms, "cosine", 0.0005, (0.02, 0.01, 0.05)),
    Recipe("Muon, linear", muon.muon, "linear", 0.1, (0.005, 0.002, 0.01)),
)


def write_texts(folder: Path) -> dict[str, Path]:
    """Write the texts to train on and to hold out, a docstring on each line."""
    library = Path(sysconfig.get_paths()["stdlib"])
    packages = [path for path in sorted(library.glob("*/*.py")) if path.parent.name.isidentifier()]
    lines: dict[str, list[str]] = {"train": [], "held out": []}
    for number, path in enumerate([*sorted(library.glob("*.py")), *packages]):
        lines["train" if number % HELD_OUT else "held out"] += read_docstrings(path)
    files = {name: folder / f"{name.replace(' ', '_')}.txt" for name in lines}
    for name, file in files.items():
        file.write_text("".join(f"{line}\n" for line in lines[name]), encoding="utf-8")
    return files


def read_docstrings(path: Path) -> Iterator[str]:
    """Yield the docstrings of a module, each as one line."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, documented) and (text := ast.get_docstring(node)):
            yield " ".join(text.split())


@functools.cache
def make_batches(
    file: Path,
    vocabulary: str,
    sentinels: int,
    lengths: tuple[int, int],
    rows: int,
    seed: int,
    count: int,
) -> list[dict[str, Any]]:
    """Return the first batches of a text in the order of a seed."""
    recipe = data_recipe.Recipe(
        f"text:{file}", "span_corruption", vocabulary, sentinels, *lengths, seed=seed
    )
    batches = pipeline.Batches(recipe, rows)
    return [batches.make_batch(step) for step in range(count)]


def make_schedule(recipe: Recipe, peak: float, steps: int) -> Callable[[Any], Any]:
    """Return the learning rate by the step, as the gin files of a run bind it."""
    warmup = max(1, steps // WARMUP_SHARE)
    if recipe.schedule == "cosine":
        return optimizer.cosine_decay(peak=peak, steps=steps, warmup_steps=warmup, last=recipe.last)
    schedule: Callable[[Any], Any] = utils.create_learning_rate_scheduler(
        factors="linear_decay",
        base_learning_rate=peak,
        warmup_steps=warmup,
        decay_factor=optimizer.decay_per_step(steps, warmup, recipe.last),
        min_learning_rate=optimizer.last_rate(peak, recipe.last),
    )
    return schedule


def make_model(config: network.T5Config, optimizer_def: Any) -> Any:
    """Return a model with an optimizer. It never decodes, so its vocabulary is only a size."""
    vocabulary = seqio.PassThroughVocabulary(config.vocab_size)
    return model.EncoderDecoderModel(
        module=network.Transformer(config),
        input_vocabulary=vocabulary,
        output_vocabulary=vocabulary,
        optimizer_def=optimizer_def,
        z_loss=0.0001,
    )


@functools.cache
def compile_initializer(setup: Setup) -> Callable[[Any], Any]:
    """Return the compiled function from a random key to the variables of the model."""
    shapes = {
        "encoder_input_tokens": (setup.batch, setup.inputs),
        "decoder_input_tokens": (setup.batch, setup.targets),
        "decoder_target_tokens": (setup.batch, setup.targets),
    }
    initialize = make_model(setup.config, optimizer.adamw()).get_initial_variables
    initializer: Callable[[Any], Any] = jax.jit(
        lambda key: initialize(key, shapes, dict.fromkeys(shapes, jnp.int32))
    )
    return initializer


@functools.cache
def make_variables(setup: Setup, seed: int) -> Any:
    """Return the variables before the first step."""
    return compile_initializer(setup)(jax.random.key(seed))


class Bench:
    """The runs of one recipe, which share the compiled programs.

    Args:
      recipe: the recipe.
      files: what write_texts returned.
      steps: the steps of a run.
      setup: what is trained, and on which rows.
    """

    def __init__(
        self, recipe: Recipe, files: dict[str, Path], steps: int, setup: Setup = SETUP
    ) -> None:
        self.recipe, self.files, self.steps, self.setup = recipe, files, steps, setup
        self.model = make_model(setup.config, recipe.make_optimizer())
        self.train_step = jax.jit(self._train_step, donate_argnums=0)
        self.compute_loss = jax.jit(self._compute_loss)

    def _make_batches(self, text: str, seed: int, count: int) -> list[dict[str, Any]]:
        """Return the first batches of a text in the order of a seed."""
        setup = self.setup
        lengths = (setup.inputs, setup.targets)
        return make_batches(
            self.files[text], setup.vocabulary, setup.sentinels, lengths, setup.batch, seed, count
        )

    def _train_step(self, state: Any, batch: Any, rate: Any, key: Any) -> Any:
        gradients = jax.grad(self.model.loss_fn, has_aux=True)(state.params, batch, key)[0]
        return state.apply_gradient(gradients, learning_rate=rate)

    def _compute_loss(self, params: Any, batch: Any) -> tuple[Any, Any]:
        """Return the sum of the loss without the z-loss, and the number of tokens."""
        _, metrics = self.model.eval_fn(params, batch)
        loss = metrics["cross_ent_loss"]
        return loss.total, jnp.sum(batch["decoder_target_tokens"] != 0)

    def run(self, peak: float, seed: int) -> float:
        """Train, and return the loss per held-out token.

        Args:
          peak: the highest learning rate.
          seed: decides the first weights, the order of the text, the gaps, and what dropout drops.
        """
        batches = self._make_batches("train", seed, self.steps)
        variables = jax.tree.map(jnp.copy, make_variables(self.setup, seed))
        state = train_state.FlaxOptimTrainState.create(self.model.optimizer_def, variables)
        rates = jax.vmap(make_schedule(self.recipe, peak, self.steps))(jnp.arange(self.steps))
        keys = jax.random.split(jax.random.key(seed), self.steps)
        for batch, rate, key in zip(batches, rates, keys, strict=True):
            state = self.train_step(state, batch, rate, key)
        total, tokens = 0.0, 0
        for batch in self._make_batches("held out", 0, HELD_OUT_BATCHES):
            batch_total, batch_tokens = self.compute_loss(state.params, batch)
            total, tokens = total + float(batch_total), tokens + int(batch_tokens)
        return total / tokens


class Results:
    """The losses of all runs, which a file keeps.

    Args:
      out: the file of JSON lines; None for none. What it has already is not run again.
    """

    def __init__(self, out: str | None) -> None:
        self.file = None if out is None else Path(out)
        self.losses: dict[tuple[str, float, int, int], float] = {}
        if self.file and self.file.is_file():
            for line in self.file.read_text(encoding="utf-8").splitlines():
                row = json.loads(line)
                self.losses[row["recipe"], row["rate"], row["seed"], row["steps"]] = row["loss"]

    def measure(self, bench: Bench, rate: float, seed: int) -> float:
        """Return the loss of a run, which is made if there is none yet."""
        key = (bench.recipe.name, rate, seed, bench.steps)
        if key not in self.losses:
            started = time.process_time()
            self.losses[key] = bench.run(rate, seed)
            row: dict[str, Any] = dict(zip(("recipe", "rate", "seed", "steps"), key, strict=True))
            row |= {"loss": self.losses[key], "cpu_seconds": time.process_time() - started}
            print(json.dumps(row), flush=True)
            if self.file:
                with self.file.open("a", encoding="utf-8") as file:
                    file.write(f"{json.dumps(row)}\n")
        return self.losses[key]


def format_row(name: str, rate: float, losses: list[float]) -> str:
    """Return a row of the table."""
    spread = f"{statistics.stdev(losses):.3f}" if len(losses) > 1 else ""
    shown = ", ".join(f"{loss:.3f}" for loss in losses)
    return f"| {name} | {rate:g} | {shown} | {statistics.mean(losses):.3f} | {spread} |"


def main() -> None:
    """Run the comparison, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=200, help="of a run (default: 200)")
    parser.add_argument("--seeds", type=int, default=3, help="how many (default: 3)")
    parser.add_argument("--sweep", action="store_true", help="try several learning rates first")
    parser.add_argument("--out", help="a file of JSON lines to add the losses to")
    arguments = parser.parse_args()
    logging.set_verbosity(logging.ERROR)  # T5X's Adafactor warns of each parameter
    results = Results(arguments.out)
    with tempfile.TemporaryDirectory() as folder:
        files = write_texts(Path(folder))
        sizes = {name: file.stat().st_size for name, file in files.items()}
        print(
            f"docstrings of Python {platform.python_version()}: {sizes['train']:,} bytes to train "
            f"on, {sizes['held out']:,} held out; {arguments.steps:,} steps of {SETUP.batch} rows",
            flush=True,
        )
        benches = [Bench(recipe, files, arguments.steps) for recipe in RECIPES]
        rates = {bench.recipe.name: bench.recipe.rates[0] for bench in benches}
        if arguments.sweep:
            for bench in benches:
                tried = {
                    rate: results.measure(bench, rate, RATE_SEED) for rate in bench.recipe.rates
                }
                rates[bench.recipe.name] = min(tried, key=lambda rate: tried[rate])
        ends: dict[str, list[float]] = {name: [] for name in rates}
        for seed in range(arguments.seeds):
            for bench in benches:
                name = bench.recipe.name
                ends[name].append(results.measure(bench, rates[name], seed))
    print("| recipe | rate | loss of each seed | mean | spread |\n|---|---|---|---|---|")
    for name, losses in ends.items():
        print(format_row(name, rates[name], losses))


if __name__ == "__main__":
    main()
