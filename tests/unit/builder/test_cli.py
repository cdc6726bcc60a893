"""The command line's promises: exit status, one JSON document, one line for an error, nothing secret."""

from __future__ import annotations

import errno
import json
import os
import pwd
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from builder import cli
from builder.commands.registry import PROGRAM
from builder.core import environment_stamp
from builder.core.command_context import Result
from builder.core.secrets import redact
from builder.packages import builder_environment
from rosetta.core import exit_status
from rosetta.core.errors import UserError
from tests.support import errors

ROOT = Path(__file__).parents[3]
FULL = os.strerror(errno.ENOSPC)


def _build_py(*args: str, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, str(ROOT / "build.py"), *args],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )


@pytest.mark.parametrize(
    ("args", "status", "word"),
    [
        (["--help"], 0, "quickstart"),
        (["-h"], 0, "quickstart"),
        ([], 2, "quickstart"),
        (["--version"], 0, "rosetta builder"),
        (["-V"], 0, "rosetta builder"),
    ],
)
def test_usage(capsys: pytest.CaptureFixture[str], args: list[str], status: int, word: str) -> None:
    assert cli.main(args) == status
    assert word in capsys.readouterr().out


@pytest.mark.parametrize("verb", PROGRAM.names)
def test_every_verb_has_help(capsys: pytest.CaptureFixture[str], verb: str) -> None:
    assert cli.main([verb, "--help"]) == 0
    out = capsys.readouterr().out
    assert "--offline" in out
    assert f"build.py {verb}" in out


def test_unknown_verb_option_and_distribution(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bild"]) == 2
    err = capsys.readouterr().err
    assert "'bild'" in err
    assert "build?" in err
    assert cli.main(["--distribution", "t5x", "--offlin"]) == 2
    assert "--offlin" in capsys.readouterr().err
    assert cli.main(["--distribution", "t6x", "--json"]) == 2
    document = json.loads(capsys.readouterr().out)
    assert document["ok"] is False
    error = errors.from_document(document)
    errors.check_error(error, errors.UNKNOWN, where="--distribution", value="t6x", remedy="pax-1.4")


@pytest.mark.parametrize(
    ("argv", "facts"),
    [
        (
            ["--acelerator", "cpu"],
            ["build.py build: ", "--acelerator cpu;", "--accelerator?"],
        ),
        (
            ["--distribution", "t5x", "--accelerator=cud12"],
            ["build.py build: ", "--accelerator 'cud12';", "cuda12?"],
        ),
        (
            ["--distribution", "t5x", "--accelerator=rocm"],
            ["build.py build: ", "--accelerator 'rocm';", "cpu, cuda12, cuda13;"],
        ),
        (
            ["patches", "chekc"],
            ["build.py patches: ", "'chekc';", "check?"],
        ),
        (
            ["cache", "prune", "--dyas=3"],
            ["build.py cache prune: ", "--dyas=3;", "--days?"],
        ),
        (
            ["--distribution", "t5x", "--zzzzzz"],
            ["build.py build: ", "--zzzzzz; see build.py build"],
        ),
    ],
)
def test_what_was_nearly_written(
    capsys: pytest.CaptureFixture[str], argv: list[str], facts: list[str]
) -> None:
    assert cli.main(argv) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert all(fact in line for fact in [*facts, "--help"]), line
    assert ("?" in line) == ("?" in facts[-1])


@pytest.mark.parametrize(
    ("raised", "status", "word"),
    [
        (UserError("broken", "file:3", "mend it"), 2, "rosetta: file:3: broken; mend it"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (OSError(28, FULL, "/x"), 2, FULL),
        (
            RuntimeError("surprise, token PYPI_TOKEN=hunter2"),
            3,
            "RuntimeError: surprise",
        ),
        (OSError(9, "Bad file descriptor", "/x"), 3, "Bad file descriptor"),
    ],
)
def test_every_error_has_its_status(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    raised: BaseException,
    status: int,
    word: str,
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def run(*_: object) -> Result:
        raise raised

    monkeypatch.setattr("builder.commands.cache.run", run)
    assert cli.main(["cache", "du"]) == status
    said = capsys.readouterr()
    assert word in said.err
    assert "Traceback" not in said.err
    assert "hunter2" not in said.err
    if status == 3:
        (report,) = tmp_path.glob("rosetta-error-*.log")
        assert "Traceback" in report.read_text()
        assert "hunter2" not in report.read_text()


def test_the_traceback_of_a_fault_is_printed_if_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("ROSETTA_DEBUG", "1")

    def run(*_: object) -> Result:
        raise RuntimeError("surprise, token PYPI_TOKEN=hunter2")

    monkeypatch.setattr("builder.commands.cache.run", run)
    assert cli.main(["cache", "du"]) == exit_status.INTERNAL_ERROR
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert "hunter2" not in err


def test_json_is_the_only_thing_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["cache", "du", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["command"], document["ok"], document["error"]) == (
        1,
        "cache",
        True,
        None,
    )


def test_credentials_are_never_printed() -> None:
    text = redact("GET https://user:hunter2@host/x API_KEY=hunter2 my_password=hunter2 plain=kept")
    assert "hunter2" not in text
    assert "plain=kept" in text


def test_build_py_hands_over() -> None:
    done = _build_py("--version")
    assert (done.returncode, done.stdout.startswith("rosetta builder")) == (0, True)
    assert _build_py("bild").returncode == 2


def test_build_py_is_old_syntax_and_short() -> None:
    """An old Python must get a sentence: nothing newer than 3.0 in the grammar, and it stays a door."""
    text = (ROOT / "build.py").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 120
    compile(text, "build.py", "exec", dont_inherit=True)
    for newer in ('f"', "f'", ":=", "match ", "async ", " -> ", "nonlocal"):
        assert not any(
            newer in line for line in text.splitlines() if not line.strip().startswith(("#", '"'))
        ), newer


def test_an_old_python_gets_a_sentence(tmp_path: Path) -> None:
    """Run with sys.version_info of 3.9 and a PATH without any other Python."""
    program = f"import sys; sys.version_info = (3, 9, 2, 'final', 0); sys.argv = ['build.py']; import os; os.environ['PATH'] = {str(tmp_path)!r}; exec(open('build.py').read())"
    done = subprocess.run(
        [sys.executable, "-c", program.replace("exec(", "__file__ = 'build.py'; exec(")],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 2
    assert "Python 3.9 " in done.stderr
    assert "apt-get install python3" in done.stderr


def test_a_shim_of_a_python_that_is_not_there_is_passed_by(tmp_path: Path) -> None:
    for name, text in (("python3.14", "exit 127"), ("python3.13", 'echo "went on: $*"; exit 0')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    program = f"import sys; sys.version_info = (3, 9, 2, 'final', 0); sys.argv = ['build.py', 'bild']; import os; os.environ['PATH'] = {str(tmp_path)!r}; __file__ = 'build.py'; exec(open('build.py').read())"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert (done.returncode, done.stdout) == (0, f"went on: {ROOT / 'build.py'} bild\n"), (
        done.stderr
    )


def test_an_empty_home_is_none() -> None:
    program = "import os, build; import builder.bootstrap as after; after.hand_over = lambda *_: print(os.path.expanduser('~')); build.main()"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "HOME": ""},
    )
    assert done.stdout.strip() == pwd.getpwuid(os.getuid()).pw_dir, done.stderr


def test_a_linked_environment_is_used_as_it_is(tmp_path: Path) -> None:
    """A worktree may link to the environment of its main checkout. Only that one makes it anew."""
    (tmp_path / "locks").mkdir()
    (tmp_path / "locks" / "builder.txt").write_text("uv==0 --hash=sha256:0\n")
    python = tmp_path / "main" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    (tmp_path / ".venv").symlink_to("main")
    assert environment_stamp.is_current(str(tmp_path))
    python.unlink()
    assert not environment_stamp.is_current(str(tmp_path))
    with errors.expect_user_error(errors.MISSING):
        builder_environment._ensure_environment(tmp_path, offline=True)


@pytest.mark.parametrize(
    "argv",
    [
        ["--json"],
        ["cache", "--json"],
        ["--distribution", "t5x", "--accelerator", "rocm", "--json"],
        ["verify", "--json"],
        ["bild", "--json"],
        ["cache", "prune", "--days", "-1", "--json"],
        ["cache", "prune", "--days", "nan", "--json"],
    ],
)
def test_errors_of_options_are_one_line_and_one_document(
    capsys: pytest.CaptureFixture[str], argv: list[str]
) -> None:
    assert cli.main(argv) == 2
    said = capsys.readouterr()
    assert json.loads(said.out)["error"]["what"]
    assert len(said.err.splitlines()) == 1


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="NOT CHECKED: no /dev/full here")
@pytest.mark.parametrize(
    ("argv", "stream", "line"),
    [
        (["--help"], "stdout", FULL),
        (["docs", "--help"], "stdout", FULL),
        (["cache", "du"], "stdout", FULL),
        (
            ["cache", "du", "--json"],
            "stdout",
            FULL,
        ),
        (["cache", "nosuch", "--json"], "stdout", "'nosuch'"),
        (["cache", "nosuch"], "stderr", ""),
    ],
)
def test_a_stream_that_cannot_be_written_ends_with_status_2(
    tmp_path: Path, argv: list[str], stream: str, line: str
) -> None:
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from builder.cli import main; sys.exit(main(sys.argv[1:]))"
    env = {**os.environ, "ROSETTA_CACHE": str(tmp_path)}
    with open("/dev/full", "w", encoding="ascii") as full:
        streams: dict[str, Any] = {
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            stream: full,
        }
        done = subprocess.run(
            [sys.executable, "-I", "-c", program, *argv], text=True, check=False, env=env, **streams
        )
    assert done.returncode == 2
    if line:
        assert line in done.stderr
        assert done.stderr.count("\n") == 1


def test_a_reader_that_has_seen_enough_gets_no_message(tmp_path: Path) -> None:
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from builder.cli import main; sys.exit(main(sys.argv[1:]))"
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "wb") as out:
        done = subprocess.run(
            [sys.executable, "-I", "-c", program, "cache", "du"],
            check=False,
            stdout=out,
            stderr=subprocess.PIPE,
            env={**os.environ, "ROSETTA_CACHE": str(tmp_path)},
        )
    assert (done.returncode, done.stderr) == (exit_status.OUTPUT_CLOSED, b"")


def test_a_number_that_was_refused_is_one_in_the_document(
    capsys: pytest.CaptureFixture[str],
) -> None:
    error = UserError("too many", "--jobs", "give fewer", kind=errors.TOO_BIG, value=300)
    assert cli._print_error("build", error, exit_status.USER_ERROR, as_json=True) == 2
    shown = errors.from_document(json.loads(capsys.readouterr().out))
    errors.check_error(shown, errors.TOO_BIG, where="--jobs", value=300)


def test_an_error_is_one_line_and_controls_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--distribution", "t5x\n\x1b[31m\u202e", "--offline"]) == 2
    error = UserError("a\nb\x1b[31m", "w\u202e\n", "d\r")
    assert cli._print_error("build", error, exit_status.USER_ERROR, as_json=False) == 2
    lines = capsys.readouterr().err.split("\n")
    assert len(lines) == 3
    assert lines[1] == r"rosetta: w\u202e\n: a\nb\x1b[31m; d\r"


@pytest.mark.parametrize(
    "words",
    [
        ["--mirror", ""],
        ["--mirror="],
        ["--output", "", "--dry-run"],
        ["--base="],
        ["--python", ""],
        ["--platform", ""],
    ],
)
def test_an_empty_value_is_not_a_default(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["--distribution", "pax-1.4", *words]) == 2
    option = words[0].removesuffix("=")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"rosetta: {option}: ")


@pytest.mark.parametrize("kind", ["env", "oci", "bundle"])
def test_a_file_in_place_of_a_folder_is_refused_before_anything_is_made(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert (
        cli.main(
            ["--distribution", "pax-1.4", "--output", f"{kind}:{tmp_path}/file/x", "--dry-run"]
        )
        == 2
    )
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert str(tmp_path / "file") in lines[0]
