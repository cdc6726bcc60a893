"""What arrays a checkpoint of T5X holds, without reading one of them."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from flax.serialization import msgpack_restore
from flax.traverse_util import flatten_dict

from rosetta.core.errors import DAMAGED, UserError


def read_abstract_tree(checkpoint: str) -> dict[str, Any]:
    """Return a checkpoint_N of T5X, in Orbax's format or the older one, as nested dicts with
    jax.ShapeDtypeStruct for arrays.

    Raises:
      UserError: it is no such checkpoint.
    """
    import orbax.checkpoint as ocp
    from etils import epath  # type: ignore[import-not-found]

    folder = epath.Path(checkpoint)
    where = folder / "state" if (folder / "state").is_dir() else folder
    try:
        if (folder / "checkpoint").exists():
            kept = msgpack_restore((folder / "checkpoint").read_bytes())
            return dict(_parse_legacy_tree(kept.get("optimizer", kept)))
        found = ocp.PyTreeCheckpointHandler().metadata(where)
        return dict(_to_abstract_arrays(getattr(found, "tree", found)))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise UserError(
            "it is not a complete checkpoint of T5X",
            checkpoint,
            "name a folder checkpoint_N that a run has finished writing",
            kind=DAMAGED,
        ) from None


def read_shapes(checkpoint: str) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a checkpoint's arrays: 'target/...', 'state/...' or 'flax_mutables/...'
    -> shape. UserError as `tree`.
    """
    return {
        name: tuple(leaf.shape)
        for name, leaf in flatten_dict(read_abstract_tree(checkpoint), sep="/").items()
    }


def _to_abstract_arrays(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: _to_abstract_arrays(value) for key, value in node.items()}
    return jax.ShapeDtypeStruct(
        getattr(node, "shape", None) or (), getattr(node, "dtype", None) or np.float32
    )


def _parse_legacy_tree(node: Any) -> Any:
    """Return what T5X wrote before Orbax: small arrays themselves, large ones as a specification of
    TensorStore.
    """
    if isinstance(node, dict) and {"driver", "metadata"} <= set(node):
        return jax.ShapeDtypeStruct(
            tuple(node["metadata"]["shape"]),
            np.dtype(node["metadata"]["dtype"])
            if node["metadata"]["dtype"] != "bfloat16"
            else jax.numpy.bfloat16,
        )
    if isinstance(node, dict):
        return {key: _parse_legacy_tree(value) for key, value in node.items()}
    return jax.ShapeDtypeStruct(np.shape(node), getattr(node, "dtype", np.float32))
