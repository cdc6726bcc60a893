"""rosetta.convert reads what T5X writes bit by bit; T5X restores what it writes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

REASON = "NOT CHECKED: needs the packages of a baked environment"
jax = pytest.importorskip("jax", reason=REASON)
checkpoints = pytest.importorskip("t5x.checkpoints", reason=REASON)

import flax.serialization
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from flax.traverse_util import flatten_dict
from t5x import train_state as t5x_train_state

from rosetta.convert import t5x_checkpoint
from rosetta.t5x import checkpoint, checkpoint_arrays, checkpoint_manager
from rosetta.t5x.partitioning import PjitPartitioner
from rosetta.t5x.run import checkpoint_record
from tests.support import errors
from tests.support.train_states import Model

RECORD = checkpoint_record.Record(step=7, scale_attn_logits=True, batch_size=4)


def _list_arrays(state: Any) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of a train state, by their names in a checkpoint."""
    flat = flatten_dict(state.state_dict(), sep="/")
    return {name: np.asarray(leaf) for name, leaf in flat.items() if hasattr(leaf, "shape")}


def _assert_equal(
    source: t5x_checkpoint.Source, expected: Mapping[str, np.ndarray[Any, Any]]
) -> None:
    assert source.arrays.keys() == expected.keys()
    for name, values in expected.items():
        array = source.arrays[name]
        assert array.shape == values.shape, name
        assert array.dtype == values.dtype, name
        assert array.read().tobytes() == values.tobytes(), name
        if values.ndim:
            part = values[1:, ..., : values.shape[-1] // 2] if values.ndim > 1 else values[1:]
            selection: tuple[slice, ...] = (slice(1, None),)
            if values.ndim > 1:
                middle = [slice(None)] * (values.ndim - 2)
                selection = (*selection, *middle, slice(values.shape[-1] // 2))
            assert array.read(selection).tobytes() == part.tobytes(), name


def _make_manager(folder: Path, model: Model, **options: Any) -> Any:
    return checkpoint_manager.Manager(
        str(folder),
        jax.eval_shape(lambda: model.state(0)),
        PjitPartitioner(1, devices=jax.devices()[:1]),
        **options,
    )


@pytest.mark.parametrize("with_fp8", [False, True])
def test_checkpoints_of_a_run_are_read(tmp_path: Path, with_fp8: bool) -> None:
    model = Model(with_fp8=with_fp8)
    manager = _make_manager(tmp_path, model, save_dtype="float32")
    checkpoint_record.write_record(str(tmp_path), RECORD)
    manager.save(model.state(3))
    manager.save(model.state(7))
    manager.close()
    source = t5x_checkpoint.Source(tmp_path)
    assert (source.step, source.format, source.record) == (7, "orbax-ocdbt", RECORD)
    _assert_equal(source, _list_arrays(model.state(7)))
    assert any(name.startswith("flax_mutables/") for name in source.arrays) == with_fp8


@pytest.mark.parametrize("ocdbt", [True, False])
@pytest.mark.parametrize("zarr3", [True, False])
def test_every_format_of_orbax_is_read(tmp_path: Path, ocdbt: bool, zarr3: bool) -> None:
    state = Model().state(5).state_dict()
    state["target"]["dense"]["kernel"] = state["target"]["dense"]["kernel"].astype(jnp.bfloat16)
    handler = ocp.PyTreeCheckpointHandler(use_ocdbt=ocdbt, use_zarr3=zarr3)
    with ocp.Checkpointer(handler) as saver:
        saver.save(tmp_path / "checkpoint_5" / "state", ocp.args.PyTreeSave(state))
    source = t5x_checkpoint.Source(tmp_path / "checkpoint_5")
    assert source.format == ("orbax-ocdbt" if ocdbt else "orbax-zarr")
    flat = flatten_dict(state, sep="/")
    _assert_equal(
        source, {name: np.asarray(leaf) for name, leaf in flat.items() if hasattr(leaf, "shape")}
    )


class _WholeArrays(PjitPartitioner):
    """A partitioner that has the scales and counters on every device, as old models of T5X do."""

    def get_mesh_axes(self, train_state: Any) -> Any:
        axes = super().get_mesh_axes(train_state)
        flat = flatten_dict(axes.state_dict(), sep="/")
        whole = {name: None if name.startswith("state/") else leaf for name, leaf in flat.items()}
        return train_state.restore_state(flax.traverse_util.unflatten_dict(whole, sep="/"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("partitioner", [PjitPartitioner, _WholeArrays])
def test_checkpoints_from_before_orbax_are_read(
    tmp_path: Path, dtype: str, partitioner: type[PjitPartitioner]
) -> None:
    state = Model().state(5)
    checkpoints.Checkpointer(
        state,
        partitioner(1, devices=jax.devices()[:1]),
        str(tmp_path),
        save_dtype=jnp.dtype(dtype),
    ).save(state)
    source = t5x_checkpoint.Source(tmp_path)
    assert (source.step, source.format, source.record) == (5, "t5x-tensorstore", None)
    expected = _list_arrays(state)
    kernel = expected["target/dense/kernel"].astype(jnp.dtype(dtype))
    _assert_equal(source, {**expected, "target/dense/kernel": kernel})
    folders = {path.name for path in (tmp_path / "checkpoint_5").iterdir() if path.is_dir()}
    assert folders == {
        name.replace("/", ".")
        for name in expected
        if partitioner is PjitPartitioner or name.startswith("target/")
    }
    assert checkpoint_arrays.read_shapes(f"{tmp_path}/checkpoint_5") == {
        name: values.shape for name, values in expected.items()
    }


@pytest.mark.parametrize("largest_part", [1 << 30, 36, 64])
def test_arrays_in_one_file_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, largest_part: int
) -> None:
    monkeypatch.setattr(flax.serialization, "MAX_CHUNK_SIZE", largest_part)
    arrays = {
        "target/token_embedder/embedding": np.arange(24, dtype=np.float32).reshape(6, 4),
        "target/encoder/encoder/mlp/wi/kernel": np.arange(60, dtype=np.float32).reshape(5, 3, 4),
        "target/encoder/encoder_norm/scale": np.asarray(jnp.arange(40, dtype=jnp.bfloat16)),
        "state/param_states/scale/m": np.zeros(0, np.float32),
        "state/step": np.array(1000, np.int32),
    }
    tree = flax.traverse_util.unflatten_dict(arrays, sep="/")
    content = flax.serialization.to_bytes({"version": 3, "optimizer": tree})
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "checkpoint").write_bytes(content)
    source = t5x_checkpoint.Source(tmp_path / "weights")
    assert (source.step, source.format) == (1000, "t5x-msgpack")
    _assert_equal(source, arrays)
    for name, values in arrays.items():
        assert source.arrays[name].largest_read == values.itemsize
    stack = "target/encoder/encoder/mlp/wi/kernel"
    for layer in range(3):
        selection = (slice(1, 4), slice(layer, layer + 1))
        part = source.arrays[stack].read(selection)
        assert part.tobytes() == arrays[stack][1:4, layer : layer + 1].tobytes()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_written_checkpoints_are_restored(tmp_path: Path, dtype: str) -> None:
    model = Model(rows=8)
    values = np.asarray(jax.random.normal(jax.random.key(0), (8, 4)).astype(dtype))
    name = "target/dense/kernel"
    with t5x_checkpoint.Writer(tmp_path, 7, {name: (8, 4)}, values.dtype, RECORD) as writer:
        writer.write(name, (4, 0), values[4:])
        writer.write(name, (0, 0), values[:4])
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint_7"]
    _assert_equal(
        t5x_checkpoint.Source(tmp_path), {name: values, "state/step": np.array(7, np.int32)}
    )
    checkpoint_manager.check_checkpoint_files(
        f"{tmp_path}/checkpoint_7", resumes=False, read_values=True
    )
    checkpoint.check_array_shapes(f"{tmp_path}/checkpoint_7", {name: (8, 4)}, optimizer=False)
    for manager in (
        _make_manager(tmp_path, model, restore_dtype=jnp.float32),
        checkpoints.OrbaxCheckpointManagerInterface(
            str(tmp_path),
            t5x_train_state.InferenceState.create(model.get_initial_variables()),
            PjitPartitioner(1, devices=jax.devices()[:1]),
            restore_dtype=jnp.float32,
        ),
    ):
        restored = manager.restore(
            path=f"{tmp_path}/checkpoint_7",
            state_transformation_fns=checkpoint.transformations(optimizer=False),
        )
        assert int(restored.step) == 7
        kernel = np.asarray(restored.params["dense"]["kernel"])
        assert kernel.tobytes() == values.astype(np.float32).tobytes()


def test_the_remedy_for_other_classes(tmp_path: Path) -> None:
    name = "target/row_head/out/kernel"
    with t5x_checkpoint.Writer(tmp_path, 7, {name: (8, 3)}, np.dtype("float32"), RECORD) as writer:
        writer.write(name, (0, 0), np.zeros((8, 3), np.float32))
    with errors.expect_user_error(errors.DIFFERS, remedy="LABELS"):
        checkpoint.check_array_shapes(f"{tmp_path}/checkpoint_7", {name: (8, 2)}, optimizer=True)
