"""Compare the time from a cold start to the first training step of T5: rosetta's and upstream's.

    .venv/bin/python -m bench.startup --env build/t5x-cpu [--times 3] [--warm]

The two sides are:

- upstream: what its GPU script for T5 1.1 runs, with the script's model, optimizer, run and task
  files. The script sets an XLA flag that today's XLA does not have; this benchmark leaves it out.
- rosetta: what `rosetta t5x pretrain` runs without options.

Both sides use one process and the same text, vocabulary, lengths, batch and dtype. Their bytecode
is compiled before the measurement. There is no compilation cache, which is JAX's default. With
--warm there is one, and one run of each side fills it before the measurement.

The time ends when a run reports the loss of step 1. The sides take turns. The program prints one
JSON document with the samples and their medians.
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
from collections import deque
from pathlib import Path
from typing import Any, NamedTuple

from rosetta.selftest import sample_text

ROOT = Path(__file__).resolve().parent.parent
FIRST_STEP = re.compile(rb"\[1\] .*cross_ent_loss=")
# The name of each phase -> the line of the log that ends it, of either side.
PHASE_ENDS = {
    "gin read": rb"Gin Configuration|gin_utils.py:90",
    "state": rb"Initialize/restore complete",
    "compiled": rb"BEGIN Train loop",
}
LENGTHS = "{'inputs': 64, 'targets': 32}"  # in gin's syntax
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


class Side(NamedTuple):
    """The command of one side.

    Attributes:
        argv: The program and its arguments. `time_start` adds the model folder and the steps.
        environment: The environment variables.
    """

    argv: list[str]
    environment: dict[str, str]


def _prepare_sides(
    python: Path, tree: Path, scratch: Path, size: str, vocab: Path, text: Path
) -> dict[str, Side]:
    """Write the files of both sides, and return the sides by name.

    Args:
        python: The Python of the environment.
        tree: The patched T5X of the environment.
        scratch: A folder for files of the benchmark.
        size: The size of T5 1.1.
        vocab: A SentencePiece model.
        text: The training text.
    """
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "JAX_"))
    }
    environment |= {"JAX_PLATFORMS": "cpu", "BENCH_VOCAB": str(vocab), "BENCH_TEXT": str(text)}
    rosetta_copy = scratch / "rosetta_copy"
    shutil.copytree(
        ROOT / "rosetta", rosetta_copy / "rosetta", ignore=shutil.ignore_patterns("__pycache__")
    )
    (scratch / "bench_startup_task.py").write_text(TASK, encoding="utf-8")
    gin = GIN.replace("@SIZE@", size).replace("@LENGTHS@", LENGTHS).replace("@VOCAB@", str(vocab))
    (scratch / "upstream.gin").write_text(gin, encoding="utf-8")
    # Both sides import from the scratch folder.
    compileall.compile_dir(scratch, quiet=1)
    program = [str(python), "-u", "-P", "-m"]
    upstream = [*program, *_list_upstream_arguments(tree, scratch)]
    rosetta = [*program, *_list_rosetta_arguments(rosetta_copy, size, vocab, text)]
    return {
        "upstream": Side(upstream, environment | {"PYTHONPATH": f"{tree}:{scratch}"}),
        "rosetta": Side(rosetta, environment | {"PYTHONPATH": f"{rosetta_copy}:{tree}"}),
    }


def _list_upstream_arguments(tree: Path, scratch: Path) -> list[str]:
    """Return the module of upstream's trainer and its arguments."""
    return [
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


def _list_rosetta_arguments(rosetta_copy: Path, size: str, vocab: Path, text: Path) -> list[str]:
    """Return the module of rosetta's trainer and its arguments."""
    return [
        "rosetta.t5x.train",
        f"--gin_search_paths={rosetta_copy}",
        f"--gin_file=rosetta/t5x/gin/t5_1_1/{size}.gin",
        "--gin_file=rosetta/t5x/gin/runs/pretrain.gin",
        f'--gin.VOCAB="{vocab}"',
        f'--gin.DATA="text:{text}"',
        '--gin.DTYPE="float32"',
        "--gin.BATCH_SIZE=2",
        "--gin.STATS_PERIOD=1",
        f"--gin.TASK_FEATURE_LENGTHS={LENGTHS}",
        "--gin.DROPOUT_RATE=0.1",
    ]


def time_start(side: Side, model_dir: Path) -> dict[str, float]:
    """Start a run, and stop it when it reports its first step.

    Returns:
        Seconds by name: from the start to the end of each phase, from the start to the "first
        step", and "processor" time.
    """
    shutil.rmtree(model_dir, ignore_errors=True)
    argv = [*side.argv, f'--gin.MODEL_DIR="{model_dir}"', "--gin.TRAIN_STEPS=2"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    last_lines: deque[bytes] = deque(maxlen=20)
    seconds: dict[str, float] = {}
    with subprocess.Popen(
        argv, env=side.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as child:
        assert child.stdout is not None
        for line in child.stdout:
            last_lines.append(line)
            now = time.perf_counter() - start
            for phase, pattern in PHASE_ENDS.items():
                if phase not in seconds and re.search(pattern, line):
                    seconds[phase] = now
            if FIRST_STEP.search(line):
                seconds["first step"] = now
                break
        child.kill()
        child.stdout.read()
    shutil.rmtree(model_dir, ignore_errors=True)
    if "first step" not in seconds:
        log = b"".join(last_lines).decode(errors="replace")
        sys.exit(f"the run ended before its first step:\n{log}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    user, system = after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime
    return seconds | {"processor": user + system}


def compute_speedup(samples: dict[str, list[dict[str, float]]], figure: str) -> float:
    """Return the median, over all turns, of upstream's seconds divided by rosetta's.

    Args:
        samples: The results of `time_start` in each turn, by side.
        figure: The name of the seconds, such as "first step".
    """
    turns = zip(samples["upstream"], samples["rosetta"], strict=True)
    return statistics.median(upstream[figure] / rosetta[figure] for upstream, rosetta in turns)


def _compute_medians(turns: list[dict[str, float]]) -> dict[str, float]:
    """Return the median of each figure over the turns."""
    return {figure: statistics.median(turn[figure] for turn in turns) for figure in turns[0]}


def main() -> None:
    """Run the benchmark that the command line describes."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--env", type=Path, required=True, help="a baked T5X environment for the CPU"
    )
    parser.add_argument("--size", default="small", help="the size of T5 1.1 (default: small)")
    parser.add_argument(
        "--times", type=int, default=3, help="how often to start each side (default: 3)"
    )
    parser.add_argument(
        "--warm", action="store_true", help="use a compilation cache that an earlier run has filled"
    )
    parser.add_argument(
        "--scratch",
        type=Path,
        help="a folder with room for a checkpoint (default: the system's temporary one)",
    )
    args = parser.parse_args()
    root = args.env.resolve() / "opt"
    python = root / "rosetta/env/bin/python"
    vocab = next(
        (root / "rosetta/env").glob(
            "lib/python*/site-packages/seqio/test_data/sentencepiece/sentencepiece.model"
        )
    )
    samples: dict[str, list[dict[str, float]]] = {"upstream": [], "rosetta": []}
    with tempfile.TemporaryDirectory(dir=args.scratch) as scratch_name:
        scratch = Path(scratch_name)
        text = scratch / "text.txt"
        sample_text.write_text(text)
        sides = _prepare_sides(python, root / "t5x", scratch, args.size, vocab, text)
        if args.warm:
            for name, side in sides.items():
                side.environment["JAX_COMPILATION_CACHE_DIR"] = str(scratch / "cache" / name)
                side.environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
                time_start(side, scratch / "model")
        for turn in range(args.times):
            # Each side is the first one in every other turn.
            for name in sorted(sides, reverse=turn % 2 == 0):
                samples[name].append(time_start(sides[name], scratch / "model"))
                print(name, samples[name][-1], file=sys.stderr, flush=True)
    result: dict[str, Any] = {
        "task": {
            "size": args.size,
            "lengths": LENGTHS,
            "batch": 2,
            "dtype": "float32",
            "warm": args.warm,
            "cores": os.cpu_count(),
        },
        "times_faster": compute_speedup(samples, "first step"),
        "times_less_processor": compute_speedup(samples, "processor"),
        "medians": {name: _compute_medians(turns) for name, turns in samples.items()},
        "samples": samples,
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
