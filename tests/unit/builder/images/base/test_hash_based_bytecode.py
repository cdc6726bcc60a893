"""The bytecode of a base, through the tar of a layer, read by the Python that it is for."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from typing import TYPE_CHECKING

import pytest

from builder.images.base import hash_based_bytecode
from builder.images.oci import layer
from builder.images.oci.tar_entry import EPOCH

if TYPE_CHECKING:
    from pathlib import Path

    from builder.core.cache import Cache

_STALE = "bytecode is stale"
_COMPILE = "import py_compile, sys; py_compile.compile(sys.argv[1], optimize=int(sys.argv[2]), invalidation_mode=py_compile.PycInvalidationMode.TIMESTAMP)"


def _compiled(folder: Path, name: str, level: int = -1) -> Path:
    source = folder / f"{name}.py"
    source.write_text(f"NAME = '{name}'\n")
    os.utime(source, (1_700_000_000, 1_700_000_000.25))
    subprocess.run([sys.executable, "-c", _COMPILE, str(source), str(level)], check=True)
    optimised = f".opt-{level}" if level > 0 else ""
    return folder / f"__pycache__/{name}.{sys.implementation.cache_tag}{optimised}.pyc"


def _through_a_layer(cache: Cache, folder: Path, out: Path) -> dict[str, bytes]:
    """Pack a folder as a base is packed, take it in, and unpack the layer; returns its bytecode by path."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.add(folder, "lib")
    made = layer.rewrite_layer(
        cache,
        "k",
        "base",
        "gzip",
        lambda: io.BytesIO(packed.getvalue()),
        change=hash_based_bytecode.convert_bytecode,
    )
    with tarfile.open(layer.blob_path(cache, made.digest)) as archive:
        for member in archive:
            if member.isdir():
                (out / member.name).mkdir(parents=True)
            elif member.islnk():
                os.link(out / member.linkname, out / member.name)
            else:
                content = archive.extractfile(member)
                assert content is not None
                (out / member.name).write_bytes(content.read())
                os.utime(out / member.name, (member.mtime, member.mtime))
                assert member.mtime == EPOCH
    return {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*.pyc")}


def _imported(folder: Path, name: str, *options: str) -> str:
    """What Python says of the bytecode when it imports a module of the folder."""
    argv = [
        sys.executable,
        "-I",
        "-B",
        "-v",
        *options,
        "-c",
        f"import sys; sys.path.insert(0, {str(folder)!r}); import {name}",
    ]
    said = subprocess.run(argv, capture_output=True, text=True, check=True).stderr
    return "\n".join(line for line in said.splitlines() if str(folder) in line)


def test_bytecode_by_time_is_tied_to_hashes(cache: Cache, tmp_path: Path) -> None:
    lib = tmp_path / "lib"
    (lib / "package").mkdir(parents=True)
    for place, name, level in (
        (lib, "plain", -1),
        (lib, "optimised", 1),
        (lib / "package", "inner", -1),
    ):
        _compiled(place, name, level)
    assert len(_through_a_layer(cache, lib, tmp_path / "out")) == 3
    for folder, name, options in (
        ("lib", "plain", ()),
        ("lib", "optimised", ("-O",)),
        ("lib/package", "inner", ()),
    ):
        said = _imported(tmp_path / "out" / folder, name, *options)
        assert _STALE not in said
        assert "matches" in said, "the bytecode is used"
    (tmp_path / "out/lib/plain.py").write_text("NAME = 'edited'\n")
    assert "matches" not in _imported(tmp_path / "out/lib", "plain"), "an edit of the source counts"


@pytest.mark.parametrize("why", ["edited later", "another size", "no source", "no header"])
def test_bytecode_that_does_not_fit_is_left_out(cache: Cache, tmp_path: Path, why: str) -> None:
    lib = tmp_path / "lib"
    lib.mkdir()
    bytecode = _compiled(lib, "module")
    source = lib / "module.py"
    if why == "edited later":
        source.write_text("NAME = 'mudole'\n")
    elif why == "another size":
        source.write_text("NAME = 'longer name'\n")
        os.utime(source, (1_700_000_000, 1_700_000_000))
    elif why == "no source":
        source.unlink()
    else:
        bytecode.write_bytes(bytecode.read_bytes()[:8])
    os.link(bytecode, bytecode.with_name("module.other-1.pyc"))
    left = _through_a_layer(cache, lib, tmp_path / "out")
    assert len(left) == (2 if why == "no header" else 0)
    if why in ("edited later", "another size"):
        assert _STALE not in _imported(tmp_path / "out/lib", "module")


def test_other_files_stay_as_they_are(cache: Cache, tmp_path: Path) -> None:
    """Bytecode by hash, modules that are bytecode alone, and hard links among them."""
    lib = tmp_path / "lib"
    lib.mkdir()
    bytecode = _compiled(lib, "module")
    os.link(bytecode, bytecode.with_name(f"module.{sys.implementation.cache_tag}.opt-1.pyc"))
    alone = _compiled(lib, "alone")
    (lib / "alone.py").unlink()
    os.rename(alone, lib / "alone.pyc")
    hashed = _compiled(lib, "hashed")
    data = hashed.read_bytes()
    hashed.write_bytes(data[:4] + b"\3\0\0\0" + b"12345678" + data[16:])
    wanted = {
        "lib/alone.pyc": (lib / "alone.pyc").read_bytes(),
        f"lib/__pycache__/{hashed.name}": hashed.read_bytes(),
    }
    left = _through_a_layer(cache, lib, tmp_path / "out")
    assert wanted.items() <= left.items()
    assert len(left) == 4
    for options in ((), ("-O",)):
        assert "matches" in _imported(tmp_path / "out/lib", "module", *options)
