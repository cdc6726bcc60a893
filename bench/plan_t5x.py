"""Plan T5's training steps for H100s that this machine does not have, and compare two networks.

    PYTHONPATH=. ENV/bin/python bench/plan_t5x.py [--out DIR] [CASE ...]

ENV is an environment of t5x for cuda12 or cuda13. The plans say whether a model fits, and how much
of it is computed in FP8. The last lines compare rosetta's network with upstream's. A case compiles
for one to five minutes on two cores. Figures are per GPU and step; they come from the compiler's
own plan and from the optimized HLO.
"""

from __future__ import annotations

import argparse
import functools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from rosetta.core.gpus import get_gpu
from rosetta.plan import hlo_text, step_report, step_time, t5x_step
from rosetta.plan.roofline import Shares

FAST = {"fuse_qkv": True, "attention": "cudnn"}
FP8 = {**FAST, "fp8": "xla"}
# What the scripts choose by the precision, except for the type of the logits.
SCRIPT_SWITCHES: dict[str, dict[str, Any]] = {
    "bf16": {"fuse_mlp": True, "attention": "cudnn"},
    "fp8": {**FP8, "transpose_batch_sequence": True},
}
# The topologies of the table of NVIDIA's T5 1.1 results: for each size the GPUs, the tensor
# parallelism and the sequences per GPU.
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
    # The layouts that FUSE_QKV and TRANSPOSE_BS choose: both on, and what unset means in bfloat16.
    **{
        f"large-{name}": {"size": "large", "gpus": 8, "tp": 1, "batch": 32, "switches": switches}
        for name, switches in (
            ("joined", {**FAST, "transpose_batch_sequence": True}),
            ("separate", {"fuse_mlp": True, "attention": "cudnn"}),
        )
    },
    # Parameters and optimizer state on each GPU, or a share of them.
    **{
        f"large-{precision}-{'shared' if fsdp else 'whole'}": {
            "size": "large",
            "gpus": 8,
            "tp": 1,
            "batch": 32,
            "switches": switches,
            "fsdp": fsdp,
        }
        for precision, switches in SCRIPT_SWITCHES.items()
        for fsdp in (False, True)
    },
    # What the scripts run with FSDP=1.
    **{
        f"large-{precision}-fastest": {
            "size": "large",
            "gpus": 8,
            "tp": 1,
            "batch": 32,
            "switches": {**switches, "logits_dtype": "bfloat16"},
            "fsdp": True,
        }
        for precision, switches in SCRIPT_SWITCHES.items()
    },
    # The gated unit of the MLP in FP8: by XLA's kernels, or by one. "whole" above has all layers.
    **{
        name: {
            "size": "large",
            "gpus": 8,
            "tp": 1,
            "batch": 32,
            "switches": {**FP8, "transpose_batch_sequence": True, **switches},
            "layers": layers,
        }
        for name, layers, switches in (
            ("large-fp8-unfused", None, {"fused_geglu": False, "fused_qkv_gradients": False}),
            ("large-fp8-few", 4, {}),
            ("large-fp8-few-unfused", 4, {"fused_geglu": False, "fused_qkv_gradients": False}),
            ("large-fp8-few-geglu", 4, {"fused_qkv_gradients": False}),
        )
    },
    **{
        f"large-dropout-{attention}": {
            "size": "large",
            "gpus": 8,
            "tp": 1,
            "batch": 32,
            "switches": {"fuse_qkv": True, "attention": attention},
            "dropout": 0.1,
        }
        for attention in ("xla", "cudnn")
    },
    **{
        # With FSDP, 144 GPUs are 9 replicas of 16, because no dimension of xl divides by 144.
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

# Case -> the case that its figures are divided by.
COMPARED = {
    "large-separate": "large-joined",
    "large-dropout-cudnn": "large-dropout-xla",
    "large-bf16-shared": "large-bf16-whole",
    "large-fp8-shared": "large-fp8-whole",
    "large-fp8-whole": "large-fp8-unfused",
    "large-fp8-few": "large-fp8-few-unfused",
}

# Shares of the peak that FP8 products and attention reach in a roofline by hand: likely and low.
# Products in bfloat16 reach 70 % there, memory 85 %, and NCCL 350 of 450 GB/s.
FP8_SHARES, ATTENTION_SHARES = (0.60, 0.45), (0.45, 0.25)

UPSTREAM_FIELDS = (
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


def use_upstream_network(model: Any, _: Any) -> tuple[Any, Any]:
    """Return upstream's model with upstream's network of the same size, and upstream's trainer."""
    from t5x import models, trainer
    from t5x.contrib.gpu.t5 import network

    config = network.T5Config(**{name: getattr(model.config, name) for name in UPSTREAM_FIELDS})
    upstream_model = models.EncoderDecoderModel(
        network.Transformer(config=config),
        model.input_vocabulary,
        model.output_vocabulary,
        model.optimizer_def,
        z_loss=1e-4,
    )
    return upstream_model, functools.partial(
        trainer.Trainer, learning_rate_fn=lambda step: 1e-4 + 0.0 * step, num_microbatches=None
    )


def compile_case(case: dict[str, Any]) -> t5x_step.CompiledStep:
    """Compile a case, see CASES.

    Args:
        case: The case. `gpu` is h100 if it is not set. `layers` are those of the encoder, and those
            of the decoder; if it is not set, the model has its own number.
    """
    from rosetta.t5x.run import gin_text

    gpus, tp, per_gpu = case["gpus"], case["tp"], case["batch"]
    batch = gpus * per_gpu // tp
    settings = {
        "MODEL_DIR": "",
        "TRAIN_STEPS": 1,
        "DATA": "synthetic",
        "VOCAB": "ids:32128",
        "DROPOUT_RATE": case.get("dropout", 0.0),
        "BATCH_SIZE": batch,
    }
    settings |= {
        f"network.T5Config.{name}": value for name, value in case.get("switches", {}).items()
    }
    if layers := case.get("layers"):
        settings["network.T5Config.num_encoder_layers"] = layers
        settings["network.T5Config.num_decoder_layers"] = layers
    return t5x_step.compile_t5x_step(
        [f"rosetta/t5x/gin/t5_1_1/{case['size']}.gin", "rosetta/t5x/gin/runs/pretrain.gin"],
        [f"{name} = {gin_text.format_literal(value)}" for name, value in settings.items()],
        gpu_name=case.get("gpu", "h100"),
        nodes=max(gpus // 8, 1),
        per_node=min(gpus, 8),
        tensor_parallel=tp,
        batch_size=batch,
        lengths={"inputs": 512, "targets": 128},
        fsdp=case.get("fsdp", False),
        change=use_upstream_network if case.get("upstream") else None,
    )


def predict_with_flat_shares(text: str) -> dict[str, float]:
    """Return the seconds of a step on H100s for each pair of FP8_SHARES and ATTENTION_SHARES.

    Args:
        text: The optimised HLO module.
    """
    module, gpu = hlo_text.parse_module(text), get_gpu("h100", "CASE")
    return {
        f"FP8 {fp8:.0%}, attention {attention:.0%}": step_time.predict_seconds(
            module, gpu, 8, Shares(0.70, fp8, attention, attention, 0.85, 350 / 450, flat=True)
        )["likely"]
        for fp8 in FP8_SHARES
        for attention in ATTENTION_SHARES
    }


def main() -> int:
    """Run the benchmark that the command line describes.

    Returns:
        The exit status: 1 if a case could not be compiled, else 0.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("build/plan"))
    parser.add_argument(
        "--in-this-process", dest="in_this_process", action="store_true", help=argparse.SUPPRESS
    )
    parser.add_argument(
        "cases", nargs="*", metavar="CASE", help=f"default: all of {' '.join(CASES)}"
    )
    args = parser.parse_args()
    if args.in_this_process:
        (name,) = args.cases
        t5x_step.prepare_t5x_compilation(
            CASES[name].get("switches", {}).get("fp8", "off"), CASES[name]["size"], "h100"
        )
        case = CASES[name]
        compiled = compile_case(case)
        gpus = case["gpus"]
        workload = step_time.Workload(gpus * case["batch"] // case["tp"], 640, gpus, min(gpus, 8))
        figures = step_report.summarize_step(compiled)
        figures["time"] = step_time.report_time(compiled.text, get_gpu("h100", "CASE"), workload)
        figures["flat"] = predict_with_flat_shares(compiled.text)
        (args.out / f"{name}.json").write_text(json.dumps(figures))
        return 0
    args.out.mkdir(parents=True, exist_ok=True)
    status = 0
    for name in args.cases or CASES:
        # Each case has a process of its own, because XLA keeps memory after it has compiled.
        done = subprocess.run(
            [sys.executable, __file__, "--in-this-process", "--out", str(args.out), name],
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode:
            print(f"{name}: {done.stderr[-2000:]}")
            status = 1
            continue
        figures = json.loads((args.out / f"{name}.json").read_text())
        print(f"== {name}: {CASES[name]}\n{step_report.format_step_report(figures)}")
        for shares, seconds in figures["flat"].items():
            rate = CASES[name]["batch"] / CASES[name]["tp"] / seconds
            print(f"{shares}: {seconds * 1e3:.1f} ms predicted, {rate:.0f} sequences/s/GPU")
        sys.stdout.flush()
    print_ratios(args.out)
    return status


def print_ratios(out: Path) -> None:
    """Print the figures of steps of T5-large divided by those of the step they are compared with.

    A step is compared with the step of COMPARED, or else with upstream's network. Steps that were
    not compiled are left out.
    """
    reports = {path.stem: json.loads(path.read_text()) for path in out.glob("large-*.json")}
    for name, figures in reports.items():
        base = COMPARED.get(name, "large-upstream")
        if base not in reports or base == name:
            continue
        ratios = [
            f"{key} {figures[key] / reports[base][key]:.3f}"
            for key in ("kernels", "bytes", "gemm_flops")
        ]
        memory = figures["memory"]["peak"] / reports[base]["memory"]["peak"]
        seconds, base_seconds = (
            each["time"]["seconds"]["likely"] for each in (figures, reports[base])
        )
        print(
            f"{name} / {base}: {', '.join(ratios)}, peak memory {memory:.3f}, "
            f"predicted time {seconds / base_seconds:.3f}"
        )


if __name__ == "__main__":
    sys.exit(main())
