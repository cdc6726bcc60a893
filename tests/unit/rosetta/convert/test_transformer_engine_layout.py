"""Checkpoints of NVIDIA's T5X with Transformer Engine are read as T5X's own, bit by bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support import errors, required_modules

required_modules.need_modules("ml_dtypes", "tensorstore")

import numpy as np

from rosetta.convert import t5x_checkpoint

EMBED, HIDDEN, MLP, LAYERS = 6, 8, 10, 2
FLOAT32 = np.dtype(np.float32)
ATTENTIONS = {
    "encoder": ("attention",),
    "decoder": ("self_attention", "encoder_decoder_attention"),
}
NORMS = {
    "attention": "pre_attention_layer_norm",
    "self_attention": "pre_self_attention_layer_norm",
    "encoder_decoder_attention": "pre_cross_attention_layer_norm",
}


def make_native(*, is_gated: bool = True) -> dict[str, Any]:
    """The parameters of a T5 by T5X's names."""
    shapes: dict[str, tuple[int, ...]] = {"target/token_embedder/embedding": (16, EMBED)}
    for stack, attentions in ATTENTIONS.items():
        shapes[f"target/{stack}/relpos_bias/rel_embedding"] = (2, 32)
        shapes[f"target/{stack}/{stack}_norm/scale"] = (EMBED,)
        for number in range(LAYERS):
            layer = f"target/{stack}/layers_{number}"
            for attention in attentions:
                shapes[f"{layer}/{NORMS[attention]}/scale"] = (EMBED,)
                for name in ("query", "key", "value"):
                    shapes[f"{layer}/{attention}/{name}/kernel"] = (EMBED, HIDDEN)
                shapes[f"{layer}/{attention}/out/kernel"] = (HIDDEN, EMBED)
            shapes[f"{layer}/pre_mlp_layer_norm/scale"] = (EMBED,)
            for name in ("wi_0", "wi_1") if is_gated else ("wi",):
                shapes[f"{layer}/mlp/{name}/kernel"] = (EMBED, MLP)
            shapes[f"{layer}/mlp/wo/kernel"] = (MLP, EMBED)
    generator = np.random.default_rng(0)
    return {name: generator.standard_normal(shape, np.float32) for name, shape in shapes.items()}


def use_transformer_engine(native: dict[str, Any], *, is_fused: bool) -> dict[str, Any]:
    """The same parameters as NVIDIA's converter of T5X's layout makes them (fw2te)."""
    arrays = dict(native)
    for stack, attentions in ATTENTIONS.items():
        for number in range(LAYERS):
            layer = f"target/{stack}/layers_{number}"
            for attention in attentions:
                first = "query"
                joined: tuple[str, ...] = ("query", "key", "value")
                if attention == "encoder_decoder_attention":
                    joined = ("key", "value")
                elif is_fused:
                    first = "qkv"
                scale = arrays.pop(f"{layer}/{NORMS[attention]}/scale")
                arrays[f"{layer}/{attention}/{first}/scale"] = scale
                if is_fused:
                    name = "qkv" if len(joined) == 3 else "kv"
                    kernels = [arrays.pop(f"{layer}/{attention}/{one}/kernel") for one in joined]
                    arrays[f"{layer}/{attention}/{name}/kernel"] = np.stack(kernels, axis=1)
            arrays[f"{layer}/mlp/scale"] = arrays.pop(f"{layer}/pre_mlp_layer_norm/scale")
            names = ("wi_0", "wi_1") if f"{layer}/mlp/wi_0/kernel" in arrays else ("wi",)
            inputs = [arrays.pop(f"{layer}/mlp/{name}/kernel") for name in names]
            arrays[f"{layer}/mlp/wi_kernel"] = np.stack(inputs, axis=1)
            arrays[f"{layer}/mlp/wo_kernel"] = arrays.pop(f"{layer}/mlp/wo/kernel")
    return arrays


def write(folder: Path, arrays: dict[str, Any]) -> Path:
    shapes = {name: array.shape for name, array in arrays.items()}
    with t5x_checkpoint.Writer(folder, 3, shapes, FLOAT32) as writer:
        for name, array in arrays.items():
            writer.write(name, (0,) * array.ndim, array)
    return folder / "checkpoint_3"


@pytest.mark.parametrize("is_fused", [False, True])
@pytest.mark.parametrize("is_gated", [False, True])
def test_the_arrays_are_those_of_t5x(tmp_path: Path, is_fused: bool, is_gated: bool) -> None:
    native = make_native(is_gated=is_gated)
    stored = use_transformer_engine(native, is_fused=is_fused)
    assert stored.keys() != native.keys()
    source = t5x_checkpoint.Source(write(tmp_path, stored))
    assert source.is_transformer_engine
    assert source.arrays.keys() == native.keys() | {"state/step"}
    for name, values in native.items():
        array = source.arrays[name]
        assert array.shape == values.shape, name
        assert array.read().tobytes() == values.tobytes(), name
        assert array.read((slice(2, 5),)).tobytes() == values[2:5].tobytes(), name
        if values.ndim > 1:
            part = array.read((slice(1, 4), slice(2, 5)))
            assert part.tobytes() == values[1:4, 2:5].tobytes(), name
    stack = source.arrays["target/encoder/layers_0/mlp/wo/kernel"]
    assert stack.largest_read == MLP * EMBED * 4
    if is_gated:
        part_of_stack = source.arrays["target/encoder/layers_0/mlp/wi_1/kernel"]
        assert part_of_stack.largest_read == 2 * EMBED * MLP * 4


def test_t5xs_own_layout_stays(tmp_path: Path) -> None:
    native = make_native()
    source = t5x_checkpoint.Source(write(tmp_path, native))
    assert not source.is_transformer_engine
    assert source.arrays.keys() == native.keys() | {"state/step"}


def test_a_stack_of_another_shape_is_refused(tmp_path: Path) -> None:
    layer = "target/encoder/layers_0"
    for name, shape in (
        (f"{layer}/attention/qkv/kernel", (EMBED, 2, HIDDEN)),
        (f"{layer}/attention/qkv/kernel", (EMBED, 3 * HIDDEN)),
        (f"{layer}/mlp/wi_kernel", (EMBED, MLP)),
        (f"{layer}/mlp/wi_kernel", (EMBED,)),
    ):
        folder = tmp_path / f"{name.replace('/', '.')}-{len(shape)}-{shape[-1]}"
        write(folder, {name: np.zeros(shape, np.float32)})
        with errors.expect_user_error(errors.DAMAGED, where=str(folder), value=name):
            t5x_checkpoint.Source(folder)


def test_an_array_in_both_layouts_is_refused(tmp_path: Path) -> None:
    native = make_native()
    stored = use_transformer_engine(native, is_fused=True)
    twice = "target/decoder/layers_1/encoder_decoder_attention/value/kernel"
    write(tmp_path, {**stored, twice: native[twice]})
    with errors.expect_user_error(errors.DAMAGED, where=str(tmp_path), value=twice):
        t5x_checkpoint.Source(tmp_path)
