"""The completion files that the builder puts beside the programs of rosetta."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from builder.core.cache import Cache
from builder.packages import completion, package_parts
from rosetta.commands import completion as described
from tests.support import errors

PACKAGE = Path(__file__).parents[4] / "rosetta"


def _hash_files(package: Path) -> dict[str, str]:
    return {path: digest for path, (digest, _) in package_parts.describe_files(package).items()}


def _make_bash(cache: Cache, package: Path) -> str:
    return completion.make_files(cache, package, _hash_files(package))["bash"]


def test_every_shell_has_a_file(tmp_path: Path) -> None:
    assert completion.has_completion(PACKAGE)
    hashes = _hash_files(PACKAGE)
    completion.write_files(Cache(tmp_path / "cache"), PACKAGE, hashes, tmp_path)
    assert set(completion.PLACES) == set(completion.SHELLS) == set(described.SHELLS)
    for shell, place in completion.PLACES.items():
        text = (tmp_path / place).read_text(encoding="utf-8")
        assert "_rosetta_of_t5x_pretrain" in text
        assert str(PACKAGE.parent) not in text
        assert text.startswith("#compdef rosetta\n") == (shell == "zsh")


def test_the_files_are_those_of_the_package_that_is_baked(tmp_path: Path) -> None:
    """bisect bakes packages of other commits than the builder's; some have no completion."""
    package = tmp_path / "rosetta"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    registry = package / "core" / "commands.py"
    registry.write_text(registry.read_text().replace('"selftest",\n', '"selfproof",\n', 1))
    command = package / "commands" / "selftest.py"
    command.write_text(command.read_text().replace('"selftest"', '"selfproof"'))
    cache = Cache(tmp_path / "cache")
    assert "selfproof" in _make_bash(cache, package)
    assert "selfproof" not in _make_bash(cache, PACKAGE)
    registry.write_text("no Python")
    with errors.expect_user_error(errors.FAILED, where=package, names="SyntaxError"):
        _make_bash(cache, package)
    (package / "commands" / "completion.py").unlink()
    assert not completion.has_completion(package)


def test_the_program_runs_again_only_after_an_edit_that_it_may_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "rosetta"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    cache = Cache(tmp_path / "cache")
    runs = []
    run_program = completion._run_program

    def count(package: Path) -> tuple[dict[str, str], list[str]]:
        runs.append(package)
        return run_program(package)

    monkeypatch.setattr(completion, "_run_program", count)
    text = _make_bash(cache, package)
    for name in ("nn/attention.py", "t5x/network.py"):  # no parser imports JAX
        with open(package / name, "a", encoding="utf-8") as file:
            file.write("# an edit\n")
    assert _make_bash(cache, package) == text
    assert len(runs) == 1
    command = package / "commands" / "selftest.py"
    with open(command, "a", encoding="utf-8") as file:
        file.write("# an edit\n")
    for number, path in enumerate((command, package / "a_new_module.py", package / "data.yaml"), 2):
        path.touch()
        _make_bash(cache, package)
        assert len(runs) == number
