from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rosetta.core import system_queries


def test_commands() -> None:
    done = system_queries.run_command(
        [sys.executable, "-c", "print('$(x) y'); import sys; sys.exit(3)"], 60
    )
    assert done == system_queries.CommandResult(3, "$(x) y\n", "")
    assert system_queries.run_command(["a-program-that-is-not-there"], 1) is None
    assert (
        system_queries.run_command([sys.executable, "-c", "import time; time.sleep(60)"], 0.1)
        is None
    )


def test_host_names() -> None:
    assert "127.0.0.1" in system_queries.resolve_host("localhost")
    assert system_queries.resolve_host("a-name.invalid") == []
    assert system_queries.resolve_host("x" * 300) == []


def test_file_systems(tmp_path: Path) -> None:
    found = system_queries.query_free_space(tmp_path)
    assert found is not None
    assert 0 < found.free <= found.total
    assert system_queries.query_free_space(tmp_path / "nowhere") is None
    assert system_queries.query_free_space(Path("/proc")) is None, "it has no size, and is not full"
    assert abs(system_queries.probe_folder(tmp_path)) < 60
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OSError, match="nowhere"):
        system_queries.probe_folder(tmp_path / "nowhere")


def test_packages(tmp_path: Path) -> None:
    for path in (
        "a/jax_cuda13_plugin-0.10.2.dist-info",
        "a/Flax-0.12.dist-info",
        "a/notes",
        "b/flax-0.11.dist-info",
    ):
        (tmp_path / path).mkdir(parents=True)
    places = [str(tmp_path / name) for name in ("a", "b", "nowhere", "a")]
    assert system_queries.find_installed_packages(places) == {
        "jax-cuda13-plugin": ["0.10.2"],
        "flax": ["0.12", "0.11"],
    }


def test_packages_of_this_python() -> None:
    assert system_queries.find_installed_packages()["pytest"][0] == pytest.__version__


def test_libcuda_is_missing_or_reports_its_version() -> None:
    found = system_queries.query_driver_cuda_version()
    assert found is None or found > 11000 or found == 0
