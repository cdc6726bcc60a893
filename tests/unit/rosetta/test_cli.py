from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rosetta import cli
from rosetta.commands import info
from rosetta.core import lock_record
from rosetta.core.commands import PROGRAM
from tests.support import errors

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
LOCK: dict[str, Any] = {
    "schema": 1,
    "distribution": "t5x",
    "line": "current",
    "accelerator": "cpu",
    "architecture": "amd64",
    "python": "3.11",
    "builder": "0.1",
    "sources": {
        "t5x": {
            "url": "https://example.org/t5x.git",
            "commit": "c" * 40,
            "patched_commit": "d" * 40,
            "patches": [{"name": "airio-optional", "sha256": "e" * 64, "outcome": "applied"}],
        }
    },
    "requirements": {"file": "t5x-cpu.txt", "sha256": "f" * 64},
}


@pytest.fixture
def baked(tmp_path: Path) -> Path:
    """The package and a lock, laid out as in a baked environment."""
    home = tmp_path / "opt" / "rosetta"
    shutil.copytree(
        ROOT / "rosetta", home / "rosetta", ignore=shutil.ignore_patterns("__pycache__")
    )
    (home / "lock.json").write_text(json.dumps(LOCK))
    return home


def rosetta(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(home)}
    argv = [sys.executable, "-P", "-m", "rosetta", *words]
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=False)


def document(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    parsed = json.loads(done.stdout)
    assert isinstance(parsed, dict)
    assert parsed["schema"] == 1
    assert set(parsed) == {"schema", "command", "ok", "result", "error"}
    return parsed


@pytest.mark.parametrize("option", ["-V", "--version"])
def test_version(baked: Path, option: str) -> None:
    done = rosetta(baked, option)
    assert (done.returncode, done.stdout, done.stderr) == (
        0,
        "rosetta 0.1 (t5x, cpu, Python 3.11)\n",
        "",
    )
    (baked / "lock.json").unlink()
    done = rosetta(baked, option)
    assert (done.returncode, done.stdout, done.stderr) == (
        0,
        "rosetta (not baked: from a checkout)\n",
        "",
    )


def test_info_as_json(baked: Path) -> None:
    done = rosetta(baked, "info", "--json")
    assert done.returncode == 0, done.stderr
    answer = document(done)
    assert (answer["command"], answer["ok"], answer["error"]) == ("info", True, None)
    result = answer["result"]
    assert {
        key: result[key]
        for key in ("distribution", "line", "accelerator", "architecture", "builder")
    } == {
        "distribution": "t5x",
        "line": "current",
        "accelerator": "cpu",
        "architecture": "amd64",
        "builder": "0.1",
    }
    assert result["sources"]["t5x"]["patches"] == [{"name": "airio-optional", "outcome": "applied"}]
    assert result["sources"]["t5x"]["patched_commit"] == "d" * 40


def test_info_as_text(baked: Path) -> None:
    done = rosetta(baked, "info")
    assert done.returncode == 0
    assert "c" * 40 in done.stdout
    assert "airio-optional: applied" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("text", "revision", "row"),
    [
        (None, None, "unknown"),
        (
            '{"schema": 1, "commit": "abc", "clean": true}',
            {"commit": "abc", "clean": True},
            "abc",
        ),
        (
            '{"schema": 1, "commit": "abc", "clean": false}',
            {"commit": "abc", "clean": False},
            "abc, with changes",
        ),
    ],
)
def test_info_has_the_commit_of_rosetta(
    baked: Path, text: str | None, revision: dict[str, Any] | None, row: str
) -> None:
    if text:
        (baked / "revision.json").write_text(text)
    assert document(rosetta(baked, "info", "--json"))["result"]["revision"] == revision
    rows = dict(line.split(maxsplit=1) for line in rosetta(baked, "info").stdout.splitlines())
    assert rows["rosetta"] == row


def test_info_refuses_a_damaged_revision(baked: Path) -> None:
    (baked / "revision.json").write_text('{"schema": 1}')
    done = rosetta(baked, "info", "--json")
    assert done.returncode == 2
    assert document(done)["error"]["where"] == str(baked / "revision.json")


def test_info_has_known_issues_and_why_transformer_engine_is_missing(baked: Path) -> None:
    (baked / "lock.json").write_text(
        json.dumps(
            {
                **LOCK,
                "transformer_engine": None,
                "transformer_engine_reason": "no wheel",
                "base": {"name": "b", "digest": "sha256:1"},
            }
        )
    )
    (baked / "known_issues.json").write_text(
        '{"schema": 1, "issues": [{"id": "x", "line": "it breaks", "see": "there#1"}]}'
    )
    result = document(rosetta(baked, "info", "--json"))["result"]
    assert (result["transformer_engine"], result["transformer_engine_reason"]) == (None, "no wheel")
    assert result["known_issues"] == [{"id": "x", "line": "it breaks", "see": "there#1"}]
    text = rosetta(baked, "info").stdout
    for words in ("it breaks (there#1)", "none: no wheel", "b  sha256:1"):
        assert words in text


@pytest.mark.parametrize("option", ["--licences", "--licenses"])
def test_licences(baked: Path, option: str) -> None:
    rows = [{"name": "cudnn", "version": "9", "licence": "", "files": ["packages/cudnn/EULA.txt"]}]
    (baked / "LICENSES").mkdir()
    (baked / "LICENSES/index.json").write_text(json.dumps({"schema": 1, "licences": rows}))
    assert document(rosetta(baked, "info", option, "--json"))["result"]["licences"] == rows
    text = rosetta(baked, "info", option).stdout
    assert "cudnn 9  not declared" in text
    assert str(baked / "LICENSES") in text


@pytest.mark.parametrize("text", [None, "{", "[]", '{"licences": 3}'])
def test_broken_licences_are_one_line(baked: Path, text: str | None) -> None:
    (baked / "LICENSES").mkdir()
    if text is not None:
        (baked / "LICENSES/index.json").write_text(text)
    done = rosetta(baked, "info", "--licences", "--json")
    assert done.returncode == 2
    assert document(done)["error"]["where"] == str(baked / "LICENSES/index.json")
    assert len(done.stderr.splitlines()) == 1


def test_te_is_refused_with_the_reason(baked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (baked / "lock.json").write_text(
        json.dumps({**LOCK, "transformer_engine": None, "transformer_engine_reason": "no wheel"})
    )
    done = rosetta(baked, "te")
    assert (done.returncode, done.stdout) == (2, "")
    assert "no wheel" in done.stderr
    monkeypatch.setenv("ENABLE_TE", "1")
    done = rosetta(baked, "selftest")
    assert done.returncode == 2
    assert "no wheel" in done.stderr
    assert rosetta(baked, "info").returncode == 0, (
        "what an environment is can be asked all the same"
    )


def test_profile_becomes_nsys(baked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nsys").write_text('#!/bin/sh\necho "$@" $$\nexit 6\n')
    (tmp_path / "nsys").chmod(0o755)
    monkeypatch.setenv("NSYS", str(tmp_path / "nsys"))
    argv = [
        sys.executable,
        "-P",
        "-m",
        "rosetta",
        "profile",
        "-o",
        "file",
        "--",
        "python",
        "--json",
        "-c",
        "x",
    ]
    with subprocess.Popen(
        argv, env={**os.environ, "PYTHONPATH": str(baked)}, stdout=subprocess.PIPE, text=True
    ) as running:
        out = running.communicate()[0]
    assert (running.returncode, out) == (6, f"profile -o file python --json -c x {running.pid}\n")
    monkeypatch.setenv("NSYS", str(tmp_path / "missing"))
    done = rosetta(baked, "profile", "--", "python")
    assert done.returncode == 2
    assert "NSYS" in done.stderr


def test_info_reads_an_older_lock(baked: Path) -> None:
    (baked / "lock.json").write_text('{"distribution": "pax"}')
    done = rosetta(baked, "info")
    assert done.returncode == 0
    assert "pax" in done.stdout
    assert "unknown" in done.stdout


@pytest.mark.parametrize("text", [None, "{", "[]", '{"schema": 2}'])
def test_a_bad_lock_is_an_error_of_the_user(baked: Path, text: str | None) -> None:
    if text is None:
        (baked / "lock.json").unlink()
    else:
        (baked / "lock.json").write_text(text)
    done = rosetta(baked, "info", "--json")
    assert done.returncode == 2
    error = document(done)["error"]
    assert error["where"] == str(baked / "lock.json")
    assert error["do"]
    assert len(done.stderr.splitlines()) == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["nonsense"],
        [],
        ["selftest", "--steps", "7"],
        ["selftest", "--steps", "ten"],
        ["selftest", "--devices", "0"],
        ["selftest", "--devices", "1,1"],
        ["selftest", "--framework", "tensorflow"],
        ["selftest", "--imports-only", "--no-imports"],
        ["selftest", "--jobs", "0"],
        ["selftest", "--framework", "pax"],
    ],
)
def test_a_wrong_command_line(baked: Path, words: list[str]) -> None:
    done = rosetta(baked, *words, "--json")
    assert done.returncode == 2
    assert document(done)["error"]["what"]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "where", "value", "remedy"),
    [
        (
            ["submit", "t5x-large", "--on=slurm", "--nods", "4"],
            "rosetta submit",
            "--nods",
            "--nodes?",
        ),
        (["run", "t5x-large", "--weird=1", "-q"], "rosetta run", "--weird", "run --help"),
        (["submit", "t5x-large", "--on", "slrum"], "rosetta submit", "slrum", "slurm?"),
        (["selftest", "--framework=torch"], "rosetta selftest", "torch", "t5x, pax;"),
        (["bech"], "rosetta", "bech", "bench?"),
        (["t5x", "pretrian"], "rosetta t5x", "pretrian", "pretrain?"),
        (["data", "chekc"], "rosetta data", "chekc", "check?"),
        (["--jsno", "info"], "rosetta", "--jsno", "rosetta --help"),
    ],
)
def test_a_misspelt_word_gets_a_suggestion(
    capsys: pytest.CaptureFixture[str], words: list[str], where: str, value: str, remedy: str
) -> None:
    with errors.expect_reported_error(errors.UNKNOWN, where=where, value=value, remedy=remedy):
        assert cli.main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{where}: ")
    assert line.endswith(f"see {where} --help")


def test_help_ends_with_status_0(baked: Path) -> None:
    done = rosetta(baked, "selftest", "--help")
    assert done.returncode == 0
    assert "--workdir" in done.stdout


HEAVY = (
    "jax",
    "paxml",
    "praxis",
    "fiddle",
    "jaxlib",
    "flax",
    "tensorflow",
    "numpy",
    "seqio",
    "gin",
    "t5x",
)
SAYS_WHAT_IS_LOADED = f"""
import sys
from rosetta import cli
try:
    cli.main(sys.argv[1:])
finally:
    print(*sorted({{name.partition(".")[0] for name in sys.modules}} & {{*{HEAVY}}}), file=sys.stderr)
"""


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["info"],
        ["explain"],
        ["explain", "t5x-large", "--accelerator", "h100"],
        ["explain", "gpt-5b"],
        *([command.name, "--help"] for command in PROGRAM.commands),
    ],
)
def test_help_is_there_for_every_command_and_loads_no_framework(
    baked: Path, words: list[str]
) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", SAYS_WHAT_IS_LOADED, *words],
        env={**os.environ, "PYTHONPATH": str(baked)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.strip() == ""
    assert done.stdout.strip()


def test_each_module_runs_the_commands_that_the_registry_says() -> None:
    for command in PROGRAM.commands:
        same = [other.name for other in PROGRAM.commands if other.module == command.module]
        assert list(command.load_module().RUN) == same


def test_a_workdir_that_cannot_be_made(baked: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = rosetta(baked, "selftest", "--workdir", str(tmp_path / "file" / "x"), "--json")
    assert done.returncode == 2
    assert document(done)["error"]["where"] == str(tmp_path / "file" / "x")


def test_a_bug_is_reported_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_: object) -> Any:
        raise ZeroDivisionError("never here")

    monkeypatch.setitem(info.RUN, "info", broken)
    assert cli.main(["info", "--json"]) == 3
    out, err = capsys.readouterr()
    assert json.loads(out)["error"]["what"] == "ZeroDivisionError: never here"
    assert len(err.splitlines()) == 1


def test_a_selftest_without_its_framework_fails_its_imports(baked: Path, tmp_path: Path) -> None:
    """In an environment that lacks JAX the selftest must say so, not pass."""
    (baked / "t5x").mkdir()
    (baked / "t5x" / "__init__.py").write_text("import a_package_that_is_not_there")
    done = rosetta(
        baked,
        "selftest",
        "--devices",
        "1",
        "--json",
        "--no-imports",
        "--workdir",
        str(tmp_path / "w"),
    )
    assert done.returncode == 1
    answer = document(done)
    assert answer["ok"] is False
    assert answer["error"] is None
    run_problem, fp8_problem, *_ = answer["result"]["problems"]
    for problem in (run_problem, fp8_problem):
        assert "a_package_that_is_not_there" in problem
    assert answer["result"]["runs"][0]["resumed_from"] is None
    assert answer["result"]["checks"][0]["outcome"] == "failed"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_leaves_no_child(baked: Path, tmp_path: Path, number: signal.Signals) -> None:
    (baked / "t5x").mkdir()
    (baked / "t5x" / "__init__.py").touch()
    (baked / "t5x" / "train.py").write_text(
        "import os, time; print('pid', os.getpid(), flush=True); time.sleep(600)"
    )
    argv = [
        sys.executable,
        "-P",
        "-m",
        "rosetta",
        "selftest",
        "--no-imports",
        "--devices",
        "1",
        "--workdir",
        str(tmp_path / "w"),
    ]
    with subprocess.Popen(
        argv, env={**os.environ, "PYTHONPATH": str(baked)}, stderr=subprocess.PIPE, text=True
    ) as running:
        log = None
        while log is None:
            log = next(
                (
                    p
                    for p in (tmp_path / "w").glob("*/devices-1/train.log")
                    if "pid" in p.read_text()
                ),
                None,
            )
            assert running.poll() is None
            time.sleep(0.05)
        child = int(log.read_text().split("pid ")[1].split()[0])
        running.send_signal(number)
        _, err = running.communicate(timeout=60)
    assert running.returncode == 130
    assert err.splitlines()[-1] == "rosetta: selftest: interrupted; run it again"
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


@pytest.mark.parametrize(
    ("distribution", "framework"), [("t5x", "t5x"), ("pax", "pax"), ("pax-1.4", "pax")]
)
def test_framework_of_a_distribution(distribution: str, framework: str) -> None:
    assert lock_record.get_framework(distribution) == framework


def test_without_a_command_the_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("usage: rosetta")
    assert "selftest" in captured.out
    assert "JAX_PLATFORMS=cpu rosetta" not in captured.out, "a checkout has no text to train on"
    assert captured.err == ""


@pytest.mark.parametrize(
    ("distribution", "accelerator", "command"),
    [
        ("t5x", "cpu", "JAX_PLATFORMS=cpu rosetta run t5x-tiny "),
        ("t5x", "cuda13", "rosetta run t5x-tiny "),
        ("pax-1.4", "cpu", "JAX_PLATFORMS=cpu rosetta pax train "),
        ("another", "cpu", ""),
    ],
)
def test_without_a_command_an_environment_shows_one_that_trains(
    distribution: str,
    accelerator: str,
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lock = tmp_path / "lock.json"
    lock.write_text(json.dumps({"distribution": distribution, "accelerator": accelerator}))
    monkeypatch.setattr(lock_record, "get_lock_path", lambda: lock)
    assert cli.main([]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    if not command:
        assert "--help" in last
        return
    assert last.startswith(f"  {command}")
    assert last.endswith(f"DATA=text:{tmp_path}/LICENSES/rosetta")


def test_a_damaged_lock_is_an_error_of_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = tmp_path / "lock.json"
    lock.write_text("{")
    monkeypatch.setattr(lock_record, "get_lock_path", lambda: lock)
    assert cli.main([]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert str(lock) in line
