"""The scripts, as far as they are checked before Paxml starts; see tests/support/pax_scripts.py."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import signal
import subprocess
import time

import pytest

from rosetta.pax import settings
from tests.support import t5x_scripts
from tests.support.pax_scripts import SCRIPTS, Place, hyper, place_

__all__ = ["place_"]  # a fixture
H100 = "NVIDIA H100 80GB HBM3, 9.0"
A100 = "NVIDIA A100-SXM4-80GB, 8.0"
OURS = "--xla_gpu_enable_latency_hiding_scheduler=true --xla_gpu_enable_triton_gemm=false --xla_gpu_all_reduce_combine_threshold_bytes={} --xla_gpu_enable_command_buffer="
SLURM = {
    "SLURM_NTASKS": "16",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_PROCID": "3",
    "SLURM_JOB_ID": "42",
}
TEXT = {"DATA": "text:corpus.txt"}
BOOLQ = {"DATA": "jsonl:boolq.jsonl", "LOG_DIR": "logs"}
BASE = "run_base_config_multinode.sh"
PILE = "run_pile_singlenode.sh"
JOB = {
    "SLURM_JOB_NUM_NODES": "8",
    "SLURM_JOB_ID": "42",
    "CONTAINER": "ghcr.io/o/pax:latest",
    "BASE_WORKSPACE_DIR": "ws",
    "OUTPUT_DIR": "out",
    "LOG_DIR_LOCAL": "logs",
}
KINDS = {
    "example_slurm_pile": "run_pile_multinode.sh",
    "example_slurm_llama": "run_llama_boolq.sh",
    "launch_base_script": BASE,
    "launch_base_config": BASE,
}


def test_pile_on_one_node(place: Place) -> None:
    ran = place.run(
        "run_pile_singlenode.sh", str(place.work), "byte", "bfloat16", "8", "4", "log_dir", **TEXT
    )
    assert ran.rc == 0, ran.err
    assert ran.argv[:5] == [
        "-u",
        "-P",
        "-m",
        "rosetta.pax.train",
        "--fdl_config=rosetta.pax.configs.Pile126M",
    ]
    assert f"--tfds_data_dir={place.work}" in ran.argv
    assert f"--job_log_dir={place.work}/log_dir" in ran.argv
    assert "--mode=train" in ran.argv
    assert "--multiprocess_gpu" not in ran.argv
    assert ran.hyper == {
        "FPROP_DTYPE": '"bfloat16"',
        "ICI_MESH_SHAPE": "[8,1,1]",
        "DCN_MESH_SHAPE": "[1,1,1]",
        "PERCORE_BATCH_SIZE": "4",
    }
    assert (
        ran.env["XLA_FLAGS"] == OURS.format(33554432) + " --xla_force_host_platform_device_count=8"
    )
    assert (ran.env["VOCAB_PATH"], ran.env["ENABLE_TE"], ran.env["ENABLE_FP8"]) == (
        "byte",
        "0",
        "0",
    )
    assert ran.said == [
        f"rosetta: Pile126M on 8 device(s); checkpoints and logs in {place.work}/log_dir",
        "rosetta: the CPU stands in for 8 devices",
    ]
    assert "Paxml's words" in (place.work / "log_dir" / "pile_output.log").read_text()


def test_the_status_is_paxmls(place: Place) -> None:
    assert place.run("run_pile_singlenode.sh", "", "byte", RC="7", **TEXT).rc == 7


@pytest.mark.parametrize("words", [("", "byte", "float32", "4", "2", "l"), ()])
def test_words_win_over_variables_and_those_left_out_are_variables(
    place: Place, words: tuple[str, ...]
) -> None:
    settings = {"PREC": "bfloat16", "NUM_GPUS": "2", "PERCORE_BATCH_SIZE": "8", "LOG_DIR": "other"}
    ran = place.run("run_pile_singlenode.sh", *words, **settings, **TEXT)
    assert ran.rc == 0, ran.err
    expected = (
        {"FPROP_DTYPE": '"float32"', "ICI_MESH_SHAPE": "[4,1,1]", "PERCORE_BATCH_SIZE": "2"}
        if words
        else {"FPROP_DTYPE": '"bfloat16"', "ICI_MESH_SHAPE": "[2,1,1]", "PERCORE_BATCH_SIZE": "8"}
    )
    assert {name: ran.hyper[name] for name in expected} == expected


def test_a_batch_may_be_a_fraction_where_the_mesh_takes_it(place: Place) -> None:
    ran = place.run(
        "run_pile_singlenode.sh", "", "byte", "", "4", "0.5", **TEXT, ICI_MESH_SHAPE="[1,2,2]"
    )
    assert (ran.rc, ran.hyper["PERCORE_BATCH_SIZE"], ran.hyper["ICI_MESH_SHAPE"]) == (
        0,
        "0.5",
        "[1,2,2]",
    )
    assert (
        "its 2 rows do not divide among the 4 parts"
        in place.run("run_pile_singlenode.sh", "", "byte", "", "4", "0.5", **TEXT).err
    )


@pytest.mark.parametrize(
    "folder", ['a "b" c', "back\\slash", "$(touch pwned)", "-dash", "semi;colon"]
)
def test_a_folders_name_is_never_code(place: Place, folder: str) -> None:
    ran = place.run("run_pile_singlenode.sh", "", "byte", "", "", "", folder, **TEXT)
    assert ran.rc == 0, ran.err
    assert f"--job_log_dir={place.work}/{folder}" in ran.argv
    assert not (place.work / "pwned").exists()


def test_a_process_a_gpu(place: Place) -> None:
    ran = place.run(
        "run_pile_multinode.sh",
        "",
        "byte",
        "bfloat16",
        "8",
        "4",
        "l",
        **TEXT,
        **SLURM,
        **place.cards(*[H100] * 8),
    )
    assert ran.rc == 0, ran.err
    assert (ran.hyper["ICI_MESH_SHAPE"], ran.hyper["DCN_MESH_SHAPE"]) == ("[8,1,1]", "[2,1,1]")
    assert "--multiprocess_gpu" in ran.argv
    assert not any(
        word.startswith(("--server_addr", "--num_hosts", "--host_idx")) for word in ran.argv
    ), "JAX reads Slurm's variables itself"
    assert "JAX_LOCAL_DEVICE_IDS" not in ran.env
    assert ran.env["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.85"
    assert "on 16 device(s) in 16 processes on 2 node(s)" in ran.said[0]
    assert ran.out == "Paxml's words\n", "srun keeps each process's output"


def test_a_process_a_node(place: Place) -> None:
    slurm = {**SLURM, "SLURM_NTASKS": "2"}
    ran = place.run(
        "run_base_config_multinode.sh",
        "Synthetic5B",
        "bfloat16",
        "8",
        "l",
        **slurm,
        **place.cards(*[H100] * 8),
    )
    assert ran.rc == 0, ran.err
    assert ran.env["JAX_LOCAL_DEVICE_IDS"] == "0,1,2,3,4,5,6,7", "JAX would take one of them"
    assert ran.env["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.9"


def test_synthetic_needs_neither_data_nor_vocabulary(place: Place) -> None:
    ran = place.run("run_base_config_multinode.sh", "Synthetic5B", VOCAB_PATH="")
    assert ran.rc == 0, ran.err
    assert ran.hyper == {"FPROP_DTYPE": '"bfloat16"'}
    assert not any(word.startswith("--tfds_data_dir") for word in ran.argv)
    assert "VOCAB_PATH" not in ran.env
    assert ran.env["XLA_FLAGS"] == OURS.format(51200)


def test_all_words_of_a_base_config(place: Place) -> None:
    more = "--fdl.DCN_MESH_SHAPE=[1, 16, 1] --fdl.ICI_MESH_SHAPE=[1,8,1] --eval_on_test --fdl.NUM_LAYERS=2"
    ran = place.run(
        "run_base_config_multinode.sh",
        "GPT5B",
        "float32",
        "128",
        "l",
        str(place.work),
        "byte",
        more,
    )
    assert ran.rc == 0, ran.err
    assert ran.hyper == {
        "FPROP_DTYPE": '"float32"',
        "DCN_MESH_SHAPE": "[1,16,1]",
        "ICI_MESH_SHAPE": "[1,8,1]",
        "NUM_LAYERS": "2",
    }
    assert ran.argv[-1] == "--eval_on_test"
    assert (
        place.run("run_base_config_multinode.sh", "Synthetic5B", "", "", "l", "None", "None").rc
        == 0
    ), "as upstream writes what is not given"


def test_an_experiment_of_ones_own(place: Place) -> None:
    ran = place.run(
        "run_base_config_multinode.sh", "mine.experiments.Big", "bfloat16", "1", "l", **TEXT
    )
    assert "--fdl_config=mine.experiments.Big" in ran.argv


def test_the_rows_of_a_batch_are_counted_by_what_is_given(place: Place) -> None:
    (place.work / "short.txt").write_text("A line of text.\n" * 1200)
    short = {"DATA": "text:short.txt", "MAX_STEPS": "1"}
    assert place.run("run_pile_singlenode.sh", "", "byte", "", "8", "1", **short).rc == 0
    assert (
        "fewer than one batch of 16"
        in place.run("run_pile_singlenode.sh", "", "byte", "", "8", "2", **short).err
    )
    assert (
        place.run(
            "run_pile_singlenode.sh",
            "",
            "byte",
            "",
            "8",
            "2",
            **short,
            ROSETTA_FDL="--fdl.MAX_SEQ_LEN=512",
        ).rc
        == 0
    )
    # Only bytes are counted before the run, and only running text.
    (place.work / "own.model").write_text("no model")
    for words, data in (
        (("Pile126M", "byte"), '{"text:short.txt": 1, "text:corpus.txt": 1}'),
        (("Pile126M", "own.model"), "text:short.txt"),
        (("LLaMA7B", "byte"), "jsonl:short.txt"),
    ):
        config, vocab = words
        ran = place.run(
            "run_base_config_multinode.sh",
            config,
            "",
            "8",
            VOCAB_PATH=vocab,
            DATA=data,
            ICI_MESH_SHAPE="[8,1,1]",
            DCN_MESH_SHAPE="[1,1,1]",
        )
        assert ran.rc == 0, ran.err


def test_lambada_evaluates_the_newest_checkpoint_and_ends(place: Place) -> None:
    place.checkpoint("run", 0, 100, 250)
    (place.work / "run" / "checkpoints" / "checkpoint_00000300.orbax-checkpoint-tmp").mkdir()
    ran = place.run("run_lambada_singlenode.sh", "", "byte", "bfloat16", "1", "4", "run", **TEXT)
    assert ran.rc == 0, ran.err
    assert "--mode=eval" in ran.argv
    assert "--fdl_config=rosetta.pax.configs.Lambada126M" in ran.argv
    assert ran.hyper["MAX_STEPS"] == "250", "Paxml would wait for a later checkpoint"
    assert (place.work / "run" / "lambada_output.log").exists()


def test_a_download_of_ours_is_the_data(place: Place) -> None:
    place.checkpoint("run", 1)
    (place.work / "sets" / "lambada").mkdir(parents=True)
    (place.work / "sets" / "lambada" / "test.jsonl").write_text("{}")
    ran = place.run("run_lambada_singlenode.sh", "sets", "byte", "", "", "", "run", DATA="")
    assert ran.env["DATA"] == ran.env["EVAL_DATA"] == f"jsonl:{place.work}/sets/lambada/test.jsonl"


class TestLlama:
    def test_finetuning_then_evaluation(self, place: Place) -> None:
        place.checkpoint("weights", 0)
        ran = place.run(
            "run_llama_boolq.sh", **BOOLQ, CHECKPOINT_RESTORE_PATH="weights", NUM_GPUS="8"
        )
        assert ran.rc == 0, ran.err
        trained, evaluated = ran.notes
        assert "--mode=train" in trained.argv
        assert "--mode=eval" in evaluated.argv
        job = f"--job_log_dir={place.work}/logs/llama-LLaMA7B-mbs-2-te-0-lora-0"
        assert job in trained.argv
        assert job in evaluated.argv
        found = hyper(trained.argv)
        assert found == {
            "PERCORE_BATCH_SIZE": "2",
            "MAX_SEQ_LEN": "4096",
            "USE_REPEATED_LAYER": "False",
            "ICI_MESH_SHAPE": "[1,8,1]",
            "DCN_MESH_SHAPE": "[1,1,1]",
            "LEARNING_RATE": "1e-6",
            "LR_SCHEDULE": '"linear_rampup_cosine_decay"',
            "MAX_STEPS": "1000",
            "LR_COS_WARMUP": "500",
            "CHECKPOINT_RESTORE_PATH": f'"{place.work}/weights/checkpoints"',
        }
        assert "CHECKPOINT_RESTORE_PATH" not in hyper(evaluated.argv)
        log = (place.work / "logs" / "logs" / "llama-LLaMA7B-mbs-2-te-0-lora-0.txt").read_text()
        assert log.count("Paxml's words") == 2

    def test_a_failed_training_is_not_evaluated(self, place: Place) -> None:
        ran = place.run("run_llama_boolq.sh", **BOOLQ, RC="5")
        assert (ran.rc, len(ran.notes)) == (5, 1)
        assert (
            ran.said[-1]
            == "rosetta: training starts from nothing: CHECKPOINT_RESTORE_PATH is not set"
        )

    def test_lora(self, place: Place) -> None:
        settings = {
            "USE_LORA": "1",
            "LORA_RANK": "16",
            "LORA_TARGET_LAYERS": "attention",
            "CONFIG": "LLaMA70B",
            "LEARNING_RATE": "2e-4",
            "MAX_STEPS": "7",
            "PERCORE_BATCH_SIZE": "1",
            "MAX_SEQ_LEN": "512",
        }
        ran = place.run("run_llama_boolq.sh", **BOOLQ, **settings, NUM_GPUS="8")
        assert ran.rc == 0, ran.err
        expected = {
            "USE_LORA": "True",
            "LORA_RANK": "16",
            "LORA_TARGET_LAYERS": '"attention"',
            "LEARNING_RATE": "2e-4",
            "LR_SCHEDULE": '"constant"',
            "MAX_STEPS": "7",
            "PERCORE_BATCH_SIZE": "1",
            "MAX_SEQ_LEN": "512",
            "ICI_MESH_SHAPE": "[8,1,1]",
        }
        assert {name: ran.hyper[name] for name in expected} == expected
        assert f"--job_log_dir={place.work}/logs/llama-LLaMA70B-mbs-1-te-0-lora-1" in ran.argv

    def test_the_documented_meshes_on_the_documented_nodes(self, place: Place) -> None:
        cards = place.cards(*[H100] * 8)
        ran = place.run("run_llama_boolq.sh", **BOOLQ, **SLURM, **cards, USE_MULTIPROCESS="1")
        assert (ran.hyper["ICI_MESH_SHAPE"], ran.hyper["DCN_MESH_SHAPE"]) == ("[1,8,1]", "[1,2,1]")
        assert "--multiprocess_gpu" in ran.argv
        ran = place.run("run_llama_boolq.sh", **BOOLQ, **SLURM, **cards)
        assert "--multiprocess_gpu" not in ran.argv, "one process, inside a Slurm job too"

    def test_evaluation_alone_only_reads_the_checkpoint(self, place: Place) -> None:
        place.checkpoint("weights", 3)
        ran = place.run(
            "run_llama_boolq.sh", **BOOLQ, EVAL_ONLY="1", CHECKPOINT_RESTORE_PATH="weights"
        )
        assert ran.rc == 0, ran.err
        assert len(ran.notes) == 1
        assert f"--evaluate_from={place.work}/weights/checkpoints" in ran.argv
        assert f"--job_log_dir={place.work}/logs/llama-LLaMA7B-mbs-2-te-0-lora-0" in ran.argv
        assert ran.hyper["MAX_STEPS"] == "3"

    def test_a_signal_ends_what_runs(self, place: Place) -> None:
        place.program(
            "recorder",
            t5x_scripts.RECORDER.replace(
                '"rosetta.t5x.train" not in words', '"rosetta.pax.train" not in words'
            ).replace("sys.exit(", "import time; time.sleep(60); sys.exit("),
        )
        process = subprocess.Popen(
            ["bash", str(SCRIPTS / "run_llama_boolq.sh")],
            cwd=place.work,
            env=place.env(VOCAB_PATH="byte", VOCAB="", **BOOLQ),
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        record = place.work / "record.json"
        end = time.monotonic() + 60
        while not record.exists() or not record.read_text().endswith("}"):
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.05)
        process.terminate()
        assert process.wait(60) == 128 + signal.SIGTERM


class TestFlags:
    def test_as_the_seed_has_them(self, place: Place) -> None:
        base = """--xla_gpu_enable_latency_hiding_scheduler=true
                --xla_gpu_enable_triton_gemm=false
                --xla_gpu_all_reduce_combine_threshold_bytes=33554432
                --xla_gpu_graph_level=0"""
        ran = place.run(
            "run_pile_multinode.sh",
            **TEXT,
            BASE_XLA_FLAGS=base,
            XLA_FLAGS="--set_xla_gpu_enable_cudnn_fmha=False",
        )
        assert ran.rc == 0, ran.err
        assert ran.env["XLA_FLAGS"] == OURS.format(33554432) + " --xla_gpu_enable_cudnn_fmha=false"
        assert "BASE_XLA_FLAGS" not in ran.env
        assert ran.said[1:] == [
            "rosetta: --xla_gpu_graph_level=0 of BASE_XLA_FLAGS: --xla_gpu_enable_command_buffer= today",
            "rosetta: --set_xla_gpu_enable_cudnn_fmha=False of XLA_FLAGS: --xla_gpu_enable_cudnn_fmha=false today",
        ]

    def test_the_users_come_last_and_win(self, place: Place) -> None:
        ran = place.run(
            "run_base_config_multinode.sh",
            "Synthetic5B",
            XLA_FLAGS="--xla_gpu_enable_triton_gemm=true",
        )
        assert ran.env["XLA_FLAGS"].endswith(" --xla_gpu_enable_triton_gemm=true")


class TestSwitches:
    def test_attention_is_cudnns_where_every_card_has_it(self, place: Place) -> None:
        for card in (H100, A100):
            assert (
                place.run(
                    "run_base_config_multinode.sh", "Synthetic5B", "", "1", **place.cards(card)
                ).hyper["ATTENTION"]
                == '"cudnn"'
            )
        assert (
            "ATTENTION"
            not in place.run(
                "run_base_config_multinode.sh",
                "Synthetic5B",
                "",
                "1",
                **place.cards("Tesla V100-SXM2-32GB, 7.0"),
            ).hyper
        )
        assert (
            "ATTENTION"
            not in place.run(
                "run_base_config_multinode.sh", "Synthetic5B", "float32", "1", **place.cards(H100)
            ).hyper
        )

    def test_the_small_model_has_none(self, place: Place) -> None:
        ran = place.run("run_pile_singlenode.sh", "", "byte", "", "1", **TEXT, **place.cards(H100))
        assert ran.hyper["ATTENTION"] == '"xla"'
        assert any("the 126M model was seen to diverge" in line for line in ran.said)

    @pytest.mark.parametrize(
        "settings",
        [
            {"XLA_FLAGS": "--set_xla_gpu_enable_cudnn_fmha=False"},
            {"XLA_FLAGS": "--xla_gpu_enable_cudnn_fmha=false"},
            {"ATTENTION": "xla"},
        ],
    )
    def test_flash_attention_is_switched_off_as_documented(
        self, place: Place, settings: dict[str, str]
    ) -> None:
        assert (
            place.run(
                "run_base_config_multinode.sh",
                "Synthetic5B",
                "",
                "1",
                **settings,
                **place.cards(H100),
            ).hyper["ATTENTION"]
            == '"xla"'
        )

    def test_fp8(self, place: Place) -> None:
        ran = place.run(
            "run_base_config_multinode.sh",
            "Synthetic5B",
            "",
            "1",
            ENABLE_FP8="1",
            **place.cards(H100),
        )
        assert ran.rc == 0, ran.err
        assert ran.hyper["USE_FP8"] == "True"
        assert any(
            "FP8 is XLA's own (USE_FP8), as Transformer Engine is off" in line for line in ran.said
        )
        ran = place.run(
            "run_base_config_multinode.sh", "Synthetic5B", ROSETTA_FDL="--fdl.USE_FP8=True"
        )
        assert (ran.hyper["USE_FP8"], ran.env["ENABLE_FP8"]) == ("True", "0")
        assert any("the CPU has none" in line for line in ran.said)

    @pytest.mark.parametrize(
        ("settings", "card", "complaint"),
        [
            ({"ENABLE_FP8": "1"}, A100, "ENABLE_FP8=1: NVIDIA A100-SXM4-80GB has no FP8"),
            (
                {"ROSETTA_FDL": "--fdl.USE_FP8=True"},
                A100,
                "--fdl.USE_FP8=True: NVIDIA A100-SXM4-80GB has no FP8",
            ),
            (
                {"ENABLE_FP8": "1", "PREC": "float32"},
                H100,
                "PREC=float32: with FP8 all else is in bfloat16",
            ),
            ({"ENABLE_TE": "1"}, H100, "Transformer Engine: not in this environment"),
            (
                {"ENABLE_TE": "1", "ROSETTA_FDL": "--fdl.USE_FP8=True"},
                H100,
                "XLA's own FP8 needs Transformer Engine off",
            ),
            ({"ENABLE_TE": "2"}, H100, "ENABLE_TE: it is '2'"),
            (
                {"ATTENTION": "flash"},
                H100,
                "ATTENTION: it is 'flash'; choose one of: xla, cudnn, te",
            ),
        ],
    )
    def test_what_cannot_be(
        self, place: Place, settings: dict[str, str], card: str, complaint: str
    ) -> None:
        ran = place.run(
            "run_base_config_multinode.sh", "Synthetic5B", "", "1", **settings, **place.cards(card)
        )
        assert (ran.rc, ran.argv) == (2, [])
        assert complaint in ran.err
        assert len(ran.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("script", "words", "settings", "complaint"),
    [
        (
            BASE,
            ["Synthetic12M"],
            {},
            "CONFIG: there is no experiment 'Synthetic12M'; did you mean Synthetic126M?",
        ),
        (
            BASE,
            ["qqqq"],
            {},
            "there is no experiment 'qqqq'; choose one of: GPT175B GPT5B LLaMA13B",
        ),
        (BASE, ["../x"], {}, "it is '../x'"),
        (BASE, [], {}, "CONFIG: it is not given"),
        (BASE, ["Synthetic5B", *"1234567"], {}, "got 8 arguments"),
        (BASE, ["Synthetic5B", "fp8"], {}, "PREC: it is 'fp8'; choose one of: bfloat16, float32"),
        (BASE, ["Synthetic5B", "", "0"], {}, "NUM_GPUS: it is '0'"),
        (
            BASE,
            ["Synthetic5B", "", "4"],
            {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"},
            "NUM_GPUS=4: XLA_FLAGS makes 2 CPU device(s)",
        ),
        (
            BASE,
            ["Synthetic5B", "", "4"],
            {"ICI_MESH_SHAPE": "[1,2,1]", "DCN_MESH_SHAPE": "[1,1,1]"},
            "it is a mesh of 2 devices, and there are 4",
        ),
        (
            BASE,
            ["Synthetic5B", "", "4"],
            {"ICI_MESH_SHAPE": "[1,2]", "DCN_MESH_SHAPE": "[1,1,1]"},
            "give [data, fsdp, tensor]",
        ),
        (
            BASE,
            ["Synthetic5B", "", "4"],
            {"PERCORE_BATCH_SIZE": "0.3"},
            "PERCORE_BATCH_SIZE=0.3: times 4 devices it is 1.2 rows",
        ),
        (BASE, ["Synthetic5B"], {"USE_LORA": "1"}, "USE_LORA=1: only run_llama_boolq reads it"),
        (BASE, ["Synthetic5B"], {"LORA_RANK": "8"}, "LORA_RANK=8: only run_llama_boolq reads it"),
        (
            PILE,
            ["", "byte"],
            {"LORA_TARGET_LAYERS": "mlp", **TEXT},
            "LORA_TARGET_LAYERS=mlp: only run_llama_boolq reads it",
        ),
        (
            "run_llama_boolq.sh",
            [],
            {"LORA_RANK": "8", **TEXT},
            "LORA_RANK=8: only a run with USE_LORA=1 reads it; set USE_LORA=1, or unset it",
        ),
        (
            "run_llama_boolq.sh",
            [],
            {"USE_LORA": "0", "LORA_TARGET_LAYERS": "mlp", **TEXT},
            "LORA_TARGET_LAYERS=mlp: only a run with USE_LORA=1 reads it",
        ),
        (
            PILE,
            ["", "byte"],
            {"EVAL_DATA": "text:none.txt", **TEXT},
            "EVAL_DATA: none.txt: no file matches",
        ),
        (
            PILE,
            ["", "byte"],
            {"EVAL_DATA": "cache:none", **TEXT},
            "EVAL_DATA: none: there is no such folder",
        ),
        (PILE, ["", "byte"], {"EVAL_DATA": "txt:none", **TEXT}, "EVAL_DATA"),
        (
            PILE,
            ["", "byte"],
            {"EVAL_DATA": "hf:/none", **TEXT},
            "EVAL_DATA: /none: there is no such folder",
        ),
        (
            PILE,
            ["", "byte"],
            {"ROSETTA_FDL": "--fdl.EVAL_DATA=text:none.txt", **TEXT},
            "EVAL_DATA: none.txt: no file matches",
        ),
        (PILE, ["", "ids:9"], {"DATA": "jsonl:none.txt"}, "DATA: none.txt: no file matches"),
        (
            "run_llama_boolq.sh",
            [],
            {"EVAL_DATA": "jsonl:none", **TEXT},
            "EVAL_DATA: none: no file matches",
        ),
        (
            BASE,
            ["Synthetic126M", "", "8"],
            {"NUM_MICROBATCHES": "3", "PERCORE_BATCH_SIZE": "1"},
            "NUM_MICROBATCHES=3: a batch of 8 rows does not divide into 3 microbatches",
        ),
        (
            PILE,
            ["", "byte", "", "2", "4"],
            {"NUM_MICROBATCHES": "3", **TEXT},
            "NUM_MICROBATCHES=3: a batch of 8 rows does not divide into 3 microbatches",
        ),
        (
            BASE,
            ["mine.Experiment", "", "8"],
            {"NUM_MICROBATCHES": "3", "PERCORE_BATCH_SIZE": "1"},
            "NUM_MICROBATCHES=3: a batch of 8 rows does not divide into 3 microbatches",
        ),
        (
            BASE,
            ["Synthetic5B"],
            {"CHECKPOINT_RESTORE_PATH": "old"},
            "CHECKPOINT_RESTORE_PATH=old: only run_llama_boolq reads it",
        ),
        (
            BASE,
            ["Synthetic5B"],
            {"ROSETTA_FDL": "NUM_LAYERS=2"},
            "'NUM_LAYERS=2' is no option; write --fdl.NAME=VALUE",
        ),
        (
            BASE,
            ["Synthetic5B"],
            {"SLURM_NTASKS": "3", "SLURM_JOB_NUM_NODES": "2"},
            "SLURM_NTASKS=3: Slurm started 3 processes on 2 nodes",
        ),
        (
            BASE,
            ["Synthetic5B", "", "8"],
            {"SLURM_NTASKS": "4", "SLURM_JOB_NUM_NODES": "2"},
            "NUM_GPUS=8: Slurm started 2 processes on each node",
        ),
        (BASE, ["Synthetic5B", "", "", "/proc/1/x"], {}, "cannot be written to"),
        (BASE, ["Synthetic5B", "", "", "corpus.txt"], {}, "is a file"),
        (BASE, ["Synthetic5B"], {"XLA_FLAGS": "--a='b"}, "a quote in it is not closed"),
        (
            BASE,
            ["Pile5B"],
            {"VOCAB_PATH": "", **TEXT},
            "VOCAB_PATH: Pile5B has text to tokenise, and no vocabulary",
        ),
        (
            PILE,
            ["", "nowhere.model"],
            TEXT,
            "VOCAB_PATH=nowhere.model: there is no such vocabulary file",
        ),
        (PILE, ["", "bin"], TEXT, "VOCAB_PATH=bin: it is a folder with 0 files *.model"),
        (PILE, ["", "gs://b/m"], TEXT, "vocabularies are read from files"),
        (
            PILE,
            ["", "byte", "", "8", "4"],
            {"DATA": "text:short.txt"},
            "DATA=text:short.txt: the data holds 8 rows of 2048 tokens, fewer than one batch of 32; give more text, shorter rows",
        ),
        (
            PILE,
            ["", "byte", "", "1", "1"],
            {"DATA": "jsonl:short.txt"},
            "short.txt, line 513: not valid JSON",
        ),
        (PILE, ["", "byte"], {"DATA": "text:none.txt"}, "none.txt: no file matches"),
        (PILE, ["", "byte"], {"DATA": ""}, "TFDS_DATA_DIR: Pile126M has no data"),
        (PILE, ["nowhere", "byte"], {"DATA": ""}, "TFDS_DATA_DIR=nowhere: there is no such folder"),
        (
            "run_lambada_singlenode.sh",
            ["", "byte", "", "", "", "nowhere"],
            TEXT,
            "it holds no checkpoints/checkpoint_N",
        ),
        ("run_llama_boolq.sh", ["x"], TEXT, "settings come from the environment"),
        (
            "run_llama_boolq.sh",
            [],
            {"EVAL_ONLY": "1", **TEXT},
            "CHECKPOINT_RESTORE_PATH: it is not given",
        ),
        (
            "run_llama_boolq.sh",
            [],
            {"CHECKPOINT_RESTORE_PATH": "bin", **TEXT},
            "CHECKPOINT_RESTORE_PATH=bin: it holds no checkpoints/checkpoint_N",
        ),
        (
            "run_llama_boolq.sh",
            [],
            {"USE_LORA": "1", "LORA_TARGET_LAYERS": "some", **TEXT},
            "LORA_TARGET_LAYERS: it is 'some'; choose one of: all, attention, mlp",
        ),
        ("run_llama_boolq.sh", [], {"CONFIG": "LLaMA8B", **TEXT}, "did you mean LLaMA7B?"),
    ],
)
def test_refused_in_one_line_with_nothing_written(
    place: Place, script: str, words: list[str], settings: dict[str, str], complaint: str
) -> None:
    (place.work / "short.txt").write_text("A line of text.\n" * 1200)
    before = t5x_scripts.snapshot(place.work)
    ran = place.run(script, *words, **{"LOG_DIR": "logs", **settings})
    assert (ran.rc, ran.argv) == (2, [])
    assert complaint in ran.err
    assert len(ran.err.splitlines()) == 1
    assert t5x_scripts.snapshot(place.work) == before
    assert not (place.work / "logs").exists()


def test_a_folder_stands_for_the_one_model_in_it(place: Place) -> None:
    (place.work / "vocab").mkdir()
    (place.work / "vocab" / "c4.model").touch()
    ran = place.run(PILE, "", "vocab", **TEXT)
    assert ran.env["VOCAB_PATH"] == f"{place.work}/vocab/c4.model"
    assert ran.said[-1] == "rosetta: the vocabulary is vocab/c4.model"


def test_dry_run_prints_what_would_run(place: Place) -> None:
    for words in (["--dry-run", "Synthetic5B"], ["Synthetic5B", "--dry-run"]):
        ran = place.run(BASE, *words, LOG_DIR="logs")
        assert (ran.rc, ran.argv) == (0, [])
        only = json.loads(ran.out)
        real = place.run(BASE, "Synthetic5B", LOG_DIR="logs")
        assert only["argv"][1:] == real.argv
        assert {name: real.env[name] for name in only["env"]} == only["env"]
        assert not (place.work / "logs").exists()
    ran = place.run("run_llama_boolq.sh", "--dry-run", DATA="synthetic")
    assert [
        next(word for word in run["argv"] if word.startswith("--mode"))
        for run in json.loads(ran.out)
    ] == ["--mode=train", "--mode=eval"]


def test_nsys_wraps_paxml(place: Place) -> None:
    ran = place.run(BASE, "Synthetic5B", "", "", "l", WITH_NSYS="1", **SLURM, NUM_GPUS="8")
    assert ran.argv[:3] == ["profile", "-o", f"{place.work}/l/nsys_42_3"]


@pytest.mark.parametrize(("jax", "kept"), [("0.10.2", True), ("0.4.26", False)])
def test_what_is_compiled_is_kept_where_jax_can_use_it(place: Place, jax: str, kept: bool) -> None:
    (place.work / "site" / f"jax-{jax}.dist-info").mkdir(parents=True)
    (place.work / "site" / f"jax-{jax}.dist-info" / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: jax\nVersion: {jax}\n"
    )
    path = f"{place.work}/site:{t5x_scripts.ROOT}"
    assert (
        "JAX_COMPILATION_CACHE_DIR"
        in place.run(BASE, "Synthetic5B", "", "", "l", PYTHONPATH=path).env
    ) is kept
    assert (
        "JAX_COMPILATION_CACHE_DIR"
        not in place.run(
            BASE, "Synthetic5B", "", "", "l", **SLURM, NUM_GPUS="8", PYTHONPATH=path
        ).env
    )


class TestCommand:
    def test_it_does_what_the_scripts_do(self, place: Place) -> None:
        ran = place.rosetta(
            "pax",
            "train",
            "CONFIG=Synthetic5B",
            "fdl.NUM_LAYERS=2",
            "LOG_DIR=l",
            "NUM_GPUS=8",
            "fdl.ICI_MESH_SHAPE=[1, 8, 1]",
            "DCN_MESH_SHAPE=[1,1,1]",
        )
        assert ran.rc == 0, ran.err
        assert ran.hyper == {
            "FPROP_DTYPE": '"bfloat16"',
            "NUM_LAYERS": "2",
            "ICI_MESH_SHAPE": "[1,8,1]",
            "DCN_MESH_SHAPE": "[1,1,1]",
        }
        assert place.rosetta("pax", "pile", "DATA=text:corpus.txt", RC="6").rc == 6

    def test_dry_run(self, place: Place) -> None:
        ran = place.rosetta("pax", "boolq", "DATA=jsonl:boolq.jsonl", "LOG_DIR=l", "--dry-run")
        assert (ran.rc, ran.argv) == (0, [])
        assert [" --mode=eval " in line for line in ran.out.splitlines() if " --mode=" in line] == [
            False,
            True,
        ]
        assert (
            len(
                json.loads(
                    place.rosetta(
                        "pax", "boolq", "DATA=jsonl:boolq.jsonl", "--dry-run", "--json"
                    ).out
                )["result"]["runs"]
            )
            == 2
        )

    @pytest.mark.parametrize(
        ("words", "complaint"),
        [
            (
                ["train", "CONFGI=Synthetic5B"],
                "rosetta pax train: it has no variable CONFGI; did you mean CONFIG?",
            ),
            (["train", "QQQ=2"], "it takes PERCORE_BATCH_SIZE ICI_MESH_SHAPE"),
            (
                ["train", "NUM_LAYERS=2"],
                "(any hyper-parameter: fdl.NAME=VALUE; what is for other programs: the environment)",
            ),
            (["train", "config=Synthetic5B"], "'config=Synthetic5B' is no setting"),
            (["improve"], "there is no 'improve'"),
            (["train", "CONFIG=GPT6B"], "did you mean GPT5B?"),
        ],
    )
    def test_refused(self, place: Place, words: list[str], complaint: str) -> None:
        ran = place.rosetta("pax", *words)
        assert (ran.rc, ran.argv) == (2, [])
        assert complaint in ran.err
        assert len(ran.err.splitlines()) == 1


def test_an_environment_without_paxml(place: Place) -> None:
    if importlib.util.find_spec("paxml"):
        pytest.skip("NOT CHECKED here: this environment has Paxml; checked without one")
    (place.work / "paxml.py").touch()
    assert (
        "this environment has no paxml"
        in place.rosetta("pax", "train", "CONFIG=Synthetic5B", "--dry-run", PYTHON="").err
    )
    assert (
        place.rosetta(
            "pax",
            "train",
            "CONFIG=Synthetic5B",
            "--dry-run",
            PYTHON="",
            PYTHONPATH=f"{place.work}:{t5x_scripts.ROOT}",
        ).rc
        == 0
    )


def test_every_documented_variable_is_known() -> None:
    text = (t5x_scripts.ROOT / "docs" / "pax-scripts.md").read_text()
    rows = [
        row.split("|")[1]
        for row in text[text.index("## Variables") : text.index("## While it runs")].splitlines()
        if row.startswith("| `")
    ]
    named = {name for row in rows for name in re.findall(r"`([A-Z0-9_]+)`", row)}
    assert len(named) > 30
    assert named == set(settings.VARIABLES) - {
        "VOCAB",
        "NVTE_FUSED_ATTN",
        "CUDA_VISIBLE_DEVICES",
        "PYTHON",
        "NSYS",
        "ROSETTA_BATCH_LOG",
    }


class TestSlurm:
    @pytest.mark.parametrize("kind", KINDS)
    def test_a_job(self, place: Place, kind: str) -> None:
        settings = {
            **JOB,
            "BASE_TFDS_DATA_DIR": "/d",
            "BASE_VOCAB_PATH": "/v/c4.model",
            "BASE_CHECKPOINT_RESTORE_PATH": "/w",
            "GPUS_PER_NODE": "4",
            "CONFIG": "LLaMA7B",
            "VOCAB_PATH": "",
        }
        ran = place.run(f"{kind}.sub", **settings)
        assert ran.rc == 0, ran.err
        assert ran.argv[:4] == [
            "--nodes=8",
            "--ntasks=32",
            "--ntasks-per-node=4",
            "--kill-on-bad-exit=0",
        ]
        assert "--container-image=ghcr.io#o/pax:latest" in ran.argv
        assert (
            f"--container-mounts={place.work}/ws:/opt/paxml/workspace,/d:/opt/paxml/datasets,/v/c4.model:/opt/paxml/vocab,/w:/opt/paxml/restore"
            in ran.argv
        )
        assert ran.argv[-2:] == ["bash", KINDS[kind]]
        names = (
            "TFDS_DATA_DIR",
            "VOCAB_PATH",
            "CHECKPOINT_RESTORE_PATH",
            "LOG_DIR",
            "NUM_GPUS",
            "USE_MULTIPROCESS",
            "CONFIG",
        )
        assert [ran.env[name] for name in names] == [
            "/opt/paxml/datasets",
            "/opt/paxml/vocab",
            "/opt/paxml/restore",
            "/opt/paxml/workspace/logs",
            "4",
            "1",
            "LLaMA7B",
        ]
        assert (place.work / "ws" / "out").is_dir()

    def test_synthetic_without_a_container(self, place: Place) -> None:
        place.program(BASE, "#!/bin/sh\n")
        settings = {
            "SLURM_JOB_NUM_NODES": "32",
            "SLURM_JOB_ID": "1",
            "BASE_WORKSPACE_DIR": "ws",
            "CONFIG": "Synthetic5B",
            "OUTPUT_DIR": "o",
            "LOG_DIR_LOCAL": "l",
            "VOCAB_PATH": "",
        }
        ran = place.run("launch_base_config.sub", **settings)
        assert ran.rc == 0, ran.err
        assert not any("container" in word for word in ran.argv)
        assert ran.env["LOG_DIR"] == f"{place.work}/ws/l"
        assert ran.argv[-1] == str(place.work / "bin" / BASE), (
            "its path: bash would take one of the current folder first"
        )
        assert "VOCAB_PATH" not in ran.env

    @pytest.mark.parametrize(
        ("lacking", "complaint"),
        [
            ("SLURM_JOB_NUM_NODES", "this is no Slurm job"),
            ("CONTAINER", "CONTAINER is not set, and run_base_config_multinode.sh is not on PATH"),
            ("CONFIG", "CONFIG is not set"),
        ],
    )
    def test_what_is_lacking_is_said(self, place: Place, lacking: str, complaint: str) -> None:
        ran = place.run("launch_base_script.sub", **{**JOB, "CONFIG": "Synthetic5B", lacking: ""})
        assert (ran.rc, ran.argv) == (2, [])
        assert complaint in ran.err

    def test_srun_failing_fails_the_job(self, place: Place) -> None:
        assert place.run("example_slurm_pile.sub", **JOB, RC="9").rc == 9


def test_every_script_is_a_door() -> None:
    for path in SCRIPTS.glob("*.s*"):
        assert os.access(path, os.X_OK), path
        subprocess.run(["bash", "-n", str(path)], check=True)
        if path.suffix == ".sh":
            assert shlex.split(path.read_text().splitlines()[-1])[-2:] == [path.stem, "$@"]


@pytest.mark.parametrize(
    ("setting", "line"),
    [
        ("MAX_STEPS=-1", "MAX_STEPS: it is -1; give a whole number of at least 0"),
        ("MAX_STEPS=abc", "MAX_STEPS: it is 'abc'; give a whole number of at least 0"),
        ("MAX_SEQ_LEN=-1", "MAX_SEQ_LEN: it is -1; give a whole number of at least 2"),
        ("fdl.NUM_LAYERS=0", "NUM_LAYERS: it is 0; give a whole number of at least 1"),
        ("LEARNING_RATE=fast", "LEARNING_RATE: it is 'fast'; give a number above 0, as in 1e-4"),
        ("LEARNING_RATE=-1", "LEARNING_RATE: it is -1; give a number above 0, as in 1e-4"),
        ("NUM_MICROBATCHES=0", "NUM_MICROBATCHES: it is 0; give a whole number of at least 1"),
        (
            "LEARNING_RATE=1_0",
            "LEARNING_RATE: it is '1_0'; give a number in decimal digits, as in 10 or 1e-4",
        ),
        ("LEARNING_RATE=٣", "LEARNING_RATE: it is '٣'; give a number above 0, as in 1e-4"),
        ("MAX_STEPS=0x10", "MAX_STEPS: it is '0x10'; give a number in decimal digits"),
        ("ROSETTA_DOCTOR=maybe", "ROSETTA_DOCTOR: it is 'maybe'; give 0 or 1"),
        (
            "XLA_PYTHON_CLIENT_MEM_FRACTION=lots",
            "XLA_PYTHON_CLIENT_MEM_FRACTION: it is 'lots'; give a number above 0",
        ),
        ("DCN_MESH_SHAPE=[1,2,1]", "it is a mesh of 16 devices, and there are 8"),
    ],
)
@pytest.mark.parametrize("config", ["Synthetic126M", "mine.Experiment"])
def test_wrong_numbers_are_refused_before_jax_starts(
    setting: str, line: str, config: str, place: Place
) -> None:
    ran = place.rosetta(
        "pax",
        "train",
        f"CONFIG={config}",
        "LOG_DIR=l",
        "NUM_GPUS=8",
        "ICI_MESH_SHAPE=[8,1,1]",
        setting,
        "--dry-run",
    )
    assert (ran.rc, ran.argv) == (2, [])
    assert line in ran.err
    assert len(ran.err.splitlines()) == 1


def test_an_experiment_of_the_users_own_need_not_read_data(place: Place) -> None:
    ran = place.rosetta("pax", "train", "CONFIG=mine.Experiment", "LOG_DIR=l", VOCAB_PATH="")
    assert ran.rc == 0, ran.err
    assert "--fdl_config=mine.Experiment" in ran.argv


@pytest.mark.parametrize(("command", "more"), [("lambada", {}), ("boolq", {"EVAL_ONLY": "1"})])
def test_an_evaluation_needs_evaluation_data_alone(
    command: str, more: dict[str, str], place: Place
) -> None:
    (place.work / "l/checkpoints/checkpoint_00000003").mkdir(parents=True)
    settings = [
        *(f"{name}={value}" for name, value in more.items()),
        "LOG_DIR=l",
        "EVAL_DATA=text:corpus.txt",
    ]
    settings += ["CHECKPOINT_RESTORE_PATH=l"] if more else []
    ran = place.rosetta("pax", command, *settings, DATA="")
    assert ran.rc == 0, ran.err
    assert (ran.env["EVAL_DATA"], ran.env["DATA"]) == ("text:corpus.txt", "text:corpus.txt")


@pytest.mark.parametrize(
    ("settings", "evaluates"),
    [
        ({}, False),
        ({"EVAL_DATA": "text:corpus.txt"}, True),
        ({"ROSETTA_FDL": '--fdl.EVAL_DATA="text:corpus.txt"'}, True),
        ({"EVAL_DATA": "text:corpus.txt", "ADDITIONAL_ARGS": "--noeval_on_test"}, False),
    ],
)
def test_evaluation_data_is_evaluated_while_a_run_trains(
    settings: dict[str, str], evaluates: bool, place: Place
) -> None:
    ran = place.rosetta("pax", "pile", "DATA=text:corpus.txt", "LOG_DIR=l", **settings)
    assert ran.rc == 0, ran.err
    assert ("--eval_on_test" in ran.argv) is evaluates


@pytest.mark.parametrize(
    ("steps", "status", "line"),
    [
        ("1", 2, "MAX_STEPS=1: LOG_DIR is at step 350 already; give a larger MAX_STEPS"),
        ("350", 0, "MAX_STEPS=350: LOG_DIR is at step 350 already: no step is left to train"),
        ("351", 0, ""),
    ],
)
def test_max_steps_below_the_checkpoint_is_refused(
    steps: str, status: int, line: str, place: Place
) -> None:
    place.checkpoint("l", 350)
    ran = place.run(BASE, "Synthetic126M", "", "", "l", MAX_STEPS=steps)
    assert ran.rc == status, ran.err
    assert line in ran.err
    assert ("already" in ran.err) == bool(line)


@pytest.mark.parametrize(
    "source",
    [
        "hf:owner/name",
        "hf:name#train",
        "synthetic",
        "text:corpus.txt",
        '{"text:corpus.txt": 0.5, "hf:owner/name/config": 0.5}',
    ],
)
def test_evaluation_data_that_is_no_path_of_this_machine_is_left_to_the_run(
    source: str, place: Place
) -> None:
    ran = place.run("run_pile_singlenode.sh", "", "byte", EVAL_DATA=source, **TEXT)
    assert ran.rc == 0, ran.err
