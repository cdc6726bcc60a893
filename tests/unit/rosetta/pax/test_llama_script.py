"""LLaMA's script: finetuning, evaluation, or both; see tests/support/pax_scripts.py."""

from __future__ import annotations

import signal
import subprocess
import time

from tests.support import t5x_scripts
from tests.support.pax_scripts import BOOLQ, H100, SCRIPTS, SLURM, Place, place_
from tests.support.t5x_scripts import read_fiddle_settings

__all__ = ["place_"]  # a fixture


class TestLlama:
    def test_finetuning_then_evaluation(self, place: Place) -> None:
        place.checkpoint("weights", 0)
        ran = place.run_shell(
            "run_llama_boolq.sh", **BOOLQ, CHECKPOINT_RESTORE_PATH="weights", NUM_GPUS="8"
        )
        assert ran.rc == 0, ran.err
        trained, evaluated = ran.programs
        assert "--mode=train" in trained.argv
        assert "--mode=eval" in evaluated.argv
        job = f"--job_log_dir={place.work}/logs/llama-LLaMA7B-mbs-2-te-0-lora-0"
        assert job in trained.argv
        assert job in evaluated.argv
        found = read_fiddle_settings(trained.argv)
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
        assert "CHECKPOINT_RESTORE_PATH" not in read_fiddle_settings(evaluated.argv)
        log = (place.work / "logs" / "logs" / "llama-LLaMA7B-mbs-2-te-0-lora-0.txt").read_text()
        assert log.count("the trainer's words") == 2

    def test_the_folder_is_the_same_however_a_switch_is_typed(self, place: Place) -> None:
        for word in ("0", "OFF", "false", " no "):
            ran = place.run("run_llama_boolq.sh", **BOOLQ, ENABLE_TE=word)
            assert f"--job_log_dir={place.work}/logs/llama-LLaMA7B-mbs-2-te-0-lora-0" in ran.argv
        (place.work / "logs" / "llama-LLaMA7B-mbs-2-te-OFF-lora-0").mkdir(parents=True)
        ran = place.run("run_llama_boolq.sh", **BOOLQ, ENABLE_TE="OFF")
        assert f"--job_log_dir={place.work}/logs/llama-LLaMA7B-mbs-2-te-OFF-lora-0" in ran.argv

    def test_a_failed_training_is_not_evaluated(self, place: Place) -> None:
        ran = place.run_shell("run_llama_boolq.sh", **BOOLQ, RC="5")
        assert (ran.rc, len(ran.programs)) == (5, 1)
        assert (
            ran.said[-1]
            == "rosetta: training starts from random weights: CHECKPOINT_RESTORE_PATH is not set"
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
        assert len(ran.programs) == 1
        assert f"--evaluate_from={place.work}/weights/checkpoints" in ran.argv
        assert f"--job_log_dir={place.work}/logs/llama-LLaMA7B-mbs-2-te-0-lora-0" in ran.argv
        assert ran.hyper["MAX_STEPS"] == "3"

    def test_a_signal_ends_what_runs(self, place: Place) -> None:
        place.program(
            "recorder",
            t5x_scripts.RECORDER.replace("sys.exit(", "import time; time.sleep(60); sys.exit("),
        )
        record = place.work / "record.json"
        end = time.monotonic() + 60
        with subprocess.Popen(
            ["bash", str(SCRIPTS / "run_llama_boolq.sh")],
            cwd=place.work,
            env=place.env(**BOOLQ),
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        ) as process:
            while not record.exists() or not record.read_text().endswith("}\n"):
                assert process.poll() is None
                assert time.monotonic() < end
                time.sleep(0.05)
            process.terminate()
            assert process.wait(60) == 128 + signal.SIGTERM
