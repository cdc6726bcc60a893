"""Compute the global norm of gradients on eight CPU devices, and print what was found as JSON.

Run by tests/unit/rosetta/t5x/test_gradient_norm.py in a process of its own.
"""

from __future__ import annotations

import json
import re
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rosetta.t5x import gradient_norm

SHAPES = {"a": (8, 6), "b": (4, 16), "c": (16, 8, 2), "d": (5,), "e": (8,)}
SPECS = {
    "a": PartitionSpec("data", None),
    "b": PartitionSpec(None, ("data", "model")),
    "c": PartitionSpec("model", "data"),
    "d": None,  # whole on each device
    "e": PartitionSpec(),
}
CLIP_NORM = 2.0


def main() -> None:
    """Print the norms, the clipped gradients' error, and the sums over devices of the program."""
    mesh = Mesh(np.array(jax.devices()).reshape(1, 4, 2), ("replica", "data", "model"))
    rng = np.random.default_rng(0)
    plain = {name: rng.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}
    placed = {
        name: jax.device_put(value, NamedSharding(mesh, SPECS[name] or PartitionSpec()))
        for name, value in plain.items()
    }
    clipping = gradient_norm.clip_by_global_norm(CLIP_NORM)

    def clip(gradients: Any) -> tuple[Any, Any]:
        norm = gradient_norm.compute_global_norm(gradients, SPECS, mesh)
        with gradient_norm.give_norm(norm):
            clipped, _ = clipping.update(gradients, clipping.init(gradients))
        return norm, clipped

    compiled = jax.jit(clip).lower(placed).compile()
    norm, clipped = compiled(placed)
    reference = optax.clip_by_global_norm(CLIP_NORM)
    expected, state = reference.update(plain, reference.init(plain))
    sums = re.findall(r"= (.*?) all-reduce(?:-start)?\(", compiled.as_text())
    print(
        json.dumps(
            {
                "norm": float(norm),
                "expected": float(
                    np.sqrt(sum(np.square(v.astype(np.float64)).sum() for v in plain.values()))
                ),
                "error": max(float(np.abs(clipped[name] - expected[name]).max()) for name in plain),
                "same_state": clipping.init(plain) == state,
                "summed_numbers": sum(shape.count("f32[") for shape in sums),
            }
        )
    )


if __name__ == "__main__":
    main()
