"""The table of variables: whole, consistent, and worded as help texts are."""

from __future__ import annotations

import collections
import re
from typing import TYPE_CHECKING

import pytest

from rosetta.core import secrets
from rosetta.core.variables import lookup, readers, setting_values
from rosetta.core.variables.declaration import Scope
from rosetta.pax.run import settings as pax_settings
from rosetta.t5x.run import gin_files, gin_reader
from rosetta.t5x.run import settings as t5x_settings
from tests.support import errors
from tests.support.variable_values import bad_values, good_values

if TYPE_CHECKING:
    from rosetta.core.variables.declaration import Variable

READERS = {
    name
    for value in vars(readers).values()
    for name in ((value,) if isinstance(value, str) else value if isinstance(value, tuple) else ())
}


def test_a_framework_has_one_entry_for_a_name() -> None:
    """A name has one meaning for each framework, and one for all other programs."""
    count = collections.Counter(
        (variable.name, framework, variable.scope is Scope.SLURM_FILE)
        for variable in lookup.TABLE
        for framework in variable.frameworks or ("",)
    )
    assert [key for key, times in count.items() if times > 1] == []


@pytest.mark.parametrize("framework", ["t5x", "pax"])
def test_find_variable_returns_the_entry_of_the_framework(framework: str) -> None:
    """T5X and Pax have other precisions by the same name."""
    found = lookup.find_variable("PREC", framework)
    assert found.frameworks == (framework,)
    assert ("float16" in found.type.choices) == (framework == "t5x")


def test_a_misspelt_name_has_no_entry() -> None:
    """`find` is for names of the table; `is_known` asks about any name."""
    assert lookup.is_known_variable("TRAIN_STEPS")
    assert not lookup.is_known_variable("TRIAN_STEPS")


def test_a_script_reads_what_its_command_reads() -> None:
    script = {variable.name for variable in lookup.list_variables("singlenode_pretrain_pile")}
    command = {variable.name for variable in lookup.list_variables(readers.T5X_PRETRAIN)}
    assert script == command


@pytest.mark.parametrize("command", readers.RUNS)
def test_groups_keep_every_setting(command: str) -> None:
    """Help lists variables by group, and must not leave any out."""
    settings = lookup.list_settings(command)
    grouped = [variable for _, members in lookup.group_variables(settings) for variable in members]
    assert sorted(variable.name for variable in grouped) == sorted(
        variable.name for variable in settings
    )


@pytest.mark.parametrize("variable", lookup.TABLE, ids=lambda variable: variable.name)
def test_an_entry_is_complete(variable: Variable) -> None:
    """Texts are short sentences, readers and defaults are known, and an example can be shown."""
    sentences = variable.help.removesuffix(".").split(". ")
    assert variable.help.endswith(".")
    assert max(len(sentence.split()) for sentence in sentences) <= 25
    with_defaults = {readers.SCRIPT_COMMANDS.get(name, name) for name in variable.default_for}
    assert with_defaults <= set(variable.read_by)
    assert variable.read_by
    if variable.name != "ROSETTA_ENV":  # read by a command that the user gives
        builder = {reader for reader in variable.read_by if reader.startswith("build.py ")}
        assert set(variable.read_by) - builder <= READERS
    assert len(set(variable.read_by)) == len(variable.read_by)
    name, _, value = variable.make_example().partition("=")
    assert name == variable.name
    assert value
    if variable.scope is Scope.OTHER_PROGRAM:
        assert variable.owner


@pytest.mark.parametrize("variable", lookup.TABLE, ids=lambda variable: variable.name)
def test_bad_values_are_refused_for_every_reader(variable: Variable) -> None:
    """The error names the variable for every reader."""
    for text in bad_values(variable):
        for reader in variable.read_by:
            with errors.expect_user_error(errors.INVALID, where=variable.name) as error:
                setting_values.check_settings({variable.name: text}, reader)
            assert error.value.where.startswith(variable.name)
            assert "\n" not in str(error.value)


@pytest.mark.parametrize("variable", lookup.TABLE, ids=lambda variable: variable.name)
def test_good_values_and_defaults_are_taken(variable: Variable) -> None:
    """The values that help suggests are valid."""
    for text in good_values(variable):
        for reader in variable.read_by:
            setting_values.check_settings({variable.name: text}, reader)


@pytest.mark.parametrize(
    ("name", "reader", "text", "value"),
    [
        ("FSDP", readers.T5X_PRETRAIN, "ON", True),
        ("FSDP", readers.T5X_PRETRAIN, "", False),
        ("FUSE_QKV", "singlenode_pretrain_pile", "", None),
        ("BSIZE_PER_GPU", "t5x", "", 32),
        ("TRAIN_STEPS", "t5x", "", None),
        ("LOSS_SPIKE", "pax", "2.5", 2.5),
        ("PROFILE_STEPS", "pax", "20:25", (20, 25)),
        ("LOG_DIR", readers.PAX_TRAIN, "", "test_logdir"),
        ("LOG_DIR", "run_llama_boolq", "", "/tmp/llama"),
        ("PREC", readers.PAX_BOOLQ, "", None),
        ("ICI_MESH_SHAPE", "pax", "1, 8,1", [1, 8, 1]),
        ("ICI_MESH_SHAPE", "pax", "(1,8,1)", [1, 8, 1]),
        ("DCN_MESH_SHAPE", "pax", "None", None),
        ("ROSETTA_WITH", "run", "no-nvls, deterministic", ["no-nvls", "deterministic"]),
        ("XLA_FLAGS", "run", "--xla_a=1 --xla_b='1 2'", ["--xla_a=1", "--xla_b=1 2"]),
    ],
)
def test_read_setting(name: str, reader: str, text: str, value: object) -> None:
    """A value is parsed by the declared type; an empty one is the default, if that is a value."""
    assert setting_values.read_setting({name: text}, name, reader) == value
    assert setting_values.read_settings({name: text}, reader).get(name, value) == value


def test_settings_of_a_command() -> None:
    """An argument sets a variable that the command reads; an error suggests a similar one."""
    assert setting_values.parse_setting_word("MODEL_DIR=a=b", "t5x pretrain", "") == (
        "MODEL_DIR",
        "a=b",
    )
    for word, kind, value, remedy in (
        ("T5_SZIE=x", errors.UNKNOWN, "T5_SZIE", "mean T5_SIZE?"),
        ("MODEL_DIR_OLD=x", errors.UNKNOWN, "MODEL_DIR_OLD", "mean MODEL_DIR?"),
        ("SIZE=x", errors.UNKNOWN, "SIZE", "mean T5_SIZE?"),
        ("QQQ=x", errors.UNKNOWN, "QQQ", ("--help", "elsewhere")),
        ("t5_size=x", errors.INVALID, "t5_size=x", ("NAME=VALUE", "T5_SIZE=small")),
        ("T5_SIZE", errors.INVALID, "T5_SIZE", ("NAME=VALUE", "T5_SIZE=small")),
    ):
        with errors.expect_user_error(
            kind, where="rosetta t5x pretrain", value=value, remedy=remedy
        ):
            setting_values.parse_setting_word(word, "t5x pretrain", "elsewhere")


def test_every_command_of_pax_takes_the_settings_of_all() -> None:
    """If a command does not read a setting, another function names the command that does."""
    assert setting_values.parse_setting_word("USE_LORA=0", "pax train", "") == ("USE_LORA", "0")
    assert "USE_LORA" not in {setting.name for setting in lookup.list_settings("pax train")}


def test_secret_variables_have_secret_names() -> None:
    """Masks recognize secrets by the names of variables, and would print any other secret."""
    secret = {variable.name for variable in lookup.TABLE if variable.secret}
    assert secret
    assert secret == {
        variable.name for variable in lookup.TABLE if secrets.is_secret_name(variable.name)
    }


def test_an_address_is_refused_without_its_password() -> None:
    """Errors are printed, and an address may have a password."""
    text = "http://me:sesame@mirror.example/ debian"
    with errors.expect_user_error(errors.INVALID, where="ROSETTA_DEBIAN_MIRROR") as error:
        setting_values.read_setting({"ROSETTA_DEBIAN_MIRROR": text}, "ROSETTA_DEBIAN_MIRROR")
    assert "sesame" not in f"{error.value} {error.value.value}"


@pytest.mark.parametrize(
    ("command", "files"),
    [
        (readers.T5X_PRETRAIN, ["t5_1_1/large.gin", "runs/pretrain_pile.gin"]),
        (readers.T5X_FINETUNE, ["t5_1_1/large.gin", "runs/finetune_squad1.gin"]),
    ],
)
def test_defaults_of_gin_macros_are_those_of_the_gin_files(command: str, files: list[str]) -> None:
    """The table shows what the gin files set."""
    configuration = gin_reader.read_configuration(
        [gin_files.ROOT / gin_files.GIN_FOLDER / name for name in files], (gin_files.ROOT,)
    )
    for name in ("LEARNING_RATE", "SAVE_PERIOD", "EVAL_PERIOD"):
        shown = lookup.find_variable(name, command).get_default_text(command)
        assert str(configuration.value(name)) in re.split("[; ]", shown), name
    lengths = configuration.value("TASK_FEATURE_LENGTHS")
    assert isinstance(lengths, dict)
    for name, what in t5x_settings.LENGTH_VARIABLES.items():
        shown = lookup.find_variable(name, command).get_default_text(command)
        assert str(lengths[what]) in re.split("[; ]", shown), name


@pytest.mark.parametrize("lora", ["0", "1"])
def test_defaults_of_llama_are_those_of_its_script(lora: str) -> None:
    """The table shows what the script sets."""
    script = readers.COMMAND_SCRIPTS[readers.PAX_BOOLQ]
    found = pax_settings.read_settings(script, [], {"USE_LORA": lora}, 8)
    for variable in lookup.list_settings(script):
        shown = variable.get_default_text(script)
        value = found.hyper.get(variable.name)
        if variable.hyper_parameter and value and "MESH" not in variable.name:
            words = {"True": "1", "False": "0"}
            assert words.get(value, value.strip('"')) in re.split("[:;] ", shown), variable.name
