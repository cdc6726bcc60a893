"""Damaged and unfinished checkpoints of T5X are refused, and a Writer leaves all or nothing."""

from __future__ import annotations

import json
import os
import pickle
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import errors, required_modules

required_modules.need_modules("msgpack", "ml_dtypes", "tensorstore")

import ml_dtypes
import msgpack  # type: ignore[import-not-found]
import numpy as np
import tensorstore  # type: ignore[import-not-found]

from rosetta.convert import t5x_checkpoint, zarr_arrays
from rosetta.core.errors import UserError
from rosetta.t5x.run import checkpoint_record

ROOT = Path(__file__).parents[4]
KERNEL = "target/encoder/layers_0/mlp/wi_0/kernel"
FOLDER = KERNEL.replace("/", ".")
VALUES: Any = np.arange(24, dtype=np.float32).reshape(6, 4)
FLOAT32 = np.dtype(np.float32)


def write_folders(folder: Path) -> Path:
    """A checkpoint with a folder for each array."""
    with t5x_checkpoint.Writer(folder, 5, {KERNEL: (6, 4)}, FLOAT32) as writer:
        writer.write(KERNEL, (0, 0), VALUES)
    return folder / "checkpoint_5"


def write_database(folder: Path) -> Path:
    """A checkpoint with an OCDBT database."""
    state = folder / "checkpoint_5" / "state"
    state.mkdir(parents=True)
    for name, values in ((FOLDER, np.tile(VALUES, (10, 10))), ("state.step", np.int32(5))):
        spec = {
            "driver": "zarr",
            "kvstore": {"driver": "ocdbt", "base": f"file://{state}/", "path": f"{name}/"},
            "metadata": {"shape": list(np.shape(values)), "chunks": list(np.shape(values))},
            "dtype": values.dtype.name,
            "create": True,
        }
        tensorstore.open(spec).result().write(values).result()
    metadata = t5x_checkpoint._describe_arrays({KERNEL: (60, 40), "state/step": ()})
    (state / "_METADATA").write_text(json.dumps({**metadata, "use_ocdbt": True}))
    (state.parent / "_CHECKPOINT_METADATA").write_text("{}")
    return state.parent


def pack_array(values: Any, code: int = 1) -> Any:
    content = (values.shape, values.dtype.name, values.tobytes())
    return msgpack.ExtType(code, msgpack.packb(content, use_bin_type=True))


def make_tree(**others: Any) -> dict[str, Any]:
    """A tree that T5X wrote before Orbax: an array in the file, and one in a folder."""
    specification = {
        "driver": "zarr",
        "kvstore": {"driver": "gcs", "bucket": "t5x-dummy-bucket", "path": f"{FOLDER}/"},
        "metadata": {"shape": [6, 4], "chunks": [6, 4], "dtype": "<f4"},
        **others,
    }
    target = {"encoder": {"layers_0": {"mlp": {"wi_0": {"kernel": specification}}}}}
    step = pack_array(np.array(5, np.int32))
    return {"version": 3, "optimizer": {"target": target, "state": {"step": step, "unused": None}}}


def write_legacy(folder: Path, tree: Any = None) -> Path:
    """A checkpoint from before Orbax."""
    checkpoint = folder / "checkpoint_5"
    array = zarr_arrays.create_array(checkpoint / FOLDER, (6, 4), (3, 4), "<f4")
    array.write(VALUES).result()
    (checkpoint / "checkpoint").write_bytes(msgpack.packb(tree or make_tree(), strict_types=True))
    return checkpoint


WRITERS = {"folders": write_folders, "database": write_database, "legacy": write_legacy}


@pytest.mark.parametrize("writer", WRITERS)
def test_a_whole_checkpoint_is_read(tmp_path: Path, writer: str) -> None:
    checkpoint = WRITERS[writer](tmp_path)
    for path in (tmp_path, checkpoint):
        source = t5x_checkpoint.Source(path)
        assert source.step == 5
        assert sorted(source.arrays) == ["state/step", KERNEL]
        part = source.arrays[KERNEL].read((slice(2, 4), slice(1, 3)))
        assert part.tobytes() == VALUES[2:4, 1:3].tobytes()
    moved = checkpoint.rename(tmp_path / "my-weights")
    source = t5x_checkpoint.Source(moved)
    assert (source.step, source.folder) == (5, moved)


def test_selections_that_do_not_fit_are_faults_of_the_program(tmp_path: Path) -> None:
    array = t5x_checkpoint.Source(write_legacy(tmp_path)).arrays[KERNEL]
    assert array.read((slice(4, 100),)).tobytes() == VALUES[4:].tobytes()
    assert array.read((slice(9, 12),)).shape == (0, 4)
    for selection in ((slice(None),) * 3, (slice(0, 4, 2),)):
        with pytest.raises(ValueError, match=r"\(6, 4\)"):
            array.read(selection)


def test_nothing_of_a_framework_is_imported(tmp_path: Path) -> None:
    write_legacy(tmp_path)
    text = (
        "import sys, pathlib; from rosetta.convert import t5x_checkpoint; "
        f"t5x_checkpoint.Source(pathlib.Path({str(tmp_path)!r})); "
        "print([name for name in ('jax', 'flax', 'orbax', 't5x', 'msgpack', 'tensorflow') "
        "if name in sys.modules])"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-c", text], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def cut(path: Path, keep: int) -> None:
    path.write_bytes(path.read_bytes()[:keep])


def change_json(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def largest_data_file(checkpoint: Path) -> Path:
    files = (path for path in checkpoint.glob("state/**/d/*") if path.is_file())
    return max(files, key=lambda path: path.stat().st_size)


DAMAGES: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "a chunk is missing": (
        "folders",
        lambda folder: (folder / "state" / FOLDER / "0.0").unlink(),
        f"{FOLDER}/0.0",
    ),
    "an array is missing": (
        "folders",
        lambda folder: shutil.rmtree(folder / "state" / FOLDER),
        "state",
    ),
    "a description is missing": (
        "folders",
        lambda folder: (folder / "state" / FOLDER / ".zarray").unlink(),
        f"{FOLDER}/.zarray",
    ),
    "a description is cut": (
        "folders",
        lambda folder: cut(folder / "state" / FOLDER / ".zarray", 20),
        FOLDER,
    ),
    "a description has no type": (
        "folders",
        lambda folder: change_json(folder / "state" / FOLDER / ".zarray", dtype=None),
        FOLDER,
    ),
    "a description has chunks of nothing": (
        "folders",
        lambda folder: change_json(folder / "state" / FOLDER / ".zarray", chunks=[0, 4]),
        FOLDER,
    ),
    "the list of arrays is missing": (
        "folders",
        lambda folder: (folder / "state" / "_METADATA").unlink(),
        "_METADATA",
    ),
    "the list of arrays is cut": (
        "folders",
        lambda folder: cut(folder / "state" / "_METADATA", 40),
        "_METADATA",
    ),
    "the list of arrays has something else": (
        "folders",
        lambda folder: change_json(folder / "state" / "_METADATA", tree_metadata={"a": 1}),
        "_METADATA",
    ),
    "the record is cut": (
        "folders",
        lambda folder: (folder / "rosetta.json").write_text('{"schema": 1, "st'),
        "rosetta.json",
    ),
    "the arrays are missing": (
        "folders",
        lambda folder: shutil.rmtree(folder / "state"),
        "checkpoint_5",
    ),
    "the database has no manifest": (
        "database",
        lambda folder: (folder / "state" / "manifest.ocdbt").unlink(),
        "manifest.ocdbt",
    ),
    "the database has no list": (
        "database",
        lambda folder: (folder / "state" / "_METADATA").unlink(),
        "_METADATA",
    ),
    "a file of the database is missing": (
        "database",
        lambda folder: largest_data_file(folder).unlink(),
        "state/d/",
    ),
    "a file of the database is cut": (
        "database",
        lambda folder: cut(largest_data_file(folder), 100),
        "state/d/",
    ),
    "the database lacks a listed array": (
        "database",
        lambda folder: (folder / "state" / "_METADATA").write_text(
            json.dumps({**t5x_checkpoint._describe_arrays({"target/other": (3,)})})
        ),
        "state",
    ),
    "a legacy chunk is missing": (
        "legacy",
        lambda folder: (folder / FOLDER / "1.0").unlink(),
        f"{FOLDER}/1.0",
    ),
    "a legacy array is missing": (
        "legacy",
        lambda folder: shutil.rmtree(folder / FOLDER),
        FOLDER,
    ),
    "the tree is empty": ("legacy", lambda folder: cut(folder / "checkpoint", 0), "checkpoint"),
    "the tree is a pickle": (
        "legacy",
        lambda folder: (folder / "checkpoint").write_bytes(pickle.dumps({"a": [1, 2]})),
        "checkpoint",
    ),
    "the tree has more after it": (
        "legacy",
        lambda folder: (folder / "checkpoint").write_bytes(
            (folder / "checkpoint").read_bytes() + b"\0"
        ),
        "checkpoint",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_found_before_anything_is_read(tmp_path: Path, damage: str) -> None:
    writer, change, where = DAMAGES[damage]
    checkpoint = WRITERS[writer](tmp_path)
    change(checkpoint)
    with errors.expect_user_error(errors.DAMAGED, where=(str(tmp_path), where)):
        t5x_checkpoint.Source(checkpoint)


def test_a_chunk_that_cannot_be_decoded_is_damage(tmp_path: Path) -> None:
    checkpoint = write_folders(tmp_path)
    cut(checkpoint / "state" / FOLDER / "0.0", 12)
    source = t5x_checkpoint.Source(checkpoint)
    with errors.expect_user_error(errors.DAMAGED, where=FOLDER):
        source.arrays[KERNEL].read()


def _wrap(value: Any) -> Any:
    return {"version": 3, "optimizer": {"target": {"scale": value}}}


def _nest(depth: int) -> Any:
    value: Any = pack_array(np.zeros(1, np.float32))
    for _ in range(depth):
        value = {"a": value}
    return value


HOSTILE: dict[str, tuple[Any, str]] = {
    "a list": ([1, 2], errors.DAMAGED),
    "nothing": ({"version": 3, "optimizer": {}}, errors.UNSUPPORTED),
    "no parameters": (
        {"version": 3, "optimizer": {"state": {"step": pack_array(np.zeros(1))}}},
        errors.UNSUPPORTED,
    ),
    "no tree": ({"version": 3, "optimizer": 7}, errors.UNSUPPORTED),
    "an old version": ({**make_tree(), "version": 2}, errors.UNSUPPORTED),
    "parameters of another program": (
        {"params": {"scale": pack_array(np.zeros(1))}},
        errors.UNSUPPORTED,
    ),
    "a folder elsewhere": (
        make_tree(kvstore={"driver": "file", "path": "../../etc"}),
        errors.DAMAGED,
    ),
    "an absolute folder": (make_tree(kvstore={"driver": "file", "path": "/etc"}), errors.DAMAGED),
    "the folder itself": (make_tree(kvstore={"driver": "file", "path": ".."}), errors.DAMAGED),
    "a server": (make_tree(kvstore="https://example.com/"), errors.DAMAGED),
    "a description without a shape": (make_tree(metadata={}), errors.DAMAGED),
    "another shape": (make_tree(metadata={"shape": [4, 6]}), errors.DAMAGED),
    "a name that is a number": (_wrap({1: 2}), errors.DAMAGED),
    "a list of numbers": (_wrap([1.0, 2.0]), errors.DAMAGED),
    "bytes": (_wrap(b"1234"), errors.DAMAGED),
    "deep": (_wrap(_nest(100)), errors.DAMAGED),
    "another extension": (_wrap(msgpack.ExtType(7, b"1234")), errors.DAMAGED),
    "a complex number": (_wrap(msgpack.ExtType(2, msgpack.packb((1.0, 2.0)))), errors.UNSUPPORTED),
    "objects": (
        _wrap(msgpack.ExtType(1, msgpack.packb(((1,), "object", b"12345678")))),
        errors.UNSUPPORTED,
    ),
    "texts": (
        _wrap(msgpack.ExtType(1, msgpack.packb(((1,), "str32", b"1234")))),
        errors.UNSUPPORTED,
    ),
    "too few values": (
        _wrap(msgpack.ExtType(1, msgpack.packb(((3,), "float32", b"1234")))),
        errors.DAMAGED,
    ),
    "a negative shape": (
        _wrap(msgpack.ExtType(1, msgpack.packb(((-1,), "float32", b"")))),
        errors.DAMAGED,
    ),
    "a split array without parts": (
        _wrap({"__msgpack_chunked_array__": True, "shape": {"0": 4}, "chunks": {}}),
        errors.DAMAGED,
    ),
    "a split array that lacks a part": (
        _wrap(
            {
                "__msgpack_chunked_array__": True,
                "shape": {"0": 4},
                "chunks": {"0": pack_array(np.zeros(3))},
            }
        ),
        errors.DAMAGED,
    ),
    "a split array of two types": (
        _wrap(
            {
                "__msgpack_chunked_array__": True,
                "shape": {"0": 4},
                "chunks": {
                    "0": pack_array(np.zeros(2)),
                    "1": pack_array(np.zeros(2, np.float32)),
                },
            }
        ),
        errors.DAMAGED,
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_odd_trees_are_refused(tmp_path: Path, name: str) -> None:
    tree, kind = HOSTILE[name]
    checkpoint = write_legacy(tmp_path, tree)
    with errors.expect_user_error(kind, where=str(checkpoint)):
        t5x_checkpoint.Source(checkpoint)


def test_a_tree_that_claims_much_takes_no_memory(tmp_path: Path) -> None:
    checkpoint = write_legacy(tmp_path)
    for content in (
        b"\x81\xa1a\xdf\xff\xff\xff\xff",  # a map of 4 billion entries
        b"\x81\xa1a\xdd\xff\xff\xff\xff" + b"\xc0" * 2_000_000,  # a list of as many
        b"\x81\xa1a\xc6\xff\xff\xff\xff",  # 4 GB of bytes
        b"\x81\xa1a\xdb\x7f\xff\xff\xff",  # a text of 2 GB
        b"\x81\xa1a\xc1",  # a code that MessagePack has not
        b"\x82\xa1a\xc0\xa1a\xc0",  # a name twice
        b"\x81\xa1\xff\xc0",  # a name that is not UTF-8
    ):
        (checkpoint / "checkpoint").write_bytes(content)
        with errors.expect_user_error(errors.DAMAGED, where="checkpoint_5/checkpoint"):
            t5x_checkpoint.Source(checkpoint)


def test_a_tree_is_refused_wherever_it_is_cut(tmp_path: Path) -> None:
    path = write_legacy(tmp_path) / "checkpoint"
    content = path.read_bytes()
    for keep in range(len(content)):
        path.write_bytes(content[:keep])
        with errors.expect_user_error(errors.DAMAGED, where="checkpoint_5/checkpoint"):
            t5x_checkpoint.Source(tmp_path)


def test_changed_bytes_of_a_tree_raise_no_other_error(tmp_path: Path) -> None:
    path = write_legacy(tmp_path) / "checkpoint"
    content = path.read_bytes()
    generator = np.random.default_rng(0)
    refused = 0
    for _ in range(300):
        changed = bytearray(content)
        changed[generator.integers(len(content))] = generator.integers(256)
        path.write_bytes(changed)
        try:
            t5x_checkpoint.Source(tmp_path).arrays[KERNEL].read()
        except (UserError, KeyError):  # another name may still be one of an array
            refused += 1
    assert refused > 100


def test_checkpoints_of_tensorflow_are_named(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-1000"\n')
    with errors.expect_user_error(errors.UNSUPPORTED, where=str(tmp_path)):
        t5x_checkpoint.Source(tmp_path)


@pytest.mark.parametrize(
    "name", ["checkpoint_5.orbax-checkpoint-tmp-17", "checkpoint_5.tmp-1700000000"]
)
def test_unfinished_checkpoints_are_refused(tmp_path: Path, name: str) -> None:
    unfinished = write_folders(tmp_path).rename(tmp_path / name)
    with errors.expect_user_error(errors.MISSING, where=str(tmp_path)):
        t5x_checkpoint.Source(tmp_path)
    with errors.expect_user_error(errors.DAMAGED, where=name):
        t5x_checkpoint.Source(unfinished)


@pytest.mark.parametrize("path", ["gs://bucket/t5/checkpoint_5", "s3://bucket/t5"])
def test_addresses_are_refused(path: str) -> None:
    with errors.expect_user_error(errors.UNSUPPORTED, where=path):
        t5x_checkpoint.Source(Path(path))


def test_a_folder_that_does_not_exist(tmp_path: Path) -> None:
    for name in ("none", "checkpoint_3"):
        with errors.expect_user_error(errors.MISSING, where=str(tmp_path / name)):
            t5x_checkpoint.Source(tmp_path / name)


@pytest.mark.parametrize("ocdbt", [True, False])
def test_orbax_before_its_list_of_arrays(tmp_path: Path, ocdbt: bool) -> None:
    """The environments of pax-1.4 have such an Orbax; T5X wrote with one in 2023."""
    ocp: Any = pytest.importorskip("orbax.checkpoint", reason="NOT CHECKED: needs Orbax")
    try:
        handler = ocp.PyTreeCheckpointHandler(use_ocdbt=ocdbt, write_tree_metadata=False)
    except TypeError:
        pytest.skip("NOT CHECKED on this line: it needs Orbax 0.5")
    tree = {"target": {"dense": {"kernel": VALUES, "scale": VALUES[0]}}, "state": {"step": 5}}
    settings = {
        "target": {"dense": {"kernel": ocp.SaveArgs(), "scale": ocp.SaveArgs(aggregate=True)}},
        "state": {"step": ocp.SaveArgs()},
    }
    state = tmp_path / "checkpoint_5" / "state"
    state.parent.mkdir()
    ocp.Checkpointer(handler).save(state, tree, save_args=settings)
    assert not (state / "_METADATA").exists()
    source = t5x_checkpoint.Source(tmp_path)
    assert source.format == ("orbax-ocdbt" if ocdbt else "orbax-zarr")
    names = ["state/step", "target/dense/kernel", "target/dense/scale"]
    assert list(source.arrays) == names
    step, kernel, scale = (source.arrays[name].read() for name in names)
    assert int(step) == 5
    assert kernel.tobytes() == VALUES.tobytes()
    assert scale.tobytes() == VALUES[0].tobytes()
    if not ocdbt:
        shutil.rmtree(state / "target.dense.kernel")
        with errors.expect_user_error(errors.DAMAGED, value="target.dense.kernel"):
            t5x_checkpoint.Source(tmp_path)


SHAPES = {KERNEL: (6, 4), "target/scale": (4,)}


@pytest.mark.parametrize("dtype", [FLOAT32, np.dtype(ml_dtypes.bfloat16)])
def test_a_written_checkpoint_reads_back(tmp_path: Path, dtype: Any) -> None:
    record = checkpoint_record.Record(step=9, scale_attn_logits=False, config={"emb_dim": "4"})
    with t5x_checkpoint.Writer(tmp_path / "new", 9, SHAPES, dtype, record) as writer:
        for row in (4, 0, 2):
            for column in (2, 0):
                block = VALUES[row : row + 2, column : column + 2].astype(dtype)
                writer.write(KERNEL, (row, column), block)
        writer.write("target/scale", (0,), np.zeros(4, dtype))
        assert not (tmp_path / "new" / "checkpoint_9").exists()
    source = t5x_checkpoint.Source(tmp_path / "new")
    assert (source.step, source.record) == (9, record)
    assert source.arrays[KERNEL].dtype == dtype
    assert source.arrays[KERNEL].read().tobytes() == VALUES.astype(dtype).tobytes()
    assert source.arrays["target/scale"].read().tobytes() == np.zeros(4, dtype).tobytes()
    with errors.expect_user_error(errors.EXISTS, where="checkpoint_9"):
        t5x_checkpoint.Writer(tmp_path / "new", 9, SHAPES, dtype)


def _write(writer: t5x_checkpoint.Writer, start: int, stop: int) -> int:
    writer.write(KERNEL, (start, 0), VALUES[start:stop])
    return stop


FAULTS: dict[str, Callable[[t5x_checkpoint.Writer], object]] = {
    "a part is missing": lambda writer: _write(writer, 0, 5),
    "nothing was written": lambda writer: writer,
    "a part twice": lambda writer: [_write(writer, first, first + 3) for first in (0, 2)],
    "outside": lambda writer: writer.write(KERNEL, (4, 0), VALUES[:3]),
    "another type": lambda writer: writer.write(KERNEL, (0, 0), VALUES.astype(np.float64)),
    "another number of dimensions": lambda writer: writer.write(KERNEL, (0,), VALUES[0]),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_program_leaves_nothing(tmp_path: Path, fault: str) -> None:
    with (
        pytest.raises(ValueError, match=KERNEL),
        t5x_checkpoint.Writer(tmp_path, 1, {KERNEL: (6, 4)}, FLOAT32) as writer,
    ):
        FAULTS[fault](writer)
    assert list(tmp_path.iterdir()) == []


def test_a_killed_writer_leaves_no_checkpoint(tmp_path: Path) -> None:
    text = f"""
import os, pathlib, signal, numpy as np
from rosetta.convert import t5x_checkpoint
shapes = {{"target/a": (4, 4), "target/b": (4,)}}
writer = t5x_checkpoint.Writer(pathlib.Path({str(tmp_path)!r}), 3, shapes, np.dtype("f4"))
with writer:
    writer.write("target/a", (0, 0), np.ones((4, 4), "f4"))
    os.kill(os.getpid(), signal.SIGKILL)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    done = subprocess.run([sys.executable, "-c", text], env=environment, check=False)
    assert done.returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    with errors.expect_user_error(errors.MISSING, where=str(tmp_path)):
        t5x_checkpoint.Source(tmp_path)
    with errors.expect_user_error(errors.DAMAGED, where=left.name):
        t5x_checkpoint.Source(left)
    with t5x_checkpoint.Writer(tmp_path, 3, {"target/b": (4,)}, FLOAT32) as writer:
        writer.write("target/b", (0,), VALUES[0])
    assert list(t5x_checkpoint.Source(tmp_path).arrays) == ["state/step", "target/b"]


def test_a_disk_without_room_is_named(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    values = np.random.default_rng(0).standard_normal((256, 256), np.float32)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
        with (
            errors.expect_user_error(errors.FAILED, where="rosetta-part-checkpoint_1"),
            t5x_checkpoint.Writer(tmp_path, 1, {KERNEL: (256, 256)}, FLOAT32) as writer,
        ):
            writer.write(KERNEL, (0, 0), values)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert list(tmp_path.iterdir()) == []


def test_chunks_follow_the_blocks() -> None:
    choose = t5x_checkpoint._choose_chunks
    assert choose((1024, 24, 4096), (1024, 1, 4096), 4) == [1024, 1, 4096]
    assert choose((250_112, 4096), (4096, 4096), 4) == [4096, 4096]
    assert choose((250_112, 4096), (250_112, 4096), 4) == [3908, 4096]
    # Small blocks share a chunk of 1 MB, and the array is not larger than it is.
    assert choose((250_112, 512), (1, 512), 4) == [512, 512]
    assert choose((32, 12), (1, 12), 4) == [32, 12]
    assert choose((), (), 4) == []
