"""Measure how many sequences per second a core prepares from each source.

    PYTHONPATH=. PYTHON bench/input.py [--text FILE.txt] [--vocab FILE.model] [--seconds 4] [--json]

PYTHON is the Python of a baked environment. Without --text, the text is the documentation and the
Python sources that every environment has. Without --vocab, the benchmark trains a vocabulary of
32,000 ids on that text. The benchmark uses one process and one thread, and counts processor time,
so a figure is for one core. The table also
shows how many cores a run needs. Sequences have 512 inputs and 128 targets, as in T5, and a batch
has 256. Each source is measured for some seconds, and its figure is the median.
"""

from __future__ import annotations

import argparse
import glob
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from rosetta.data import (
    data_recipe,
    data_spec,
    pipeline,
    token_cache,
    vocabularies,
    vocabulary_training,
)
from tests.support import corpora

INPUTS, TARGETS, BATCH = 512, 128, 256
# Sequences per second of T5-small on 8 A100 with 512/128 tokens, in the table of NVIDIA's rosetta,
# and how much faster an H100 is with FP8. The factor is from T5-large in the same table:
# 174.1 against 75.8 sequences per second and GPU.
A100_SMALL, H100_FACTOR = 5712, 174.1 / 75.8
# The aim for pre-tokenised data, in sequences per second and core.
TARGET = 3000


def count_cores(sequences_per_second: float, sequences_per_core: float) -> int:
    """Return how many cores prepare the data of a run as fast as the run reads it.

    The number includes 20 % for the threads of the trainer.
    """
    return int(np.ceil(1.2 * sequences_per_second / sequences_per_core))


def read_default_text(limit: int) -> list[str]:
    """Return readable paragraphs of at least `limit` bytes, which every environment has."""
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    paragraphs: list[str] = []
    size = 0
    patterns = [
        f"{root}/docs/**/*.md",
        f"{root}/README.md",
        f"{os.path.dirname(np.__file__)}/../**/*.py",
    ]
    for pattern in patterns:
        for path in sorted(glob.glob(pattern, recursive=True)):
            with open(path, encoding="utf-8", errors="replace") as file:
                # Each paragraph becomes one line, as in web text.
                parts = [" ".join(part.split()) for part in file.read().split("\n\n")]
            paragraphs += [part for part in parts if len(part) > 200]
            size += sum(len(part) for part in parts)
            if size > limit:
                return paragraphs
    return paragraphs


def _write_sources(folder: str, documents: list[str]) -> dict[str, str]:
    """Write the documents in each format, and return the DATA specifications by format."""
    with open(f"{folder}/a.txt", "w", encoding="utf-8") as file:
        file.writelines(f"{text}\n" for text in documents)
    with open(f"{folder}/a.jsonl", "w", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in documents)
    corpora.write_tfrecords(
        Path(folder, "a.tfrecord"),
        [corpora.encode_example(text=[text.encode()]) for text in documents],
    )
    return {
        "text": f"text:{folder}/a.txt",
        "jsonl": f"jsonl:{folder}/a.jsonl",
        "tfrecord": f"tfrecord:{folder}/a.tfrecord",
    }


def _measure_source(recipe: data_recipe.Recipe, seconds: float) -> dict[str, Any]:
    """Return the rate of a source, and the share of its batches that is not padding."""
    batches = pipeline.Batches(recipe, BATCH)
    batch = batches.make_batch(0)
    rates = []
    step = 1
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.process_time()
        for _ in range(2):
            batch = batches.make_batch(step)
            step += 1
        rates.append(2 * BATCH / (time.process_time() - start))
    return {
        "sequences_per_core_second": round(statistics.median(rates)),
        "filled": round(float((batch["encoder_input_tokens"] != 0).mean()), 4),
        "batches": step,
    }


def measure(documents: list[str], folder: str, vocab: str | None, seconds: float) -> dict[str, Any]:
    """Return how fast the input pipeline is on each kind of source.

    Args:
        documents: The text.
        folder: A scratch folder.
        vocab: The path of a SentencePiece model, or None to train one.
        seconds: How long to measure each source.
    """
    sources = _write_sources(folder, documents)
    if vocab is None:
        vocab = vocabulary_training.train_vocabulary(
            data_spec.parse_parts(sources["text"]), f"{folder}/bench.model", size=32_000
        ).name
    chosen = vocabularies.load_vocabulary(vocab)
    sample = " ".join(documents[:2000])
    bytes_per_token = len(sample.encode()) / len(chosen.encode([sample])[0])
    cache_recipe = token_cache.CacheRecipe(
        "bench", chosen.fingerprint(), "bench", chosen.size, document_ends=False, pairs=""
    )
    start = time.process_time()
    meta = token_cache.write_cache(
        f"{folder}/cache",
        cache_recipe,
        documents,
        lambda parts: (chosen.encode(part) for part in parts),
    )
    caching_rate = meta["tokens"] / (time.process_time() - start)
    common: dict[str, Any] = {
        "objective": "span_corruption",
        "vocab": chosen.name,
        "extra_ids": chosen.extra_ids,
        "inputs": INPUTS,
        "targets": TARGETS,
    }
    rates = {
        "synthetic": _measure_source(
            data_recipe.Recipe("synthetic", **{**common, "vocab": "ids:32128", "extra_ids": 0}),
            seconds,
        )
    }
    rates["pre-tokenised"] = _measure_source(
        data_recipe.Recipe(f"cache:{folder}/cache", **common), seconds
    )
    for name, data in sources.items():
        rates[f"{name}, raw"] = _measure_source(data_recipe.Recipe(data, **common), seconds)
    rates["text, bytes"] = _measure_source(
        data_recipe.Recipe(
            sources["text"],
            **{**common, "vocab": "byte", "extra_ids": 100, "mean_noise_span_length": 20.0},
        ),
        seconds,
    )
    a100, h100 = A100_SMALL, A100_SMALL * H100_FACTOR
    needed = {
        name: {
            "8 A100": count_cores(a100, row["sequences_per_core_second"]),
            "8 H100": count_cores(h100, row["sequences_per_core_second"]),
        }
        for name, row in rates.items()
    }
    return {
        "text_bytes": sum(len(text.encode()) for text in documents),
        "bytes_per_token": round(bytes_per_token, 2),
        "caching_tokens_per_core_second": round(caching_rate),
        "sources": rates,
        "cores_for_t5_small": needed,
        "run_sequences_per_second": {"8 A100": a100, "8 H100": round(h100)},
    }


def main() -> int:
    """Run the benchmark that the command line describes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--text", help="a text file with one document per line")
    parser.add_argument("--vocab", help="a SentencePiece model")
    parser.add_argument(
        "--seconds", type=float, default=4.0, help="how long to measure each source (default: 4)"
    )
    parser.add_argument(
        "--megabytes", type=int, default=24, help="the most text to read, in MiB (default: 24)"
    )
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.text:
        with open(args.text, encoding="utf-8", errors="replace") as file:
            documents = file.read(args.megabytes << 20).splitlines()
    else:
        documents = read_default_text(args.megabytes << 20)
    with tempfile.TemporaryDirectory() as folder:
        result = measure(documents, folder, args.vocab, args.seconds)
    if args.json:
        print(json.dumps(result, indent=2))
    else:
        print(
            f"{result['text_bytes'] / 1e6:.1f} MB of text, {result['bytes_per_token']} bytes "
            f"per token; caching {result['caching_tokens_per_core_second']:,} tokens/s per core"
        )
        print(
            f"{'source':<16}{'seq/s/core':>12}{'filled':>9}"
            f"{'cores, 8 A100':>15}{'cores, 8 H100':>15}"
        )
        for name, row in result["sources"].items():
            needed = result["cores_for_t5_small"][name]
            print(
                f"{name:<16}{row['sequences_per_core_second']:>12,}{row['filled']:>9.1%}"
                f"{needed['8 A100']:>15}{needed['8 H100']:>15}"
            )
    rate = result["sources"]["pre-tokenised"]["sequences_per_core_second"]
    if rate < TARGET:
        print(
            f"pre-tokenised: {rate:,} sequences per second and core; the aim is {TARGET:,}",
            file=sys.stderr,
        )
    return 0 if rate >= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
