"""Look up rows of a table by index, with an exact gradient.

The gradient of a table adds up the rows of all tokens that have the same id. XLA's scatter adds
them one after another in the type of the activations: in bfloat16, a frequent token loses most of
its gradient. A product with one-hot rows adds in float32, but multiplies with zeros for the rest of
the vocabulary.

Here the tokens are sorted by id, so that the rows of an id are neighbours. A product within each
block of neighbours adds them in float32. What an id has in earlier blocks is added after that, and
each sum is rounded once. There are no atomic additions: the result is the same on each run.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jax.sharding import Mesh

_BLOCK = 128  # tokens, a size at which tensor cores are efficient


@dataclass(frozen=True)
class Layout:
    """How a table and the ids lie on the devices.

    Attributes:
        mesh: The mesh of the devices.
        vocabulary_axes: The axes of the mesh that split the first dimension of the table.
        feature_axes: Those that split its second dimension.
        batch_axes: Those that split the first dimension of the ids.
    """

    mesh: Mesh
    vocabulary_axes: tuple[str, ...] = ()
    feature_axes: tuple[str, ...] = ()
    batch_axes: tuple[str, ...] = ()

    def count_parts(self, axes: Sequence[str]) -> int:
        """Return the number of parts into which some axes split a dimension."""
        return math.prod(self.mesh.shape[axis] for axis in axes)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def look_up_rows(layout: Layout | None, table: Any, ids: Any) -> Any:
    """Return table[ids]. The gradient of the table is added up in float32, and rounded once.

    Each device adds up its own tokens. The devices add their sums in the type of the table.

    Args:
        layout: How the arrays lie on the devices; None for one device. A dimension that its axes
            do not divide evenly is computed whole on each device.
        table: [vocabulary, features].
        ids: Integers [...], each at least 0 and less than the vocabulary.

    Returns:
        [..., features] in the type of the table.
    """
    if layout is None or layout.mesh.size == 1:
        return table[ids]
    return _look_up_on_mesh(_fit_layout(layout, table.shape, ids), table, ids)


def _look_up_forward(layout: Layout | None, table: Any, ids: Any) -> tuple[Any, Any]:
    """Return the rows, and what the backward pass needs: the ids and [vocabulary, 0]."""
    return look_up_rows(layout, table, ids), (ids, table[:, :0])


def _look_up_backward(
    layout: Layout | None, residuals: tuple[Any, Any], gradient: Any
) -> tuple[Any, None]:
    """Return the gradient of the table, and none for the ids."""
    ids, table_like = residuals
    vocabulary, features = table_like.shape[0], gradient.shape[-1]
    if layout is None or layout.mesh.size == 1:
        return sum_rows(ids.reshape(-1), gradient.reshape(-1, features), vocabulary), None
    layout = _fit_layout(layout, (vocabulary, features), ids)
    return _sum_on_mesh(layout, ids, gradient, vocabulary), None


look_up_rows.defvjp(_look_up_forward, _look_up_backward)


def _fit_layout(layout: Layout, shape: Sequence[int], ids: Any) -> Layout:
    """Return a layout without the axes that do not divide their dimension evenly.

    Args:
        layout: The layout.
        shape: That of the table.
        ids: The ids.
    """
    sizes = (*shape, ids.shape[0] if ids.ndim else 1)
    axes = (layout.vocabulary_axes, layout.feature_axes, layout.batch_axes)
    fitting = (
        names if size % layout.count_parts(names) == 0 else ()
        for size, names in zip(sizes, axes, strict=True)
    )
    return Layout(layout.mesh, *fitting)


def _exclude(axes: Sequence[str], excluded: Sequence[str]) -> tuple[str, ...]:
    """Return the axes that are not excluded."""
    return tuple(axis for axis in axes if axis not in excluded)


def _look_up_on_mesh(layout: Layout, table: Any, ids: Any) -> Any:
    """Return table[ids], split as the ids are.

    The table is gathered along the axes that split the ids. If left to itself, XLA may look up a
    slice of the features of all ids on each device, and exchange activations.
    """
    own_rows = _exclude(layout.vocabulary_axes, layout.batch_axes)
    own_features = _exclude(layout.feature_axes, layout.batch_axes)

    def look_up(table: Any, ids: Any) -> Any:
        if not own_rows:
            return table[ids]
        ids = ids - lax.axis_index(own_rows) * len(table)
        is_own = (ids >= 0) & (ids < len(table))
        rows = jnp.where(is_own[..., None], table[jnp.where(is_own, ids, 0)], 0)
        return lax.psum(rows, own_rows)

    batch = _make_batch_spec(layout, ids)
    rows: Any = jax.shard_map(
        look_up,
        mesh=layout.mesh,
        in_specs=(PartitionSpec(own_rows, own_features), PartitionSpec(*batch)),
        out_specs=PartitionSpec(*batch, own_features),
        check_vma=False,
    )(table, ids)
    return rows


def _make_batch_spec(layout: Layout, ids: Any) -> tuple[Any, ...]:
    """Return the entries of a PartitionSpec for the dimensions of the ids."""
    return (layout.batch_axes, *[None] * (ids.ndim - 1)) if ids.ndim else ()


def _sum_on_mesh(layout: Layout, ids: Any, gradient: Any, vocabulary: int) -> Any:
    """Return the gradient of a table.

    Args:
        layout: How the arrays lie on the devices.
        ids: [batch, ...].
        gradient: [batch, ..., features].
        vocabulary: The number of rows of the table.
    """
    # Along an axis that does not split the batch, each device computes its part of the table.
    own_rows = _exclude(layout.vocabulary_axes, layout.batch_axes)
    own_features = _exclude(layout.feature_axes, layout.batch_axes)
    row_count = vocabulary // layout.count_parts(own_rows)

    def sum_own(ids: Any, gradient: Any) -> Any:
        ids, rows = ids.reshape(-1), gradient.reshape(-1, gradient.shape[-1])
        if own_rows:
            ids = ids - lax.axis_index(own_rows) * row_count
        return sum_rows(ids, rows, row_count).T[None]

    batch = _make_batch_spec(layout, ids)
    sums: Any = jax.shard_map(
        sum_own,
        mesh=layout.mesh,
        in_specs=(PartitionSpec(*batch), PartitionSpec(*batch, own_features)),
        out_specs=PartitionSpec(layout.batch_axes, own_features, own_rows),
        check_vma=False,
    )(ids, gradient)
    # XLA adds the sums of the devices. The features are first, as in the kernel of the logits: if
    # the table is that kernel, XLA adds both gradients on each device, and scatters the result.
    return lax.reduce(sums, jnp.zeros((), sums.dtype), lax.add, (0,)).T


def sum_rows(ids: Any, rows: Any, count: int) -> Any:
    """Add up rows by id, in float32.

    Args:
        ids: Integers [tokens]. Rows of an id that is negative or not less than `count` are left
            out.
        rows: [tokens, features].
        count: The number of ids.

    Returns:
        [count, features] in the type of the rows: for each id the sum of its rows, rounded once.
    """
    ids = jnp.where((ids >= 0) & (ids < count), ids, count).astype(jnp.int32)
    ids = jnp.pad(ids, (0, -len(ids) % _BLOCK), constant_values=count)
    positions = lax.iota(jnp.int32, len(ids))
    ids, order = lax.sort((ids, positions), num_keys=1)
    block_ids = ids.reshape(-1, _BLOCK)
    # Positions of the padding take the last row, and belong to no id.
    sums = _sum_within_blocks(block_ids, rows[order].reshape(*block_ids.shape, -1))
    carried = _sum_earlier_blocks(block_ids, sums[:, -1])
    # The whole sum of an id is at its last position.
    ends = jnp.full((count,), -1, jnp.int32).at[ids].max(positions, mode="drop")
    end = jnp.maximum(ends, 0)
    begins_block = block_ids[end // _BLOCK, 0] == lax.iota(jnp.int32, count)
    total = sums.reshape(len(ids), -1)[end]
    total += jnp.where(begins_block[:, None], carried[end // _BLOCK], 0.0)
    return jnp.where(ends[:, None] >= 0, total, 0.0).astype(rows.dtype)


def _sum_within_blocks(ids: Any, rows: Any) -> Any:
    """Return for each position the sum of the rows in its block that have its id.

    Args:
        ids: [blocks, tokens].
        rows: [blocks, tokens, features].

    Returns:
        float32 [blocks, tokens, features].
    """
    return jnp.einsum(
        "bij,bjf->bif",
        (ids[:, :, None] == ids[:, None, :]).astype(rows.dtype),
        rows,
        preferred_element_type=jnp.float32,
        precision=lax.Precision.HIGHEST,
    )


def _sum_earlier_blocks(ids: Any, last_sums: Any) -> Any:
    """Return what the first id of each block has in earlier blocks, where it is the last id.

    Args:
        ids: Sorted, [blocks, tokens].
        last_sums: The sum of the last id in each block, float32 [blocks, features].

    Returns:
        float32 [blocks, features].
    """
    first, last = ids[:, 0], ids[:, -1]
    block = lax.iota(jnp.int32, len(ids))
    continues = (first[:, None] == last[None, :]) & (block[:, None] > block[None, :])
    return jnp.dot(continues.astype(jnp.float32), last_sums, precision=lax.Precision.HIGHEST)
