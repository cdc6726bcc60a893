from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rosetta.pax.run.compilation_cache import cache_works
from rosetta.selftest import load_workload
from rosetta.selftest.pax import Pax, choose_mesh
from tests.support import event_files

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def jax(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """A jax of the version that the test names, as far as importlib.metadata can see."""
    folder = tmp_path / "site" / f"jax-{request.param}.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: jax\nVersion: {request.param}\n", encoding="utf-8"
    )
    monkeypatch.syspath_prepend(folder.parent)


@pytest.mark.parametrize(
    ("devices", "shape"),
    [(1, [1, 1, 1]), (2, [1, 1, 2]), (3, [1, 3, 1]), (4, [1, 2, 2]), (8, [1, 4, 2])],
)
def test_the_mesh_takes_all_devices(devices: int, shape: list[int]) -> None:
    assert choose_mesh(devices) == shape


@pytest.mark.parametrize(
    ("version", "works"),
    [("0.4.26", False), ("0.4.38", False), ("0.5.0", True), ("0.10.2", True), ("1.0", True)],
)
def test_the_jax_versions_whose_cache_works(version: str, works: bool) -> None:
    assert cache_works(version) is works


@pytest.mark.parametrize("jax", ["0.10.2"], indirect=True)
@pytest.mark.usefixtures("jax")
def test_the_training_command(tmp_path: Path) -> None:
    phase = Pax().make_command(tmp_path, steps=20, devices=4)
    assert phase.argv[1:5] == ["-P", "-m", "paxml.main", "--fdl_config=rosetta.pax.gpt.Tiny"]
    assert f"--job_log_dir={tmp_path}/job" in phase.argv
    assert f"--fdl.DATA='text:{tmp_path}/train.txt'" in phase.argv
    assert "--fdl.MAX_STEPS=20" in phase.argv
    assert "--fdl.ICI_MESH_SHAPE=[1, 2, 2]" in phase.argv
    assert phase.env == {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}


@pytest.mark.parametrize("jax", ["0.10.2"], indirect=True)
@pytest.mark.usefixtures("jax")
def test_the_training_command_in_fp8(tmp_path: Path) -> None:
    """The variables ENABLE_TE and ENABLE_FP8 do not change a training, because flags set both."""
    assert Pax().find_fp8_problem() == ""
    for fp8, with_te, enabled in (("off", False, False), ("xla", False, True), ("te", True, True)):
        argv = Pax().make_command(tmp_path, steps=15, devices=1, fp8=fp8).argv
        assert f"--fdl.ENABLE_TE={with_te}" in argv
        assert f"--fdl.ENABLE_FP8={enabled}" in argv
        assert ("--fdl.FPROP_DTYPE='bfloat16'" in argv) is enabled


@pytest.mark.parametrize("jax", ["0.4.26"], indirect=True)
@pytest.mark.usefixtures("jax")
def test_an_old_jax_has_no_fp8() -> None:
    assert "0.4.26" in Pax().find_fp8_problem()


@pytest.mark.parametrize("jax", ["0.4.26"], indirect=True)
@pytest.mark.usefixtures("jax")
def test_no_cache_if_a_cached_program_crashes(tmp_path: Path) -> None:
    env = Pax().make_command(tmp_path, steps=20, devices=1).env
    assert env["JAX_ENABLE_COMPILATION_CACHE"] == "false"
    assert "--xla_force_host_platform_device_count=1" in env["XLA_FLAGS"].split()


def test_losses_and_checkpoints_are_read(tmp_path: Path) -> None:
    tiny = load_workload("pax")
    assert tiny.framework == "pax"
    assert tiny.read_losses(tmp_path) == {}
    assert tiny.list_checkpoint_steps(tmp_path) == []
    record = event_files.encode_summary_event(
        5,
        1.0,
        event_files.encode_simple_value("loss", 2.0),
        event_files.encode_simple_value("learning/lr", 1000.0),
    )
    event_files.append_records(
        tmp_path / "job" / "summaries" / "train" / "events.out.tfevents.1", record
    )
    for folder in (
        "checkpoint_00000020/state",
        "checkpoint_00000000/state",
        "checkpoint_00000030.orbax-checkpoint-tmp-1/state",
        "checkpoint_00000040/metadata",
    ):
        (tmp_path / "job" / "checkpoints" / folder).mkdir(parents=True)
    assert tiny.read_losses(tmp_path) == {5: 2.0}
    assert tiny.list_checkpoint_steps(tmp_path) == [0, 20]


def test_the_training_text_is_written(tmp_path: Path) -> None:
    Pax().write_data(tmp_path)
    text = (tmp_path / "train.txt").read_bytes()
    assert text.isascii()
    # One epoch outlasts the selftest: 30 steps of 16 rows of 64 tokens.
    assert len(text) > 30 * 16 * 64
