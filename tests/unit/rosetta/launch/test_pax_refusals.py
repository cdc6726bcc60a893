"""What the scripts refuse; see tests/support/pax_scripts.py."""

from __future__ import annotations

import pytest

from tests.support import t5x_scripts
from tests.support.pax_scripts import BASE, PILE, TEXT, Place, place_

__all__ = ["place_"]  # a fixture


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
