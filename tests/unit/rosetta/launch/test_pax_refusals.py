"""What the scripts refuse; see tests/support/pax_scripts.py."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import errors, t5x_scripts
from tests.support.pax_scripts import BASE, BOOLQ, PILE, TEXT, Place, place_

__all__ = ["place_"]  # a fixture


@pytest.mark.parametrize(
    ("script", "words", "settings", "kind", "facts"),
    [
        (
            BASE,
            ["Synthetic12M"],
            {},
            errors.UNKNOWN,
            {"where": "CONFIG", "value": "Synthetic12M", "remedy": "Synthetic126M"},
        ),
        (
            BASE,
            ["qqqq"],
            {},
            errors.UNKNOWN,
            {"where": "CONFIG", "value": "qqqq", "remedy": ("GPT175B", "GPT5B", "LLaMA13B")},
        ),
        (BASE, ["../x"], {}, errors.INVALID, {"where": "CONFIG", "value": "../x"}),
        (BASE, [], {}, errors.MISSING, {"where": "CONFIG"}),
        (
            BASE,
            ["Synthetic5B", *"1234567"],
            {},
            errors.INVALID,
            {"where": "run_base_config_multinode.sh", "value": 8},
        ),
        (
            BASE,
            ["Synthetic5B", "fp8"],
            {},
            errors.INVALID,
            {"where": "PREC", "value": "fp8", "remedy": ("bfloat16", "float32")},
        ),
        (BASE, ["Synthetic5B", "", "0"], {}, errors.INVALID, {"where": "NUM_GPUS", "value": "0"}),
        (
            BASE,
            ["Synthetic5B", "", "4"],
            {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"},
            errors.CONFLICT,
            {"where": "NUM_GPUS=4", "value": 2, "names": ("XLA_FLAGS", "CPU")},
        ),
        (
            BASE,
            ["Synthetic5B", "", "4"],
            {"ICI_MESH_SHAPE": "[1,2,1]", "DCN_MESH_SHAPE": "[1,1,1]"},
            errors.CONFLICT,
            {"where": "ICI_MESH_SHAPE=[1,2,1] x DCN_MESH_SHAPE=[1,1,1]", "value": 2, "names": "4"},
        ),
        (
            BASE,
            ["Synthetic5B", "", "4"],
            {"ICI_MESH_SHAPE": "[1,2]", "DCN_MESH_SHAPE": "[1,1,1]"},
            errors.INVALID,
            {"where": "ICI_MESH_SHAPE", "value": [1, 2]},
        ),
        (
            BASE,
            ["Synthetic5B", "", "4"],
            {"PERCORE_BATCH_SIZE": "0.3"},
            errors.INVALID,
            {"where": "PERCORE_BATCH_SIZE=0.3", "value": 0.3, "names": ("4", "1.2")},
        ),
        (
            BASE,
            ["Synthetic5B"],
            {"USE_LORA": "1"},
            errors.UNSUPPORTED,
            {"where": "USE_LORA=1", "names": "run_llama_boolq"},
        ),
        (
            BASE,
            ["Synthetic5B"],
            {"LORA_RANK": "8"},
            errors.UNSUPPORTED,
            {"where": "LORA_RANK=8", "names": "run_llama_boolq"},
        ),
        (
            PILE,
            ["", "byte"],
            {"LORA_TARGET_LAYERS": "mlp", **TEXT},
            errors.UNSUPPORTED,
            {"where": "LORA_TARGET_LAYERS=mlp", "names": "run_llama_boolq"},
        ),
        (
            "run_llama_boolq.sh",
            [],
            {"LORA_RANK": "8", **TEXT},
            errors.CONFLICT,
            {"where": "LORA_RANK=8", "names": "USE_LORA=1", "remedy": "USE_LORA=1"},
        ),
        (
            "run_llama_boolq.sh",
            [],
            {"USE_LORA": "0", "LORA_TARGET_LAYERS": "mlp", **TEXT},
            errors.CONFLICT,
            {"where": "LORA_TARGET_LAYERS=mlp", "names": "USE_LORA=1"},
        ),
        (
            PILE,
            ["", "byte"],
            {"EVAL_DATA": "text:none.txt", **TEXT},
            errors.MISSING,
            {"where": "EVAL_DATA: none.txt"},
        ),
        (
            PILE,
            ["", "byte"],
            {"EVAL_DATA": "cache:none", **TEXT},
            errors.MISSING,
            {"where": "EVAL_DATA: none"},
        ),
        (
            PILE,
            ["", "byte"],
            {"EVAL_DATA": "txt:none", **TEXT},
            errors.UNKNOWN,
            {"where": "EVAL_DATA=txt:none", "value": "txt"},
        ),
        (
            PILE,
            ["", "byte"],
            {"EVAL_DATA": "hf:/none", **TEXT},
            errors.MISSING,
            {"where": "EVAL_DATA: /none"},
        ),
        (
            PILE,
            ["", "byte"],
            {"ROSETTA_FDL": "--fdl.EVAL_DATA=text:none.txt", **TEXT},
            errors.MISSING,
            {"where": "EVAL_DATA: none.txt"},
        ),
        (
            PILE,
            ["", "ids:9"],
            {"DATA": "jsonl:none.txt"},
            errors.MISSING,
            {"where": "DATA: none.txt"},
        ),
        (
            "run_llama_boolq.sh",
            [],
            {"EVAL_DATA": "jsonl:none", "DATA": BOOLQ["DATA"]},
            errors.MISSING,
            {"where": "EVAL_DATA: none"},
        ),
        (
            BASE,
            ["Synthetic126M", "", "8"],
            {"NUM_MICROBATCHES": "3", "PERCORE_BATCH_SIZE": "1"},
            errors.INVALID,
            {"where": "NUM_MICROBATCHES=3", "value": 3, "names": "8"},
        ),
        (
            PILE,
            ["", "byte", "", "2", "4"],
            {"NUM_MICROBATCHES": "3", **TEXT},
            errors.INVALID,
            {"where": "NUM_MICROBATCHES=3", "value": 3, "names": "8"},
        ),
        (
            BASE,
            ["mine.Experiment", "", "8"],
            {"NUM_MICROBATCHES": "3", "PERCORE_BATCH_SIZE": "1"},
            errors.INVALID,
            {"where": "NUM_MICROBATCHES=3", "value": 3, "names": "8"},
        ),
        (
            BASE,
            ["Synthetic5B"],
            {"CHECKPOINT_RESTORE_PATH": "old"},
            errors.UNSUPPORTED,
            {"where": "CHECKPOINT_RESTORE_PATH=old", "names": "run_llama_boolq"},
        ),
        (
            BASE,
            ["Synthetic5B"],
            {"ROSETTA_FDL": "NUM_LAYERS=2"},
            errors.INVALID,
            {
                "where": "ADDITIONAL_ARGS, ROSETTA_FDL",
                "value": "NUM_LAYERS=2",
                "remedy": "--fdl.NAME=VALUE",
            },
        ),
        (
            BASE,
            ["Synthetic5B"],
            {"SLURM_NTASKS": "3", "SLURM_JOB_NUM_NODES": "2"},
            errors.CONFLICT,
            {"where": "SLURM_NTASKS=3", "value": 3, "names": "2"},
        ),
        (
            BASE,
            ["Synthetic5B", "", "8"],
            {"SLURM_NTASKS": "4", "SLURM_JOB_NUM_NODES": "2"},
            errors.CONFLICT,
            {"where": "NUM_GPUS=8", "value": 2},
        ),
        (
            BASE,
            ["Synthetic5B", "", "", "/proc/1/x"],
            {},
            errors.DENIED,
            {"where": "/proc/1/x", "value": "/proc/1"},
        ),
        (BASE, ["Synthetic5B", "", "", "corpus.txt"], {}, errors.INVALID, {"where": "corpus.txt"}),
        (
            BASE,
            ["Synthetic5B"],
            {"XLA_FLAGS": "--a='b"},
            errors.INVALID,
            {"where": "XLA_FLAGS=--a='b", "value": "--a='b"},
        ),
        (
            BASE,
            ["Pile5B"],
            {"VOCAB_PATH": "", **TEXT},
            errors.MISSING,
            {"where": "VOCAB_PATH", "names": "Pile5B"},
        ),
        (
            PILE,
            ["", "nowhere.model"],
            TEXT,
            errors.MISSING,
            {"where": "VOCAB_PATH=nowhere.model"},
        ),
        (PILE, ["", "bin"], TEXT, errors.INVALID, {"where": "VOCAB_PATH=bin", "names": "0"}),
        (PILE, ["", "gs://b/m"], TEXT, errors.UNSUPPORTED, {"where": "VOCAB_PATH=gs://b/m"}),
        (
            PILE,
            ["", "byte", "", "8", "4"],
            {"DATA": "text:short.txt"},
            errors.TOO_BIG,
            {"where": "DATA=text:short.txt", "value": 32, "names": ("8", "2048")},
        ),
        (
            PILE,
            ["", "byte", "", "1", "1"],
            {"DATA": "jsonl:short.txt"},
            errors.INVALID,
            {"where": "short.txt, line 513", "names": "JSON"},
        ),
        (PILE, ["", "byte"], {"DATA": "text:none.txt"}, errors.MISSING, {"where": "none.txt"}),
        (
            BASE,
            ["LLaMA7B"],
            {"DATA": "text:corpus.txt", "VOCAB_PATH": "byte"},
            errors.UNSUPPORTED,
            {"where": "DATA=text:corpus.txt", "value": "text", "remedy": "jsonl"},
        ),
        (
            PILE,
            ["", "byte"],
            {"DATA": ""},
            errors.MISSING,
            {"where": "TFDS_DATA_DIR", "names": "Pile126M"},
        ),
        (
            PILE,
            ["nowhere", "byte"],
            {"DATA": ""},
            errors.MISSING,
            {"where": "TFDS_DATA_DIR=nowhere"},
        ),
        (
            "run_lambada_singlenode.sh",
            ["", "byte", "", "", "", "nowhere"],
            TEXT,
            errors.MISSING,
            {"where": "nowhere"},
        ),
        (
            "run_llama_boolq.sh",
            ["x"],
            TEXT,
            errors.INVALID,
            {"where": "run_llama_boolq.sh", "value": 1},
        ),
        (
            "run_llama_boolq.sh",
            [],
            {"EVAL_ONLY": "1", "DATA": BOOLQ["DATA"]},
            errors.MISSING,
            {"where": "CHECKPOINT_RESTORE_PATH"},
        ),
        (
            "run_llama_boolq.sh",
            [],
            {"CHECKPOINT_RESTORE_PATH": "bin", **TEXT},
            errors.MISSING,
            {"where": "CHECKPOINT_RESTORE_PATH=bin", "names": "checkpoint_N"},
        ),
        (
            "run_llama_boolq.sh",
            [],
            {"USE_LORA": "1", "LORA_TARGET_LAYERS": "some", **TEXT},
            errors.INVALID,
            {"where": "LORA_TARGET_LAYERS", "value": "some"},
        ),
        (
            "run_llama_boolq.sh",
            [],
            {"CONFIG": "LLaMA8B", **TEXT},
            errors.UNKNOWN,
            {"where": "CONFIG", "value": "LLaMA8B", "remedy": "LLaMA7B"},
        ),
    ],
)
def test_refused_in_one_line_with_nothing_written(
    place: Place,
    script: str,
    words: list[str],
    settings: dict[str, str],
    kind: str,
    facts: dict[str, Any],
) -> None:
    (place.work / "short.txt").write_text("A line of text.\n" * 1200)
    before = t5x_scripts.read_text_files(place.work)
    ran = place.run(script, *words, **{"LOG_DIR": "logs", **settings})
    assert (ran.rc, ran.argv) == (2, [])
    errors.check_error(ran.error, kind, **facts)
    assert len(ran.err.splitlines()) == 1
    assert t5x_scripts.read_text_files(place.work) == before
    assert not (place.work / "logs").exists()


@pytest.mark.parametrize(("steps", "status", "lines"), [("1", 2, 1), ("350", 0, 1), ("351", 0, 0)])
def test_max_steps_below_the_checkpoint_is_refused(
    steps: str, status: int, lines: int, place: Place
) -> None:
    place.checkpoint("l", 350)
    ran = place.run(BASE, "Synthetic126M", "", "", "l", MAX_STEPS=steps)
    assert ran.rc == status, ran.err
    assert [line.count("LOG_DIR is at step 350") for line in ran.said if "350" in line] == [
        1
    ] * lines
    for error in ran.errors:
        errors.check_error(error, errors.CONFLICT, where="MAX_STEPS=1", remedy="MAX_STEPS")


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("--fdl.MAX_STEPS=1", 2),
        ("--fdl_set=MAX_STEPS=1", 2),
        ("--fdl_set MAX_STEPS=1", 2),
        ("--fdl.MAX_STEPS=1 --exp=mine.Experiment", 0),
        ("--fdl.MAX_STEPS=1 --fiddler=mine.make_longer", 0),
    ],
)
def test_a_check_counts_with_the_value_that_fiddle_sets(
    text: str, status: int, place: Place
) -> None:
    """A run of another experiment is left to the trainer."""
    place.checkpoint("l", 350)
    ran = place.run(BASE, "Synthetic126M", "", "", "l", ROSETTA_FDL=text)
    assert ran.rc == status, ran.err
