"""What a T5 training step does on H100s that are not here: fits, FP8 coverage, and against
upstream's network. Needs an environment for cuda12 or cuda13.

    PYTHONPATH=. ENV/bin/python bench/plan_t5x.py [--out DIR] [CASE ...]

A case compiles in one to five minutes on two cores; figures are per GPU and step, from the
compiler's own plan and the optimised HLO.
"""

from __future__ import annotations

import argparse
import functools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from rosetta.plan import report, t5x_step

FAST = {"fuse_qkv": True, "attention": "cudnn"}
FP8 = {**FAST, "fp8": "xla"}
# Seed 000's topologies: size, GPUs, tensor parallelism, sequences a GPU.
TABLE = {"small": (8, 1, 256), "large": (64, 1, 32), "xl": (256, 1, 8), "xxl": (512, 8, 36)}
CASES: dict[str, dict[str, Any]] = {
    **{
        f"{size}-fp8": {"size": size, "gpus": gpus, "tp": tp, "batch": batch, "switches": FP8}
        for size, (gpus, tp, batch) in TABLE.items()
    },
    "large-upstream": {"size": "large", "gpus": 8, "tp": 1, "batch": 32, "upstream": True},
    "large-fast": {"size": "large", "gpus": 8, "tp": 1, "batch": 32, "switches": FAST},
    "large-remat": {
        "size": "large",
        "gpus": 8,
        "tp": 1,
        "batch": 32,
        "switches": {**FAST, "remat": "minimal"},
    },
    "large-fp8-remat": {
        "size": "large",
        "gpus": 8,
        "tp": 1,
        "batch": 32,
        "switches": {**FP8, "remat": "minimal"},
    },
    **{
        # 144 GPUs as 9 replicas of 16 with FSDP: nothing of xl divides by 144.
        f"xl-{batch}{'-fsdp' if fsdp else ''}": {
            "size": "xl",
            "gpus": 144,
            "tp": 1,
            "batch": batch,
            "switches": {**FP8, "remat": "minimal"},
            "fsdp": fsdp,
        }
        for batch in (14, 28)
        for fsdp in (False, True)
    },
}


def upstream(model: Any, _: Any) -> tuple[Any, Any]:
    """Upstream's network of the same size in upstream's model, and upstream's trainer."""
    from t5x import models, trainer
    from t5x.contrib.gpu.t5 import network

    ours = model.config
    names = (
        "vocab_size",
        "dtype",
        "emb_dim",
        "num_heads",
        "num_encoder_layers",
        "num_decoder_layers",
        "head_dim",
        "mlp_dim",
        "mlp_activations",
        "dropout_rate",
        "scale_attn_logits",
    )
    config = network.T5Config(**{name: getattr(ours, name) for name in names})
    theirs = models.EncoderDecoderModel(
        network.Transformer(config=config),
        model.input_vocabulary,
        model.output_vocabulary,
        model.optimizer_def,
        z_loss=1e-4,
    )
    return theirs, functools.partial(
        trainer.Trainer, learning_rate_fn=lambda step: 1e-4 + 0.0 * step, num_microbatches=None
    )


def plan(case: dict[str, Any]) -> dict[str, Any]:
    """Compile one case and report."""
    from rosetta.t5x.run import gin_text

    gpus, tp, per_gpu = case["gpus"], case["tp"], case["batch"]
    batch = gpus * per_gpu // tp
    settings = {
        "MODEL_DIR": "",
        "TRAIN_STEPS": 1,
        "DATA": "synthetic",
        "VOCAB": "ids:32128",
        "DROPOUT_RATE": 0.0,
        "BATCH_SIZE": batch,
    }
    settings |= {
        f"network.T5Config.{name}": value for name, value in case.get("switches", {}).items()
    }
    compiled = t5x_step.t5x(
        [f"rosetta/t5x/gin/t5_1_1/{case['size']}.gin", "rosetta/t5x/gin/runs/pretrain.gin"],
        [f"{name} = {gin_text.literal(value)}" for name, value in settings.items()],
        card="h100",
        nodes=max(gpus // 8, 1),
        per_node=min(gpus, 8),
        tensor_parallel=tp,
        batch=batch,
        lengths={"inputs": 512, "targets": 128},
        fsdp=case.get("fsdp", False),
        change=upstream if case.get("upstream") else None,
    )
    return report.report(compiled)


def main() -> None:
    """Run the benchmark that the command line describes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/plan"))
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument(
        "cases", nargs="*", metavar="CASE", help=f"default: all of {' '.join(CASES)}"
    )
    args = parser.parse_args()
    if args.here:
        (name,) = args.cases
        t5x_step.prepare(
            CASES[name].get("switches", {}).get("fp8", "off"), CASES[name]["size"], "h100"
        )
        (args.out / f"{name}.json").write_text(json.dumps(plan(CASES[name])))
        return
    args.out.mkdir(parents=True, exist_ok=True)
    for name in args.cases or CASES:
        # A process each: what XLA keeps of one compile is not the next one's memory.
        done = subprocess.run(
            [sys.executable, __file__, "--here", "--out", str(args.out), name],
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode:
            print(f"{name}: {done.stderr[-2000:]}")
            continue
        found = json.loads((args.out / f"{name}.json").read_text())
        print(f"== {name}: {CASES[name]}\n{report.table(found)}", flush=True)
    ratio(args.out)


def ratio(out: Path) -> None:
    """Ours over upstream's, where both were compiled."""
    there = {path.stem: json.loads(path.read_text()) for path in out.glob("large-*.json")}
    if "large-upstream" not in there:
        return
    base = there["large-upstream"]
    for name, found in there.items():
        figures = ((key, found[key] / base[key]) for key in ("kernels", "bytes", "gemm_flops"))
        print(
            f"{name} / large-upstream: "
            + ", ".join(f"{key} {value:.3f}" for key, value in figures)
            + f", peak memory {found['memory']['peak'] / base['memory']['peak']:.3f}"
        )


if __name__ == "__main__":
    main()
