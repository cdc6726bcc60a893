"""Sequences a second and core that rosetta.data makes, by source, and the cores a run needs for
them.

    PYTHONPATH=. PYTHON bench/input.py [--text FILE.txt] [--vocab FILE.model] [--seconds 4] [--json]

PYTHON is a baked environment's. Without --text it takes this repository's and the environment's own
Python sources and documents as text; without --vocab it trains one of 32,000 ids on that text. One
process, one thread: the figure is for one core. Each source is measured at T5's 512 inputs and 128
targets, batches of 256, in processor time; the figure is the median of several seconds' rounds.
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

from rosetta.data import data_spec, pipeline, token_cache, vocabularies, vocabulary_training
from tests.support import corpora

INPUTS, TARGETS, BATCH = 512, 128, 256
# T5-small on 8 A100, 512/128 (the old rosetta's table), and what an H100 is faster with FP8 (its
# own T5-large: 174.1 / 75.8).
A100_SMALL, H100_FACTOR = 5712, 174.1 / 75.8
TARGET = 3000


def cores(sequences_per_second: float, per_core: float) -> int:
    """Return the cores whose input keeps up with a run, 20 % of them in reserve for the trainer's
    own threads.
    """
    return int(np.ceil(1.2 * sequences_per_second / per_core))


def _documents(limit: int) -> list[str]:
    """Return readable text of at least `limit` bytes, from what every environment has."""
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    found: list[str] = []
    size = 0
    patterns = [
        f"{here}/docs/*.md",
        f"{here}/README.md",
        f"{os.path.dirname(np.__file__)}/../**/*.py",
    ]
    for pattern in patterns:
        for path in sorted(glob.glob(pattern, recursive=True)):
            with open(path, encoding="utf-8", errors="replace") as file:
                # Paragraphs on one line each, as web text comes.
                parts = [" ".join(part.split()) for part in file.read().split("\n\n")]
            found += [part for part in parts if len(part) > 200]
            size += sum(len(part) for part in parts)
            if size > limit:
                return found
    return found


def _write(folder: str, documents: list[str]) -> dict[str, str]:
    with open(f"{folder}/a.txt", "w", encoding="utf-8") as file:
        file.writelines(f"{text}\n" for text in documents)
    with open(f"{folder}/a.jsonl", "w", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in documents)
    corpora.tfrecords(
        Path(folder, "a.tfrecord"), [corpora.example(text=[text.encode()]) for text in documents]
    )
    return {
        "text": f"text:{folder}/a.txt",
        "jsonl": f"jsonl:{folder}/a.jsonl",
        "tfrecord": f"tfrecord:{folder}/a.tfrecord",
    }


def _rate(recipe: pipeline.Recipe, seconds: float) -> dict[str, Any]:
    batches = pipeline.Batches(recipe, BATCH)
    batch = batches.make_batch(0)
    rates = []
    step = 1
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        begun = time.process_time()
        for _ in range(2):
            batch = batches.make_batch(step)
            step += 1
        rates.append(2 * BATCH / (time.process_time() - begun))
    return {
        "sequences_per_core_second": round(statistics.median(rates)),
        "filled": round(float((batch["encoder_input_tokens"] != 0).mean()), 4),
        "batches": step,
    }


def measure(documents: list[str], folder: str, vocab: str | None, seconds: float) -> dict[str, Any]:
    """Return how fast the input pipeline is on each kind of source."""
    sources = _write(folder, documents)
    if vocab is None:
        vocab = vocabulary_training.train_vocabulary(
            data_spec.parse_parts(sources["text"]), f"{folder}/bench.model", size=32_000
        ).name
    chosen = vocabularies.load_vocabulary(vocab)
    sample = " ".join(documents[:2000])
    per_token = len(sample.encode()) / len(chosen.encode([sample])[0])
    made = token_cache.CacheRecipe(
        "bench", chosen.fingerprint(), "bench", chosen.size, document_ends=False, pairs=""
    )
    begun = time.process_time()
    meta = token_cache.write_cache(
        f"{folder}/cache", made, documents, lambda parts: (chosen.encode(part) for part in parts)
    )
    caching = meta["tokens"] / (time.process_time() - begun)
    common: dict[str, Any] = {
        "objective": "span_corruption",
        "vocab": chosen.name,
        "extra_ids": chosen.extra_ids,
        "inputs": INPUTS,
        "targets": TARGETS,
    }
    found = {
        "synthetic": _rate(
            pipeline.Recipe("synthetic", **{**common, "vocab": "ids:32128", "extra_ids": 0}),
            seconds,
        )
    }
    found["pre-tokenised"] = _rate(pipeline.Recipe(f"cache:{folder}/cache", **common), seconds)
    for name, data in sources.items():
        found[f"{name}, raw"] = _rate(pipeline.Recipe(data, **common), seconds)
    found["text, bytes"] = _rate(
        pipeline.Recipe(
            sources["text"],
            **{**common, "vocab": "byte", "extra_ids": 100, "mean_noise_span_length": 20.0},
        ),
        seconds,
    )
    a100, h100 = A100_SMALL, A100_SMALL * H100_FACTOR
    needed = {
        name: {
            "8 A100": cores(a100, row["sequences_per_core_second"]),
            "8 H100": cores(h100, row["sequences_per_core_second"]),
        }
        for name, row in found.items()
    }
    return {
        "text_bytes": sum(len(text.encode()) for text in documents),
        "bytes_per_token": round(per_token, 2),
        "caching_tokens_per_core_second": round(caching),
        "sources": found,
        "cores_for_t5_small": needed,
        "run_sequences_per_second": {"8 A100": a100, "8 H100": round(h100)},
    }


def main() -> int:
    """Run the benchmark that the command line describes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--text", help="a text file, one document a line")
    parser.add_argument("--vocab", help="a SentencePiece model")
    parser.add_argument("--seconds", type=float, default=4.0, help="for each source")
    parser.add_argument("--megabytes", type=int, default=24, help="of text, at most")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.text:
        with open(args.text, encoding="utf-8", errors="replace") as file:
            documents = file.read(args.megabytes << 20).splitlines()
    else:
        documents = _documents(args.megabytes << 20)
    with tempfile.TemporaryDirectory() as folder:
        result = measure(documents, folder, args.vocab, args.seconds)
    if args.json:
        print(json.dumps(result, indent=2))
    else:
        print(
            f"{result['text_bytes'] / 1e6:.1f} MB of text, {result['bytes_per_token']} bytes "
            f"a token; caching {result['caching_tokens_per_core_second']:,} tokens/s a core"
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
    made = result["sources"]["pre-tokenised"]["sequences_per_core_second"]
    if made < TARGET:
        print(
            f"pre-tokenised: {made:,} sequences a second and core; the aim is {TARGET:,}",
            file=sys.stderr,
        )
    return 0 if made >= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
