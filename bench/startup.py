"""From nothing to the first training step: rosetta's T5 pretraining against upstream's, turn about,
medians.

    .venv/bin/python -m bench.startup --env build/t5x-cpu [--times 3] [--warm]

Upstream's side is what its GPU script for T5 1.1 runs (model, optimizer, run and task files as they
are), less the flag that today's XLA has not; ours is what `rosetta t5x pretrain` runs with every
switch off. Both: same text, vocabulary, lengths, batch and dtype, bytecode written before, one
process, JAX's default of no compilation cache, or with --warm one that a run before has filled.
Time ends when the loss of step 1 is reported. Prints one JSON document.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rosetta.selftest import sample_text

HERE = Path(__file__).resolve().parent.parent
FIRST = re.compile(rb"\[1\] .*cross_ent_loss=")
MARKS = {
    "gin read": rb"Gin Configuration|gin_utils.py:90",
    "state": rb"Initialize/restore complete",
    "compiled": rb"BEGIN Train loop",
}
LENGTHS = "{'inputs': 64, 'targets': 32}"
TASK = """
import functools, os
import seqio
from t5.data import preprocessors
FEATURE = seqio.Feature(vocabulary=seqio.SentencePieceVocabulary(os.environ["BENCH_VOCAB"]),
                        add_eos=True)
def lines(dataset):
    return dataset.map(lambda line: {"inputs": "", "targets": line})
seqio.TaskRegistry.add(
    "bench_startup",
    source=seqio.TextLineDataSource(
        dict.fromkeys(("train", "validation"), os.environ["BENCH_TEXT"])),
    preprocessors=[lines, seqio.preprocessors.tokenize, seqio.CacheDatasetPlaceholder(),
                   preprocessors.span_corruption, seqio.preprocessors.append_eos_after_trim],
    output_features={"inputs": FEATURE, "targets": FEATURE}, metric_fns=[])
"""
GIN = """
from __gin__ import dynamic_registration
import seqio
import t5.data.mixtures
import t5x.contrib.gpu.scripts_gpu.seqio_tasks
import bench_startup_task
include 't5x/contrib/gpu/t5/t5_1_1/@SIZE@.gin'
include 't5x/contrib/gpu/t5/configs/runs/pretrain_pile.gin'
include 't5x/contrib/gpu/t5/t5_1_1/adamw_opt.gin'
MIXTURE_OR_TASK_NAME = "bench_startup"
TASK_FEATURE_LENGTHS = @LENGTHS@
DROPOUT_RATE = 0.1
BATCH_SIZE = 2
seqio.SentencePieceVocabulary.sentencepiece_model_file = "@VOCAB@"
"""


def _both(model_dir: Path) -> list[str]:
    return [f'--gin.MODEL_DIR="{model_dir}"', "--gin.TRAIN_STEPS=2"]


def _commands(
    python: Path, tree: Path, scratch: Path, size: str, vocab: Path, words: Path
) -> dict[str, tuple[list[str], dict[str, str]]]:
    """Return for each side its argument list, without where checkpoints go, and its environment."""
    (scratch / "bench_startup_task.py").write_text(TASK, encoding="utf-8")
    gin = GIN.replace("@SIZE@", size).replace("@LENGTHS@", LENGTHS).replace("@VOCAB@", str(vocab))
    (scratch / "upstream.gin").write_text(gin, encoding="utf-8")
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "JAX_"))
    }
    environment |= {"JAX_PLATFORMS": "cpu", "BENCH_VOCAB": str(vocab), "BENCH_TEXT": str(words)}
    ours = scratch / "ours"
    shutil.copytree(
        HERE / "rosetta", ours / "rosetta", ignore=shutil.ignore_patterns("__pycache__")
    )
    compileall.compile_dir(scratch, quiet=1)
    program = [str(python), "-u", "-P", "-m"]
    upstream = [
        *program,
        "t5x.train",
        f"--gin_search_paths={tree},{scratch}",
        "--gin_file=upstream.gin",
        f"--tfds_data_dir={scratch}",
        '--gin.network.T5Config.dtype="float32"',
        "--gin.train.stats_period=1",
        "--gin.train/utils.DatasetConfig.batch_size=2",
        "--gin.train/utils.DatasetConfig.pack=False",
        "--gin.trainer.Trainer.num_microbatches=1",
    ]
    rosetta = [
        *program,
        "rosetta.t5x.train",
        f"--gin_search_paths={ours}",
        f"--gin_file=rosetta/t5x/gin/t5_1_1/{size}.gin",
        "--gin_file=rosetta/t5x/gin/runs/pretrain.gin",
        f'--gin.VOCAB="{vocab}"',
        f'--gin.DATA="text:{words}"',
        '--gin.DTYPE="float32"',
        "--gin.BATCH_SIZE=2",
        "--gin.STATS_PERIOD=1",
        f"--gin.TASK_FEATURE_LENGTHS={LENGTHS}",
        "--gin.DROPOUT_RATE=0.1",
    ]
    return {
        "upstream": (upstream, environment | {"PYTHONPATH": f"{tree}:{scratch}"}),
        "rosetta": (rosetta, environment | {"PYTHONPATH": f"{ours}:{tree}"}),
    }


def once(argv: list[str], environment: dict[str, str], folder: Path) -> dict[str, float]:
    """Start a run, stop it when its first step is reported, and return the seconds to there and to
    what came before.
    """
    shutil.rmtree(folder, ignore_errors=True)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.perf_counter()
    tail: list[bytes] = []
    found: dict[str, float] = {}
    with subprocess.Popen(
        [*argv, *_both(folder)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as child:
        assert child.stdout is not None
        for line in child.stdout:
            tail = [*tail[-20:], line]
            now = time.perf_counter() - begin
            for name, mark in MARKS.items():
                if name not in found and re.search(mark, line):
                    found[name] = now
            if FIRST.search(line):
                found["first step"] = now
                break
        child.kill()
        child.stdout.read()
    shutil.rmtree(folder, ignore_errors=True)
    if "first step" not in found:
        sys.exit(f"no first step:\n{b''.join(tail).decode(errors='replace')}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return found | {
        "processor": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    }


def main() -> None:
    """Run the benchmark that the command line describes."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--env", type=Path, required=True, help="a baked T5X environment for the CPU"
    )
    parser.add_argument("--size", default="small", help="T5 1.1's (default: small)")
    parser.add_argument("--times", type=int, default=3, help="how often each (default: 3)")
    parser.add_argument(
        "--warm", action="store_true", help="with a compilation cache that a run before has filled"
    )
    parser.add_argument(
        "--scratch",
        type=Path,
        help="a folder with room for a checkpoint (default: the temporary one)",
    )
    args = parser.parse_args()
    root = args.env.resolve() / "opt"
    python = root / "rosetta/env/bin/python"
    vocab = next(
        (root / "rosetta/env").glob(
            "lib/python*/site-packages/seqio/test_data/sentencepiece/sentencepiece.model"
        )
    )
    samples: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory(dir=args.scratch) as made:
        scratch = Path(made)
        sample_text.write_text(scratch / "text.txt")
        commands = _commands(python, root / "t5x", scratch, args.size, vocab, scratch / "text.txt")
        if args.warm:
            for name, (argv, environment) in commands.items():
                environment |= {
                    "JAX_COMPILATION_CACHE_DIR": str(scratch / "cache" / name),
                    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
                }
                once(argv, environment, scratch / "model")
        for turn in range(args.times):
            for name in sorted(commands, reverse=turn % 2 == 0):
                samples.setdefault(name, []).append(once(*commands[name], scratch / "model"))
                print(name, samples[name][-1], file=sys.stderr, flush=True)
    pairs = list(zip(samples["upstream"], samples["rosetta"], strict=True))
    result: dict[str, Any] = {
        "task": {
            "size": args.size,
            "lengths": LENGTHS,
            "batch": 2,
            "dtype": "float32",
            "warm": args.warm,
            "cores": os.cpu_count(),
        },
        "times_faster": statistics.median(
            theirs["first step"] / mine["first step"] for theirs, mine in pairs
        ),
        "times_less_processor": statistics.median(
            theirs["processor"] / mine["processor"] for theirs, mine in pairs
        ),
        "medians": {
            name: {key: statistics.median(each[key] for each in found) for key in found[0]}
            for name, found in samples.items()
        },
        "samples": samples,
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
