from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support import corpora

ROOT = Path(__file__).parents[4]
SCRIPT = ROOT / "overlay/t5x/t5x/contrib/gpu/scripts_gpu/download_the_pile.py"


def run(folder: Path) -> subprocess.CompletedProcess[str]:
    env = {
        **os.environ,
        "TFDS_DATA_DIR": str(folder),
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return subprocess.run(
        [sys.executable, str(SCRIPT)], env=env, capture_output=True, text=True, check=False
    )


def test_without_a_copy_the_script_names_replacements_of_the_pile(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "offline since October 2023" in done.stderr
    for replacement in ("text:", "jsonl:", "tfds:c4/en", "hf:allenai/c4/en"):
        assert replacement in done.stderr


def test_a_whole_copy_is_found_and_a_damaged_one_refused(tmp_path: Path) -> None:
    place = corpora.write_tfds_folder(
        tmp_path, "the_pile", {"train": [[corpora.encode_example(text=[b"some text"])] * 5] * 2}
    )
    done = run(tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "2 files" in done.stdout
    assert "10 examples" in done.stdout
    assert "DATA=tfds:the_pile" in done.stdout
    next(place.glob("*.tfrecord-00001*")).unlink()
    done = run(tmp_path)
    assert done.returncode == 2
    for fact in ("1 of 2", "train"):
        assert fact in done.stderr
    assert len(done.stderr.splitlines()) == 1
