"""What of the locks Transformer Engine is, and `build.py lock` over its own locks: real uv, an index on the loopback address."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from builder.commands import lock
from builder.core import manifest
from builder.core.command_context import Context
from builder.packages import lock_file
from builder.packages.transformer_engine import header_packages, version_pins
from tests.support import errors, te_project
from tests.support.package_archives import publish_wheel

if TYPE_CHECKING:
    from builder.core.cache import Cache
    from builder.core.command_context import Result
    from tests.support.package_index import Index

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[5]


def test_what_it_is_compiled_against(tmp_path: Path, index: Index) -> None:
    te_project.need_compiler()
    te = te_project.make_project(tmp_path / "repo", index)
    found = [
        pin.name
        for pin in version_pins.compile_time_pins(te.manifest(), "l", "cuda13", "3.13", "amd64")
    ]
    assert found == [
        "jaxlib",
        "nvidia-cuda-runtime",
        "nvidia-cudnn-frontend",
        "nvidia-nccl-cu13",
        "nvidia-nvtx",
        "pybind11",
    ]
    (te.root / version_pins.TOOLS).write_text("")
    with errors.expect_user_error(
        errors.MISSING, value="pybind11", names=("3.13", "amd64"), remedy="lock --tools"
    ):
        version_pins.compile_time_pins(te.manifest(), "l", "cuda13", "3.13", "amd64")


@pytest.mark.parametrize(("accelerator", "other"), [("cuda12", "cu13"), ("cuda13", "cu12")])
@pytest.mark.parametrize("architecture", ["amd64", "arm64"])
def test_our_own_locks_fit_the_distributions_and_mix_no_cuda(
    accelerator: str, other: str, architecture: str
) -> None:
    loaded = manifest.load(ROOT / "manifest.yaml")
    te = loaded.transformer_engine
    assert te
    lines = [
        line for line in te.lines if accelerator in version_pins.list_accelerators(loaded, line)
    ]
    assert lines
    for line in lines:
        added = {
            pin.name: pin
            for pin in version_pins.installed_pins(
                loaded, line, accelerator, loaded.lines[line].python, architecture
            )
        }
        assert (
            added["transformer-engine"].version
            == added[version_pins.library_project(accelerator)].version
            == te.version
        )
        assert not [name for name in added if name.endswith(f"-{other}")]
        here = lock_file.marker_environment(
            loaded.lines[line].python, f"{loaded.lines[line].python}.0", architecture
        )
        for name, entry in loaded.distributions.items():
            if entry.line == line and accelerator in entry.accelerators:
                theirs = {
                    pin.name: pin.version
                    for pin in lock_file.read_lock(ROOT / f"locks/{name}-{accelerator}.txt")
                    if pin.applies_to(here)
                }
                assert {
                    name: pin.version
                    for name, pin in added.items()
                    if name in theirs and theirs[name] != pin.version
                } == {}
        against = [
            pin.name
            for pin in version_pins.compile_time_pins(
                loaded, line, accelerator, loaded.lines[line].python, architecture
            )
        ]
        assert not [name for name in against if name.endswith(f"-{other}")]
        assert header_packages.require_package(loaded, loaded.lines[line].python, architecture)


@pytest.fixture
def repo(tmp_path: Path, index: Index) -> Path:
    """A line whose CUDA 13 pins dep 1; Transformer Engine takes dep 1 or 2, and a thing of its own of which there are two."""
    made = tmp_path / "made"
    made.mkdir()
    digest = publish_wheel(index, made, "one", "1.0", "dep<2")
    for name, version, *needs in (
        ("base", "1"),
        ("plugin", "1"),
        ("dep", "1"),
        ("dep", "2"),
        ("own", "1"),
        ("own", "2"),
        ("tool", "1"),
        ("transformer-engine", "5.0"),
        ("transformer-engine-cu13", "5.0", "dep"),
    ):
        publish_wheel(index, made, name, version, *needs)
    root = tmp_path / "repo"
    for name in ("locks/l", "patches"):
        (root / name).mkdir(parents=True)
    (root / "patches/series").touch()
    (root / "locks/l/common.in").write_text("base\n")
    (root / "locks/l/cuda13.in").write_text("plugin\n")
    (root / "locks/l/te-cuda13.in").write_text("own  # it loads that\n")
    (root / "locks/te-build.in").write_text("tool\n")
    (root / "locks/build.in").write_text("tool\n")
    (root / "manifest.yaml").write_text(f"""version: 1
sources:
  one: {{wheel: one==1.0, sha256: "{digest}", patches: patches}}
lines:
  l: {{python: "3.12", pythons: ["3.11", "3.12"], common: locks/l/common.in}}
distributions:
  one: {{line: l, sources: [one], accelerators: [cpu, cuda13], architectures: [amd64, arm64]}}
transformer-engine: {{version: "5.0", sha256: "{"0" * 64}", lines: [l], accelerators: [cuda12, cuda13], why: "a test of locks"}}
""")
    return root


def _run(root: Path, cache: Cache, *args: str, offline: bool = False) -> Result:
    parser = argparse.ArgumentParser()
    lock.add_arguments(parser)
    return lock.run(Context(root, root / "manifest.yaml", cache, offline), parser.parse_args(args))


def _pins(root: Path, name: str) -> list[str]:
    return [pin.text for pin in lock_file.read_lock(root / f"locks/{name}")]


def test_its_lock_fits_that_of_the_line(repo: Path, cache: Cache) -> None:
    assert _run(repo, cache).ok
    assert _pins(repo, "one-cuda13.txt") == ["base==1", "dep==1", "plugin==1"]
    assert _pins(repo, "l/te-cuda13.txt") == [
        "dep==1",
        "own==2",
        "transformer-engine==5.0",
        "transformer-engine-cu13==5.0",
    ]
    assert "transformer-engine" not in (repo / "locks/l/common.txt").read_text()


def test_a_line_has_it_only_for_the_accelerators_of_its_distributions(
    repo: Path, cache: Cache
) -> None:
    _run(repo, cache)
    loaded = manifest.load(repo / "manifest.yaml")
    assert version_pins.list_accelerators(loaded, "l") == ["cuda13"]
    assert not (repo / "locks/l/te-cuda12.txt").exists()
    assert "locks/l/te-cuda12.txt" not in version_pins.list_lock_paths(loaded)
    with errors.expect_user_error(errors.UNSUPPORTED, value="cuda12", where="--accelerator"):
        version_pins.require_entry(loaded, "l", "cuda12")


def test_tools(repo: Path, cache: Cache) -> None:
    _run(repo, cache, "--tools")
    assert _pins(repo, "te-build.txt") == ["tool==1"]


def test_check_sees_what_it_lacks_and_what_is_stale(repo: Path, cache: Cache) -> None:
    _run(repo, cache)
    _run(repo, cache, "--tools")
    assert _run(repo, cache, "--check", offline=True).data["problems"] == []
    (repo / "locks/l/te-cuda13.in").write_text("own<2\n")
    assert [
        problem
        for problem in _run(repo, cache, "--check", offline=True).data["problems"]
        if problem.startswith("locks/l/te-cuda13.txt: stale")
    ]
    _run(repo, cache)
    assert "own==1" in _pins(repo, "l/te-cuda13.txt")
    (repo / "locks/l/te-cuda13.txt").unlink()
    assert (
        "locks/l/te-cuda13.txt: missing"
        in _run(repo, cache, "--check", offline=True).data["problems"]
    )


def test_versions_stay_until_they_are_let_go(
    repo: Path, index: Index, cache: Cache, tmp_path: Path
) -> None:
    _run(repo, cache)
    publish_wheel(index, tmp_path / "made", "own", "3")
    _run(repo, cache)
    assert "own==2" in _pins(repo, "l/te-cuda13.txt")
    _run(repo, cache, "--upgrade", "own")
    assert "own==3" in _pins(repo, "l/te-cuda13.txt")
