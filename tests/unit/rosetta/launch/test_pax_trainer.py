"""What the scripts run, as far as is checked before Paxml starts; see tests/support/pax_scripts.py."""

from __future__ import annotations

import json

import pytest

from tests.support import errors, t5x_scripts
from tests.support.pax_scripts import BASE, H100, OURS, PILE, SLURM, TEXT, Place, place_

__all__ = ["place_"]  # a fixture


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
    ran = place.run("run_pile_singlenode.sh", "", "byte", "", "4", "0.5", **TEXT)
    errors.check_error(ran.error, errors.INVALID, where="PERCORE_BATCH_SIZE", value=2, names="4")


@pytest.mark.parametrize(
    "folder", ['a "b" c', "back\\slash", "$(touch pwned)", "-dash", "semi;colon"]
)
def test_a_folders_name_is_never_code(place: Place, folder: str) -> None:
    ran = place.run("run_pile_singlenode.sh", "", "byte", "", "", "", folder, **TEXT)
    assert ran.rc == 0, ran.err
    assert f"--job_log_dir={place.work}/{folder}" in ran.argv
    assert not (place.work / "pwned").exists()


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


def test_a_mesh_for_another_number_of_gpus_is_a_warning(place: Place) -> None:
    ran = place.run("run_base_config_multinode.sh", "Synthetic5B", "", "8")
    assert ran.rc == 0, ran.err
    (line,) = [line for line in ran.err.splitlines() if "Synthetic5B: " in line]
    assert "256" in line
    assert "[1,8,1]" in line
    meshes = {"ICI_MESH_SHAPE": "[1,8,1]", "DCN_MESH_SHAPE": "[1,1,1]"}
    for settings in (meshes, {**SLURM, "SLURM_NTASKS": "256", "SLURM_JOB_NUM_NODES": "32"}):
        ran = place.run("run_base_config_multinode.sh", "Synthetic5B", "", "8", **settings)
        assert ran.rc == 0, ran.err
        assert "Synthetic5B: " not in ran.err


def test_synthetic_needs_neither_data_nor_vocabulary(place: Place) -> None:
    ran = place.run("run_base_config_multinode.sh", "Synthetic5B", VOCAB_PATH="")
    assert ran.rc == 0, ran.err
    assert ran.hyper == {"FPROP_DTYPE": '"bfloat16"'}
    assert not any(word.startswith("--tfds_data_dir") for word in ran.argv)
    assert "VOCAB_PATH" not in ran.env
    gathers = " --xla_gpu_all_gather_combine_threshold_bytes=402653184"
    assert ran.env["XLA_FLAGS"] == OURS.format(51200) + gathers


def test_an_experiment_of_ones_own(place: Place) -> None:
    ran = place.run(
        "run_base_config_multinode.sh", "mine.experiments.Big", "bfloat16", "1", "l", **TEXT
    )
    assert "--fdl_config=mine.experiments.Big" in ran.argv


def test_the_rows_of_a_batch_are_counted_by_what_is_given(place: Place) -> None:
    (place.work / "short.txt").write_text("A line of text.\n" * 1200)
    short = {"DATA": "text:short.txt", "MAX_STEPS": "1"}
    assert place.run("run_pile_singlenode.sh", "", "byte", "", "8", "1", **short).rc == 0
    ran = place.run("run_pile_singlenode.sh", "", "byte", "", "8", "2", **short)
    errors.check_error(ran.error, errors.TOO_BIG, where="DATA=text:short.txt", value=16)
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


def test_a_download_of_ours_is_the_data(place: Place) -> None:
    place.checkpoint("run", 1)
    (place.work / "sets" / "lambada").mkdir(parents=True)
    (place.work / "sets" / "lambada" / "test.jsonl").write_text("{}")
    ran = place.run("run_lambada_singlenode.sh", "sets", "byte", "", "", "", "run", DATA="")
    assert ran.env["DATA"] == ran.env["EVAL_DATA"] == f"jsonl:{place.work}/sets/lambada/test.jsonl"


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
