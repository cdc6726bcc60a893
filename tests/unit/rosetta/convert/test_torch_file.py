"""Files of tensors of PyTorch and of safetensors, read and written without their packages."""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.support import errors, required_modules

required_modules.need_modules("ml_dtypes", "numpy")

import ml_dtypes
import numpy as np

from rosetta.convert import safetensors, torch_file

WRITERS = {"pth": torch_file, "safetensors": safetensors}


def _write(path: Path, tensors: dict[str, Any], module: Any) -> Path:
    with contextlib.closing(
        module.Writer(
            path,
            {name: tensor.shape for name, tensor in tensors.items()},
            next(iter(tensors.values())).dtype,
        )
    ) as writer:
        for name, tensor in tensors.items():
            writer.add(name, tensor)
    return path


@pytest.mark.parametrize("module", WRITERS.values(), ids=WRITERS)
@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.float32])
def test_written_tensors_are_read_back(module: Any, dtype: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    tensors = {
        "a": rng.normal(size=(3, 5)).astype(dtype),
        "b.weight": rng.normal(size=(7,)).astype(dtype),
        "c": rng.normal(size=(2, 3, 4)).astype(dtype).swapaxes(0, 2),
    }
    found = module.read_tensors(_write(tmp_path / "file", tensors, module))
    assert list(found) == list(tensors)
    for name, tensor in tensors.items():
        held = found[name]()
        assert held.dtype == tensor.dtype
        assert np.array_equal(held.view(np.uint8), np.ascontiguousarray(tensor).view(np.uint8))


@pytest.mark.parametrize("module", WRITERS.values(), ids=WRITERS)
def test_a_tensor_out_of_order_is_refused(module: Any, tmp_path: Path) -> None:
    with (
        contextlib.closing(
            module.Writer(tmp_path / "file", {"a": (2,), "b": (2,)}, np.dtype(np.float32))
        ) as writer,
        pytest.raises(ValueError, match="b"),
    ):
        writer.add("b", np.zeros(2, np.float32))


@pytest.mark.parametrize("module", WRITERS.values(), ids=WRITERS)
@pytest.mark.parametrize("keep", [0.0, 0.3, 0.9])
def test_a_truncated_file_is_refused(module: Any, keep: float, tmp_path: Path) -> None:
    path = _write(tmp_path / "file", {"a": np.ones((40, 40), np.float32)}, module)
    body = path.read_bytes()
    path.write_bytes(body[: int(len(body) * keep)])
    with errors.expect_user_error(errors.DAMAGED, names="complete"):
        module.read_tensors(path)


class Harm:
    """An object whose pickle runs code when it is loaded."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (self.mark,)


def test_code_in_a_pickle_is_not_run(tmp_path: Path) -> None:
    path, mark = tmp_path / "bad.pth", tmp_path / "mark"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("bad/data.pkl", pickle.dumps({"a": Harm(mark)}))
    with errors.expect_user_error(errors.DENIED, where="bad.pth", remedy="safetensors"):
        torch_file.read_tensors(path)
    assert not mark.exists()
    pickle.loads(pickle.dumps(Harm(mark)))  # noqa: S301 (it would have)
    assert mark.exists()


def _int(*values: int) -> bytes:
    return b"".join(pickle.BININT + value.to_bytes(4, "little") for value in values)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (_int(4, 4), _int(4, 5)),  # more rows than there are
        (_int(4, 1), _int(9, 1)),  # farther apart than they are
        (_int(0) + pickle.MARK + _int(4), _int(1) + pickle.MARK + _int(4)),  # begins later
        (_int(16), _int(17)),  # a storage longer than its record
    ],
)
def test_a_tensor_beyond_its_storage_is_refused(
    before: bytes, after: bytes, tmp_path: Path
) -> None:
    """A file that claims more than it holds must not read what lies after."""
    good, bad = (
        _write(tmp_path / "good.pth", {"a": np.ones((4, 4), np.float32)}, torch_file),
        tmp_path / "bad.pth",
    )
    assert torch_file.read_tensors(good)["a"]().sum() == 16
    with zipfile.ZipFile(good) as archive, zipfile.ZipFile(bad, "w") as other:
        for name in archive.namelist():
            body = archive.read(name)
            if name.endswith("data.pkl"):
                assert body.count(before) == 1
                body = body.replace(before, after)
            other.writestr(name, body)
    with errors.expect_user_error(errors.DAMAGED, names="complete"):
        torch_file.read_tensors(bad)


def _set_checksums(path: Path, checksum: bytes) -> None:
    """Write a checksum into each entry of a zip's directory."""
    body = bytearray(path.read_bytes())
    place = body.find(b"PK\x01\x02")
    while place >= 0:
        body[place + 16 : place + 20] = checksum
        place = body.find(b"PK\x01\x02", place + 4)
    path.write_bytes(bytes(body))


@pytest.mark.parametrize("place", [0, 1, 12_345, 39_999])
@pytest.mark.parametrize("block", [1 << 24, 1000])
def test_a_flipped_bit_is_found(
    place: int, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_file, "_BLOCK_SIZE", block)
    path = _write(
        tmp_path / "file.pth",
        {"a": np.zeros(7, np.float32), "b": np.ones((100, 100), np.float32)},
        torch_file,
    )
    tensors = torch_file.read_tensors(path)
    start = tensors["b"].start
    tensors["b"]()
    body = bytearray(path.read_bytes())
    body[start + place] ^= 4
    path.write_bytes(bytes(body))
    damaged = torch_file.read_tensors(path)
    assert (damaged["a"]() == 0).all()
    for _ in range(2):  # a failed check is not taken for a passed one
        with errors.expect_user_error(errors.DAMAGED, names="CRC-32"):
            damaged["b"]()
    # A file in which PyTorch was told to write no checksums can only be believed.
    _set_checksums(path, bytes(4))
    assert torch_file.read_tensors(path)["b"]().shape == (100, 100)
    _set_checksums(path, b"\x01\0\0\0")
    with errors.expect_user_error(errors.DAMAGED, names="complete"):  # the pickle's own
        torch_file.read_tensors(path)


def test_tensors_that_share_a_storage_are_checked(tmp_path: Path) -> None:
    record = torch_file.ZipRecord(tmp_path / "file", 0, 8, 1)
    (tmp_path / "file").write_bytes(bytes(8))
    for offset in (0, 1):
        with errors.expect_user_error(errors.DAMAGED, names="CRC-32"):
            torch_file.StoredTensor(
                str(tmp_path / "file"), 0, np.dtype(np.float32), offset, (1,), (1,), record
            )()


def test_other_number_types_are_refused(tmp_path: Path) -> None:
    header = b'{"a":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}}'
    (tmp_path / "file").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with errors.expect_user_error(errors.UNSUPPORTED, value="I64"):
        safetensors.read_tensors(tmp_path / "file")


# Saves what t5-experiments' trainer saves: an optimizer that has stepped, NumPy's numbers, ...
TRAINER = """
import collections, sys
import numpy, torch
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.AdamW(model.parameters())
model(torch.ones(1, 3)).sum().backward()
optimizer.step()
metrics = collections.defaultdict(dict)
metrics["train"]["loss"] = numpy.mean([1.0, 2.0])
values = {
    "model_state_dict": model.state_dict(),
    "optimizer_state_dict": optimizer.state_dict(),
    "iteration": 7,
    "epoch": 0,
    "metrics": metrics,
}
torch.save(values, sys.argv[1])
numpy.save(sys.argv[2], model.weight.detach().numpy())
"""


def test_the_checkpoint_of_a_trainer(tmp_path: Path) -> None:
    python = os.environ.get("ROSETTA_TEST_TORCH", "")
    if not python:
        pytest.skip("NOT CHECKED: ROSETTA_TEST_TORCH names no Python with torch and transformers")
    path, weight = tmp_path / "model_7.pth", tmp_path / "weight.npy"
    subprocess.run([python, "-c", TRAINER, path, weight], check=True)
    found = torch_file.read_tensors(path)
    assert set(found) == {"weight", "bias"}
    assert np.array_equal(found["weight"](), np.load(weight))
