"""The scripts as programs: their help, their options and words, a dry run, and how they end."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

from rosetta.core import gpu_query
from rosetta.core.variables import lookup, readers
from rosetta.core.variables.declaration import Scope
from rosetta.launch import execution, pax_trainer, scripts, t5x_trainer
from rosetta.pax.run import settings as pax_settings
from rosetta.t5x.run import settings as t5x_settings
from tests.support import errors
from tests.support.run_in_process import Ended, run_in_process

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).resolve().parents[4]
POSITIONALS = {**t5x_settings.POSITIONALS, **pax_settings.POSITIONALS}
NAME = "singlenode_pretrain_pile"


def run_script(
    folder: Path, name: str, *words: str, environment: Mapping[str, str] | None = None
) -> Ended:
    """Run what a script ends in, in a folder without a tree of T5X."""
    is_t5x = name in t5x_settings.POSITIONALS
    main = t5x_trainer.main if is_t5x else pax_trainer.main
    argv = [name, *([str(folder)] if is_t5x else []), *words]
    return run_in_process(partial(main, argv), folder, environment or {})


@pytest.fixture
def untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail the test if GPUs are looked for."""

    def refuse(_: Mapping[str, str]) -> NoReturn:
        raise AssertionError("looked for GPUs")

    monkeypatch.setattr(gpu_query, "detect_gpus", refuse)


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("option", scripts.HELP_OPTIONS)
@pytest.mark.parametrize("name", readers.SCRIPT_COMMANDS)
def test_help(name: str, option: str, tmp_path: Path) -> None:
    """It names every word and variable, wherever --help stands, and touches nothing."""
    ended = run_script(tmp_path, name, "tiny", option, "--dry-run")
    assert (ended.status, ended.err, ended.programs) == (0, "", ())
    assert ended.out.startswith(f"usage: {name}.sh ")
    assert not list(tmp_path.iterdir())
    words = [lookup.find_variable(word, name).argument_name or word for word in POSITIONALS[name]]
    numbered = [line.split()[:2] for line in ended.out.splitlines() if line[:4].strip().isdigit()]
    assert numbered == [[str(number), word] for number, word in enumerate(words, 1)]
    own = [each for each in lookup.list_variables(name) if each.scope is not Scope.OTHER_PROGRAM]
    assert all(f"\n  {variable.name}=" in ended.out for variable in own)
    assert len(own) > 40
    assert ended.out.splitlines()[-2] == "example:"
    assert f"{name}.sh" in ended.out.splitlines()[-1]


def test_help_tells_a_word_from_its_variable(tmp_path: Path) -> None:
    lines = run_script(tmp_path, NAME, "--help").out.splitlines()
    words = {line.split()[1]: line for line in lines if line[:4].strip().isdigit()}
    assert "(sets the variable T5_SIZE; default: large)" in words["SIZE"]
    assert "sets the variable NUM_MICROBATCHES;" in words["GRAD_ACCUM"]
    assert "sets" not in words["PREC"]


@pytest.mark.parametrize("name", readers.SCRIPT_COMMANDS)
def test_examples_set_known_variables_and_words(name: str) -> None:
    """The example of a script gives no more words than there are, and variables that it reads."""
    before, _, after = scripts.SCRIPTS[name].example.partition(f"{name}.sh")
    given = [word.partition("=")[0] for word in before.split() if word[0].isupper()]
    assert set(given) <= {variable.name for variable in lookup.list_variables(name)}
    assert len(after.split()) <= len(POSITIONALS[name])
    assert after or given


@pytest.mark.parametrize("columns", ["20", "80", "100", "300"])
def test_help_fits_into_80_to_100_columns(columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    lines = scripts.format_help(NAME, POSITIONALS[NAME]).splitlines()[:-1]  # without the example
    limit = min(max(int(columns), 80), 100)
    assert limit - 10 <= max(map(len, lines)) <= limit


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize(
    ("name", "words", "option"),
    [
        (NAME, ("--foo",), "--foo"),
        (NAME, ("tiny", "--x"), "--x"),
        (NAME, ("--dry-run", "tiny", "--dryrun"), "--dryrun"),
        ("multiprocess_ft_frompile", ("--foo=1",), "--foo=1"),
        ("run_pile_singlenode", ("--foo",), "--foo"),
        ("run_base_config_multinode", ("Synthetic126M", "--fdl.MAX_STEPS=1"), "--fdl.MAX_STEPS=1"),
        ("run_llama_boolq", ("--foo",), "--foo"),
    ],
)
def test_an_unknown_option(name: str, words: tuple[str, ...], option: str, tmp_path: Path) -> None:
    ended = run_script(tmp_path, name, *words)
    assert ended.status == 2
    assert ended.err.startswith(f"{name}.sh: ")
    assert (ended.err.count(f"{name}.sh"), ended.err.count("\n")) == (1, 1)
    errors.check_error(
        ended.errors[0],
        errors.UNKNOWN,
        where=f"{name}.sh",
        value=option,
        remedy=("--dry-run", "--help"),
    )


def test_options_of_paxml_are_passed_on_in_their_word(tmp_path: Path) -> None:
    """The seventh word of run_base_config_multinode.sh holds them."""
    words = ("Synthetic126M", "float32", "1", "logs", "", "", "--fdl.MAX_STEPS=7")
    environment = {"JAX_PLATFORMS": "cpu", "ROSETTA_DOCTOR": "0", "HOME": str(tmp_path)}
    ended = run_script(tmp_path, "run_base_config_multinode", *words, environment=environment)
    assert ended.status == 0, ended.err
    assert "--fdl.MAX_STEPS=7" in ended.programs[-1].argv


def test_a_misspelt_variable(tmp_path: Path) -> None:
    """There is one warning for each variable, from the first process of the run."""
    environment = {"TRIAN_STEPS": "5", "GRAD_ACCUM": "2", "PYTHON": "/nowhere"}
    for rank, count in (("0", 2), ("1", 0)):
        ended = run_script(tmp_path, NAME, environment={**environment, "SLURM_PROCID": rank})
        warnings = [line for line in ended.err.splitlines() if line.startswith("warning: ")]
        names = [(line.split()[1], line.split()[-1]) for line in warnings]
        meant = [("GRAD_ACCUM", "NUM_MICROBATCHES?"), ("TRIAN_STEPS", "TRAIN_STEPS?")]
        assert names == meant[:count]
        assert all(f" {NAME}.sh;" in line for line in warnings)


def test_several_commands_are_shown_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    both = [
        execution.Command([name], {"XLA_FLAGS": "x", "TOKEN": "secret"}, None, ())
        for name in ("a", "b")
    ]
    status = scripts.run_script(
        NAME, ["--dry-run", "w"], ("T5_SIZE",), lambda values: both if values == ["w"] else []
    )
    out = capsys.readouterr().out
    assert status == 0
    assert out.index('"a"') < out.index('"b"')
    assert "secret" not in out


def test_secrets_are_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    around = {"WANDB_API_KEY": "k3y-k3y", "DATA": "s3://me:pw@host/data"}
    found = [
        execution.Command(
            ["trainer", "--key=k3y-k3y", "--at=s3://me:pw@host/x"],
            around,
            None,
            ("reads s3://me:pw@host/data", "with k3y-k3y"),
        )
    ]
    assert scripts.run_script(NAME, ["--dry-run"], (), lambda _: found) == 0
    out = capsys.readouterr().out
    assert '"s3://...@host/data"' in out
    assert "k3y-k3y" not in out
    assert "me:pw" not in out


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["t5x/t5x", "paxml/paxml"])
def test_the_shell_scripts_show_their_help(framework: str, tmp_path: Path) -> None:
    """They work without JAX and GPU, from any folder."""
    folder = ROOT / "overlay" / framework / "contrib/gpu/scripts_gpu"
    for script in sorted(folder.glob("*.sh")):
        environment = {"PATH": os.environ["PATH"], "PYTHON": sys.executable}
        done = subprocess.run(
            [script, "--help"],
            cwd=tmp_path,
            env={**environment, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(f"usage: {script.name} ")
