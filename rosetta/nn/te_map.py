"""The parameters of T5's layers as upstream's T5X stores them, and as Transformer Engine's
TransformerLayer does: one to the other and back.

Nothing is computed: matrices are stacked and taken apart again, so both ways together give every
bit back. What has the parameters' shapes (the moments of Adam) goes the same way. Neither JAX nor
Transformer Engine is needed.

Transformer Engine's names and shapes are those of version 2.20.2,
transformer_engine/jax/flax/{module,transformer}.py (MultiHeadAttention, LayerNormDenseGeneral,
LayerNormMLP). With emb d, heads times head size w, MLP width f:

    upstream                                        Transformer Engine
    pre_[self_]attention_layer_norm/scale [d]       [self_]attention/qkv/scale [d]       (unfused: .../query/scale)
    [self_]attention/{query,key,value}/kernel       [self_]attention/qkv/kernel [d,3,w]  (unfused: the same three)
    pre_cross_attention_layer_norm/scale [d]        encoder_decoder_attention/query/scale
    encoder_decoder_attention/query/kernel          the same
    encoder_decoder_attention/{key,value}/kernel    encoder_decoder_attention/kv/kernel [d,2,w]  (unfused: the same two)
    */out/kernel [w,d]                              the same
    pre_mlp_layer_norm/scale, mlp/wi_*, mlp/wo      mlp/scale [d], mlp/wi_kernel [d,n,f], mlp/wo_kernel [f,d]

A decoder without an encoder is one of Transformer Engine's encoder layers under a causal mask, so
its `self_attention` is called `attention`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rosetta.core.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

KINDS = ("encoder", "decoder", "decoder_only")
_PUT_RIGHT = "give a layer's parameters, or something of their shapes"


@dataclass(frozen=True)
class Entry:
    """One parameter of Transformer Engine's: its path, the upstream parameters it is, their
    dimensions, and whether they are stacked in it.
    """

    theirs: str
    ours: tuple[str, ...]
    dims: str
    stacked: bool = False


def entries(kind: str, *, fused: bool, activations: int) -> tuple[Entry, ...]:
    """Return what a layer consists of.

    `fused`: as with fuse_qkv_params; `activations`: how many matrices `wi` are.
    """
    if kind not in KINDS:
        raise ValueError(f"kind is {kind!r}, none of {KINDS}")
    own = "attention" if kind == "encoder" else "self_attention"
    called = "self_attention" if kind == "decoder" else "attention"
    found = [
        *_attention(
            own,
            called,
            f"pre_{own}_layer_norm/scale",
            ("query", "key", "value") if fused else (),
            "qkv",
        )
    ]
    if kind == "decoder":
        name = "encoder_decoder_attention"
        found += _attention(
            name,
            name,
            "pre_cross_attention_layer_norm/scale",
            ("key", "value") if fused else (),
            "kv",
        )
    inner = (
        ("mlp/wi/kernel",)
        if activations == 1
        else tuple(f"mlp/wi_{index}/kernel" for index in range(activations))
    )
    return (
        *found,
        Entry("mlp/scale", ("pre_mlp_layer_norm/scale",), "d"),
        Entry("mlp/wi_kernel", inner, "df", stacked=True),
        Entry("mlp/wo_kernel", ("mlp/wo/kernel",), "fd"),
    )


def _attention(
    ours: str, theirs: str, scale: str, together: Sequence[str], name: str
) -> Iterator[Entry]:
    yield Entry(f"{theirs}/{name if 'query' in together else 'query'}/scale", (scale,), "d")
    if together:
        yield Entry(
            f"{theirs}/{name}/kernel",
            tuple(f"{ours}/{each}/kernel" for each in together),
            "dw",
            stacked=True,
        )
    for each in ("query", "key", "value"):
        if each not in together:
            yield Entry(f"{theirs}/{each}/kernel", (f"{ours}/{each}/kernel",), "dw")
    yield Entry(f"{theirs}/out/kernel", (f"{ours}/out/kernel",), "wd")


def unfit(*, emb_dim: int, num_heads: int, head_dim: int, mlp_activations: Sequence[str]) -> str:
    """Say why TransformerLayer cannot compute a T5 of these sizes, or nothing if it can."""
    if num_heads * head_dim != emb_dim:
        return (
            f"{num_heads} heads of {head_dim} are not the {emb_dim} features of a layer, as it "
            "takes for granted"
        )
    if len(mlp_activations) > 1 and mlp_activations[0] == "linear":
        return (
            f"of the activations {tuple(mlp_activations)} it turns the order round, and would "
            "activate the other half"
        )
    return ""


def stack(matrices: Sequence[Any]) -> Any:
    """Return [..., rows, n, columns] of n matrices [..., rows, columns]."""
    return _library(matrices[0]).stack(matrices, axis=-2)


def layer_to_te(
    layer: Mapping[str, Any],
    kind: str,
    *,
    fused: bool = True,
    layer_axis: int | None = None,
    where: str = "",
) -> dict[str, Any]:
    """Return Transformer Engine's parameters of a layer.

    Args:
      layer: a layer of upstream's tree.
      kind: one of KINDS.
      fused: as with fuse_qkv_params.
      layer_axis: which dimension of every parameter counts the layers, for a tree stacked for
        nn.scan; None for a single layer.
      where: the layer's path, for messages.

    Raises:
      UserError: a parameter is missing, unknown, no array, or of a shape that does not fit the
        others; it is named.
    """
    flat = _flat(layer, where)
    plan = entries(kind, fused=fused, activations=_activations(flat))
    _same_names(flat, {name for entry in plan for name in entry.ours}, where)
    sizes: dict[str, tuple[int, str]] = {}
    found = {}
    for entry in plan:
        parts = [
            _checked(flat[name], entry.dims, layer_axis, sizes, _joined(where, name))
            for name in entry.ours
        ]
        found[entry.theirs] = _back(stack(parts) if entry.stacked else parts[0], layer_axis)
    return _nested(found)


def layer_from_te(
    layer: Mapping[str, Any],
    kind: str,
    *,
    fused: bool = True,
    layer_axis: int | None = None,
    where: str = "",
) -> dict[str, Any]:
    """Return upstream's parameters of a layer of Transformer Engine's; the inverse of layer_to_te,
    with the same arguments and errors.
    """
    flat = _flat(layer, where)
    inner = flat.get("mlp/wi_kernel")
    ndim = 3 if layer_axis is None else 4
    if inner is None or inner.ndim != ndim:
        raise UserError(
            "is missing" if inner is None else f"has shape {tuple(inner.shape)}",
            _joined(where, "mlp/wi_kernel"),
            _PUT_RIGHT,
        )
    plan = entries(kind, fused=fused, activations=inner.shape[-2])
    _same_names(flat, {entry.theirs for entry in plan}, where)
    sizes: dict[str, tuple[int, str]] = {}
    found = {}
    for entry in plan:
        dims = f"{entry.dims[0]}{len(entry.ours)}{entry.dims[1]}" if entry.stacked else entry.dims
        whole = _checked(flat[entry.theirs], dims, layer_axis, sizes, _joined(where, entry.theirs))
        for index, name in enumerate(entry.ours):
            found[name] = _back(whole[..., index, :] if entry.stacked else whole, layer_axis)
    return _nested(found)


def to_te(
    tree: Mapping[str, Any], *, fused: bool = True, layer_axis: int | None = None
) -> dict[str, Any]:
    """Return upstream's whole tree with every layer as Transformer Engine has it; all else is as it
    was. See layer_to_te.
    """
    return _layers(tree, layer_to_te, fused=fused, layer_axis=layer_axis)


def from_te(
    tree: Mapping[str, Any], *, fused: bool = True, layer_axis: int | None = None
) -> dict[str, Any]:
    """Return the inverse of to_te."""
    return _layers(tree, layer_from_te, fused=fused, layer_axis=layer_axis)


def _layers(tree: Mapping[str, Any], change: Any, **how: Any) -> dict[str, Any]:
    found: dict[str, Any] = dict(tree)
    for part in ("encoder", "decoder"):
        children = tree.get(part, {})
        kind = (
            "encoder" if part == "encoder" else "decoder" if "encoder" in tree else "decoder_only"
        )
        changed = {
            name: change(child, kind, where=f"{part}/{name}", **how)
            if isinstance(child, Mapping) and "mlp" in child
            else child
            for name, child in children.items()
        }
        if children:
            found[part] = changed
    return found


def _activations(flat: Mapping[str, Any]) -> int:
    return max(1, sum(name.startswith("mlp/wi_") for name in flat))


def _same_names(flat: Mapping[str, Any], wanted: set[str], where: str) -> None:
    for name in sorted(wanted ^ set(flat)):
        raise UserError(
            "is missing" if name in wanted else "has no counterpart",
            _joined(where, name),
            _PUT_RIGHT,
        )


def _checked(
    leaf: Any, dims: str, layer_axis: int | None, sizes: dict[str, tuple[int, str]], name: str
) -> Any:
    """Return the leaf with its layers first, if it has any, after comparing its shape with those
    seen before; a digit is a size itself.
    """
    expected = len(dims) + (layer_axis is not None)
    if leaf.ndim != expected:
        why = " (Adafactor's factored moments cannot be mapped)" if leaf.ndim < expected else ""
        raise UserError(
            f"has shape {tuple(leaf.shape)}, not {expected} dimensions{why}", name, _PUT_RIGHT
        )
    if layer_axis is not None:
        leaf = _library(leaf).moveaxis(leaf, min(layer_axis, leaf.ndim - 1), 0)
    for dim, size in zip(
        ("layers", *dims) if layer_axis is not None else dims, leaf.shape, strict=True
    ):
        known, first = (
            (int(dim), "Transformer Engine's layout")
            if dim.isdigit()
            else sizes.setdefault(dim, (size, name))
        )
        if size != known:
            raise UserError(
                f"has {size} where {first} has {known} (shape {tuple(leaf.shape)})",
                name,
                _PUT_RIGHT,
            )
    return leaf


def _back(leaf: Any, layer_axis: int | None) -> Any:
    return (
        leaf
        if layer_axis is None
        else _library(leaf).moveaxis(leaf, 0, min(layer_axis, leaf.ndim - 1))
    )


def _library(leaf: Any) -> Any:
    """NumPy for its own arrays, and jax.numpy for all others, which may be traced."""
    if isinstance(leaf, np.ndarray):
        return np
    import jax.numpy

    return jax.numpy


def _flat(tree: Mapping[str, Any], where: str, before: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, child in tree.items():
        path = _joined(before, name)
        if isinstance(child, Mapping):
            found |= _flat(child, where, path)
        elif not hasattr(child, "shape") or not hasattr(child, "ndim"):
            raise UserError(
                f"is a {type(child).__name__}, not an array",
                _joined(where, path),
                f"{_PUT_RIGHT}; Adafactor's factored moments cannot be mapped",
            )
        else:
            found[path] = child
    return found


def _nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path, leaf in flat.items():
        *folders, name = path.split("/")
        inner = found
        for folder in folders:
            inner = inner.setdefault(folder, {})
        inner[name] = leaf
    return found


def _joined(before: str, name: str) -> str:
    return f"{before}/{name}" if before else name
