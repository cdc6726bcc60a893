"""A truth value means the same in a script, in a command, in a preset and to the doctor.

What the training process of Pax makes of it is tested in tests/unit/rosetta/pax/test_switches.py.
That of T5X reads no such variable: its gin bindings are examined before.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rosetta.core.errors import INVALID, UserError
from rosetta.core.variables import lookup
from rosetta.core.variables.declaration import Scope
from rosetta.core.variables.value_types import TruthValue
from rosetta.presets import preset_run
from tests.support import fake_machine, pax_scripts, t5x_scripts
from tests.support.t5x_scripts import Place, Ran

pytestmark = pytest.mark.slow

ON, OFF, JUNK = ("1", "on", "True", " yes "), ("0", "off", "FALSE", " no "), ("maybe", "2", "o n")
SCRIPTS = {
    "t5x pretrain": "singlenode_pretrain_pile.sh",
    "t5x finetune": "singlenode_ft_frompile.sh",
    "pax train": "run_base_config_multinode.sh",
    "pax boolq": "run_llama_boolq.sh",
}
PRESETS = {
    "t5x pretrain": "t5x-tiny",
    "t5x finetune": "t5x-tiny",
    "pax train": "synthetic-126m",
    "pax boolq": "llama-7b",
}
SETTINGS = {
    "t5x pretrain": {"T5_SIZE": "tiny", "MODEL_DIR": "model"},
    "t5x finetune": {**t5x_scripts.MNLI, "MODEL_DIR": "pre"},
    "t5x eval": {**t5x_scripts.MNLI, "CHECKPOINT_PATH": "pre", "OUTPUT_DIR": "out"},
    "pax train": {"CONFIG": "Synthetic126M"},
    "pax boolq": {**pax_scripts.BOOLQ, "SLURM_NTASKS": "8", "SLURM_PROCID": "0"},
}
# On the CPU, and without the doctor, they change nothing that is started.
WITHOUT_EFFECT = {"ROSETTA_BIND", "ROSETTA_DOCTOR"}


def variables_of(command: str) -> list[str]:
    """Return the truth variables to try a command with: the rarer commands try their own ones."""
    alone = command in ("t5x finetune", "pax boolq")
    return [
        variable.name
        for variable in lookup.list_variables(command)
        if isinstance(variable.type, TruthValue) and not (alone and len(variable.read_by) > 1)
    ]


NAMES = [(command, name) for command in SETTINGS for name in variables_of(command)]


def outcome(ran: Ran) -> Any:
    """Return what is started, and what the trainer reads; or the facts of the error."""
    if ran.errors:
        return ran.rc, ran.error.kind, ran.error.where.partition("=")[0]
    read = ("ENABLE_TE", "ENABLE_FP8") if "rosetta.pax.train" in ran.argv else ()
    return ran.rc, [[*each.argv, *(each.env[name] for name in read)] for each in ran.programs]


def run_script(place: Place, command: str, name: str, word: str) -> Any:
    usual = {"SLURM_JOB_ID": "42", **SETTINGS[command]}
    return outcome(place.run(SCRIPTS[command], **{**usual, name: word}))


def run_command(place: Place, command: str, name: str, word: str) -> Any:
    usual = {"SLURM_JOB_ID": "42", **SETTINGS[command]}
    if lookup.find_variable(name).scope is Scope.PROGRAM:  # not a word of a command
        return outcome(place.rosetta(*command.split(), **{**usual, name: word}))
    return outcome(place.rosetta(*command.split(), f"{name}={word}", **usual))


def run_preset(place: Place, command: str, name: str, word: str) -> Any:
    """Run a preset's file that sets the variable, through the script that its run starts."""
    group = "env" if lookup.find_variable(name).scope is Scope.PROGRAM else "settings"
    file = place.work / "preset.yaml"
    file.write_text(f"extends: {PRESETS[command]}\n{group}:\n  {name}: {word!r}\n")
    try:
        run = preset_run.describe_run(
            str(file), accelerator=None, settings={}, nodes=1, gpus_per_node=8, environment={}
        )
    except UserError as error:
        return 2, error.kind, error.where.rpartition(": ")[2]  # after the file and its line
    usual = {"SLURM_JOB_ID": "42", **SETTINGS[command]}
    return outcome(place.run(SCRIPTS[command], **{**usual, **run.env}))


WAYS = {"script": run_script, "command": run_command, "preset": run_preset}


CASES = [
    (way, command, name)
    for way in WAYS
    for command, name in NAMES
    if way == "command" or command in SCRIPTS
]


@pytest.mark.parametrize(("way", "command", "name"), CASES)
def test_every_word_for_on_and_off_means_the_same(
    way: str, command: str, name: str, tmp_path: Path
) -> None:
    support = t5x_scripts if command.startswith("t5x") else pax_scripts
    place = support.make_place(tmp_path)
    t5x_scripts.make_checkpoint_folder(place, "5")

    def run(word: str) -> Any:
        return WAYS[way](place, command, name, word)

    on, off = run("1"), run("0")
    assert (on != off) is (name not in WITHOUT_EFFECT)
    assert [run(word) for word in ON] == [on] * len(ON)
    assert [run(word) for word in OFF] == [off] * len(OFF)
    assert [run(word) for word in JUNK] == [(2, INVALID, name)] * len(JUNK)


@pytest.mark.parametrize("name", sorted({name for _, name in NAMES}))
def test_the_doctor_reads_the_same_words(name: str, tmp_path: Path) -> None:
    def findings(word: str) -> dict[str, str]:
        return fake_machine.find_levels(
            fake_machine.make_machine(tmp_path, environment={name: word})
        )

    assert [findings(word) for word in ON] == [findings("1")] * len(ON)
    assert [findings(word) for word in OFF] == [findings("0")] * len(OFF)
    for word in JUNK:
        assert findings(word)["variable-invalid"] == "blocker"
    assert "variable-invalid" not in {**findings("1"), **findings("0")}
