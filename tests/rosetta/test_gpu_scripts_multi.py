"""The multi-process and Slurm scripts, and the command line beside them; see tests/support/t5x_scripts.py."""

from __future__ import annotations

import json
import shlex

import pytest

from tests.support.t5x_scripts import Place, bindings, checkpoints, place_, snapshot

__all__ = ["place_"]  # a fixture
SLURM = {"SLURM_NTASKS": "64", "SLURM_PROCID": "3", "SLURM_JOB_ID": "42"}
MNLI = {
    "FT_TASK": "mnli2",
    "T5_SIZE": "tiny",
    "DATA": "jsonl:mnli.jsonl",
    "EVAL_DATA": "jsonl:mnli.jsonl",
}


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
    ran = place.run("multiprocess_pretrain_pile.sh", MODEL_DIR="m", **settings, **SLURM)
    assert ran.rc == 0, ran.err
    found = bindings(ran)
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


def test_the_only_process(place: Place) -> None:
    cards = place.cards(*["NVIDIA H100 80GB HBM3, 9.0"] * 4)
    ran = place.run(
        "multiprocess_pretrain_pile.sh", CUDA_VISIBLE_DEVICES="0,1", T5X_WORKSPACE_DIR="/w", **cards
    )
    assert ran.rc == 0, ran.err
    found = bindings(ran)
    assert found["BATCH_SIZE"] == "64"
    assert found["network.T5Config.dtype"] == '"bfloat16"'
    assert found["network.T5Config.fp8"] == '"xla"'
    assert found["MODEL_DIR"] == '"/w/model_dir_large"'
    assert "TRAIN_STEPS" not in found
    assert "TASK_FEATURE_LENGTHS" not in found
    assert "--multiprocess_gpu" not in ran.argv


def test_the_rate_and_when_it_saves_are_variables(place: Place) -> None:
    ran = place.run(
        "multiprocess_pretrain_pile.sh",
        T5_SIZE="tiny",
        TRAIN_STEPS="200",
        WARMUP_STEPS="20",
        LEARNING_RATE="1e-2",
        SAVE_PERIOD="50",
    )
    assert ran.rc == 0, ran.err
    assert {
        name: bindings(ran)[name] for name in ("WARMUP_STEPS", "LEARNING_RATE", "SAVE_PERIOD")
    } == {"WARMUP_STEPS": "20", "LEARNING_RATE": "0.01", "SAVE_PERIOD": "50"}
    assert "still rises" not in ran.err
    usual = place.run("multiprocess_pretrain_pile.sh", T5_SIZE="tiny", TRAIN_STEPS="200")
    assert not {"WARMUP_STEPS", "LEARNING_RATE", "SAVE_PERIOD"} & set(bindings(usual))
    assert (
        "rosetta: the learning rate rises over the first 10 of 200 steps: WARMUP_STEPS\n"
        in usual.err
    )
    assert "learning rate" not in place.run("multiprocess_pretrain_pile.sh", T5_SIZE="tiny").err, (
        "of a million steps it is T5X's own"
    )
    checkpoints(place, "100", name="begun")  # by a release that did not record it
    begun = place.run(
        "multiprocess_pretrain_pile.sh", T5_SIZE="tiny", TRAIN_STEPS="200", MODEL_DIR="begun"
    )
    assert (
        "rosetta: the learning rate still rises when the run ends, after 200 steps: WARMUP_STEPS is 10,000\n"
        in begun.err
    )
    (place.work / "mine.gin").write_text("include 'rosetta/t5x/gin/runs/rsqrt_decay.gin'\n")
    assert (
        "still rises"
        not in place.run(
            "multiprocess_pretrain_pile.sh",
            T5_SIZE="tiny",
            TRAIN_STEPS="200",
            ROSETTA_GIN="mine.gin",
        ).err
    ), "it is constant up to there"


def test_finetunings_warmup_counts_from_its_start(place: Place) -> None:
    checkpoints(place, "1000000")
    given = {
        "MODEL_DIR": "pre",
        "FT_TASK": "mnli2",
        "T5_SIZE": "tiny",
        "DATA": f"jsonl:{place.work}/mnli.jsonl",
        "FT_STEPS": "500",
    }
    assert (
        "after 500 steps: WARMUP_STEPS is 1,000"
        in place.run("multiprocess_ft_frompile.sh", **given).err
    )
    ran = place.run("multiprocess_ft_frompile.sh", **given, WARMUP_STEPS="100")
    assert bindings(ran)["WARMUP_STEPS"] == "100"
    assert "still rises" not in ran.err


def test_a_tree_without_the_macro_is_said(place: Place) -> None:
    run = next(place.tree.rglob("tiny_pile_pretrain.gin"))
    run.write_text("network.T5Config.num_heads = 4\n")
    ran = place.run("multiprocess_pretrain_pile.sh", T5_SIZE="tiny", WARMUP_STEPS="20")
    assert (ran.rc, ran.argv) == (2, [])
    assert (
        "WARMUP_STEPS=20: its gin files have no such macro; leave it out, and set what they have in a file of your own: ROSETTA_GIN=FILE"
        in ran.err
    )


def test_a_folder_that_began_with_other_lengths_is_refused(place: Place) -> None:
    checkpoints(place, "100")
    told = {"objective": "span_corruption", "inputs": 64, "targets": 32}
    (place.work / "pre" / "rosetta").mkdir()
    (place.work / "pre" / "rosetta" / "checkpoint_100.json").write_text(
        json.dumps({"schema": 1, "step": 100, "scale_attn_logits": True, "data": {"told": told}})
    )
    words = {"T5_SIZE": "tiny", "MODEL_DIR": "pre", "ENC_SL": "64"}
    assert place.run("multiprocess_pretrain_pile.sh", **words, DEC_SL="32").rc == 0
    ran = place.run("multiprocess_pretrain_pile.sh", **words)
    assert (ran.rc, ran.argv) == (2, [])
    assert (
        "the run began with targets 32, now 128; use the same, or begin a new folder from this checkpoint"
        in ran.err
    )
    assert len(ran.err.splitlines()) == 1


def test_the_cpus_devices_are_counted_where_flags_make_some(place: Place) -> None:
    ran = place.run(
        "multiprocess_pretrain_pile.sh",
        XLA_FLAGS="--xla_force_host_platform_device_count=4",
        TP_SIZE="2",
        T5_SIZE="small",
    )
    assert ran.rc == 0, ran.err
    assert bindings(ran)["BATCH_SIZE"] == "64"
    assert ran.env["XLA_FLAGS"].count("device_count") == 1


def test_benchmarks_start_anew_on_synthetic_data_and_delete_nothing(place: Place) -> None:
    ran = place.run(
        "multiprocess_pretrain_pile.sh",
        BENCHMARK_MODE="True",
        CHECKPOINT_DISABLE="1",
        MODEL_DIR="pre",
        DATA="",
        VOCAB="",
    )
    assert ran.rc == 0, ran.err
    found = bindings(ran)
    assert {
        name: found[name]
        for name in ("TRAIN_STEPS", "STATS_PERIOD", "DATA", "VOCAB", "utils.CheckpointConfig.save")
    } == {
        "TRAIN_STEPS": "500",
        "STATS_PERIOD": "100",
        "DATA": '"synthetic"',
        "VOCAB": '"ids:32128"',
        "utils.CheckpointConfig.save": "None",
    }
    assert (
        bindings(place.run("multiprocess_pretrain_pile.sh", BENCHMARK_MODE="1"))["DATA"]
        == f'"text:{place.work}/corpus.txt"'
    ), "where it is given"
    before = snapshot(checkpoints(place, "10"))
    ran = place.run("multiprocess_pretrain_pile.sh", BENCHMARK_MODE="1", MODEL_DIR="pre")
    assert (ran.rc, ran.argv) == (2, [])
    assert snapshot(place.work / "pre") == before


def test_benchmarks_of_finetuning(place: Place) -> None:
    checkpoints(place, "1000")
    found = bindings(
        place.run(
            "multiprocess_ft_frompile.sh",
            BENCHMARK_MODE="1",
            MODEL_DIR="pre",
            FT_TASK="squad1",
            T5_SIZE="tiny",
            DATA="",
            VOCAB="",
        )
    )
    assert (found["FT_STEPS"], found["STATS_PERIOD"], found["DATA"], found["EVAL_DATA"]) == (
        "500",
        "100",
        '"synthetic"',
        "None",
    )
    assert "TRAIN_STEPS" not in found
    checkpoints(place, "1500", name="ft_squad1_pre")
    ran = place.run(
        "multiprocess_ft_frompile.sh",
        BENCHMARK_MODE="1",
        MODEL_DIR="pre",
        FT_TASK="squad1",
        T5_SIZE="tiny",
        DATA="",
        VOCAB="",
    )
    assert ran.rc == 2
    assert "name another FT_DIR" in ran.err


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"TP_SIZE": "3"}, "TP_SIZE=3: 1 GPUs do not divide into groups of 3; choose one of: 1"),
        (
            {"NUM_GPUS": "64", "TP_SIZE": "32", **SLURM},
            "TP_SIZE=32: a large model's heads of 16 do not divide by it; choose one of: 1, 2, 4, 8, 16",
        ),
        (
            {"NUM_MICROBATCHES": "5"},
            "NUM_MICROBATCHES=5: a global batch of 32, 32 for each group of 1 GPU(s), does not divide by it; choose one of: 1, 2, 4, 8, 16, 32",
        ),
        ({"TRAIN_STEPS": "-1"}, "TRAIN_STEPS: it is '-1'"),
        ({"PREC": "int4"}, "PREC: it is 'int4'"),
        ({"ENABLE_TE": "1"}, "Transformer Engine: not in this environment"),
        ({"ATTENTION": "te"}, "Transformer Engine: not in this environment"),
        ({"ENABLE_TE": "2"}, "ENABLE_TE: it is '2'"),
        ({"WITH_NSYS": "x"}, "WITH_NSYS: it is 'x'"),
        ({"WITH_NSYS": "1", "NSYS": "/nowhere"}, "NSYS: /nowhere is no program"),
        ({"BENCHMARK_MODE": "x"}, "BENCHMARK_MODE: it is 'x'"),
        ({"SLURM_NTASKS": "many"}, "SLURM_NTASKS: it is 'many'"),
    ],
)
def test_multiprocess_refused(place: Place, settings: dict[str, str], complaint: str) -> None:
    ran = place.run("multiprocess_pretrain_pile.sh", **settings)
    assert (ran.rc, ran.argv) == (2, [])
    assert complaint in ran.err
    assert len(ran.err.splitlines()) == 1
    assert not (place.work / "model_dir_large").exists()


def test_on_gpus_there_is_a_process_for_each(place: Place) -> None:
    ran = place.run(
        "multiprocess_pretrain_pile.sh",
        NUM_GPUS="8",
        **SLURM,
        **place.cards("NVIDIA H100 80GB HBM3, 9.0"),
    )
    assert (ran.rc, ran.argv) == (2, [])
    assert "NUM_GPUS=8: Slurm started 64 processes, one a GPU" in ran.err


def test_nsys_wraps_the_trainer(place: Place) -> None:
    ran = place.run("multiprocess_pretrain_pile.sh", WITH_NSYS="1", T5X_WORKSPACE_DIR="/w", **SLURM)
    assert ran.rc == 0, ran.err
    assert ran.argv[:3] == ["profile", "-o", "/w/nsys_42_3"]
    assert ran.argv[3] == str(place.work / "bin" / "recorder")
    assert "rosetta.t5x.train" in ran.argv


def test_multiprocess_finetuning(place: Place) -> None:
    checkpoints(place, "1000000")
    ran = place.run(
        "multiprocess_ft_frompile.sh",
        FT_TASK="squad1",
        T5_SIZE="xl",
        MODEL_DIR="pre",
        DEC_SL="32",
        DATA="synthetic",
        **SLURM,
    )
    assert ran.rc == 0, ran.err
    assert bindings(ran)["TASK_FEATURE_LENGTHS"] == '{"inputs": 956, "targets": 32}'
    assert any(word.endswith("xl_squad1_finetune_adam.gin") for word in ran.argv)


@pytest.mark.parametrize(
    "words",
    [
        ["--dry-run", "T5_SIZE=tiny", "MODEL_DIR=a b"],
        ["T5_SIZE=tiny", "MODEL_DIR=a b", "--dry-run"],
        ["T5_SIZE=tiny", "--dry-run", "--json", "MODEL_DIR=a b"],
    ],
)
def test_the_command_line_does_what_the_scripts_do(place: Place, words: list[str]) -> None:
    ran = place.rosetta("t5x", "pretrain", *words)
    assert ran.rc == 0, ran.err
    assert ran.argv == [], "nothing was run"
    said = (
        json.loads(ran.out)["result"]["argv"]
        if "--json" in words
        else shlex.split(ran.out.splitlines()[-1])
    )
    assert f'--gin.MODEL_DIR="{place.work}/a b"' in said
    assert any(word.endswith("tiny_pile_pretrain.gin") for word in said)
    assert not (place.work / "a b").exists()


def test_the_command_line_becomes_the_trainer(place: Place) -> None:
    ran = place.rosetta("t5x", "pretrain", "T5_SIZE=tiny", "TRAIN_STEPS=7", RC="5")
    assert ran.rc == 5
    assert bindings(ran)["TRAIN_STEPS"] == "7"
    checkpoints(place, "100")
    ran = place.rosetta("t5x", "finetune", "MODEL_DIR=pre", "FT_STEPS=3", **MNLI)
    assert ran.rc == 0, ran.err
    assert bindings(ran)["MODEL_DIR"] == f'"{place.work}/ft_mnli2_pre"'


@pytest.mark.parametrize("what", ["eval", "infer"])
def test_evaluation_and_inference(place: Place, what: str) -> None:
    checkpoints(place, "100")
    ran = place.rosetta(
        "t5x",
        what,
        "CHECKPOINT_PATH=pre",
        "OUTPUT_DIR=out",
        "NUM_DECODES=4",
        "DEC_SL=8",
        BSIZE="8",
        **MNLI,
    )
    assert ran.rc == 0, ran.err
    assert ran.argv[:5] == ["-u", "-P", "-m", "rosetta.t5x.train", what]
    assert [word for word in ran.argv if "_file=" in word] == [
        f"--gin_file=rosetta/t5x/gin/{name}.gin"
        for name in ("t5_1_1/tiny", f"runs/{what}", "runs/task_mnli2")
    ]
    found = bindings(ran)
    assert found["CHECKPOINT_PATH"] == f'"{place.work}/pre"'
    assert (
        found[{"eval": "EVAL_OUTPUT_DIR", "infer": "INFER_OUTPUT_DIR"}[what]]
        == f'"{place.work}/out"'
    )
    assert (found["BATCH_SIZE"], found["NUM_DECODES"]) == ("8", "4")
    assert found["TASK_FEATURE_LENGTHS"] == '{"inputs": 512, "targets": 8}'
    assert not any("trainer" in name or name == "PACK" for name in found), (
        "what evaluation has none of"
    )
    assert (
        ran.env["XLA_FLAGS"]
        == "--xla_gpu_enable_latency_hiding_scheduler=true --xla_gpu_all_reduce_combine_threshold_bytes=136314880"
    )


@pytest.mark.parametrize(
    ("what", "label", "complaint"),
    [
        ("infer", "-1", ""),
        ("infer", "null", ""),
        ("infer", "true", "questions.jsonl, line 1: not a record of mnli: its label is true"),
        ("eval", "-1", "questions.jsonl: none of its 1 records has an answer"),
        (
            "eval",
            "null",
            "questions.jsonl, line 1: not a record of mnli: it lacks premise, hypothesis or label",
        ),
        ("eval", "false", "questions.jsonl, line 1: not a record of mnli: its label is false"),
    ],
)
def test_questions_are_read_before_anything_starts(
    place: Place, what: str, label: str, complaint: str
) -> None:
    checkpoints(place, "100")
    (place.work / "questions.jsonl").write_text(
        f'{{"premise": "a", "hypothesis": "b", "label": {label}}}\n'
    )
    settings = {**MNLI, "EVAL_DATA": f"jsonl:{place.work}/questions.jsonl"}
    ran = place.rosetta(
        "t5x", what, "CHECKPOINT_PATH=pre", "OUTPUT_DIR=out", "EXTRA_IDS=100", **settings
    )
    assert ran.rc == (2 if complaint else 0), ran.err
    assert complaint in ran.err
    if complaint:
        assert ran.argv == []
        assert not (place.work / "out").exists()
    else:
        assert bindings(ran)["EXTRA_IDS"] == "100"


@pytest.mark.parametrize("value", ["x", "-1", "1.5", "1e2"])
def test_a_number_of_sentinels_that_is_none_is_refused(place: Place, value: str) -> None:
    checkpoints(place, "100")
    for words in (["eval", "CHECKPOINT_PATH=pre", "OUTPUT_DIR=out"], ["pretrain"]):
        ran = place.rosetta("t5x", *words, **MNLI, EXTRA_IDS=value)
        assert (ran.rc, ran.argv) == (2, [])
        assert f"EXTRA_IDS: it is '{value}'; give a whole number, at least 0" in ran.err


def test_fp8_is_multiplied_in_evaluation_by_what_can(place: Place) -> None:
    checkpoints(place, "100")
    ran = place.rosetta(
        "t5x",
        "eval",
        "CHECKPOINT_PATH=pre",
        "OUTPUT_DIR=out",
        **MNLI,
        **place.cards("NVIDIA H100 80GB HBM3, 9.0"),
        XLA_FLAGS="--mine=1",
    )
    assert ran.rc == 0, ran.err
    assert bindings(ran)["network.T5Config.fp8"] == '"xla"'
    flags = ran.env["XLA_FLAGS"].split()
    assert "--xla_gpu_enable_triton_gemm=false" in flags
    assert flags[-1] == "--mine=1", "the user's come last, and win"


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"TP_SIZE": "2"}, "TP_SIZE=2: 1 GPUs do not divide into groups of 2; choose one of: 1"),
        (
            {"TP_SIZE": "3", "XLA_FLAGS": "--xla_force_host_platform_device_count=3"},
            "TP_SIZE=3: a tiny model's heads of 4 do not divide by it; choose one of: 1",
        ),
        (
            {"BSIZE": "6", "XLA_FLAGS": "--xla_force_host_platform_device_count=4"},
            "BSIZE=6: it does not divide over 4 groups of 1 device(s); give a multiple of 4",
        ),
        ({"PYTHON": "/nowhere/python"}, "PYTHON=/nowhere/python: it is no program"),
    ],
)
def test_evaluation_refused(place: Place, settings: dict[str, str], complaint: str) -> None:
    checkpoints(place, "100")
    ran = place.rosetta("t5x", "eval", "CHECKPOINT_PATH=pre", "OUTPUT_DIR=out", **MNLI, **settings)
    assert (ran.rc, ran.argv) == (2, [])
    assert complaint in ran.err
    assert not (place.work / "out").exists()


def test_no_start_is_kept_of_a_run_that_cannot_begin(place: Place) -> None:
    checkpoints(place, "100")
    ran = place.rosetta("t5x", "finetune", "MODEL_DIR=pre", "PYTHON=/nowhere/python", **MNLI)
    assert ran.rc == 2
    assert (
        "PYTHON=/nowhere/python: it is no program; name the Python of a baked environment"
        in ran.err
    )
    assert not (place.work / "ft_mnli2_pre").exists()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["t5x", "pretrain", "t5_size=tiny"], "'t5_size=tiny' is no setting; write NAME=VALUE"),
        (["t5x", "pretrain", "T5_SIZE=enormous"], "there is no model size 'enormous'"),
        (["t5x", "improve"], "there is no 'improve'"),
        (["t5x", "pretrain", "--enable-fp8"], "unrecognized arguments: --enable-fp8"),
        (["t5x", "eval", "OUTPUT_DIR=out"], "CHECKPOINT_PATH: it is not set"),
        (
            ["t5x", "eval", "OUTPUT_DIR=out", "CHECKPOINT_PATH=pre"],
            "FT_TASK: it is ''; choose one of: mnli2, squad1",
        ),
        (
            ["t5x", "infer", "OUTPUT_DIR=out", "CHECKPOINT_PATH=nowhere", "FT_TASK=mnli2"],
            "it is no checkpoint_N and holds none",
        ),
        (
            [
                "t5x",
                "infer",
                "OUTPUT_DIR=out",
                "CHECKPOINT_PATH=pre",
                "FT_TASK=mnli2",
                "T5_FAMILY=t6",
            ],
            "there is no t6/large; choose one of: byt5/base",
        ),
        (
            [
                "t5x",
                "infer",
                "OUTPUT_DIR=corpus.txt",
                "CHECKPOINT_PATH=pre",
                "FT_TASK=mnli2",
                "DATA=jsonl:mnli.jsonl",
            ],
            "is a file",
        ),
        (
            [
                "t5x",
                "infer",
                "OUTPUT_DIR=out",
                "CHECKPOINT_PATH=pre",
                "FT_TASK=mnli2",
                "VOCAB=nowhere",
            ],
            "there is no such vocabulary file",
        ),
    ],
)
def test_the_command_line_refuses_in_one_line(
    place: Place, words: list[str], complaint: str
) -> None:
    checkpoints(place, "100")
    ran = place.rosetta(*words)
    assert (ran.rc, ran.argv, ran.out) == (2, [], "")
    assert complaint in ran.err
    assert len(ran.err.splitlines()) == 1


@pytest.mark.parametrize("kind", ["pretrain_pile", "ft_frompile"])
def test_slurm_job(place: Place, kind: str) -> None:
    settings = {
        "SLURM_JOB_NUM_NODES": "8",
        "SLURM_JOB_ID": "42",
        "CONTAINER": "ghcr.io/o/t5x:latest",
        "BASE_TFDS_DATA_DIR": "/d",
    }
    ran = place.run(
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
    assert ran.argv[-2:] == ["bash", f"multiprocess_{kind}.sh"], "which a container has on PATH"
    assert (
        ran.env["NUM_GPUS"],
        ran.env["T5_SIZE"],
        ran.env["T5X_WORKSPACE_DIR"],
        ran.env["TFDS_DATA_DIR"],
    ) == ("32", "large", "/t5x_home/workspace", "/t5x_home/datasets")


JOB = {"SLURM_JOB_NUM_NODES": "8", "SLURM_JOB_ID": "42", "CONTAINER": "image"}


@pytest.mark.parametrize(
    ("settings", "words", "complaint"),
    [
        ({"SLURM_JOB_NUM_NODES": ""}, [], "this is no Slurm job; submit it: sbatch -N NODES "),
        (
            {"CONTAINER": ""},
            [],
            "CONTAINER is not set, and multiprocess_pretrain_pile.sh is not on PATH; name the image",
        ),
        (
            {"BASE_TFDS_DATA_DIR": "/a:b"},
            [],
            "/a:b has a comma or a colon in its name; pyxis cannot mount that: name it by a link",
        ),
        ({"DATASET_MAP": "/d"}, [], "DATASET_MAP is '/d'; give HOST:CONTAINER, both absolute"),
        ({"REQUEUE": "yes"}, [], "REQUEUE is 'yes'; give 0 or 1"),
        (
            {"BASE_TFDS_DATA_DIR": "", "TFDS_DATA_DIR": ""},
            [],
            "none of BASE_TFDS_DATA_DIR, DATASET_MAP and DATA is set; say where the data sets are, or what the data is",
        ),
        (
            {"BASE_TFDS_DATA_DIR": "", "TFDS_DATA_DIR": "", "BENCHMARK_MODE": "0"},
            [],
            "none of BASE_TFDS_DATA_DIR, DATASET_MAP and DATA is set",
        ),
        ({}, ["eight"], "GPUS_PER_NODE is 'eight'; give the number of GPUs of a node"),
    ],
)
def test_slurm_job_lacks_something(
    place: Place, settings: dict[str, str], words: list[str], complaint: str
) -> None:
    ran = place.run(
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
    ran = place.run("example_slurm_pretrain_pile.sub", **{**JOB, "DATA": "", **settings})
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
    ran = place.run("example_slurm_pretrain_pile.sub", **settings, RC="9")
    assert ran.rc == 9
    ran = place.run("example_slurm_pretrain_pile.sub", **settings)
    assert any(
        word.startswith("--container-mounts=") and word.endswith(",/d:/e") for word in ran.argv
    )
    assert ran.env["TFDS_DATA_DIR"] == "/e"
