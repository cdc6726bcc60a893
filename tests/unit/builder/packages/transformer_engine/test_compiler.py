"""The compilers of this machine, and what stands on PATH by their names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builder.packages.transformer_engine import compiler
from tests.support import errors, te_project

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("architecture", "machine"), [("amd64", "x86_64-linux-gnu"), ("arm64", "aarch64-linux-gnu")]
)
def test_the_machine_s_own(architecture: str, machine: str) -> None:
    te_project.need_compiler(architecture)
    found = compiler.find_compiler(architecture)
    assert found.machine == machine
    assert int(found.version.split(".")[0]) >= compiler.OLDEST
    assert found.identity == {
        "version": found.version,
        "machine": machine,
        "glibc": found.glibc,
        "library": found.library,
    }
    assert found.glibc.startswith("2.")


def _program(folder: Path, name: str, machine: str, macros: str) -> None:
    path = folder / name
    path.write_text(
        f'#!/bin/sh\ncase "$1" in -dumpmachine) echo {machine} ;; *) printf "%s\\n" {macros} ;; esac\n'
    )
    path.chmod(0o755)


GNU = '"#define __GNUC__ {}" "#define __GNUC_MINOR__ 2" "#define __GNUC_PATCHLEVEL__ 0" "#define __GLIBC__ 2" "#define __GLIBC_MINOR__ 36" "#define __GLIBCXX__ 20220819"'


@pytest.mark.parametrize(
    ("name", "machine", "macros", "kind", "value", "fact"),
    [
        (
            "aarch64-linux-gnu-g++",
            "aarch64-linux-gnu",
            GNU.format(8),
            errors.UNSUPPORTED,
            "8.2.0",
            "9 ",
        ),
        (
            "aarch64-linux-gnu-g++",
            "x86_64-linux-gnu",
            GNU.format(12),
            errors.MISSING,
            "arm64",
            "apt-get install",
        ),
        (
            "aarch64-linux-gnu-g++",
            "aarch64-linux-gnu",
            GNU.format(12) + ' "#define __clang__ 1"',
            errors.MISSING,
            "arm64",
            "apt-get install",
        ),
        (
            "aarch64-linux-gnu-g++",
            "aarch64-linux-musl",
            '"#define __GNUC__ 12"',
            errors.MISSING,
            "arm64",
            "apt-get install",
        ),
        (
            "unrelated",
            "aarch64-linux-gnu",
            GNU.format(12),
            errors.MISSING,
            "arm64",
            "apt-get install g++-aarch64-linux-gnu",
        ),
    ],
)
def test_what_is_no_compiler_for_it(
    name: str,
    machine: str,
    macros: str,
    kind: str,
    value: str,
    fact: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _program(tmp_path, name, machine, macros)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    with errors.expect_user_error(kind, value=value) as caught:
        compiler.find_compiler("arm64")
    assert fact in str(caught.value)


def test_one_that_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "aarch64-linux-gnu-g++"
    path.write_text("#!/bin/sh\necho 'no cc1plus' >&2\nexit 1\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with errors.expect_user_error(
        errors.FAILED, where="g++", names="no cc1plus", remedy="install g++"
    ):
        compiler.find_compiler("arm64")


def test_two_builds_of_the_same_compiler_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        _program(tmp_path / name, "aarch64-linux-gnu-g++", "aarch64-linux-gnu", GNU.format(12))
        monkeypatch.setenv("PATH", str(tmp_path / name))
        found.append(compiler.find_compiler("arm64"))
    assert found[0].identity == found[1].identity
    assert found[0].program != found[1].program
