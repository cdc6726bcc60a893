"""`rosetta plan`: what is refused before anything is set up, and what is compiled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rosetta import cli
from rosetta.commands import plan
from rosetta.plan import t5x_step
from rosetta.plan.t5x_step import CompiledStep
from tests.support import errors
from tests.support.hlo_module import TEXT


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What would be set up and compiled, which is not done."""
    seen: list[Any] = []

    def t5x(files: list[str], bindings: list[str], **cluster: Any) -> CompiledStep:
        seen.append((files, dict(line.split(" = ", 1) for line in bindings), cluster))
        return CompiledStep(TEXT, 1, 1, 0, 1, 1.0, 1)

    monkeypatch.setattr(
        t5x_step, "prepare_t5x_compilation", lambda fp8, size, gpu: seen.append((fp8, size, gpu))
    )
    monkeypatch.setattr(t5x_step, "compile_t5x_step", t5x)
    return seen


@pytest.mark.parametrize(
    ("words", "kind", "facts"),
    [
        (
            ["--gpus", "9"],
            errors.INVALID,
            {"where": "--gpus 9", "value": 9, "names": "8", "remedy": ("8", "--gpus-per-node")},
        ),
        (
            ["--gpus", "0"],
            errors.INVALID,
            {"where": "rosetta plan t5x --gpus", "value": "0"},
        ),
        (
            ["--gpus-per-node", "-1"],
            errors.INVALID,
            {"where": "rosetta plan t5x --gpus-per-node", "value": "-1"},
        ),
        (
            ["--batch-per-gpu", "many"],
            errors.INVALID,
            {"where": "rosetta plan t5x --batch-per-gpu", "value": "many"},
        ),
        (
            ["--inputs", "0"],
            errors.INVALID,
            {"where": "rosetta plan t5x --inputs", "value": "0"},
        ),
        (
            ["--dropout", "1"],
            errors.INVALID,
            {"where": "rosetta plan t5x --dropout", "value": "1"},
        ),
        (
            ["--card", "p100"],
            errors.UNKNOWN,
            {"where": "--card", "value": "p100", "remedy": ("a100", "h100")},
        ),
        (
            ["--size", "huge"],
            errors.UNKNOWN,
            {
                "where": "--family, --size",
                "value": "huge",
                "names": "t5_1_1/huge",
                "remedy": "byt5/base",
            },
        ),
        (
            ["--family", "sizes", "--size", "tiny"],
            errors.UNKNOWN,
            {"where": "--family, --size", "value": "tiny", "names": "sizes/tiny"},
        ),
        (
            ["--tp", "3"],
            errors.INVALID,
            {"where": "--tp 3", "value": 3, "names": ("8", "GPUs"), "remedy": ("1", "2", "4", "8")},
        ),
        (
            ["--size", "small", "--tp", "4"],
            errors.INVALID,
            {"where": "--tp 4", "value": 4, "names": "6", "remedy": ("1", "2")},
        ),
        (
            ["--microbatches", "5"],
            errors.INVALID,
            {"where": "--microbatches 5", "value": 5, "names": ("256", "32", "1", "GPU")},
        ),
        (
            ["--with", "fp8"],
            errors.INVALID,
            {"where": "--with", "value": "fp8", "remedy": ("SWITCH=VALUE", "vocab_size")},
        ),
        (["--with", "fp9=xla"], errors.INVALID, {"where": "--with", "value": "fp9=xla"}),
        (["--with", "fp8=maybe"], errors.INVALID, {"where": "T5Config.fp8", "value": "maybe"}),
        (
            ["--with", "num_heads=many"],
            errors.INVALID,
            {"where": "--with num_heads", "value": "many"},
        ),
        (
            ["--with", "scan_layers=many"],
            errors.INVALID,
            {"where": "--with scan_layers", "value": "many"},
        ),
        (
            ["--with", "attention=te", "--with", "scan_layers=true"],
            errors.CONFLICT,
            {"where": "T5Config.scan_layers"},
        ),
        (["--hlo", "/"], errors.INVALID, {"where": "--hlo /"}),
        (
            ["--hlo", "/proc/nowhere/step.hlo"],
            errors.DENIED,
            {"where": "/proc/nowhere", "value": "/proc"},
        ),
    ],
)
def test_errors_are_one_line_and_come_before_jax_is_set_up(
    words: list[str],
    kind: str,
    facts: dict[str, Any],
    asked: list[Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    with errors.expect_reported_error(kind, **facts):
        assert cli.main(["plan", "t5x", *words]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert asked == []


def test_the_compiled_step_has_the_settings_of_the_command_line(
    asked: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "--size",
        "large",
        "--gpus",
        "16",
        "--tp",
        "2",
        "--batch-per-gpu",
        "4",
        "--fsdp",
        "--microbatches",
        "2",
    ]
    assert (
        cli.main(
            [
                "plan",
                "t5x",
                "--json",
                *words,
                "--with",
                "fp8=xla",
                "remat=minimal",
                "--with",
                "fuse_qkv=on",
                "num_heads=8",
                "loss_chunks=8",
            ]
        )
        == 0
    )
    prepared, (files, bindings, cluster) = asked
    assert prepared == ("xla", "large", "h100")
    assert files == ["rosetta/t5x/gin/t5_1_1/large.gin", "rosetta/t5x/gin/runs/pretrain.gin"]
    assert (
        bindings["BATCH_SIZE"],
        bindings["trainer.Trainer.num_microbatches"],
        bindings["DROPOUT_RATE"],
    ) == ("32", "2", "0.0")
    switches = {
        name.rpartition(".")[2]: value for name, value in bindings.items() if "T5Config" in name
    }
    assert switches == {
        "fp8": '"xla"',
        "remat": '"minimal"',
        "fuse_qkv": "True",
        "num_heads": "8",
        "loss_chunks": "8",
    }
    lengths = {"inputs": 512, "targets": 128}
    assert cluster == {
        "gpu_name": "h100",
        "nodes": 2,
        "per_node": 8,
        "tensor_parallel": 2,
        "batch_size": 32,
        "lengths": lengths,
        "fsdp": True,
    }
    assert json.loads(capsys.readouterr().out)["result"]["gemms"] == {"fp8": 1, "other": 5}


def test_one_node_need_not_be_full(asked: list[Any]) -> None:
    assert cli.main(["plan", "t5x", "--gpus", "3"]) == 0
    assert asked[0] == ("off", "large", "h100")
    assert (asked[1][2]["nodes"], asked[1][2]["per_node"]) == (1, 3)
    assert plan.split_into_nodes(24, 4) == (6, 4)


@pytest.mark.usefixtures("asked")
def test_the_hlo_is_written_completely_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "step.hlo").write_text("before")
    assert cli.main(["plan", "t5x", "--hlo", str(tmp_path / "new" / "step.hlo")]) == 0
    assert [path.read_text() for path in (tmp_path / "new").iterdir()] == [TEXT]

    def full(_: Path, target: Path) -> None:
        raise OSError(28, "No space left on device", str(target))

    monkeypatch.setattr("os.replace", full)
    assert cli.main(["plan", "t5x", "--hlo", str(tmp_path / "step.hlo")]) == 2
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir() if path.is_file()] == [
        ("step.hlo", "before")
    ]
