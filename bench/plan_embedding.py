"""Compare ways to add up the gradient of an embedding table, compiled for a GPU that is not here.

    PYTHONPATH=. ENV/bin/python bench/plan_embedding.py [--card h100] [--deterministic]

ENV is an environment of t5x or pax for cuda12 or cuda13. The table has 50,304 rows of 4,096
features; the tokens are 16,384 in bfloat16, as on each GPU of GPT 5B. The program prints a table.
Its times are predictions.
"""

from __future__ import annotations

import argparse
from typing import Any

from rosetta.core import gpus
from rosetta.plan import hlo_text, roofline, step_kernels, t5x_step

VOCABULARY, FEATURES, TOKENS = 50_304, 4_096, 16_384


def list_methods() -> dict[str, Any]:
    """Return the methods: name -> a function of ids and rows."""
    import jax
    import jax.numpy as jnp

    from rosetta.nn import embedding_lookup

    def scatter(ids: Any, rows: Any, dtype: Any) -> Any:
        zeros = jnp.zeros((VOCABULARY, FEATURES), dtype)
        return zeros.at[ids].add(rows.astype(dtype)).astype(rows.dtype)

    def multiply(ids: Any, rows: Any) -> Any:
        one_hot = jax.nn.one_hot(ids, VOCABULARY, dtype=rows.dtype)
        return jnp.einsum("ty,tz->yz", one_hot, rows)

    return {
        "sorted, as `exact`": lambda ids, rows: embedding_lookup.sum_rows(ids, rows, VOCABULARY),
        "scatter in float32": lambda ids, rows: scatter(ids, rows, jnp.float32),
        "scatter in bfloat16, as `index`": lambda ids, rows: scatter(ids, rows, jnp.bfloat16),
        "one-hot product, as `matmul`": multiply,
    }


def format_row(name: str, method: Any, device: Any, gpu: gpus.Gpu) -> str:
    """Compile a method, and return its row of the table."""
    import jax
    import jax.numpy as jnp

    where = jax.sharding.SingleDeviceSharding(device)
    shapes = (((TOKENS,), jnp.int32), ((TOKENS, FEATURES), jnp.bfloat16))
    arguments = [jax.ShapeDtypeStruct(shape, dtype, sharding=where) for shape, dtype in shapes]
    compiled = jax.jit(method).lower(*arguments).compile()
    module = hlo_text.parse_module(compiled.as_text())
    kernels = step_kernels.list_kernels(module)
    shares = roofline.find_shares(gpu)
    moved = sum(kernel.bytes * kernel.times for kernel in kernels)
    seconds = sum(
        roofline.estimate_kernel(module, kernel, gpu, shares).seconds * kernel.times
        for kernel in kernels
    )
    memory = compiled.memory_analysis().temp_size_in_bytes
    launches = sum(kernel.times for kernel in kernels)
    return f"| {name} | {moved / 1e9:.2f} | {launches} | {seconds * 1e3:.2f} | {memory / 1e9:.2f} |"


def main() -> None:
    """Run the benchmark that the command line describes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--card", default="h100", help="the GPU, default %(default)s")
    parser.add_argument(
        "--deterministic", action="store_true", help="set xla_gpu_deterministic_ops"
    )
    args = parser.parse_args()
    flags = {"xla_gpu_deterministic_ops": True} if args.deterministic else {}
    t5x_step.prepare_compilation(flags, args.card)
    device = t5x_step.describe_devices(args.card, 1, 1)[0]
    gpu = gpus.get_gpu(args.card, "--card")
    print("| method | moved, GB | launches | predicted, ms | temporary memory, GB |")
    print("|---|---|---|---|---|")
    for name, method in list_methods().items():
        print(format_row(name, method, device, gpu), flush=True)


if __name__ == "__main__":
    main()
