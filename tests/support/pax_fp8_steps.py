"""Run with four virtual devices by test_learner.py: prints as JSON what FP8 training comes to, by microbatches, repetition and devices."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

from rosetta.nn import fp8
from tests.support import pax_training

LEARNING = 200  # steps
FP8: dict[str, Any] = {
    "USE_FP8": True,
    "LEARNING_RATE": 1e-3,
}  # Adam's first steps are as large whatever the gradient: small, so that rounding stays so
STEPS: dict[str, Any] = {
    "2 microbatches": {"NUM_MICROBATCHES": 2},
    "4 microbatches": {"NUM_MICROBATCHES": 4},
    "4 devices": {"ICI_MESH_SHAPE": (1, 2, 2)},
    "repeated": {"USE_REPEATED_LAYER": True},
    "repeated, 4 devices, 2 microbatches": {
        "USE_REPEATED_LAYER": True,
        "ICI_MESH_SHAPE": (1, 4, 1),
        "NUM_MICROBATCHES": 2,
    },
}


def stack_layers(params: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Two layers' variables as those of a layer that repeats."""
    first = "lm/transformer/x_layers_0/"
    made = {name: leaf for name, leaf in params.items() if "/x_layers_" not in name}
    for name, leaf in params.items():
        if name.startswith(first):
            rest = name.removeprefix(first)
            made[f"lm/transformer/repeat/sub/x_layers_0/{rest}"] = np.stack(
                [leaf, params[f"lm/transformer/x_layers_1/{rest}"]]
            )
    return made


def summarize_fp8_state(state: dict[str, np.ndarray]) -> dict[str, Any]:
    """All scales, and of histories the newest two values and whether the rest is still empty."""
    return {
        name: leaf.tolist()
        if leaf.shape[-1] == 1
        else [leaf[..., :2].tolist(), float(np.abs(leaf[..., 2:]).max())]
        for name, leaf in state.items()
        if leaf.shape[-1] in (1, fp8.HISTORY_LENGTH)
    }


def main(what: str) -> None:
    found: dict[str, Any] = {}
    if what == "state":
        plain = pax_training.Run(pax_training.make_experiment("gpt", **FP8))
        start = plain.params
        losses = plain.steps(2)
        found["plain"] = {
            "losses": losses,
            "state": summarize_fp8_state(plain.fp8),
            "summaries": {
                name: float(value) for name, value in plain.summaries.items() if value.ndim == 0
            },
        }
        found["stacked"] = summarize_fp8_state(stack_layers(plain.fp8))
        found["norm"] = float(np.sqrt(sum(np.sum(leaf**2) for leaf in start.values())))
        for name, how in STEPS.items():
            run = pax_training.Run(
                pax_training.make_experiment("gpt", **FP8, **how),
                start=stack_layers(start) if "USE_REPEATED_LAYER" in how else start,
            )
            found[name] = {"losses": run.steps(2), "state": summarize_fp8_state(run.fp8)}
    else:
        for kind in (False, True):
            run = pax_training.Run(
                pax_training.make_experiment(
                    "gpt",
                    USE_FP8=kind,
                    USE_REPEATED_LAYER=True,
                    FPROP_DTYPE="bfloat16",
                    LEARNING_RATE=3e-3,
                )
            )
            found["fp8" if kind else "bfloat16"] = run.steps(LEARNING)
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
