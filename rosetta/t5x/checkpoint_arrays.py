"""The names, shapes and types of the arrays in a T5X checkpoint, without reading the arrays."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from flax.serialization import msgpack_restore
from flax.traverse_util import flatten_dict

from rosetta.core.errors import DAMAGED, UserError


def read_abstract_tree(checkpoint: str) -> dict[str, Any]:
    """Return the arrays of a checkpoint as nested dicts of jax.ShapeDtypeStruct.

    Args:
      checkpoint: a folder checkpoint_N of T5X, in Orbax's format or T5X's older one.

    Raises:
      UserError: the folder is not a complete checkpoint.
    """
    import orbax.checkpoint as ocp
    from etils import epath  # type: ignore[import-not-found]

    folder = epath.Path(checkpoint)
    arrays = folder / "state" if (folder / "state").is_dir() else folder
    try:
        if (folder / "checkpoint").exists():
            restored = msgpack_restore((folder / "checkpoint").read_bytes())
            return dict(_parse_legacy_tree(restored.get("optimizer", restored)))
        metadata = ocp.PyTreeCheckpointHandler().metadata(arrays)
        return dict(_to_abstract_arrays(getattr(metadata, "tree", metadata)))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise UserError(
            "not a complete checkpoint of T5X",
            checkpoint,
            "name a folder checkpoint_N that a run has finished writing",
            kind=DAMAGED,
        ) from None


def read_shapes(checkpoint: str) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a checkpoint's arrays, by name.

    The names start with 'target/', 'state/' or 'flax_mutables/'.

    Raises:
      UserError: the folder is not a complete checkpoint.
    """
    return {
        name: tuple(leaf.shape)
        for name, leaf in flatten_dict(read_abstract_tree(checkpoint), sep="/").items()
    }


def _to_abstract_arrays(node: Any) -> Any:
    """Return a tree of Orbax's metadata with jax.ShapeDtypeStruct for the arrays."""
    if isinstance(node, dict):
        return {key: _to_abstract_arrays(value) for key, value in node.items()}
    return jax.ShapeDtypeStruct(
        getattr(node, "shape", None) or (), getattr(node, "dtype", None) or np.float32
    )


def _parse_legacy_tree(node: Any) -> Any:
    """Return a tree of T5X's older format with jax.ShapeDtypeStruct for the arrays.

    The format has small arrays themselves, and a specification of TensorStore for large ones.
    """
    if isinstance(node, dict) and {"driver", "metadata"} <= set(node):
        metadata = node["metadata"]
        # Today's TensorStore writes the type beside `metadata`, the one of public weights into it.
        name = metadata.get("dtype") or node["dtype"]
        dtype = jax.numpy.bfloat16 if name == "bfloat16" else np.dtype(name)
        return jax.ShapeDtypeStruct(tuple(metadata["shape"]), dtype)
    if isinstance(node, dict):
        return {key: _parse_legacy_tree(value) for key, value in node.items()}
    return jax.ShapeDtypeStruct(np.shape(node), getattr(node, "dtype", np.float32))
