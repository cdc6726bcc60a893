"""The Slurm files of scripts/ are those that their template and table make."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from builder.commands import docs
from builder.core.cache import Cache
from builder.core.command_context import Context
from builder.upstream import slurm_files
from rosetta.core import value_parsing
from rosetta.core.errors import UserError
from rosetta.core.variables import lookup, readers, setting_values
from rosetta.core.variables.declaration import Scope, Variable

ROOT = Path(__file__).parents[4]
BASH = ("bash", "--norc", "--noprofile")
TRUTH_VALUES = (*value_parsing.TRUE_WORDS, *value_parsing.FALSE_WORDS)
# Valid values and others, of every type: a file takes and refuses those that the parser does.
VALUES = (
    *TRUTH_VALUES,
    *(word.upper() for word in TRUTH_VALUES),
    *(" On ", "oFf\n", "maybe", "onn", "2", "-1", "+1", "01", "1.5", "1e3", "8", "99", "100"),
    *("9" * 30, "0x10", "1_0", "٣", "²", "1;5", "1\n", " ", "\n", "\x1b[31m", "$(exit 9)", "a'b"),
    *("x", "gs://bucket/folder", "GS://bucket", "~/folder", "./folder", "a b", "/a:b", "/", "."),
    *("/a:/b,/c:/d", "/a:/b:ro", "/a:/b:ro+rprivate,x", "/a:/b,", ",", "tmpfs:/scratch", "tmpfs"),
    *("./a:/b", "a:/b", "/a:b", "/a:/b:", "/a::/b", "/a:/b\n", "/a\n:/b", ":/b", "umount:/x", "*"),
)


def test_the_files_are_current() -> None:
    found = {
        str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
        for path in ROOT.glob("overlay/**/*.sub")
    }
    assert found == slurm_files.render_files(ROOT), "run: python build.py docs"
    assert not any("{{" in text for text in found.values())


def test_the_command_writes_what_differs(tmp_path: Path, cache: Cache) -> None:
    for folder in (slurm_files.SOURCE, "locks"):  # the page of image contents reads the locks
        shutil.copytree(ROOT / folder, tmp_path / folder)
    shutil.copy(ROOT / "README.md", tmp_path)
    shutil.copy2(ROOT / "manifest.yaml", tmp_path)
    context = Context(tmp_path, tmp_path / "manifest.yaml", cache)
    check = argparse.Namespace(check=True, site="", images="")
    write = argparse.Namespace(check=False, site="", images="")
    assert not docs.run(context, check).ok
    assert not (tmp_path / "overlay").exists()
    assert docs.run(context, write).ok
    files = [tmp_path / name for name in slurm_files.render_files(tmp_path)]
    assert all(path.stat().st_mode & 0o777 == 0o755 for path in files)
    assert docs.run(context, check).ok
    files[0].write_text("edited by hand", encoding="utf-8")
    result = docs.run(context, check)
    assert (result.ok, result.data["current"]) == (False, False)
    assert result.text == f"{files[0].relative_to(tmp_path)} was not current"


def list_settings(file: str) -> list[Variable]:
    """Return the variables that a Slurm file reads and whose values it checks."""
    scopes = (Scope.RUN, Scope.SLURM_FILE)
    return [variable for variable in lookup.list_variables(file) if variable.scope in scopes]


def run_until_values_are_checked(file: str, more: str, **environment: str) -> tuple[int, str, str]:
    """Run a Slurm file's own lines up to the check of the values, then `more`.

    Returns:
      The status, stdout and stderr.
    """
    text = (ROOT / "scripts" / file).read_text(encoding="utf-8")
    checked = "\nset_defaults\ncheck_values\n"
    assert text.count(checked) == 1
    script = text.partition(checked)[0] + checked + more
    done = subprocess.run(
        [*BASH, "-c", script],
        env={"PATH": os.environ["PATH"], "SLURM_JOB_NAME": "job", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def find_error(variable: Variable, text: str) -> str:
    """Return the parser's complaint about a value, "" if the value is valid."""
    try:
        setting_values.parse_value(variable, text)
    except UserError as error:
        return str(error)
    return ""


@pytest.mark.shell
@pytest.mark.parametrize("file", [readers.T5X_SLURM_FILES[0], readers.LAUNCH_BASE_SCRIPT])
def test_a_file_refuses_the_values_that_the_parsers_refuse(file: str) -> None:
    """Each bad value ends in the parser's line and status 2; each valid one is left as it is."""
    refused = 0
    for variable in list_settings(file):
        for text in VALUES:
            error = find_error(variable, text)
            show = f'printf %s "${variable.name}"'
            status, out, err = run_until_values_are_checked(file, show, **{variable.name: text})
            if not error:
                assert (status, out, err) == (0, text, ""), (variable.name, text)
                continue
            refused += 1
            assert (status, out, len(err.splitlines())) == (2, "", 1), (variable.name, text)
            if text.isprintable() and "'" not in text:
                assert err == f"job: {error}\n"
    assert refused > len(VALUES)


@pytest.mark.shell
@pytest.mark.parametrize("file", readers.SLURM_FILES)
def test_defaults_are_those_of_the_table(file: str) -> None:
    """A variable that is not set and one that is empty have the default."""
    names = [variable.name for variable in list_settings(file)]
    show = "".join(f'printf "%s\\n" "${{{name}:-}}"\n' for name in names)
    defaults = [variable.get_default_value(file) for variable in list_settings(file)]
    assert "8" in defaults
    for environment in ({}, dict.fromkeys(names, "")):
        status, out, _ = run_until_values_are_checked(file, show, **environment)
        assert (status, out.split("\n")[:-1]) == (0, defaults)


@pytest.mark.shell
def test_the_truth_of_a_value_is_the_parsers() -> None:
    """REQUEUE=off is as false as REQUEUE=0."""
    show = 'if is_true "$REQUEUE"; then echo True; else echo False; fi'
    for text in VALUES:
        if not find_error(lookup.find_variable("REQUEUE"), text):
            _, out, _ = run_until_values_are_checked(readers.LAUNCH_BASE_SCRIPT, show, REQUEUE=text)
            assert out.strip() == str(value_parsing.parse_truth_value("REQUEUE", text))


@pytest.mark.shell
def test_a_path_is_the_parsers(tmp_path: Path) -> None:
    """A relative path counts from the current folder, and ~ is the home folder."""
    text = (ROOT / "scripts" / readers.SLURM_PILE).read_text(encoding="utf-8")
    function = text[text.index("absolute() {") :].partition("\n}\n")[0] + "\n}\n"
    for path in ("a", "./a b", "/a", "~", "~/a", "a/~", "~a", "a*"):
        shown = subprocess.run(
            [*BASH, "-c", f'{function}path=$1; absolute path; printf %s "$path"', "bash", path],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        expected = os.path.join(tmp_path, os.path.expanduser(path))
        assert os.path.normpath(shown) == os.path.normpath(expected)
        assert "/./" not in shown


@pytest.mark.parametrize("file", readers.SLURM_FILES)
def test_a_file_describes_its_variables(file: str) -> None:
    """Its head has each variable of the Slurm files that it reads, in lines that can be read."""
    text = (ROOT / "scripts" / file).read_text(encoding="utf-8")
    head = text.partition("SCRIPT=")[0]
    for variable in list_settings(file):
        listed = f"\n#   {variable.name}=" in head
        assert listed == (variable.scope is Scope.SLURM_FILE), variable.name
        assert not listed or variable.help.split(". ")[0][:60] in head
    assert max(map(len, text.splitlines())) <= slurm_files.WIDTH


@pytest.mark.parametrize("option", ["-h", "--help"])
@pytest.mark.parametrize("file", readers.SLURM_FILES)
def test_a_file_shows_its_help(file: str, option: str, tmp_path: Path) -> None:
    """It prints its head, and starts no job."""
    done = subprocess.run(
        ["bash", str(ROOT / "scripts" / file), option],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert list(tmp_path.iterdir()) == []
    head = (ROOT / "scripts" / file).read_text(encoding="utf-8").partition("# --help")[0]
    comments = [line[2:] for line in head.splitlines() if line == "#" or line.startswith("# ")]
    assert done.stdout.splitlines() == comments
    assert "SBATCH" not in done.stdout
