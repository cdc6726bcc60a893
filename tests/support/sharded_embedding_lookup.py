"""Look up rows on a mesh of 8 devices, and print the differences from a product with one-hot rows.

The last line is JSON: the name of a layout -> the largest difference of the rows, and of the
gradient relative to its largest value.
"""

from __future__ import annotations

import json
from typing import Any

# The axes of the vocabulary, the features and the batch.
LAYOUTS: dict[str, tuple[tuple[str, ...], ...]] = {
    "data": ((), (), ("replica", "data", "mdl")),
    "fsdp": ((), ("data",), ("replica", "data")),
    "fsdp and tensor": (("mdl",), ("data",), ("replica", "data")),
    "features over tensor": (("data",), ("mdl",), ("replica", "data")),
    "vocabulary over both": (("data", "mdl"), (), ("replica", "data")),
    "whole batch": (("mdl",), ("data",), ()),
}


def compute_differences(sizes: tuple[int, int], axes: tuple[tuple[str, ...], ...]) -> list[float]:
    """Return the differences of a layout.

    Args:
        sizes: The vocabulary and the features.
        axes: The axes of the vocabulary, the features and the batch.
    """
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh

    from rosetta.nn import embedding_lookup

    random = np.random.default_rng(0)
    ids = random.integers(0, sizes[0], (8, 50))
    ids[:, ::2] = 7
    ids = jnp.asarray(ids, jnp.int32)
    table = jnp.asarray(random.normal(size=sizes), jnp.float32)
    gradient = jnp.asarray(random.normal(size=(8, 50, sizes[1])), jnp.float32)
    one_hot = jax.nn.one_hot(ids, sizes[0], dtype=jnp.float32)
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2, 2), ("replica", "data", "mdl"))
    layout = embedding_lookup.Layout(mesh, *axes)

    def run(table: Any, gradient: Any) -> Any:
        rows, pull_back = jax.vjp(
            lambda table: embedding_lookup.look_up_rows(layout, table, ids), table
        )
        return rows, pull_back(gradient)[0]

    rows, total = jax.jit(run)(table, gradient)
    expected = jnp.einsum("bly,blz->yz", one_hot, gradient, precision="highest")
    error = jnp.abs(total - expected).max() / jnp.abs(expected).max()
    return [float(jnp.abs(rows - table[ids]).max()), float(error)]


if __name__ == "__main__":
    results = {name: compute_differences((96, 32), axes) for name, axes in LAYOUTS.items()}
    # 99 and 33 divide by no axis.
    results |= {f"{name}, uneven": compute_differences((99, 33), LAYOUTS[name]) for name in LAYOUTS}
    print(json.dumps(results))
