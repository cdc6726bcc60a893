from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]
RAISES = "from rosetta.errors import UserError\nclass Proxy(UserError):\n    def __str__(self):\n        return 'more\\nlines'\nraise Proxy('it is bad', 'HERE', 'mend it')\n"


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """An environment whose T5X raises what a user can mend."""
    (tmp_path / "t5x").mkdir()
    (tmp_path / "t5x" / "__init__.py").touch()
    (tmp_path / "tensorflow.py").touch()
    (tmp_path / "gin").mkdir()
    (tmp_path / "gin/__init__.py").write_text("def parse_config_files_and_bindings(): ...\n")
    (tmp_path / "gin/config_parser.py").write_text("class ParserDelegate: ...\n")
    (tmp_path / "absl").mkdir()
    for name in ("__init__", "app"):
        (tmp_path / "absl" / f"{name}.py").touch()
    (tmp_path / "absl" / "flags.py").write_text("FLAGS = None\n")
    for name in ("train", "eval"):
        (tmp_path / "t5x" / f"{name}.py").write_text(RAISES.replace("HERE", name))
    return {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"}


@pytest.mark.parametrize(
    ("words", "program"),
    [([], "train"), (["--x"], "train"), (["train"], "train"), (["eval", "--x"], "eval")],
)
def test_a_users_error_is_one_line_in_the_log_and_on_the_terminal(
    words: list[str], program: str, env: dict[str, str]
) -> None:
    read, write = os.pipe()
    env["ROSETTA_PROGRESS_FD"] = str(write)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "rosetta.t5x.train", *words],
        env=env,
        pass_fds=[write],
        capture_output=True,
        text=True,
        check=False,
    )
    os.close(write)
    with open(read) as terminal:
        assert terminal.read() == done.stderr
    phase, line = done.stderr.splitlines()
    assert phase.startswith("[")
    assert line == f"rosetta: {program}: it is bad; mend it"
    assert done.returncode == 2


def test_earlier_output_is_not_lost(env: dict[str, str], tmp_path: Path) -> None:
    """Into a pipe or a file it waits in the process until it is flushed."""
    (tmp_path / "t5x" / "train.py").write_text(f"print('step 7')\n{RAISES}")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "rosetta.t5x.train"],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "step 7\n")


def test_other_programs_keep_their_words_and_their_status(
    env: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "t5x" / "infer.py").write_text(
        "import sys\nif __name__ == '__main__':\n    print(sys.argv)\n    sys.exit(5)\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-m", "rosetta.t5x.train", "infer", "--a", "b"],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.rstrip()) == (
        5,
        str([str(tmp_path / "t5x" / "infer.py"), "--a", "b"]),
    )


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            "OSError(28, 'No space left on device', '/m/a')",
            "/m/a: No space left on device; free some space there (quotas count too) and start the run again",
        ),
        (
            "PermissionError(13, 'Permission denied', '/m/a')",
            "/m/a: Permission denied; let this user read and write there, or name another path",
        ),
    ],
)
def test_an_error_of_the_operating_system_is_one_line(
    error: str, line: str, env: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "t5x" / "train.py").write_text(f"raise {error}\n")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "rosetta.t5x.train"],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr.splitlines()[1:]) == (2, [f"rosetta: {line}"])


def test_an_error_in_the_data_of_evaluation_is_one_line(
    env: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "t5x" / "train.py").write_text(
        "import sys, types\n"
        "from rosetta.errors import UserError\n"
        "data = types.ModuleType('evaluation_data')\n"
        "data.raised_errors = [UserError('it is bad', 'a.jsonl', 'mend it')]\n"
        "sys.modules['rosetta.t5x.evaluation_data'] = data\n"
        "raise RuntimeError('what TensorFlow says of it')\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-m", "rosetta.t5x.train"],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    (_, line) = done.stderr.splitlines()
    assert line.startswith("rosetta: a.jsonl:")
