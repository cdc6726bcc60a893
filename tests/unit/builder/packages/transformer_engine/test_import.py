"""The real wheel, imported where there is no driver: against a libcuda of our own that answers every call with "no device"."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

PYTHON = "ROSETTA_TEST_TE"  # the Python of an environment for CUDA that has Transformer Engine
NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE
IMPORT = "import transformer_engine.jax as te, transformer_engine_jax, jax; print(te.flax.DenseGeneral.__name__, transformer_engine_jax.get_cudnn_version(), jax.devices()[0].platform)"


@pytest.fixture
def site() -> Path:
    if not os.environ.get(PYTHON):
        pytest.skip(
            f"NOT CHECKED: {PYTHON} names no Python of an environment with Transformer Engine"
        )
    for program in ("gcc", "nm", "readelf"):
        if not shutil.which(program):
            pytest.skip(f"NOT CHECKED: no {program} is on PATH")
    shown = subprocess.run(
        [os.environ[PYTHON], "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return Path(shown.strip())


def _tool(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def _stub(site: Path, folder: Path) -> set[str]:
    """Make libcuda.so.1 in `folder` with what the libraries below `site` take from it; the names."""
    libraries = [
        path
        for pattern in ("nvidia/*/lib/*.so*", "transformer_engine/wheel_lib/*.so")
        for path in site.glob(pattern)
    ]
    asking = [path for path in libraries if "[libcuda.so.1]" in _tool("readelf", "-d", str(path))]
    names = {
        name
        for path in asking
        for name in re.findall(
            r"(?m) U (cu[A-Z]\w*)(?:@\S+)?$", _tool("nm", "-D", "--undefined-only", str(path))
        )
    }
    (folder / "stub.c").write_text(
        "".join(f"int {name}(void) {{ return {NO_DEVICE}; }}\n" for name in sorted(names))
    )
    _tool(
        "gcc",
        "-shared",
        "-fPIC",
        "-Wl,-soname,libcuda.so.1",
        "-o",
        str(folder / "libcuda.so.1"),
        str(folder / "stub.c"),
    )
    return names


def _run(code: str, *libraries: Path) -> subprocess.CompletedProcess[str]:
    env = {
        "PATH": os.environ["PATH"],
        "JAX_PLATFORMS": "cpu",
        "LD_LIBRARY_PATH": ":".join(map(str, libraries)),
    }
    return subprocess.run(
        [os.environ[PYTHON], "-c", code], capture_output=True, text=True, check=False, env=env
    )


def test_it_imports_with_a_libcuda(site: Path, tmp_path: Path) -> None:
    assert _stub(site, tmp_path)
    done = _run(IMPORT, tmp_path)
    assert not done.returncode, done.stderr
    name, cudnn, platform = done.stdout.split()
    assert (name, platform) == ("DenseGeneral", "cpu")
    assert int(cudnn) >= 91200
    done = _run(
        "import jax; jax.devices(); " + IMPORT, tmp_path
    )  # JAX has loaded libraries of NVIDIA's by then
    assert not done.returncode, done.stderr


@pytest.mark.usefixtures("site")
def test_without_one_it_says_so_and_nothing_else_needs_it() -> None:
    if _run("import ctypes; ctypes.CDLL('libcuda.so.1')").returncode == 0:
        pytest.skip("NOT CHECKED: this machine has a driver")
    done = _run(IMPORT)
    assert done.returncode
    assert "libcuda.so.1: " in done.stderr
    done = _run(
        "import jax, flax, sys; print(jax.numpy.ones(3).sum(), 'transformer_engine' in sys.modules)"
    )
    assert (done.returncode, done.stdout.split()) == (0, ["3.0", "False"]), done.stderr


@pytest.mark.usefixtures("site")
def test_its_versions_and_requirements_agree() -> None:
    code = (
        "from importlib import metadata as m\nfrom packaging.requirements import Requirement\n"
        "for name in ('transformer-engine', 'transformer-engine-jax'):\n print(name, m.version(name))\n"
        " for text in m.requires(name) or []:\n  need = Requirement(text)\n"
        "  if not need.marker or need.marker.evaluate({'extra': ''}): assert need.specifier.contains(m.version(need.name)), text\n"
    )
    done = _run(code)
    assert not done.returncode, done.stderr
    assert len({line.split()[1] for line in done.stdout.splitlines()}) == 1
