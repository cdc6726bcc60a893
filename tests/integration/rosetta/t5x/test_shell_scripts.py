"""The scripts themselves, started by bash; see tests/support/t5x_scripts.py."""

from __future__ import annotations

import os
import stat
import subprocess
import sys

import pytest

from rosetta.core.variables import lookup
from tests.support.run_in_process import OUTPUT
from tests.support.t5x_scripts import (
    FINETUNE,
    OVERLAY,
    RECORDER,
    SCRIPTS,
    SLURM,
    SMALL,
    Place,
    make_checkpoint_folder,
    place_,
    read_gin_bindings,
)

pytestmark = pytest.mark.shell

__all__ = ["place_"]  # a fixture
PRETRAIN = ("small", "bfloat16", "8", "256", "logs")
JOB = {"SLURM_JOB_NUM_NODES": "8", "SLURM_JOB_ID": "42", "CONTAINER": "image"}


def test_singlenode_pretraining(place: Place) -> None:
    ran = place.run_shell(
        "singlenode_pretrain_pile.sh", *PRETRAIN, XLA_FLAGS="--xla_gpu_autotune_level=3"
    )
    assert ran.rc == 0, ran.err
    assert ran.argv[:5] == ["-u", "-P", "-m", "rosetta.t5x.train", "train"]
    assert (
        f"--gin_file={place.tree}/t5x/contrib/gpu/t5/t5_1_1/examples/small_pile_pretrain.gin"
        in ran.argv
    )
    assert f"--tfds_data_dir={place.work}/data" in ran.argv
    assert read_gin_bindings(ran) == {
        "MODEL_DIR": f'"{place.work}/model_dir"',
        "DATA": f'"text:{place.work}/corpus.txt"',
        "VOCAB": '"byte"',
        "BATCH_SIZE": "2048",
        "EVAL_BATCH_SIZE": "2048",
        "NUM_PARTITIONS": "1",
        "PACK": "False",
        "trainer.Trainer.num_microbatches": "1",
        "partitioning.PjitPartitioner.fsdp": "False",
        "network.T5Config.dtype": '"bfloat16"',
        "network.T5Config.fp8": '"off"',
        "network.T5Config.fuse_qkv": "True",
        "network.T5Config.fuse_mlp": "True",
        "network.T5Config.transpose_batch_sequence": "True",
        "network.T5Config.attention": '"xla"',
        "network.T5Config.remat": '"none"',
        "network.T5Config.scan_layers": "False",
    }
    # What the caller gives comes last, where it wins.
    assert (
        ran.env["XLA_FLAGS"]
        == "--xla_gpu_enable_latency_hiding_scheduler=true --xla_gpu_all_reduce_combine_threshold_bytes=136314880 --xla_gpu_autotune_level=3 --xla_force_host_platform_device_count=8"
    )
    assert ran.env["JAX_COMPILATION_CACHE_DIR"] == f"{place.work}/.rosetta/compiled"
    assert ran.env["PYTHONPATH"].split(os.pathsep)[0] == str(place.tree)
    assert ran.env["TFDS_DATA_DIR"] == str(place.work / "data")
    assert ran.said == [
        f"rosetta: global batch 2048 on 8 device(s), 1-way tensor parallel, 1 microbatch(es); checkpoints in {place.work}/model_dir, log in logs/small_gpu_8_bfloat16_gbs_2048.log",
        "rosetta: FP8 is off: the CPU would emulate it, which is slow (ENABLE_FP8=1 turns it on)",
        "rosetta: the CPU stands in for 8 devices",
    ]
    log = (place.work / "logs" / "small_gpu_8_bfloat16_gbs_2048.log").read_text()
    assert "the trainer's words" in log


def test_what_is_written_has_to_arrive(place: Place) -> None:
    script = place.tree / SCRIPTS / "singlenode_pretrain_pile.sh"
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            ["bash", script, "--dry-run", *SMALL],
            cwd=place.work,
            env=place.env(),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (
        2,
        "singlenode_pretrain_pile.sh: stdout: No space left on device; write the output where there is space, and read it to its end\n",
    )


def test_a_log_is_gone_on_with_and_the_trainers_status_is_ours(place: Place) -> None:
    assert place.run_shell("singlenode_pretrain_pile.sh", *SMALL, RC="7").rc == 7
    assert place.run_shell("singlenode_pretrain_pile.sh", *SMALL, RC="0").rc == 0
    log = (place.work / "logs" / "small_gpu_1_float32_gbs_8.log").read_text()
    assert log.count("the trainer's words") == 2


def test_all_positionals(place: Place) -> None:
    words = (*PRETRAIN, "/m/dir", "4", "1", "0", "0", "1")
    ran = place.run_shell("singlenode_pretrain_pile.sh", *words)
    found = read_gin_bindings(ran)
    assert found["MODEL_DIR"] == '"/m/dir"'
    assert found["trainer.Trainer.num_microbatches"] == "4"
    assert (
        found["network.T5Config.fp8"],
        found["network.T5Config.transpose_batch_sequence"],
        found["network.T5Config.fuse_qkv"],
        found["PACK"],
    ) == ('"xla"', "False", "False", "True")
    assert "--xla_gpu_enable_triton_gemm=false" in ran.env["XLA_FLAGS"]


def test_the_shell_passes_words_as_they_are(place: Place) -> None:
    folder = 'a "b"  $(touch pwned); \\c\' *'
    ran = place.run_shell("singlenode_pretrain_pile.sh", "", *SMALL[1:], folder, "")
    assert ran.rc == 0, ran.err
    assert any(word.endswith("large_pile_pretrain.gin") for word in ran.argv)
    escaped = folder.replace("\\", "\\\\").replace('"', '\\"')
    assert read_gin_bindings(ran)["MODEL_DIR"] == f'"{place.work}/{escaped}"'
    assert not (place.work / "pwned").exists()


def test_finetuning_on_one_node(place: Place) -> None:
    make_checkpoint_folder(place, "1000000")
    data = f"jsonl:{place.work}/mnli.jsonl"
    ran = place.run_shell("singlenode_ft_frompile.sh", *FINETUNE, DATA=data, EVAL_DATA=data)
    assert ran.rc == 0, ran.err
    assert any(word.endswith("large_mnli2_finetune_adam.gin") for word in ran.argv)
    assert read_gin_bindings(ran)["MODEL_DIR"] == f'"{place.work}/ft_mnli2_pre"'


def test_the_shell_becomes_the_trainer(place: Place) -> None:
    place.program("recorder", RECORDER.replace(repr(OUTPUT), "os.getpid()"))
    argv = ["bash", str(place.script("multiprocess_pretrain_pile.sh"))]
    env = place.env(LOGDIR="-")
    with subprocess.Popen(argv, cwd=place.work, env=env, stdout=subprocess.PIPE) as shell:
        assert shell.stdout is not None
        assert int(shell.stdout.read()) == shell.pid


def test_without_python_the_shell_fails(place: Place) -> None:
    ran = place.run_shell("multiprocess_ft_frompile.sh", PYTHON="/nowhere/python")
    assert (ran.rc, ran.programs, ran.out) == (127, (), "")
    assert "/nowhere/python" in ran.err


def test_one_process_of_many(place: Place) -> None:
    settings = {
        "BSIZE_PER_GPU": "36",
        "T5_SIZE": "xxl",
        "TP_SIZE": "8",
        "NUM_MICROBATCHES": "2",
        "TRAIN_STEPS": "1000",
        "ENC_SL": "256",
        "FSDP": "1",
        "SCAN_LAYERS": "1",
        "REMAT": "minimal",
        "ATTENTION": "xla",
        "PACK": "1",
        "GRADIENT_DTYPE": "bfloat16",
    }
    ran = place.run_shell("multiprocess_pretrain_pile.sh", MODEL_DIR="m", **settings, **SLURM)
    assert ran.rc == 0, ran.err
    found = read_gin_bindings(ran)
    assert found["BATCH_SIZE"] == "288"
    assert found["NUM_PARTITIONS"] == "8"
    assert found["trainer.Trainer.num_microbatches"] == "2"
    assert found["trainer.Trainer.gradient_dtype"] == '"bfloat16"'
    assert found["TRAIN_STEPS"] == "1000"
    assert found["TASK_FEATURE_LENGTHS"] == '{"inputs": 256, "targets": 128}'
    assert found["MODEL_DIR"] == f'"{place.work}/m"'
    assert found["partitioning.PjitPartitioner.fsdp"] == "True"
    assert found["network.T5Config.scan_layers"] == "True"
    assert found["network.T5Config.remat"] == '"minimal"'
    assert found["PACK"] == "True"
    assert "--multiprocess_gpu" in ran.argv
    assert "JAX_COMPILATION_CACHE_DIR" not in ran.env, "all of them compile, or none"
    # JAX reads Slurm's variables itself; an address of ours was what sent people to the wrong host.
    assert not any("coordinator" in word for word in ran.argv)
    assert "on 64 device(s) in 64 processes, 8-way tensor parallel, 2 microbatch(es)" in ran.said[0]


def test_multiprocess_finetuning(place: Place) -> None:
    make_checkpoint_folder(place, "1000000")
    ran = place.run_shell(
        "multiprocess_ft_frompile.sh",
        FT_TASK="squad1",
        T5_SIZE="xl",
        MODEL_DIR="pre",
        DEC_SL="32",
        DATA="synthetic",
        **SLURM,
    )
    assert ran.rc == 0, ran.err
    assert read_gin_bindings(ran)["TASK_FEATURE_LENGTHS"] == '{"inputs": 956, "targets": 32}'
    assert any(word.endswith("xl_squad1_finetune_adam.gin") for word in ran.argv)


@pytest.mark.parametrize("kind", ["pretrain_pile", "ft_frompile"])
def test_slurm_job(place: Place, kind: str) -> None:
    settings = {
        "SLURM_JOB_NUM_NODES": "8",
        "SLURM_JOB_ID": "42",
        "CONTAINER": "ghcr.io/o/t5x:latest",
        "BASE_TFDS_DATA_DIR": "/d",
    }
    ran = place.run_shell(
        f"example_slurm_{kind}.sub", "4", **settings, BASE_CHECKPOINTS_DIR="/c", T5_SIZE="large"
    )
    assert ran.rc == 0, ran.err
    assert "--ntasks=32" in ran.argv
    assert "--ntasks-per-node=4" in ran.argv
    assert "--container-image=ghcr.io#o/t5x:latest" in ran.argv
    mounts = (
        f"{place.work}/workspace:/t5x_home/workspace,/d:/t5x_home/datasets,/c:/t5x_home/checkpoints"
    )
    assert f"--container-mounts={mounts}" in ran.argv
    outputs = lookup.find_variable("BASE_T5X_OUTPUTS_DIR").default.replace(
        "BASE_T5X_WORKSPACE_DIR", f"{place.work}/workspace"
    )
    assert f"--output={outputs}/job-42/output-%j-%t.txt" in ran.argv
    assert ran.argv[-2:] == ["bash", f"multiprocess_{kind}.sh"], "which a container has on PATH"
    assert (
        ran.env["NUM_GPUS"],
        ran.env["T5_SIZE"],
        ran.env["T5X_WORKSPACE_DIR"],
        ran.env["TFDS_DATA_DIR"],
    ) == ("32", "large", "/t5x_home/workspace", "/t5x_home/datasets")


@pytest.mark.parametrize(
    ("settings", "words", "complaint"),
    [
        ({"SLURM_JOB_NUM_NODES": ""}, [], "this is not a Slurm job; submit it: sbatch -N NODES "),
        (
            {"CONTAINER": ""},
            [],
            "CONTAINER is not set, and multiprocess_pretrain_pile.sh is not on PATH; set CONTAINER",
        ),
        (
            {"BASE_TFDS_DATA_DIR": "/a:b"},
            [],
            "pyxis cannot mount /a:b, whose name has a comma or a colon; name it by a link",
        ),
        (
            {"DATASET_MAP": "/d"},
            [],
            "slurm: DATASET_MAP: '/d' is not a valid mount; give two absolute paths, as in DATASET_MAP=",
        ),
        (
            {"BASE_TFDS_DATA_DIR": "", "TFDS_DATA_DIR": ""},
            [],
            "none of BASE_TFDS_DATA_DIR, DATASET_MAP and DATA is set; set BASE_TFDS_DATA_DIR to the folder of the data sets",
        ),
        (
            {"BASE_TFDS_DATA_DIR": "", "TFDS_DATA_DIR": "", "BENCHMARK_MODE": "0"},
            [],
            "none of BASE_TFDS_DATA_DIR, DATASET_MAP and DATA is set",
        ),
        (
            {},
            ["eight"],
            "GPUS_PER_NODE: 'eight' is not a valid number; give a whole number from 1 to 99",
        ),
    ],
)
def test_slurm_job_lacks_something(
    place: Place, settings: dict[str, str], words: list[str], complaint: str
) -> None:
    ran = place.run_shell(
        "example_slurm_pretrain_pile.sub",
        *words,
        **{**JOB, "BASE_TFDS_DATA_DIR": "/d", "DATA": "", **settings},
    )
    assert (ran.rc, ran.argv, ran.out) == (2, [], "")
    (line,) = ran.err.splitlines()
    assert complaint in line
    assert not (place.work / "workspace").exists()


@pytest.mark.parametrize(
    "settings", [{"DATA": "hf:allenai/c4/en"}, {"BENCHMARK_MODE": "1"}, {"BENCHMARK_MODE": "True"}]
)
def test_slurm_job_without_prepared_data_sets(place: Place, settings: dict[str, str]) -> None:
    ran = place.run_shell("example_slurm_pretrain_pile.sub", **{**JOB, "DATA": "", **settings})
    assert ran.rc == 0, ran.err
    assert f"--container-mounts={place.work}/workspace:/t5x_home/workspace" in ran.argv
    assert "--ntasks-per-node=8" in ran.argv


def test_srun_failing_fails_the_job(place: Place) -> None:
    settings = {
        "SLURM_JOB_NUM_NODES": "1",
        "SLURM_JOB_ID": "42",
        "CONTAINER": "image",
        "DATASET_MAP": "/d:/e",
    }
    ran = place.run_shell("example_slurm_pretrain_pile.sub", **settings, RC="9")
    assert ran.rc == 9
    ran = place.run_shell("example_slurm_pretrain_pile.sub", **settings)
    assert any(
        word.startswith("--container-mounts=") and word.endswith(",/d:/e") for word in ran.argv
    )
    assert ran.env["TFDS_DATA_DIR"] == "/e"


def test_the_pile_is_gone(place: Place) -> None:
    script = place.tree / SCRIPTS / "download_the_pile.py"
    ran = place.start(sys.executable, str(script))
    assert ran.rc == 2
    assert "offline since October 2023" in ran.err
    assert "Traceback" not in ran.err
    (place.work / "data" / "the_pile" / "1.0.0").mkdir(parents=True)
    ran = place.start(sys.executable, str(script))
    assert ran.rc == 2
    assert "dataset_info.json is missing" in ran.err
    assert (
        subprocess.run(
            [
                sys.executable,
                "-c",
                "import sys; sys.path.insert(0, sys.argv[1]); import download_the_pile",
                str(script.parent),
            ],
            check=True,
            capture_output=True,
        ).stderr
        == b""
    )


def test_replaces_lists_every_file_and_modes_are_right() -> None:
    listed = dict(line.split() for line in (OVERLAY / "REPLACES").read_text().splitlines())
    files = {
        str(path.relative_to(OVERLAY))
        for path in (OVERLAY / "t5x").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert set(listed) == files
    assert list(listed) == sorted(listed)
    for name in files:
        executable = bool((OVERLAY / name).stat().st_mode & stat.S_IXUSR)
        assert executable == name.endswith((".sh", ".sub", "/horovodrun")), name
