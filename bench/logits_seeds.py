"""Compare T5 with bfloat16 factors of the logits against float32, over seeds.

    PYTHONPATH=.:T5X PYTHON -m bench.logits_seeds [--steps 250] [--seeds 6]

PYTHON is the Python of a baked environment of T5X, and T5X its tree of T5X. The text and its
held-out part are those of bench.optimizer_recipes. A SentencePiece vocabulary is trained on the
text first. The model is a small T5 with bfloat16 activations, with one embedding for tokens and
logits (tied, as T5 1.0) or two (untied, as T5 1.1). It learns to fill gaps.

Both runs of a pair have the same first weights, batches, gaps and dropout masks. They differ in
T5Config.logits_dtype alone. For each of tied and untied, the program prints the loss on held-out
text in nats per token, the mean of the paired differences, its standard error, and the standard
deviation of the float32 losses over the seeds. bfloat16 is accepted if the mean difference, without
its sign, plus two standard errors is less than that deviation.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from absl import logging

from bench import optimizer_recipes
from rosetta.data import data_spec, vocabulary_training
from rosetta.t5x import network

if TYPE_CHECKING:
    from collections.abc import Sequence

VOCABULARY_SIZE = 4096
DTYPES = ("float32", "bfloat16")
FAMILIES: dict[str, dict[str, Any]] = {
    "tied": {"logits_via_embedding": True, "mlp_activations": ("relu",)},
    "untied": {"logits_via_embedding": False, "mlp_activations": ("gelu", "linear")},
}
CONFIG = network.T5Config(
    vocab_size=VOCABULARY_SIZE,
    dtype="bfloat16",
    emb_dim=256,
    num_heads=4,
    num_encoder_layers=1,
    num_decoder_layers=1,
    head_dim=64,
    mlp_dim=512,
    dropout_rate=0.1,
    scale_attn_logits=True,
)
RATE = 0.01  # of Adafactor at its peak


class Comparison(NamedTuple):
    """The held-out losses of one family, in the order of the seeds.

    Attributes:
      float32: with float32 factors.
      bfloat16: with bfloat16 factors.
    """

    float32: Sequence[float]
    bfloat16: Sequence[float]

    @property
    def differences(self) -> list[float]:
        """The loss with bfloat16 minus that with float32, for each seed."""
        return [narrow - wide for wide, narrow in zip(self.float32, self.bfloat16, strict=True)]

    @property
    def mean(self) -> float:
        """The mean of the differences."""
        return statistics.mean(self.differences)

    @property
    def standard_error(self) -> float:
        """The standard error of `mean`."""
        return statistics.stdev(self.differences) / math.sqrt(len(self.differences))

    @property
    def spread(self) -> float:
        """The standard deviation of the float32 losses over the seeds."""
        return statistics.stdev(self.float32)

    @property
    def is_below_noise(self) -> bool:
        """Whether the difference is less than the spread, with two standard errors to spare."""
        return abs(self.mean) + 2 * self.standard_error < self.spread


def make_setup(family: str, dtype: str, vocabulary: str) -> optimizer_recipes.Setup:
    """Return what is trained, for a family and a type of the logits' factors."""
    config = dataclasses.replace(CONFIG, logits_dtype=dtype, **FAMILIES[family])
    return optimizer_recipes.Setup(config, vocabulary, sentinels=0, inputs=48, targets=32, batch=8)


def train_vocabulary(text: Path, folder: Path) -> str:
    """Train a vocabulary on a text, and return its file."""
    out = str(folder / "text.model")
    parts = data_spec.parse_parts(f"text:{text}")
    vocabulary_training.train_vocabulary(parts, out, size=VOCABULARY_SIZE, model_type="bpe")
    return out


def compare(
    family: str, files: dict[str, Path], vocabulary: str, steps: int, seeds: int
) -> Comparison:
    """Train each seed with both types, and return the losses."""
    recipe = optimizer_recipes.RECIPES[0]
    benches = {
        dtype: optimizer_recipes.Bench(recipe, files, steps, make_setup(family, dtype, vocabulary))
        for dtype in DTYPES
    }
    losses: dict[str, list[float]] = {dtype: [] for dtype in DTYPES}
    for seed in range(seeds):
        for dtype, bench in benches.items():
            losses[dtype].append(bench.run(RATE, seed))
            print(f"{family}, seed {seed}, {dtype}: {losses[dtype][-1]:.5f}", flush=True)
    return Comparison(**losses)


def main() -> None:
    """Run the comparison, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=250, help="of a run (default: 250)")
    parser.add_argument("--seeds", type=int, default=6, help="how many (default: 6)")
    arguments = parser.parse_args()
    logging.set_verbosity(logging.ERROR)  # T5X's Adafactor warns of each parameter
    with tempfile.TemporaryDirectory() as folder:
        files = optimizer_recipes.write_texts(Path(folder))
        vocabulary = train_vocabulary(files["train"], Path(folder))
        comparisons = {
            family: compare(family, files, vocabulary, arguments.steps, arguments.seeds)
            for family in FAMILIES
        }
    print("| embeddings | float32 | bfloat16 | mean difference | standard error | spread | below |")
    print("|---|---|---|---|---|---|---|")
    for family, result in comparisons.items():
        print(
            f"| {family} | {statistics.mean(result.float32):.5f} "
            f"| {statistics.mean(result.bfloat16):.5f} | {result.mean:+.5f} "
            f"| {result.standard_error:.5f} | {result.spread:.5f} "
            f"| {'yes' if result.is_below_noise else 'no'} |"
        )


if __name__ == "__main__":
    main()
