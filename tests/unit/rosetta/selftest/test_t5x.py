from __future__ import annotations

from pathlib import Path

import rosetta
from rosetta.selftest import load_workload
from rosetta.selftest.t5x import GIN_FILES, T5X
from tests.support import event_files

PACKAGE = Path(rosetta.__file__).parent


def test_the_gin_files_exist() -> None:
    for path in GIN_FILES:
        assert (PACKAGE.parent / path).is_file()
    # Gin finds a file on Python's path only inside a package.
    assert (PACKAGE / "t5x" / "gin" / "__init__.py").is_file()


def test_the_training_command(tmp_path: Path) -> None:
    phase = T5X().make_command(tmp_path, steps=20, devices=4)
    assert phase.argv[1:4] == ["-P", "-m", "t5x.train"]
    assert "--gin.TRAIN_STEPS=20" in phase.argv
    assert f'--gin.MODEL_DIR="{tmp_path}/model"' in phase.argv
    assert f'--gin.DATA="text:{tmp_path}/train.txt"' in phase.argv
    assert "--gin.NUM_PARTITIONS=2" in phase.argv
    assert phase.env["XLA_FLAGS"] == "--xla_force_host_platform_device_count=4"
    assert "--gin.NUM_PARTITIONS=1" in T5X().make_command(tmp_path, steps=20, devices=1).argv


def test_the_training_command_in_fp8(tmp_path: Path) -> None:
    for fp8, dtype, attention in (
        ("off", "float32", "xla"),
        ("xla", "bfloat16", "xla"),
        ("te", "bfloat16", "te"),
    ):
        argv = T5X().make_command(tmp_path, steps=15, devices=1, fp8=fp8).argv
        assert f'--gin.network.T5Config.fp8="{fp8}"' in argv
        assert f'--gin.network.T5Config.attention="{attention}"' in argv
        assert f'--gin.DTYPE="{dtype}"' in argv


def test_losses_and_checkpoints_are_read(tmp_path: Path) -> None:
    tiny = load_workload("t5x")
    assert tiny.read_losses(tmp_path) == {}
    assert tiny.list_checkpoint_steps(tmp_path) == []
    name = "loss_per_nonpadding_target_token"
    record = event_files.encode_summary_event(
        5,
        1.0,
        event_files.encode_simple_value(name, 2.0),
        event_files.encode_simple_value("loss", 1000.0),
    )
    event_files.append_records(tmp_path / "model" / "train" / "events.out.tfevents.1", record)
    for folder in (
        "checkpoint_20/state",
        "checkpoint_0/state",
        "checkpoint_30.orbax-checkpoint-tmp-1/state",
        "checkpoint_40",
    ):
        (tmp_path / "model" / folder).mkdir(parents=True)
    assert tiny.read_losses(tmp_path) == {5: 2.0}
    assert tiny.list_checkpoint_steps(tmp_path) == [0, 20]
