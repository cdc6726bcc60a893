"""The completion files that the builder puts beside the programs of rosetta."""

from __future__ import annotations

import shutil
from pathlib import Path

from builder.packages import completion
from rosetta.commands import completion as described
from tests.support import errors

PACKAGE = Path(__file__).parents[4] / "rosetta"


def test_every_shell_has_a_file(tmp_path: Path) -> None:
    assert completion.has_completion(PACKAGE)
    completion.write_files(PACKAGE, "here", tmp_path)
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
    text = completion.make_files(package, "other")["bash"]
    assert "selfproof" in text
    assert "selfproof" not in completion.make_files(PACKAGE, "here")["bash"]
    registry.write_text("no Python")
    with errors.expect_user_error(errors.FAILED, where=package, names="SyntaxError"):
        completion.make_files(package, "broken")
    (package / "commands" / "completion.py").unlink()
    assert not completion.has_completion(package)
