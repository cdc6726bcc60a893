from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from rosetta.core import xla_flags
from rosetta.presets import flag_check, preset_files, schema
from tests.support import required_modules

CACHED = (
    preset_files._read_shipped_file,
    preset_files.load_common_layer,
    preset_files.load_accelerator_values,
    preset_files.load_named_layers,
    preset_files.load_presets,
)


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the files that are shipped, which are read in their place."""
    folder = tmp_path / "presets"
    shutil.copytree(
        preset_files.PRESET_FOLDER, folder, ignore=shutil.ignore_patterns("__pycache__")
    )
    monkeypatch.setattr(preset_files, "PRESET_FOLDER", folder)
    for each in CACHED:
        each.cache_clear()
    return folder


@pytest.fixture(autouse=True)
def _read_anew() -> None:
    for each in CACHED:
        each.cache_clear()


def change(folder: Path, name: str, old: str, new: str) -> str:
    """Change what stands in a file, once; return its place."""
    text = (folder / name).read_text()
    assert text.count(old) == 1
    (folder / name).write_text(text.replace(old, new))
    return f"presets/{name}:{text[: text.index(old)].count(chr(10)) + 1}"


@pytest.mark.parametrize("framework", schema.FRAMEWORKS)
def test_flags_are_collected_from_every_layer(framework: str) -> None:
    found = flag_check.collect_flags(framework)
    places = {origin.partition(":")[0] for origin in found.values()}
    assert places == {
        f"presets/{name}.yaml"
        for name in ("common", "accelerators", framework, "precisions", "switches")
    }
    assert found["--xla_gpu_enable_latency_hiding_scheduler=true"].startswith(
        "presets/common.yaml:"
    )
    assert "--xla_gpu_enable_command_buffer=FUSION,CUSTOM_CALL" in found


class TestWithJax:
    """With the jaxlib of the environment that it runs in: the locks of a line have one jaxlib for all accelerators, see below."""

    @pytest.fixture(autouse=True)
    def jax(self) -> None:
        required_modules.need_modules("jax")

    @pytest.mark.parametrize("framework", schema.FRAMEWORKS)
    def test_xla_accepts_every_flag_of_every_preset(self, framework: str) -> None:
        assert len(flag_check.collect_flags(framework)) > 15
        assert flag_check.find_refused_flags(framework) == []

    @pytest.mark.parametrize(
        ("name", "old", "new", "complaint"),
        [
            (
                "common.yaml",
                "xla_gpu_enable_latency_hiding_scheduler:",
                "xla_gpu_enable_latency_hidding_scheduler:",
                "XLA has no flag --xla_gpu_enable_latency_hidding_scheduler=true",
            ),
            (
                "pax.yaml",
                "xla_gpu_enable_triton_gemm: {value: false",
                "xla_gpu_enable_persistent_temp_buffers: {value: false",
                "XLA has no flag --xla_gpu_enable_persistent_temp_buffers=false",
            ),
            (
                "pax.yaml",
                "value: 33554432",
                "value: 32MB",
                "'32MB' is not a valid value for xla_gpu_all_reduce_combine_threshold_bytes",
            ),
            (
                "precisions.yaml",
                "xla_gpu_enable_pipelined_all_gather: {value: false",
                "xla_gpu_enable_pipelined_all_gather: {value: maybe",
                "'maybe' is not a valid value for xla_gpu_enable_pipelined_all_gather",
            ),
            (
                "switches.yaml",
                "xla_gpu_deterministic_ops: {value: true",
                "xla_gpu_deterministic_ops: {value: some",
                "'some' is not a valid value for xla_gpu_deterministic_ops",
            ),
        ],
        ids=("misspelt", "removed", "number", "boolean", "switch"),
    )
    def test_a_refused_flag_is_named_with_its_place(
        self, shipped: Path, name: str, old: str, new: str, complaint: str
    ) -> None:
        place = change(shipped, name, old, new)
        assert flag_check.find_refused_flags("pax") == [f"{place}: {complaint}"]

    def test_all_refused_flags_are_named(self, shipped: Path) -> None:
        places = {
            change(
                shipped,
                "common.yaml",
                "xla_gpu_enable_latency_hiding_scheduler:",
                "xla_gpu_no_such:",
            ),
            change(
                shipped,
                "switches.yaml",
                "xla_gpu_deterministic_ops: {value: true",
                "xla_gpu_deterministic_ops: {value: some",
            ),
        }
        assert {line.partition(": ")[0] for line in flag_check.find_refused_flags("t5x")} == places

    def test_an_unknown_list_item_or_mode_is_refused(self, shipped: Path) -> None:
        places = [change(shipped, "accelerators.yaml", '"FUSION,CUSTOM_CALL"', '"FUSION,CUSTOM"')]
        mode = change(
            shipped, "switches.yaml", "value: AUTOTUNE_CACHE_MODE_UPDATE", "value: UPDATE"
        )
        if xla_flags.parse_version(xla_flags.find_jaxlib_version() or "0") >= (
            0,
            4,
            35,
        ):  # older ones have no such flag, and it is left out
            places.append(mode)
        assert [line.partition(": ")[0] for line in flag_check.find_refused_flags("t5x")] == places


def test_an_interpreter_without_jax_is_an_error(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(
        f"#!/bin/sh\nexec {sys.executable} -S -c 'raise SystemExit(\"no module named jax\")'\n"
    )
    python.chmod(0o755)
    with pytest.raises(LookupError, match="jax"):
        flag_check.find_refused_flags("t5x", str(python))


def test_one_jaxlib_for_every_accelerator_of_a_line() -> None:
    """What is parsed on the CPU is parsed by the jaxlib of cuda12 and cuda13, too."""
    locks = Path(__file__).parents[4] / "locks"
    if not locks.is_dir():
        pytest.skip("NOT CHECKED: the locks are in the checkout")
    for line in ("current", "next", "pax-1.4"):
        versions = {
            row.split()[0]
            for file in (locks / line).glob("common*.txt")
            for row in file.read_text().splitlines()
            if row.startswith("jaxlib==")
        }
        assert len(versions) == 1
    for distribution in ("t5x", "pax", "t5x-next", "pax-next"):
        found = {
            row.split()[0]
            for file in locks.glob(f"{distribution}-c*.txt")
            if not file.name.startswith("pax-1.4")
            for row in file.read_text().splitlines()
            if row.startswith("jaxlib==")
        }
        assert len(found) == 1, f"{distribution}: {found}"
