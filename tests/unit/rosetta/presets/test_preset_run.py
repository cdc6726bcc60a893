from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rosetta.core import run_description
from rosetta.pax.run import settings as pax_settings
from rosetta.presets import preset_files, preset_run, t5x_model_options, user_settings
from rosetta.t5x.run import settings as t5x_settings
from tests.support import errors, resolved_presets
from tests.support.resolved_presets import GPUS, NO_SITE, write_preset


def described(
    name: str,
    accelerator: str | None = "h100",
    environment: dict[str, str] | None = None,
    nodes: int | None = None,
    gpus_per_node: int | None = None,
    site: preset_files.Layer = NO_SITE,
    **settings: str,
) -> run_description.Run:
    return preset_run.describe_run(
        name,
        accelerator=accelerator,
        settings=settings,
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        environment=environment or {},
        site=site,
    )


@pytest.mark.parametrize(
    ("preset", "name", "text"),
    [
        ("t5x-small", "BSIZE_PER_GPU", "0x10"),
        ("t5x-small", "batch.per_gpu", "1_0"),
        ("t5x-small", "NUM_MICROBATCHES", "1.5"),
        ("t5x-small", "batch.microbatches", "٣"),
        ("synthetic-126m", "PERCORE_BATCH_SIZE", "0x10"),
        ("synthetic-126m", "ICI_MESH_SHAPE", "[0x8,1,1]"),
    ],
)
def test_numbers_are_those_that_the_scripts_accept(preset: str, name: str, text: str) -> None:
    with errors.expect_user_error(errors.INVALID, where=name, value=text):
        preset_run.describe_run(
            preset, accelerator=None, settings={name: text}, environment={}, site=NO_SITE
        )


@pytest.mark.parametrize("name", resolved_presets.MODELS)
@pytest.mark.parametrize("accelerator", [None, *resolved_presets.DISTINCT_GPUS])
def test_the_scripts_accept_the_described_run(name: str, accelerator: str | None) -> None:
    found = described(name, accelerator)
    assert run_description.parse_run(json.loads(json.dumps(found.as_json()))) == found
    environment = {
        **found.env,
        "SLURM_NTASKS": str(found.processes),
        "SLURM_JOB_NUM_NODES": str(found.nodes),
    }
    if found.framework == "t5x":
        read = t5x_settings.read_script_settings(
            "multiprocess_pretrain_pile", [], environment, found.gpus_per_node
        )
        assert (read.size, read.gpus, read.batch_per_gpu) == (
            found.model,
            found.processes,
            found.batch["per_gpu"],
        )
        if accelerator:
            chosen = t5x_model_options.choose_model_options(
                environment, [GPUS[accelerator]], on_cpu=False
            )
            assert t5x_model_options.PRESET_PRECISIONS[chosen.fp8] == found.precision
    else:
        script = {"train": "run_base_config_multinode", "boolq": "run_llama_boolq"}[found.entry[2]]
        pax = pax_settings.read_settings(script, [], environment, found.gpus_per_node)
        assert (pax.config, pax.nodes, pax.gpus, pax.processes) == (
            found.model,
            found.nodes,
            found.nodes * found.gpus_per_node,
            found.processes,
        )


def test_the_published_topologies() -> None:
    expected = {
        ("t5x-small", "a100"): (1, 256),
        ("t5x-large", "a100"): (8, 32),
        ("t5x-large", "h100"): (8, 32),
        ("t5x-xl", "a100"): (32, 8),
        ("t5x-xl", "h100"): (18, 14),
        ("t5x-xxl", "a100"): (64, 36),
        ("gpt-126m", "h100"): (8, 4),
        ("gpt-5b", "h100"): (32, 8),
        ("gpt-175b", "a100"): (32, 6),
        ("glam-126m-64e", "h100"): (8, 8),
        ("glam-64b-64e", "h100"): (64, 4),
        ("llama-7b", "h100"): (2, 2),
    }
    assert {
        key: (found.nodes, found.batch["per_gpu"]) for key in expected if (found := described(*key))
    } == expected


def test_a_mesh_grows_with_its_nodes() -> None:
    found = described("gpt-5b", nodes=16, gpus_per_node=4)
    assert found.mesh == {"ici": [1, 4, 1], "dcn": [1, 16, 1]}
    assert (found.env["ICI_MESH_SHAPE"], found.env["DCN_MESH_SHAPE"], found.env["NUM_GPUS"]) == (
        "[1,4,1]",
        "[1,16,1]",
        "4",
    )
    assert described("t5x-large", nodes=2).env["NUM_GPUS"] == "16", "T5X counts those of the run"


@pytest.mark.parametrize(
    ("name", "settings", "precision", "env"),
    [
        ("gpt-5b", {}, "bf16", {"PREC": "bfloat16", "ENABLE_FP8": "0"}),
        (
            "gpt-5b",
            {"precision": "fp8-xla"},
            "fp8-xla",
            {"PREC": "bfloat16", "ENABLE_FP8": "1", "ENABLE_TE": "0"},
        ),
        ("gpt-5b", {"precision": "fp8-te"}, "fp8-te", {"ENABLE_FP8": "1", "ENABLE_TE": "1"}),
        ("gpt-5b", {"ENABLE_FP8": "1"}, "fp8-te", {"ENABLE_FP8": "1"}),
        (
            "gpt-5b",
            {"ENABLE_FP8": "1", "ENABLE_TE": "0"},
            "fp8-xla",
            {"ENABLE_FP8": "1", "ENABLE_TE": "0"},
        ),
        ("gpt-5b", {"PREC": "float32"}, "fp32", {"PREC": "float32"}),
        ("t5x-large", {}, "fp8-xla", {"PREC": "bfloat16", "ENABLE_FP8": "1", "ENABLE_TE": "0"}),
        ("t5x-large", {"ENABLE_FP8": "0"}, "bf16", {"PREC": "bfloat16", "ENABLE_FP8": "0"}),
        (
            "t5x-large",
            {"ENABLE_FP8": "1", "ENABLE_TE": "1"},
            "fp8-te",
            {"ENABLE_FP8": "1", "ENABLE_TE": "1"},
        ),
    ],
)
def test_precision_and_the_variables_of_the_scripts_agree(
    name: str, settings: dict[str, Any], precision: str, env: dict[str, str]
) -> None:
    found = described(name, **settings)
    assert found.precision == precision
    assert {key: found.env.get(key) for key in env} == env
    assert ("ENABLE_TE" in found.env) == (
        "ENABLE_TE" in env or (precision == "fp8-te" and "ENABLE_FP8" not in settings)
    )
    assert found.xla_flags.get("xla_gpu_enable_pipelined_all_gather", True) is (
        precision != "fp8-xla"
    )


def test_the_command_line_overrides_the_environment() -> None:
    environment = {
        "PERCORE_BATCH_SIZE": "16",
        "NCCL_DEBUG": "INFO",
        "MY_OWN": "x",
        "WANDB_API_KEY": "k",
        "CUDA_VISIBLE_DEVICES": "0",
        "DATA": "",
        "XLA_FLAGS": "--xla_gpu_autotune_level=1",
    }
    found = described("gpt-5b", environment=environment, PERCORE_BATCH_SIZE="4")
    assert (found.batch["per_gpu"], found.origin["batch.per_gpu"]) == (4, "command line")
    assert found.env["NCCL_DEBUG"] == "INFO"
    assert found.env["WANDB_API_KEY"] == "k"
    assert not {"MY_OWN", "CUDA_VISIBLE_DEVICES", "DATA"} & found.env.keys()
    assert (
        found.xla_flags["xla_gpu_autotune_level"],
        found.origin["xla_flags.xla_gpu_autotune_level"],
    ) == ("1", "XLA_FLAGS")
    assert found.env[user_settings.PRESET_VARIABLE] == user_settings.ALREADY_APPLIED


def test_a_task_is_finetuned_and_synthetic_data_are_trained_on() -> None:
    assert described("t5x-large", FT_TASK="mnli2").entry == ("rosetta", "t5x", "finetune")
    assert described("llama-7b").entry == ("rosetta", "pax", "boolq")
    assert described("llama-7b", CONFIG="SyntheticLLaMA7B").entry == ("rosetta", "pax", "train")
    assert described("gpt-126m", CONFIG="Lambada126M").entry == ("rosetta", "pax", "lambada")


def test_hostile_values_arrive_as_they_are() -> None:
    hostile = "$(touch x) `y` 'q' \"d\" -- \n é"
    found = described(
        "gpt-5b", environment={"LOG_DIR": hostile}, DATA=hostile, NCCL_DEBUG_FILE=hostile
    )
    assert (found.env["LOG_DIR"], found.env["DATA"], found.env["NCCL_DEBUG_FILE"]) == (hostile,) * 3


def test_the_sites_card_mounts_and_settings(tmp_path: Path) -> None:
    text = "accelerator: b200\ngpus_per_node: 4\nmounts: [[/data, /opt/data]]\nenv: {NCCL_SOCKET_IFNAME: ib0}\naccelerators:\n  b200:\n    env: {NCCL_DEBUG: WARN}\n"
    site = preset_files.load_site_layer({"ROSETTA_SITE": write_preset(tmp_path, text)})
    found = described("gpt-5b", accelerator=None, site=site)
    assert (
        found.gpus_per_node,
        found.mounts,
        found.env["NCCL_SOCKET_IFNAME"],
        found.env["NCCL_DEBUG"],
    ) == (4, (("/data", "/opt/data"),), "ib0", "WARN")
    assert "CUDA_DEVICE_MAX_CONNECTIONS" not in found.env
    assert described("gpt-5b", accelerator="h100", site=site).env.get("NCCL_DEBUG") is None


def test_a_preset_file_of_the_user(tmp_path: Path) -> None:
    mine = write_preset(
        tmp_path,
        "about: tuned here\nextends: gpt-5b\nbatch: {per_gpu: 10}\nswitches: [double-buffering]\nfdl: {MAX_STEPS: 500}\n",
    )
    found = described(mine)
    assert (found.batch["per_gpu"], found.origin["batch.per_gpu"]) == (10, f"{mine}:3")
    assert found.xla_flags["xla_gpu_enable_while_loop_double_buffering"] is True
    assert found.env["ROSETTA_FDL"] == "--fdl.MAX_STEPS=500"


def test_an_invalid_setting_is_reported_at_its_place_in_the_file(tmp_path: Path) -> None:
    """A job would fail with it hours later."""
    with errors.expect_user_error(errors.INVALID, where="FSDP", value="maybe"):
        described("t5x-small", FSDP="maybe")
    with errors.expect_user_error(errors.INVALID, where="TRAIN_STEPS", value="1e3"):
        described("t5x-small", environment={"TRAIN_STEPS": "1e3"})
    mine = write_preset(tmp_path, 'extends: t5x-small\nsettings:\n  FSDP: "maybe"\n')
    with errors.expect_user_error(errors.INVALID, where=("mine.yaml:3", "FSDP"), value="maybe"):
        described(mine)
    assert described(mine, FSDP="on").env["FSDP"] == "on"


def test_a_user_experiment_may_have_another_schedule(tmp_path: Path) -> None:
    text = "extends: pax\nconfigs: [mine.Big]\nsettings: {CONFIG: mine.Big, LR_SCHEDULE: cyclic}\n"
    assert described(write_preset(tmp_path, text)).env["LR_SCHEDULE"] == "cyclic"
    with errors.expect_user_error(errors.INVALID, where="LR_SCHEDULE", value="cyclic"):
        described("gpt-5b", LR_SCHEDULE="cyclic")


def test_thresholds_of_layers(tmp_path: Path) -> None:
    found = described("gpt-5b", combine="layers", nodes=1)
    layer = 4 * 4096 * 4096 + 2 * 4096 * 16384
    names = [
        f"xla_gpu_{each}_combine_threshold_bytes"
        for each in ("all_reduce", "all_gather", "reduce_scatter")
    ]
    assert [found.xla_flags[name] for name in names] == [4 * layer, 2 * layer, 4 * layer // 8]
    assert found.origin[f"xla_flags.{names[0]}"] == "command line"
    mine = write_preset(
        tmp_path, f"extends: gpt-5b\ncombine: layers\nxla_flags: {{{names[0]}: 7}}\n"
    )
    assert described(mine).xla_flags[names[0]] == 7, "what a user's file says stands"
    assert described(mine).origin[f"xla_flags.{names[1]}"] == f"{mine}:2"


def test_base_flags_replace_the_presets_flags() -> None:
    found = described(
        "gpt-5b",
        environment={
            "BASE_XLA_FLAGS": "--xla_gpu_autotune_level=2",
            "XLA_FLAGS": "--xla_dump_to='/a b'",
        },
    )
    assert found.xla_flags == {"xla_gpu_autotune_level": "2", "xla_dump_to": "/a b"}
    assert described("gpt-5b", BASE_XLA_FLAGS="--xla_gpu_autotune_level=2").xla_flags == {
        "xla_gpu_autotune_level": "2"
    }


def test_a_preset_without_a_model_is_refused() -> None:
    with errors.expect_user_error(errors.MISSING, where="t5x", remedy="T5_SIZE="):
        described("t5x")
    with errors.expect_user_error(errors.CONFLICT, where="mesh.dcn=[1, 2, 1]", value=2, names="32"):
        described("gpt-5b", DCN_MESH_SHAPE="[1,2,1]")
