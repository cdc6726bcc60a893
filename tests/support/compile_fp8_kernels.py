"""Print as JSON what XLA makes of a layer with the FP8 kernels of `rosetta.nn`, for absent GPUs.

Usage: python -m tests.support.compile_fp8_kernels LAYER GPU FOLDER. test_compiled_fp8_kernels.py
runs it where the CUDA plugin is installed. XLA writes its PTX into FOLDER.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
from collections import Counter
from typing import Any

from rosetta.plan import t5x_step

LAYER, GPU, FOLDER = sys.argv[1:]
t5x_step.prepare_t5x_compilation("xla", "large", GPU)
os.environ["XLA_FLAGS"] += f" --xla_dump_to={FOLDER} --xla_dump_hlo_module_re=jit_compute"

import jax

from tests.support.fp8_kernel_gradients import LAYERS, LENGTH, Step

MESHES: dict[str, dict[str, Any]] = {
    "data": {"devices": (8, 1)},
    "fsdp": {"devices": (8, 1), "fsdp": True},
    "tensor parallel": {"devices": (2, 4)},
}


def compile_step(step: Step) -> dict[str, Any]:
    """Return the library calls and collectives of a compiled step, and whether it has a cubin."""
    mesh = step.make_mesh(t5x_step.describe_devices(GPU, 1, 8))
    variables, x, gradient = jax.eval_shape(lambda: step.make_arrays(4 * LENGTH))
    x, gradient = (jax.ShapeDtypeStruct(array.shape, step.dtype) for array in (x, gradient))
    with step.trace_on(mesh):
        jitted = jax.jit(step.compute, in_shardings=step.make_shardings(mesh, variables))
        compiled = jitted.lower(variables, x, gradient).compile()
    text = compiled.as_text()
    gathers = re.findall(r"= (.*) all-gather(?:-start)?\(", text)
    return {
        "calls": Counter(re.findall(r'custom_call_target="([^"]*)"', text)),
        "gathers": sorted(gathers),
        "has cubin": b"\x7fELF" in compiled.runtime_executable().serialize(),
    }


def main() -> None:
    """Compile the layer with and without the kernels for each mesh."""
    results = {}
    with jax.default_device(jax.devices("cpu")[0]):
        for name, settings in MESHES.items():
            step = LAYERS[LAYER](fused=True, dtype="bfloat16", **settings)
            plain = dataclasses.replace(step, fused=False)
            results[name] = {"fused": compile_step(step), "plain": compile_step(plain)}
    print(json.dumps(results))


if __name__ == "__main__":
    main()
