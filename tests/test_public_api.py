"""Hold docs/reference/public-api.md against the code: what is listed exists, and what exists is listed."""

from __future__ import annotations

import argparse
import ast
import functools
import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

import builder.cli
import rosetta.cli
from builder.core import variable_page
from builder.images import contents_page, image_settings, image_target
from builder.packages import program_wrappers
from builder.release.publish import tags
from rosetta.core import exit_status
from rosetta.core.gpus import GPUS
from rosetta.core.variables import lookup
from rosetta.data import data_spec
from rosetta.health import progress
from rosetta.pax.run import settings as pax_settings
from rosetta.presets import schema
from rosetta.t5x.run import settings as t5x_settings

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

ROOT = Path(__file__).resolve().parents[1]
PAGE = "docs/reference/public-api.md"
# Folders whose files name modules of rosetta from outside: they are what a move may not break.
NAMING_FOLDERS = (
    "patches",
    "overlay",
    "scripts",
    "docs",
    "rosetta/t5x/gin",
    "rosetta/t5x/templates",
)
NAMING_FILES = ("README.md", "Dockerfile.base", "Dockerfile.t5x", "Dockerfile.pax")
SHELL_FOLDERS = ("overlay", "scripts", "rosetta", "docker")
# A shell names variables of its own in lower case, and these in capitals.
# Fields of the class behind progress.jsonl that its lines do not have.
NOT_WRITTEN = {"more", "said"}
OF_THE_SHELL = {"BASH_SOURCE", "BASH_REMATCH", "PIPESTATUS", "SECONDS"}
# What stands before an equals sign in the documentation, and is not in the table of variables.
NOT_OURS = {
    "BASE",
    "FILE",
    "NAME",
    "NCCL_DEBUG",
    "NCCL_LAUNCH_MODE",
    "NVTE_JAX_CUSTOM_CALLS",
    "ROSETTA_TEST_TORCH",
    "SKIP",
    "UV_CACHE_DIR",
}
REEXPORT_LINES = 5

Rows = list[list[list[str]]]


# The page.


@functools.cache
def tables() -> dict[str, Rows]:
    """Return heading -> rows of the tables below it, each a list of cells, each a list of code spans."""
    found: dict[str, Rows] = {}
    heading = ""
    for line in (ROOT / PAGE).read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            heading = line.lstrip("#").strip()
        elif line.startswith("|"):
            cells = [re.findall(r"`([^`]+)`", cell) for cell in line.strip("|").split("|")]
            if cells[0]:
                found.setdefault(heading, []).append(cells)
    return found


def names(heading: str, column: int = 0) -> set[str]:
    """Return the code spans of a column of the tables below a heading; a name that stands twice fails."""
    spans = [span for cells in tables()[heading] for span in cells[column]]
    assert len(spans) == len(set(spans)), f"{PAGE}, {heading}: a name is listed twice"
    return set(spans)


def mapping(heading: str, column: int = 1) -> dict[str, set[str]]:
    """Return the names of a table's first column -> the code spans of another column of their row."""
    names(heading)
    return {name: set(cells[column]) for cells in tables()[heading] for name in cells[0]}


def assert_same(heading: str, listed: Collection[str], existing: Collection[str]) -> None:
    """Fail with what the page lists and the code lacks, and with what the code has and the page lacks."""
    problems = [f"{name}: public, but gone" for name in sorted(set(listed) - set(existing))]
    problems += [f"{name}: exists, but not listed" for name in sorted(set(existing) - set(listed))]
    assert not problems, "\n".join([f"{PAGE}, {heading}:", *problems])


def flat(table: dict[str, set[str]]) -> set[str]:
    """Return "name member" for each name and member of a table, and each name."""
    return {f"{name} {member}" for name in table for member in table[name]} | set(table)


# The code.


@functools.cache
def sources(package: str) -> dict[Path, str]:
    """Return file -> text of the modules of a package."""
    files = sorted((ROOT / package).rglob("*.py"))
    return {path: path.read_text(encoding="utf-8") for path in files}


@functools.cache
def tree_of(path: Path) -> ast.Module:
    """Return the syntax tree of a module. Parsing takes milliseconds, and there are hundreds: ask for few."""
    return ast.parse(path.read_text(encoding="utf-8"))


def texts_of(files: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the name and text of files."""
    for name in files:
        yield name, (ROOT / name).read_text(encoding="utf-8")


def texts(folders: Iterable[str], *suffixes: str) -> Iterator[tuple[str, str]]:
    """Yield the name and text of the files below folders, those with one of the suffixes if any is given."""
    for folder in folders:
        assert (ROOT / folder).is_dir(), f"{folder} has moved: change its name in this file"
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and (not suffixes or path.suffix in suffixes):
                yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


# Commands.


def commands(
    parser: argparse.ArgumentParser, words: tuple[str, ...] = ()
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield each command of a parser: its words, and the parser of its arguments."""
    below = [item for item in parser._actions if isinstance(item, argparse._SubParsersAction)]
    if not below:
        yield " ".join(words), parser
        return
    for name, child in below[0].choices.items():
        yield from commands(child, (*words, name))


@functools.cache
def builder_commands() -> dict[str, argparse.ArgumentParser]:
    """Return the commands of build.py."""
    return dict(commands(builder.cli.make_parser()))


@functools.cache
def rosetta_commands() -> dict[str, argparse.ArgumentParser]:
    """Return the commands of rosetta."""
    return dict(commands(rosetta.cli.build_parser()))


def options(parser: argparse.ArgumentParser) -> set[str]:
    """Return the options of a command that its help shows."""
    shown = [item for item in parser._actions if item.help != argparse.SUPPRESS]
    return {name for item in shown for name in item.option_strings} - {"-h", "--help"}


def positionals(parser: argparse.ArgumentParser) -> set[str]:
    """Return the positionals of a command, as its help shows them: a choice by its values."""
    found = set()
    for item in parser._actions:
        if not item.option_strings:
            found |= set(item.choices or str(item.metavar or item.dest).split("|"))
    return found


def choices(parsers: dict[str, argparse.ArgumentParser]) -> dict[str, set[str]]:
    """Return "command --option" -> the values that it takes, for options with a fixed set of them."""
    return {
        f"{name} {item.option_strings[-1]}": {str(value) for value in item.choices}
        for name, parser in parsers.items()
        for item in parser._actions
        if item.option_strings and item.choices and item.option_strings[-1] != "--allow-protocol"
    }


@pytest.mark.parametrize(
    ("heading", "parsers"),
    [("Commands of build.py", builder_commands), ("Commands of rosetta", rosetta_commands)],
)
def test_commands(heading: str, parsers: Any) -> None:
    """Commands, their arguments and options are those that the page lists."""
    found = parsers()
    common = set.intersection(*map(options, found.values()))
    assert_same(
        heading, flat(mapping(heading)), flat({n: positionals(p) for n, p in found.items()})
    )
    own = {name: options(parser) - common for name, parser in found.items()}
    assert_same(heading, flat(mapping(heading, 2)), flat(own))
    everywhere = heading.replace("Commands", "Options of every command")
    assert_same(everywhere, names(everywhere), common)


def test_values_of_options() -> None:
    """Options with a fixed set of values take those that the page lists."""
    found = {f"build.py {name}": v for name, v in choices(builder_commands()).items()}
    found |= {f"rosetta {name}": v for name, v in choices(rosetta_commands()).items()}
    common = {name: v for name, v in found.items() if name.endswith(" --log-level")}
    found = {name: v for name, v in found.items() if name not in common}
    for name, values in common.items():
        assert found.setdefault(f"{name.split()[0]} --log-level", values) == values
    heading = "Values of options"
    assert_same(heading, flat(mapping(heading)), flat(found))


def test_kinds_of_output() -> None:
    """--output of build.py takes the kinds that the page lists."""
    kinds = {
        re.split(r"\W", form)[0] for form in re.findall(r"[a-z]+\[?:[A-Z]+", image_target.FORMS)
    }
    assert_same("Kinds of --output", names("Kinds of --output"), {*kinds, "env"})


def test_exit_statuses() -> None:
    """Exit statuses are those that the page lists."""
    known = (
        exit_status.SUCCESS,
        exit_status.FAILED,
        exit_status.USER_ERROR,
        exit_status.INTERNAL_ERROR,
        exit_status.INTERRUPTED,
    )
    existing = {
        str(code)
        for code in (
            *known,
            exit_status.OUTPUT_CLOSED,
            exit_status.ENDED_EARLY,
            exit_status.PROCESS_LOST,
        )
    }
    existing |= {str(128 + number) for number in (signal.SIGABRT, signal.SIGKILL)}
    assert_same("Exit statuses", names("Exit statuses"), existing)


# Scripts.


def test_scripts() -> None:
    """Scripts and their words, in their order, are those that the page lists."""
    heading = "Scripts"
    listed = {cells[0][0]: cells[1] for cells in tables()[heading]}
    folder = "contrib/gpu/scripts_gpu"
    shipped = {
        path.name
        for path in (ROOT / "overlay").glob(f"*/*/{folder}/*")
        if path.suffix in (".sh", ".sub") or path.name.startswith("download_")
    }
    assert_same(heading, listed, shipped | {path.name for path in (ROOT / "scripts").glob("*.sub")})
    known = {**t5x_settings.POSITIONALS, **pax_settings.POSITIONALS}
    words = {name: words for name, words in listed.items() if name.endswith(".sh")}
    assert words == {f"{name}.sh": list(order) for name, order in known.items()}


# Variables.


# A reader that is given an environment, by one of its names in this code.
MAPPINGS = r"(?:environ|environment|variables|given|around|values)"
KEY = r'(?:"(?P<name>[A-Z][A-Z0-9_]+)"|(?:\w+\.)?(?P<constant>_?[A-Z][A-Z0-9_]+)\b)'
PATTERNS = (
    rf"\b{MAPPINGS}\.(?:get|pop)\(\s*{KEY}",
    rf"\b{MAPPINGS}\[{KEY}\](?! =[^=])",
    rf"{KEY} (?:not )?in (?:\w+\.)?environ(?:ment)?\b",
    rf"\bread_setting\(\s*[\w.]+,\s*{KEY}",
)


def read_by_python() -> set[str]:
    """Return the variables that Python code reads by a name, literal or of a constant."""
    texts_ = [*sources("rosetta").values(), *sources("builder").values()]
    texts_.append((ROOT / "build.py").read_text(encoding="utf-8"))
    found = set()
    for text in texts_:
        found |= set(re.findall(r'"(ROSETTA_[A-Z_]+)"', text))
        for pattern in PATTERNS:
            for match in re.finditer(pattern, text):
                constant = match["constant"] or ""
                value = re.search(rf'(?m)^{constant} = "([A-Z][A-Z0-9_]+)"', text)
                found.add(match["name"] or (value[1] if value else ""))
    return found - {""}


def shell_texts() -> list[str]:
    """Return the shell code of scripts and of what the builder puts into an image, without comments."""
    found = [text for _, text in texts(SHELL_FOLDERS, ".sh", ".sub")]
    found += [*program_wrappers.TEXTS.values(), image_settings.ENTRYPOINT_TEXT]
    return [re.sub(r"(?m)(^|\s)#.*$", "", text) for text in found]


def read_by_shell() -> set[str]:
    """Return the variables that shell code reads and does not set itself, or has a default for."""
    found = set()
    for code in shell_texts():
        set_here = set(re.findall(r"(?m)(?:^|[\s;(])([A-Z][A-Z0-9_]+)\+?=", code))
        found |= set(re.findall(r"\$\{?([A-Z][A-Z0-9_]+)", code)) - set_here
        found |= set(re.findall(r"\$\{+([A-Z][A-Z0-9_]+):?[-+]", code))
    return found - OF_THE_SHELL


def test_no_public_variable_is_gone() -> None:
    """The committed page is the record: the table has each name, with the commands that read it."""
    committed = (ROOT / variable_page.PAGE).read_text(encoding="utf-8")
    assert len(variable_page.find_public_names(committed)) > 300
    variable_page.refuse_removals(committed, variable_page.render())


def test_documentation_names_variables_that_exist() -> None:
    """NAME=VALUE in a page is a variable, a hyper-parameter of Pax, or a macro of gin.

    It may also be a variable of another program that a switch sets.
    """
    known = names("Hyper-parameters") | names("Gin macros") | NOT_OURS
    known |= {
        name for switch in shipped_presets("switches").values() for name in switch.get("env", ())
    }
    unknown = set()
    for file, text in [*texts(["docs"], ".md"), *texts_of(["README.md", "CONTRIBUTING.md"])]:
        spans = "\n".join(re.findall(r"`[^`\n]+`|```.*?```", text, re.DOTALL))
        for name in re.findall(r"(?<![\w.$/-])([A-Z][A-Z0-9_]{2,})=", spans):
            if not lookup.is_known_variable(name) and name not in known:
                unknown.add(f"{file}: {name}")
    assert not unknown, sorted(unknown)


def test_code_reads_variables_of_the_table_alone() -> None:
    """What Python or shell code reads by its name is in the table."""
    read = read_by_python() | read_by_shell()
    assert len(read) > 100
    assert {name for name in read if not lookup.is_known_variable(name)} == set()


def test_every_variable_of_the_table_is_read() -> None:
    """What the table holds is named by code; what is kept from runs need not be."""
    table = ROOT / "rosetta" / "core" / "variables"
    modules = {**sources("rosetta"), **sources("builder")}
    everything = [text for path, text in modules.items() if table not in path.parents]
    everything += [*shell_texts(), (ROOT / "build.py").read_text(encoding="utf-8")]
    named = set(re.findall(r"\b[A-Z][A-Z0-9_]+\b", "\n".join(everything)))
    kept = {variable.name for variable in lookup.TABLE if not variable.passed_to_run}
    by_attribute = {
        variable.name
        for variable in lookup.TABLE
        if variable.hyper_parameter or variable.slow_because
    }
    assert {variable.name for variable in lookup.TABLE} - named - kept - by_attribute == set()


# JSON.


@functools.cache
def records(path: Path) -> set[frozenset[str]]:
    """Return the keys of each dict display of a module, and the fields of each of its classes."""
    found = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Dict):
            keys = [key.value for key in node.keys if isinstance(key, ast.Constant)]
            found.add(frozenset(key for key in keys if isinstance(key, str)))
        elif isinstance(node, ast.ClassDef):
            fields = [item.target for item in node.body if isinstance(item, ast.AnnAssign)]
            found.add(frozenset(item.id for item in fields if isinstance(item, ast.Name)))
    return found


def has_record(package: str, keys: frozenset[str]) -> bool:
    """Return whether some dict display or class in a package has exactly these keys."""
    return any(
        not records(path).isdisjoint((keys, keys | NOT_WRITTEN))
        for path, text in sources(package).items()
        if all(f'"{key}":' in text or f"\n    {key}: " in text for key in keys)
    )


@pytest.mark.parametrize(
    ("heading", "package"),
    [
        ("The document of --json", "rosetta"),
        ("Results of build.py", "builder"),
        ("Results of rosetta", "rosetta"),
        ("Files of the builder", "builder"),
        ("Files of a run", "rosetta"),
    ],
)
def test_json_keys(heading: str, package: str) -> None:
    """Some dict or dataclass of the package has exactly the keys of each document that is listed."""
    texts_ = "\n".join(sources(package).values())
    wrong = []
    for cells in tables()[heading]:
        keys, added = cells[1], cells[2] if len(cells) > 2 else []
        if not has_record(package, frozenset(keys)):
            wrong.append(
                f"{cells[0][0]}: no dict or dataclass has exactly the keys {' '.join(keys)}"
            )
        if file := re.match(r"[\w/]+\.(?:jsonl?|lock)\b", cells[0][0]):
            added = [*added, file[0]]
        wrong += [f"{cells[0][0]}: no {key}" for key in added if f'{key}"' not in texts_]
    assert not wrong, "\n".join([f"{PAGE}, {heading}: {package}/", *wrong])


def test_every_command_has_a_result() -> None:
    """The page says of each command with --json what its result is."""
    for program, parsers in (("build.py", builder_commands()), ("rosetta", rosetta_commands())):
        named = {name for cells in tables()[f"Results of {program}"] for name in cells[0]}
        wanted = {n for n, p in parsers.items() if program == "build.py" or "--json" in options(p)}
        lacking = {
            name for name in wanted if not any(f"{one} ".startswith(f"{name} ") for one in named)
        }
        assert not lacking, f"{PAGE}, Results of {program}: {sorted(lacking)}"


def test_findings() -> None:
    """The ids of findings of `rosetta doctor` are those that the page lists."""
    found = set(re.findall(r'Finding\(\s*"([a-z0-9-]+)"', "\n".join(sources("rosetta").values())))
    assert_same("Findings of rosetta doctor", names("Findings of rosetta doctor"), found)


def test_names_in_the_folder_of_a_run() -> None:
    """The code writes the files and folders that the page lists."""
    heading = "Names in the folder of a run"
    code = "\n".join(sources("rosetta").values())
    stems = {name: re.split(r"N$|RANK", name)[0] for name in names(heading)}
    existing = {name for name, stem in stems.items() if re.search(rf"[\"/]{re.escape(stem)}", code)}
    assert_same(heading, stems, existing)


def test_scalars() -> None:
    """What is drawn over the steps of a run has the names that the page lists."""
    report = progress.Report(1, 1, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, more={"goodput": 1.0})
    existing = {*(f"rosetta/{name}" for name in report.scalars()), "rosetta/skipped"}
    assert_same("Scalars", names("Scalars"), existing)


# The image.


def test_paths_in_the_image() -> None:
    """Each path that the builder writes into an image is listed."""
    heading = "Paths in the image"
    listed = {path.strip("/") for path in names(heading)}
    found = set()
    for distribution in ("t5x", "pax"):
        entries = image_settings.list_entries({**EXAMPLE_RECORD, "distribution": distribution}, {})
        found |= {entry.path.strip("/") for entry in entries}
    manifest = yaml.safe_load((ROOT / "manifest.yaml").read_text(encoding="utf-8"))
    found |= {f"opt/{name.partition('-')[0]}" for name in manifest["sources"]}
    for text in sources("builder").values():
        found |= set(re.findall(r'"/?(opt/[a-zA-Z0-9_./-]+)"', text))
    assert_same(heading, listed, found)
    described = {path.strip("/") for path in contents_page.PATHS}
    assert described == found, f"{contents_page.PAGE} describes other paths"


EXAMPLE_RECORD: dict[str, Any] = {
    "distribution": "t5x",
    "accelerator": "cuda13",
    "line": "current",
    "architecture": "amd64",
    "builder": "1",
    "python": "3.13",
    "base": {"name": "debian", "digest": "sha256:0"},
    "sources": {
        "t5x": {"commit": "0", "patched_commit": "0", "url": "u", "date": 0, "patches": []}
    },
}


def test_programs_in_the_image() -> None:
    """Programs on PATH are those that the page lists."""
    assert_same("Programs on PATH", names("Programs on PATH"), program_wrappers.PROGRAMS)


def test_variables_in_the_image() -> None:
    """The image sets the variables that the page lists, and no others."""
    heading = "Variables that the image sets"
    existing = {line.partition("=")[0] for line in image_settings.make_env()}
    assert_same(heading, names(heading), existing)


def test_labels() -> None:
    """The image has the labels that the page lists."""
    assert_same("Labels", names("Labels"), image_settings.make_labels(EXAMPLE_RECORD))


def test_tags() -> None:
    """Tags of published images are those that the page lists."""
    existing = {"latest", tags.VERIFIED, tags.nightly_tag("YYYY-MM-DD")}
    assert_same("Tags", names("Tags"), existing)


# Names that users type.


def test_distributions() -> None:
    """Distributions and accelerators are those of the manifest."""
    manifest = yaml.safe_load((ROOT / "manifest.yaml").read_text(encoding="utf-8"))
    found = {name: set(entry["accelerators"]) for name, entry in manifest["distributions"].items()}
    assert_same("Distributions", flat(mapping("Distributions")), flat(found))


def shipped_presets(name: str) -> dict[str, Any]:
    """Return a YAML file of the presets."""
    (folder,) = {path.parent for path in (ROOT / "rosetta").rglob("switches.yaml")}
    loaded: dict[str, Any] = yaml.safe_load((folder / f"{name}.yaml").read_text(encoding="utf-8"))
    return loaded


def test_presets() -> None:
    """Presets, switches and precisions are those of the YAML files, accelerators the table's."""
    existing = {*shipped_presets("t5x"), *shipped_presets("pax")}
    assert_same("Presets", names("Presets"), existing)
    assert_same("Accelerators", names("Accelerators"), GPUS)
    for heading in ("Switches", "Precisions"):
        assert_same(heading, names(heading), shipped_presets(heading.lower()))


def test_fields_of_presets() -> None:
    """The fields of a preset are those that the page lists."""
    heading = "Fields of a preset"
    assert_same(heading, names(heading), {*schema.FIELDS, *schema._NAMED})


def test_data_addresses() -> None:
    """Kinds of data and objectives are those that the page lists."""
    assert_same("Kinds of data", names("Kinds of data"), data_spec.KINDS)
    assert_same("Objectives", names("Objectives"), data_spec.OBJECTIVES)


# Gin.

GIN_HOMES = {"rosetta/t5x/gin": "", "overlay/t5x": "overlay/t5x/"}


def gin_texts() -> dict[str, str]:
    """Return the gin files that are shipped, by the path that --gin_file takes, with their texts."""
    found = {}
    for folder, prefix in GIN_HOMES.items():
        for name, text in texts([folder], ".gin"):
            found[name.removeprefix(prefix)] = text
    return found


def gin_code(text: str) -> str:
    """Return a gin file without its comments."""
    return re.sub(r"(?m)#.*$", "", text)


def test_gin_files() -> None:
    """Gin files keep the paths that the page lists."""
    heading = "Gin files"
    listed = {f"{folder}/{name}" for folder, found in mapping(heading).items() for name in found}
    assert_same(heading, listed, gin_texts())


def test_gin_macros() -> None:
    """Macros that gin files define or use are those that the page lists."""
    found = set()
    for text in gin_texts().values():
        code = gin_code(text)
        found |= set(re.findall(r"(?m)^([A-Z][A-Z0-9_]*)\s*=", code))
        found |= set(re.findall(r"%([A-Z][A-Z0-9_]*)", code))
    assert_same("Gin macros", names("Gin macros"), found)


def gin_imports(code: str) -> dict[str, str]:
    """Return name in a gin file -> module of rosetta, for what the file imports."""
    found = {}
    for package, name in re.findall(r"(?m)^from (rosetta[\w.]*) import (\w+)\s*$", code):
        found[name] = f"{package}.{name}"
    return found


def gin_configurables() -> dict[str, set[str]]:
    """Return configurable of ours -> the parameters that gin files bind, with modules by their full names."""
    found: dict[str, set[str]] = {}
    for text in gin_texts().values():
        code = gin_code(text)
        for alias, module in gin_imports(code).items():
            for name in re.findall(rf"@(?:\w+/)?{alias}\.(\w+)", code):
                found.setdefault(f"{module}.{name}", set())
            pattern = rf"(?m)^(?:\w+/)?{alias}\.(\w+)\.(\w+)\s*="
            for name, parameter in re.findall(pattern, code):
                found.setdefault(f"{module}.{name}", set()).add(parameter)
            pattern = rf"(?m)^(?:\w+/)?{alias}\.(\w+):\n((?:[ \t]+.*\n|\s*\n)*)"
            for name, block in re.findall(pattern, code):
                bound = re.findall(r"(?m)^[ \t]+(\w+)\s*=", block)
                found.setdefault(f"{module}.{name}", set()).update(bound)
    return found


def test_gin_configurables() -> None:
    """What gin files bind of our modules is listed, and is there with these parameters."""
    heading = "Gin configurables"
    listed = mapping(heading)
    assert_same(
        heading, set(flat(listed)), set(flat(gin_configurables())) | fields_of_the_network()
    )
    for name, parameters in listed.items():
        module, _, member = name.rpartition(".")
        known = parameters_of(*resolve(module, member))
        assert known is None or parameters <= known, f"{name}: no parameter {parameters - known}"


def fields_of_the_network() -> set[str]:
    """Return the fields of the network's configuration as configurables: users bind any of them."""
    name = "rosetta.t5x.network.T5Config"
    known = parameters_of(*resolve("rosetta.t5x.network", "T5Config"))
    assert known
    return {f"{name} {field}" for field in known}


# Modules.


def module_file(name: str) -> Path | None:
    """Return the file of a module of ours, or None where there is none."""
    place = ROOT.joinpath(*name.split("."))
    files = (place.with_suffix(".py"), place / "__init__.py")
    return next((path for path in files if path.is_file()), None)


def definitions(tree: ast.Module | ast.ClassDef) -> Iterator[tuple[str, ast.AST]]:
    """Yield the names that a module binds at its top level, and by what."""
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name, node
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            for item in node.names:
                yield item.asname or item.name.partition(".")[0], node
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                yield getattr(target, "id", ""), node
        elif isinstance(node, ast.AnnAssign):
            yield getattr(node.target, "id", ""), node


def bound_names(module: str) -> set[str]:
    """Return the names that a module of ours binds, those of `import *` included."""
    path = module_file(module)
    assert path, f"no module {module}"
    found: set[str] = set()
    for name, node in definitions(tree_of(path)):
        star = isinstance(node, ast.ImportFrom) and name == "*"
        found |= bound_names(str(getattr(node, "module", ""))) if star else {name}
    return found


def resolve(module: str, name: str) -> tuple[str, ast.AST]:
    """Return where a name of a module is defined, and by what, through re-exports."""
    path = module_file(module)
    assert path, f"no module {module}"
    tree = tree_of(path)
    node = dict(definitions(tree)).get(name)
    if isinstance(node, ast.ImportFrom):
        origin = next(item.name for item in node.names if (item.asname or item.name) == name)
        source = str(node.module)
        if not source.startswith("rosetta") or module_file(f"{source}.{origin}"):
            return source, node
        return resolve(source, origin)
    if node is None:
        for item in tree.body:
            if isinstance(item, ast.ImportFrom) and item.names[0].name == "*":
                return resolve(str(item.module), name)
    assert node is not None, f"{module} has no {name}"
    return module, node


def parameters_of(module: str, node: ast.AST) -> set[str] | None:
    """Return the parameters of a function or class; None where some come from outside of rosetta."""
    if isinstance(node, ast.FunctionDef):
        arguments = node.args
        everything = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        return None if arguments.kwarg else {item.arg for item in everything}
    if not isinstance(node, ast.ClassDef):
        return None
    methods = [item for item in node.body if isinstance(item, ast.FunctionDef)]
    for method in methods:
        if method.name == "__init__":
            return parameters_of(module, method)
    fields = [item.target for item in node.body if isinstance(item, ast.AnnAssign)]
    found = {item.id for item in fields if isinstance(item, ast.Name)}
    return None if node.bases else found


MODULE = re.compile(r"(?<![\w.])rosetta(?:\.[a-z_0-9]+)+(?:\.\w+)*")
FROM = re.compile(r"\bfrom (rosetta[\w.]*) import ([\w*]+(?: as \w+)?(?:, \w+(?: as \w+)?)*)")


def split_name(name: str) -> tuple[str, str]:
    """Return the module of a dotted name, and the name in it, which may be empty; module is "" where there is none."""
    module, rest = name, ""
    while module and not module_file(module):
        module, _, last = module.rpartition(".")
        rest = rest or ""
        rest = f"{last}.{rest}" if rest else last
    return module, rest.partition(".")[0]


def named_modules() -> dict[str, set[str]]:
    """Return module -> its names, for all that is named from outside the package."""
    found: dict[str, set[str]] = {}
    files = [*texts(NAMING_FOLDERS), *((n, (ROOT / n).read_text("utf-8")) for n in NAMING_FILES)]
    for path, text in files:
        if path == PAGE:
            continue
        for package, imported in FROM.findall(text):
            for item in imported.split(", "):
                name = item.partition(" ")[0]
                if module_file(f"{package}.{name}"):
                    used = re.findall(rf"\b{item.split()[-1]}\.([A-Za-z]\w*)", gin_code(text))
                    found.setdefault(f"{package}.{name}", set()).update(used)
                else:
                    found.setdefault(package, set()).add(name)
        for dotted in MODULE.findall(FROM.sub("", text)):
            module, name = split_name(dotted)
            if module != "rosetta":
                found.setdefault(module, set()).update({name} - {""})
    return found


def test_modules() -> None:
    """Modules that other files name are listed with the names they use; all of them are there."""
    listed = mapping("Modules")
    named = named_modules()
    unlisted = [
        f"{module} {name}".strip()
        for module, used in named.items()
        for name in [*used, ""]
        if module not in listed or (name and name not in listed[module] and name != "*")
    ]
    assert not unlisted, f"{PAGE}, Modules: named, but not listed: {sorted(unlisted)}"
    for module, members in listed.items():
        assert module_file(module), f"{module}: public, but gone"
        for member in members:
            resolve(module, member)


def test_programs_by_module() -> None:
    """Modules that files and pages run by `python -m` are listed, and have a main part."""
    listed = names("Programs by module")
    for path, text in texts(NAMING_FOLDERS):
        run = set(re.findall(r"-m (rosetta[\w.]*)", text)) if path != PAGE else set()
        assert run <= listed, f"{PAGE}, Programs by module: {path} runs {sorted(run - listed)}"
    for name in listed:
        file = module_file(f"{name}.__main__") or module_file(name)
        assert file, f"{name}: public, but gone"
        assert file.name == "__main__.py" or "__main__" in file.read_text(encoding="utf-8"), name


def test_reexports_are_short() -> None:
    """A module that only re-exports names of ours has a docstring and imports, in at most five lines."""
    other = re.compile(
        r"^(?:def|class|if|for|try|with|@|(?!__all__)[\w.]+(?: =|:|\())", re.MULTILINE
    )
    for path, text in sources("rosetta").items():
        if other.search(text) or "import" not in text or path.name == "__main__.py":
            continue
        nodes = [node for node in tree_of(path).body if isinstance(node, ast.ImportFrom)]
        nodes = [node for node in nodes if node.module != "__future__"]
        lines = sum((node.end_lineno or 0) - node.lineno + 1 for node in nodes)
        assert lines <= REEXPORT_LINES, f"{path}: {lines} lines of re-exports"


# Pax.


def test_experiments() -> None:
    """Experiments of Pax, and the data sets beside them that users derive from, are those that the page lists."""
    existing = {name for name in bound_names("rosetta.pax.configs") if name[0].isupper()}
    assert_same("Experiments", names("Experiments"), existing)


def test_hyper_parameters() -> None:
    """Hyper-parameters of experiments are those that the page lists."""
    found = set()
    for path in (ROOT / "rosetta/pax").rglob("*.py"):
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef):
                found |= {name for name, _ in definitions(node) if name.isupper()}
    assert_same("Hyper-parameters", names("Hyper-parameters"), found - {"DIFFERENCES"})
