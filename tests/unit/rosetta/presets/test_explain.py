from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rosetta import cli
from rosetta.core import gpu_query, run_description
from rosetta.pax.run import hyper_parameters
from tests.support import errors
from tests.support.resolved_presets import GPUS, write_preset

ROOT = Path(__file__).parents[4]
SECRET = "hunter2-hunter2"  # noqa: S105 (none)


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROSETTA_SITE", "")
    for name in ("XLA_FLAGS", "JAX_PLATFORMS"):
        monkeypatch.delenv(name, raising=False)


def explained(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert cli.main(["explain", *words, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)["result"]
    return found


def there(origin: str) -> str:
    """The line that an origin names."""
    file, _, line = origin.partition(":")
    return (
        (ROOT / (file if file.startswith("rosetta/") else f"rosetta/{file}"))
        .read_text()
        .splitlines()[int(line) - 1]
    )


def test_every_value_has_its_origin_its_reason_and_what_it_overrode(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = explained(capsys, "gpt-126m", "--accelerator", "h100", "PERCORE_BATCH_SIZE=8")
    batch, threshold = (
        found["values"]["batch.per_gpu"],
        found["values"]["xla_flags.xla_gpu_all_reduce_combine_threshold_bytes"],
    )
    assert (batch["value"], batch["origin"]) == (8, "command line")
    assert [each["value"] for each in batch["overrode"]] == [4]
    assert (threshold["value"], [each["value"] for each in threshold["overrode"]]) == (
        33554432,
        [51200],
    )
    assert threshold["why"]
    for each in (batch["overrode"][0], threshold, *threshold["overrode"]):
        assert str(each["value"]) in there(each["origin"])
    assert all(each["origin"] for each in found["values"].values())


def test_gin_bindings_name_file_and_line(capsys: pytest.CaptureFixture[str]) -> None:
    config = explained(capsys, "t5x-large", "--accelerator", "h100", "--nodes", "2", "ENC_SL=256")[
        "config"
    ]
    assert config["network.T5Config.mlp_dim"]["value"] == "2816"
    assert "mlp_dim = 2816" in there(config["network.T5Config.mlp_dim"]["origin"])
    assert config["BATCH_SIZE"]["value"] == "512"
    assert config["BATCH_SIZE"]["origin"].startswith(
        "nodes (command line), gpus_per_node (presets/common.yaml:"
    )
    assert (
        config["network.T5Config.fp8"]["value"],
        config["network.T5Config.attention"]["value"],
    ) == ('"xla"', '"cudnn"')
    assert config["TASK_FEATURE_LENGTHS"] == {
        "value": '{"inputs": 256, "targets": 128}',
        "origin": "settings.ENC_SL (command line)",
    }
    assert sum("rosetta/t5x/gin/" in each["origin"] for each in config.values()) > 50


def test_hyper_parameters_name_file_and_line(capsys: pytest.CaptureFixture[str]) -> None:
    config = explained(capsys, "llama-70b", "USE_LORA=1", "fdl.NUM_LAYERS=2")["config"]
    assert config["NUM_KV_HEADS"] == {
        "value": "8",
        "origin": hyper_parameters.read_stated_values("LLaMA70B")["NUM_KV_HEADS"].place,
    }
    assert "NUM_KV_HEADS = 8" in there(config["NUM_KV_HEADS"]["origin"])
    assert config["NUM_LAYERS"] == {"value": "2", "origin": "fdl.NUM_LAYERS (command line)"}
    assert config["USE_LORA"] == {"value": "True", "origin": "settings.USE_LORA (command line)"}
    assert config["ICI_MESH_SHAPE"]["value"] == "[1,8,1]"


def test_hyper_parameters_of_a_user_experiment_are_not_listed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = explained(capsys, "pax", "CONFIG=mine.Pile5B", "--accelerator", "h100")
    assert {"NUM_LAYERS", "MODEL_DIMS"}.isdisjoint(found["config"])
    assert any("mine.Pile5B" in note for note in found["notes"])


def test_the_run_is_a_valid_run_description(capsys: pytest.CaptureFixture[str]) -> None:
    found = run_description.parse_run(
        explained(capsys, "gpt-5b", "--nodes", "2", "--gpus-per-node", "4")["run"]
    )
    assert (found.nodes, found.gpus_per_node, found.mesh) == (
        2,
        4,
        {"ici": [1, 4, 1], "dcn": [1, 2, 1]},
    )


def test_the_gpu_is_the_detected_one_or_the_sites_and_none_on_the_cpu(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(gpu_query, "detect_gpus", lambda _: [GPUS["h100"]])
    here = explained(capsys, "t5x-small")
    assert (
        here["accelerator"],
        here["values"]["precision"]["value"],
        here["config"]["network.T5Config.attention"]["value"],
    ) == ("h100", "fp8-xla", '"cudnn"')
    for site in ("", write_preset(tmp_path, "accelerator: h100\n", "site.yaml")):
        monkeypatch.setenv("ROSETTA_SITE", site)
        for variable, words in (("cpu", ()), ("", ("JAX_PLATFORMS=cpu",))):
            monkeypatch.setenv("JAX_PLATFORMS", variable)
            found = explained(capsys, "t5x-small", *words)
            assert (
                found["accelerator"],
                found["values"]["precision"]["value"],
                found["config"]["network.T5Config.attention"]["value"],
            ) == (None, "bf16", '"xla"')
            assert "env.CUDA_DEVICE_MAX_CONNECTIONS" not in found["values"]
            assert cli.main(["explain", "t5x-small", *words]) == 0
            assert "t5x, the CPU; starts" in capsys.readouterr().out
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    found = explained(capsys, "t5x-small", "--accelerator", "a100")
    assert (
        found["config"]["network.T5Config.attention"]["value"],
        found["run"]["env"]["JAX_PLATFORMS"],
    ) == ('"cudnn"', ""), "its run is not one on the CPU"
    with errors.expect_reported_error(errors.CONFLICT, where="JAX_PLATFORMS=cpu", value="a100"):
        assert cli.main(["explain", "t5x-small", "JAX_PLATFORMS=cpu", "--accelerator", "a100"]) == 2
    capsys.readouterr()
    assert explained(capsys, "t5x-small", "JAX_PLATFORMS=")["accelerator"] == "h100", (
        "a word that is empty goes over the environment, too"
    )
    monkeypatch.setenv("JAX_PLATFORMS", "")
    monkeypatch.setattr(gpu_query, "detect_gpus", lambda _: [])
    assert explained(capsys, "t5x-small")["accelerator"] == "h100"


def test_no_line_has_a_secret(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", SECRET)
    monkeypatch.setenv("NCCL_DEBUG_FILE", f"/logs/{SECRET}")
    for more in ((), ("--json",)):
        assert (
            cli.main(
                [
                    "explain",
                    "gpt-5b",
                    "HF_TOKEN=t0ken-t0ken",
                    "DATA=http://me:passw0rd@there/x",
                    *more,
                ]
            )
            == 0
        )
        out = capsys.readouterr().out
        assert "WANDB_API_KEY" in out
        assert "NCCL_DEBUG_FILE" in out
        assert not any(each in out for each in (SECRET, "t0ken-t0ken", "passw0rd"))


def test_without_a_preset_all_presets_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    found = explained(capsys)
    assert {"t5x-large", "gpt-5b", "llama-70b"} <= found["presets"].keys()
    assert "deterministic" in found["switches"]
    assert cli.main(["explain"]) == 0
    assert "gpt-5b" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "kind", "facts"),
    [
        (
            ["t5x-larg"],
            errors.UNKNOWN,
            {"where": "preset", "value": "t5x-larg", "remedy": "t5x-large"},
        ),
        (
            ["gpt-5b", "NOPE"],
            errors.INVALID,
            {"where": "explain", "value": "NOPE", "remedy": "NAME=VALUE"},
        ),
        (
            ["gpt-5b", "PERCORE_BATCH=8"],
            errors.UNKNOWN,
            {"where": "command line", "value": "PERCORE_BATCH", "remedy": "PERCORE_BATCH_SIZE"},
        ),
        (
            ["gpt-5b", "PERCORE_BATCH_SIZE=many"],
            errors.INVALID,
            {"where": "PERCORE_BATCH_SIZE", "value": "many", "remedy": "0"},
        ),
        (
            ["gpt-5b", "CONFIG=Pile175B"],
            errors.CONFLICT,
            {
                "where": "CONFIG=Pile175B",
                "value": "Pile175B",
                "names": "gpt-5b",
                "remedy": "gpt-175b",
            },
        ),
        (
            ["t5x-large", "T5_SIZE=small"],
            errors.CONFLICT,
            {
                "where": "T5_SIZE=small",
                "value": "small",
                "names": "t5x-large",
                "remedy": "t5x-small",
            },
        ),
        (
            ["gpt-5b", "mesh.ici=[1,4,1]"],
            errors.CONFLICT,
            {"where": "mesh.ici=[1, 4, 1]", "value": 4, "names": ("8", "GPUs"), "remedy": "8"},
        ),
        (
            ["gpt-5b", "NUM_GPUS=4"],
            errors.CONFLICT,
            {
                "where": "NUM_GPUS=4",
                "value": "4",
                "names": "GPUs",
                "remedy": ("--nodes", "--gpus-per-node"),
            },
        ),
        (
            ["pax"],
            errors.MISSING,
            {"where": "pax", "remedy": "CONFIG="},
        ),
        (
            ["gpt-5b", "--accelerator", "p100"],
            errors.UNKNOWN,
            {"where": "--accelerator", "value": "p100", "remedy": "a100"},
        ),
        (
            ["gpt-5b", "ROSETTA_WITH=fast"],
            errors.UNKNOWN,
            {"where": "command line", "value": "fast"},
        ),
        (
            ["gpt-5b", "precision=fp4"],
            errors.INVALID,
            {"where": "precision", "value": "fp4", "remedy": ("bf16", "fp32", "fp8-xla", "fp8-te")},
        ),
    ],
)
def test_an_error_is_one_line(
    capsys: pytest.CaptureFixture[str], words: list[str], kind: str, facts: dict[str, Any]
) -> None:
    with errors.expect_reported_error(kind, **facts):
        assert cli.main(["explain", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("rosetta: ")
