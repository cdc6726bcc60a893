"""Gin files and --gin words: every mistake is one line, and nothing that is set is ignored in silence."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import errors, required_modules

required_modules.need_modules("gin")

import gin

from rosetta.core import log
from rosetta.t5x import gin_configuration

if TYPE_CHECKING:
    from collections.abc import Iterator

FILE = """
SIZE = 8
PERIOD = %SIZE
UNUSED = 1
MODEL_DIR = 'runs/a'
tests.build_for_configuration:
  size = %SIZE
  folder = %MODEL_DIR
"""


@gin.configurable(module="tests")
def build_for_configuration(
    size: Any = None, folder: Any = None, required: Any = 0
) -> tuple[Any, Any, Any]:
    return size, folder, required


@pytest.fixture(autouse=True)
def _empty_table() -> Iterator[None]:
    gin.clear_config()
    log.forget_shown()
    yield
    gin.clear_config()


def _parse(tmp_path: Path, text: str = FILE, *bindings: str) -> None:
    file = tmp_path / "run.gin"
    file.write_text(text)
    gin_configuration.parse_files_and_bindings([str(file)], list(bindings))


@pytest.mark.parametrize(
    ("binding", "kind", "facts"),
    [
        (
            "MODEL_DIR = /tmp/x",
            errors.INVALID,
            {
                "where": "--gin.MODEL_DIR=/tmp/x",
                "value": "/tmp/x",
                "remedy": '--gin.MODEL_DIR="/tmp/x',
            },
        ),
        (
            "SIZES = 4",
            errors.UNKNOWN,
            {"where": "--gin.SIZES=4", "value": "SIZES", "remedy": "mean SIZE?"},
        ),
        (
            "OTHER = 4",
            errors.UNKNOWN,
            {"where": "--gin.OTHER=4", "value": "OTHER", "remedy": "docs/reference/gin-files.md"},
        ),
        ("SIZE = [1", errors.INVALID, {"where": "--gin options", "names": "bracket"}),
        ("SIZE = 'x'", errors.INVALID, {"where": "--gin.SIZE", "value": "x", "remedy": "8"}),
        (
            "MODEL_DIR = 4",
            errors.INVALID,
            {"where": "--gin.MODEL_DIR", "value": 4, "remedy": "runs/a"},
        ),
        (
            "SIZE = %NONE",
            errors.MISSING,
            {
                "where": "gin configuration",
                "value": "NONE",
                "names": "%NONE",
                "remedy": "--gin.NAME=VALUE",
            },
        ),
        (
            "tests.biuld.size = 1",
            errors.INVALID,
            {
                "where": "--gin.tests.biuld.size=1",
                "names": "'tests.biuld'",
                "remedy": "--gin.NAME=VALUE",
            },
        ),
        (
            "tests.build_for_configuration.sise = 1",
            errors.INVALID,
            {"where": "--gin.tests.build_for_configuration.sise=1", "names": "sise"},
        ),
    ],
)
def test_a_wrong_word_is_one_line(
    binding: str, kind: str, facts: dict[str, Any], tmp_path: Path
) -> None:
    with errors.expect_user_error(kind, **facts) as caught:
        _parse(tmp_path, FILE, binding)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "kind", "facts"),
    [
        (
            "SIZE = abc\n",
            errors.INVALID,
            {"where": "run.gin:1", "value": "abc", "remedy": "SIZE = 'abc'"},
        ),
        (
            FILE + "SIZES = 4\n",
            errors.UNKNOWN,
            {"where": "run.gin:9", "value": "SIZES", "remedy": "mean SIZE?"},
        ),
        ("SIZE = {1: 2,\n", errors.INVALID, {"where": "run.gin", "names": "bracket"}),
        ('SIZE = 8\nTEXT = """a\n', errors.INVALID, {"where": "run.gin", "names": "string"}),
        ("include 'nowhere.gin'\n", errors.INVALID, {"where": "run.gin:1", "names": "nowhere.gin"}),
        (
            "tests.build_for_configuration.size = @nothing()\n",
            errors.INVALID,
            {"where": "run.gin:1", "names": "nothing"},
        ),
        (
            "what is this\n",
            errors.INVALID,
            {"where": "run.gin:1", "value": "what is this", "remedy": "NAME = VALUE"},
        ),
    ],
)
def test_a_wrong_file_is_one_line_with_its_place(
    text: str, kind: str, facts: dict[str, Any], tmp_path: Path
) -> None:
    with errors.expect_user_error(kind, **facts) as caught:
        _parse(tmp_path, text)
    assert "\n" not in str(caught.value)


def test_a_macro_of_the_files_that_nothing_reads_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _parse(tmp_path, FILE, "PERIOD = 3")
    err = capsys.readouterr().err
    assert "rosetta: --gin.PERIOD=3 has no effect: nothing in this run reads PERIOD\n" in err
    assert "run.gin:4: UNUSED has no effect" in err
    assert "SIZE has" not in err


def test_a_macro_used_through_another_macro_is_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _parse(
        tmp_path, FILE, "tests.build_for_configuration.required = {'a': [%PERIOD]}", "PERIOD = 5"
    )
    assert "PERIOD" not in capsys.readouterr().err
    assert build_for_configuration() == (8, f"{Path.cwd()}/runs/a", {"a": [5]})


def test_folders_become_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    _parse(tmp_path)
    assert build_for_configuration()[1] == f"{tmp_path}/runs/a"
    assert (
        f"MODEL_DIR=runs/a counts from the current folder: {tmp_path}/runs/a"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize("folder", ["/runs/a", "gs://bucket/runs", "s3://bucket/runs"])
def test_absolute_folders_and_addresses_are_not_changed(folder: str, tmp_path: Path) -> None:
    _parse(tmp_path, FILE, f"MODEL_DIR = '{folder}'")
    assert build_for_configuration()[1] == folder


@pytest.mark.parametrize(
    ("error", "kind", "facts"),
    [
        (
            ValueError(
                "Checkpoint period (300), eval period (1000), and GC period (0) must all be multiples\n  In call to configurable 'train' (x)"
            ),
            errors.CONFLICT,
            {
                "where": "of 'train'",
                "names": ("SAVE_PERIOD", "300", "EVAL_PERIOD", "1000"),
            },
        ),
        (
            ValueError(
                "Unexpected total_steps (1) < checkpoint step  (350).\n  In call to configurable 'train' (x)"
            ),
            errors.CONFLICT,
            {"where": "TRAIN_STEPS=1", "names": "350"},
        ),
        (
            KeyError("targets"),
            errors.INVALID,
            {
                "where": "TASK_FEATURE_LENGTHS",
                "names": "targets",
                "remedy": ("inputs", "512", "targets", "128}"),
            },
        ),
        (
            RuntimeError(
                "MODEL_DIR/macro.value set to `%gin.REQUIRED` but not subsequently overridden."
            ),
            errors.MISSING,
            {"where": "gin configuration", "value": "MODEL_DIR", "remedy": "--gin.MODEL_DIR=VALUE"},
        ),
        (
            RuntimeError("Required bindings for `build` not provided in config: ['a']"),
            errors.MISSING,
            {"where": "gin configuration", "names": ("build", "['a']")},
        ),
        (
            TypeError(
                "__init__() got an unexpected keyword argument 'nope'\n  In call to configurable 'Trainer' (x)"
            ),
            errors.INVALID,
            {"where": "of 'Trainer'", "names": ("__init__", "nope")},
        ),
    ],
)
def test_errors_of_building_a_run_are_explained(
    error: Exception, kind: str, facts: dict[str, Any]
) -> None:
    errors.check_error(gin_configuration.explain_error(error), kind, **facts)


@pytest.mark.parametrize(
    ("error", "belongs"),
    [
        (TypeError("a\n  In call to configurable 'Trainer' (x)"), True),
        (RuntimeError("Required bindings for `build` not provided in config: ['a']"), True),
        (TypeError("a"), False),
        (
            RuntimeError(
                "RESOURCE_EXHAUSTED: out of memory\n  In call to configurable 'train' (x)"
            ),
            False,
        ),
    ],
)
def test_only_what_gin_built_is_blamed_on_the_configuration(
    error: Exception, belongs: bool
) -> None:
    assert gin_configuration.is_configuration_error(error) is belongs


@gin.configurable(module="tests")
def raise_from_gin(error: Any = None) -> None:
    raise error


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            OSError(errno.ENOSPC, "No space left on device"),
            "a disk of this machine: No space left on device; free some space there",
        ),
        (
            OSError(errno.ENOSPC, "No space left on device", "/m/a"),
            "/m/a: No space left on device; free some space there",
        ),
        (
            OSError(errno.EDQUOT, "Disk quota exceeded", "/m/a"),
            "/m/a: Disk quota exceeded; free some space there",
        ),
        (
            PermissionError(errno.EACCES, "Permission denied", "/m/a"),
            "/m/a: Permission denied; let this user read and write there",
        ),
        (
            OSError(errno.EROFS, "Read-only file system", "/m/a"),
            "/m/a: Read-only file system; mount it writable",
        ),
        (
            OSError(errno.EIO, "Input/output error", "/m/a"),
            "/m/a: Input/output error; the disk or its file server failed",
        ),
        (
            FileNotFoundError(errno.ENOENT, "No such file or directory", "/m/a"),
            "/m/a: No such file or directory; check that path",
        ),
        (
            ValueError("RESOURCE_EXHAUSTED: Error writing: No space left on device"),
            "a disk of this machine: No space left on device; free some space there",
        ),
    ],
)
def test_an_error_of_the_operating_system_is_not_blamed_on_gin(error: Exception, line: str) -> None:
    with pytest.raises(type(error)) as caught:
        raise_from_gin(error)
    assert "In call to configurable 'raise_from_gin'" in str(caught.value)
    assert not gin_configuration.is_configuration_error(caught.value)
    assert str(gin_configuration.explain_error(caught.value)).startswith(line)


def test_a_missing_gin_file_is_still_a_matter_of_configuration() -> None:
    error = OSError(
        "Unable to open file: a.gin. Searched config paths: [''].\n  In call to configurable 'train' (x)"
    )
    assert gin_configuration.is_configuration_error(error)
