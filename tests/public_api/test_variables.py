"""Compare the variables that code and documentation name with the table of variables."""

from __future__ import annotations

import re

from builder.core import variable_page
from builder.images import image_settings
from builder.packages import program_wrappers
from rosetta.core.variables import lookup
from tests.support.public_names import (
    ROOT,
    load_presets,
    read_files,
    read_folders,
    read_names,
    read_sources,
)

SHELL_FOLDERS = ("overlay", "scripts", "rosetta", "docker")
# Variables in capitals that a shell sets itself.
OF_THE_SHELL = {"BASH_SOURCE", "BASH_REMATCH", "PIPESTATUS", "SECONDS"}
# Names that the documentation sets, and that are not in the table of variables.
NOT_OURS = {
    "BASE",
    "FILE",
    "MLFLOW_ALLOW_FILE_STORE",
    "NAME",
    "NCCL_DEBUG",
    "NCCL_LAUNCH_MODE",
    "NVTE_JAX_CUSTOM_CALLS",
    "ROSETTA_TEST_TORCH",
    "SKIP",
    "UV_CACHE_DIR",
}

# The names that this code gives to a mapping of environment variables.
MAPPINGS = r"(?:environ|environment|variables|settings|values)"
KEY = r'(?:"(?P<name>[A-Z][A-Z0-9_]+)"|(?:\w+\.)?(?P<constant>_?[A-Z][A-Z0-9_]+)\b)'
PATTERNS = (
    rf"\b{MAPPINGS}\.(?:get|pop)\(\s*{KEY}",
    rf"\b{MAPPINGS}\[{KEY}\](?! =[^=])",
    rf"{KEY} (?:not )?in (?:\w+\.)?environ(?:ment)?\b",
    rf"\bread_setting\(\s*[\w.]+,\s*{KEY}",
)


def find_variables_of_python() -> set[str]:
    """Return the variables that Python code reads by a literal name or by a constant."""
    texts = [*read_sources("rosetta").values(), *read_sources("builder").values()]
    texts.append((ROOT / "build.py").read_text(encoding="utf-8"))
    names = set()
    for text in texts:
        names |= set(re.findall(r'"(ROSETTA_[A-Z_]+)"', text))
        for pattern in PATTERNS:
            for match in re.finditer(pattern, text):
                constant = match["constant"] or ""
                value = re.search(rf'(?m)^{constant} = "([A-Z][A-Z0-9_]+)"', text)
                names.add(match["name"] or (value[1] if value else ""))
    return names - {""}


def read_shell_code() -> list[str]:
    """Return the shell code of scripts and of the programs of an image, without comments."""
    texts = [text for _, text in read_folders(SHELL_FOLDERS, ".sh", ".sub")]
    texts += [*program_wrappers.TEXTS.values(), image_settings.ENTRYPOINT_TEXT]
    return [re.sub(r"(?m)(^|\s)#.*$", "", text) for text in texts]


def find_variables_of_shell() -> set[str]:
    """Return the variables that shell code reads and does not set, or for which it has a default."""
    names = set()
    for code in read_shell_code():
        set_here = set(re.findall(r"(?m)(?:^|[\s;(])([A-Z][A-Z0-9_]+)\+?=", code))
        names |= set(re.findall(r"\$\{?([A-Z][A-Z0-9_]+)", code)) - set_here
        names |= set(re.findall(r"\$\{+([A-Z][A-Z0-9_]+):?[-+]", code))
    return names - OF_THE_SHELL


def test_no_public_variable_is_gone() -> None:
    """The committed page is the record: the table has each name, with the commands that read it."""
    committed = (ROOT / variable_page.PAGE).read_text(encoding="utf-8")
    assert len(variable_page.find_public_names(committed)) > 300
    variable_page.refuse_removals(committed, variable_page.render())


def test_documentation_names_variables_that_exist() -> None:
    """NAME=VALUE in a page is a variable, a hyper-parameter of Pax, or a macro of gin.

    It may also be a variable of another program that a switch or a preset sets.
    """
    known = read_names("Hyper-parameters") | read_names("Gin macros") | NOT_OURS
    known |= {
        name
        for file in ("switches", "pax", "t5x")
        for preset in load_presets(file).values()
        for name in preset.get("env", ())
    }
    unknown = set()
    for file, text in [
        *read_folders(["docs"], ".md"),
        *read_files(["README.md", "CONTRIBUTING.md"]),
    ]:
        spans = "\n".join(re.findall(r"`[^`\n]+`|```.*?```", text, re.DOTALL))
        for name in re.findall(r"(?<![\w.$/-])([A-Z][A-Z0-9_]{2,})=", spans):
            if not lookup.is_known_variable(name) and name not in known:
                unknown.add(f"{file}: {name}")
    assert not unknown, sorted(unknown)


def test_code_reads_variables_of_the_table_alone() -> None:
    """The table has each variable that Python or shell code reads by its name."""
    read = find_variables_of_python() | find_variables_of_shell()
    assert len(read) > 100
    assert {name for name in read if not lookup.is_known_variable(name)} == set()


def test_every_variable_of_the_table_is_read() -> None:
    """Code names each variable of the table, except those that never reach a run."""
    table = ROOT / "rosetta" / "core" / "variables"
    modules = {**read_sources("rosetta"), **read_sources("builder")}
    everything = [text for path, text in modules.items() if table not in path.parents]
    everything += [*read_shell_code(), (ROOT / "build.py").read_text(encoding="utf-8")]
    named = set(re.findall(r"\b[A-Z][A-Z0-9_]+\b", "\n".join(everything)))
    kept = {variable.name for variable in lookup.TABLE if not variable.passed_to_run}
    by_attribute = {
        variable.name
        for variable in lookup.TABLE
        if variable.hyper_parameter or variable.slow_because
    }
    assert {variable.name for variable in lookup.TABLE} - named - kept - by_attribute == set()
