"""Parsing of a run's gin configuration, with one-line errors.

A setting that has no effect is reported: gin itself ignores a misspelt macro.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import sys
import tokenize
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gin
from gin import config_parser

from rosetta.core import log
from rosetta.core.errors import CONFLICT, INVALID, MISSING, UNKNOWN, UserError
from rosetta.core.value_parsing import parse_path
from rosetta.health import system_errors
from rosetta.t5x.run import gin_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    # Gin's table of bindings: (scope, configurable) -> parameter -> value.
    Table = Mapping[tuple[str, str], Mapping[str, Any]]

# What gin and the functions that it calls raise for a wrong configuration. RuntimeError is not one
# of them, because JAX raises it for other reasons.
CONFIGURATION_ERRORS = (
    OSError,
    ValueError,
    LookupError,
    NameError,
    AttributeError,
    ImportError,
    TypeError,
)
_PATH_MACROS = (
    "MODEL_DIR",
    "INITIAL_CHECKPOINT_PATH",
    "CHECKPOINT_PATH",
    "EVAL_OUTPUT_DIR",
    "INFER_OUTPUT_DIR",
)
_COUNT_MACROS = ("TRAIN_STEPS", "FT_STEPS")  # numbers that only the user sets
_REQUIRED = re.compile(r"Required bindings for `(.+?)` not provided in config: (.+)")
_UNSET = re.compile(r"(.*?)(?:/macro\.value)? set to `%gin\.REQUIRED`")
_NO_MACRO = re.compile(r"No bindings specified for '(.+?)/gin\.macro'")
_PERIOD_CONFLICT = re.compile(r"Checkpoint period \((\d+)\), eval period \((\d+)\)")
_TOTAL_STEPS_PASSED = re.compile(r"Unexpected total_steps \((\d+)\) < checkpoint step\s+\((\d+)\)")
_IN_FILE = re.compile(r'In file "(.+?)", line (\d+)')
_IN_BINDINGS = re.compile(r"In bindings string line \d+\n\s*(\S+)\s*=\s*(.*)")
_CALLED = re.compile(r"In call to configurable '(.+?)'")
_REMEDY = "correct the gin file or the --gin.NAME=VALUE option"


def install() -> None:
    """Have T5X's programs call parse_files_and_bindings instead of gin's own function."""
    gin.parse_config_files_and_bindings = parse_files_and_bindings


# Gin's own function, which `install` replaces.
_gin_parse = gin.parse_config_files_and_bindings


def parse_files_and_bindings(
    config_files: Sequence[str] | None,
    bindings: Sequence[str] | None,
    finalize_config: bool = True,
    skip_unknown: bool | Sequence[str] = False,
    print_includes_and_imports: bool = False,
) -> Any:
    """Parse gin files and then bindings into gin's table, in place of gin's own function.

    A relative path of one of the run's folders counts from the current folder, as in the scripts.

    Args:
      config_files: the gin files.
      bindings: lines "NAME = VALUE", from the --gin options.
      finalize_config: as of gin's function, like the following arguments.
      skip_unknown: as of gin's function.
      print_includes_and_imports: as of gin's function.

    Returns:
      What gin's function returns.

    Raises:
      UserError: a file or a binding is wrong, or a macro is set that nothing reads.
    """
    try:
        included = []
        for file in config_files or []:
            with _locate_unfinished_text(file):
                included += _gin_parse(
                    [file], None, False, skip_unknown, print_includes_and_imports
                )
        # Gin has no public way to list its table.
        values = {name: _read_macro(name) for name in _list_macros(gin.config._CONFIG)}  # noqa: SLF001
        with _locate_unfinished_text("--gin options"):
            gin.parse_config(bindings or [], skip_unknown)
        _check_macro_types(values, bindings or [])
        _make_paths_absolute()
        _report_unused_macros(config_files or [], bindings or [], set(values))
        if finalize_config:
            gin.finalize()
    except UserError:
        raise
    except (*CONFIGURATION_ERRORS, SyntaxError, RuntimeError) as error:
        raise explain_error(error) from error
    return included


@contextlib.contextmanager
def _locate_unfinished_text(where: str) -> Iterator[None]:
    """Raise UserError for a text that ends inside a bracket or a string.

    Python's own error names neither the file nor the option.

    Args:
      where: the place of the text, for the error.
    """
    try:
        yield
    except tokenize.TokenError as error:
        place = _IN_FILE.search(str(error))
        raise UserError(
            "not valid gin: a bracket or a string is not closed",
            f"{place[1]}:{place[2]}" if place else where,
            "close it",
            kind=INVALID,
        ) from error


def is_configuration_error(error: Exception) -> bool:
    """Return whether an error before the first step comes from the configuration.

    Gin adds its calls to the text of an error that they raise. An error of the operating system,
    such as a full disk, does not come from the configuration.
    """
    if system_errors.explain_system_error(error) is not None:
        return False
    text = str(error)
    if isinstance(error, RuntimeError):
        return bool(_REQUIRED.search(text) or _UNSET.search(text))
    return isinstance(error, CONFIGURATION_ERRORS) and bool(_CALLED.search(text))


def explain_error(error: Exception) -> UserError:
    """Return the one-line error for what gin raised while it parsed files or built a run.

    Args:
      error: the error, to whose text gin has added lines with the file or the call.
    """
    if isinstance(error, SyntaxError):
        return _explain_syntax(error)
    if system_error := system_errors.explain_system_error(error):
        return system_error
    text = str(error) or type(error).__name__
    place = _find_place(text)
    if unset := _UNSET.search(text):
        return UserError(
            f"{unset[1].strip()} is not set",
            place,
            f"set it: --gin.{unset[1].strip()}=VALUE",
            kind=MISSING,
            value=unset[1].strip(),
        )
    if macro := _NO_MACRO.search(text):
        known = _list_macros(gin.config._CONFIG)  # noqa: SLF001 (see above)
        return UserError(
            f"the macro %{macro[1]} is used but not set",
            place,
            _suggest_name(macro[1], known) or _REMEDY,
            kind=MISSING,
            value=macro[1],
        )
    if required := _REQUIRED.search(text):
        return UserError(f"{required[1]} needs {required[2]}", place, _REMEDY, kind=MISSING)
    if periods := _PERIOD_CONFLICT.search(text):
        problem = f"SAVE_PERIOD is {periods[1]} and EVAL_PERIOD is {periods[2]}"
        return UserError(problem, place, "make one of them a multiple of the other", kind=CONFLICT)
    if passed := _TOTAL_STEPS_PASSED.search(text):
        return UserError(
            f"the run's checkpoint is already at step {passed[2]}",
            f"TRAIN_STEPS={passed[1]}",
            "set a larger TRAIN_STEPS, or name another folder",
            kind=CONFLICT,
        )
    first = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
    if isinstance(error, KeyError) and first in ("'inputs'", "'targets'"):
        return UserError(
            f"the length of {first} is not set",
            "TASK_FEATURE_LENGTHS",
            "give all lengths, as in {'inputs': 512, 'targets': 128}",
            kind=INVALID,
        )
    if isinstance(error, KeyError):
        first = f"there is no {first}"
    return UserError(first.rstrip("."), place, _REMEDY, kind=INVALID)


def _explain_syntax(error: SyntaxError) -> UserError:
    """Return the error for a text that gin cannot parse: most often a string without quotes."""
    line = (error.text or "").strip()
    name, _, value = (part.strip() for part in line.partition("="))
    in_file = error.filename and not error.filename.startswith("<")
    if not value:
        where = f"{error.filename}:{error.lineno}" if in_file else "gin"
        return UserError(
            f"not valid gin: {line!r}",
            where,
            "write NAME = VALUE, one on each line",
            kind=INVALID,
            value=line,
        )
    remedy = f"a string needs quotes: {name} = '{value}'"
    if not in_file:
        remedy = f"a string needs quotes, also from the shell: '--gin.{name}=\"{value}\"'"
    where = f"{error.filename}:{error.lineno}" if in_file else f"--gin.{name}={value}"
    return UserError(f"not a valid value: {value}", where, remedy, kind=INVALID, value=value)


def _find_place(text: str) -> str:
    """Return the place that an error of gin names: file and line, option, or configurable."""
    if in_file := _IN_FILE.search(text):
        return f"{in_file[1]}:{in_file[2]}"
    if in_bindings := _IN_BINDINGS.search(text):
        return f"--gin.{in_bindings[1]}={in_bindings[2]}"
    if called := _CALLED.search(text):
        return f"gin configuration of {called[1]!r}"
    return "gin configuration"


def _list_macros(table: Table) -> set[str]:
    """Return the names of the macros in gin's table."""
    return {scope for scope, selector in table if selector == "gin.macro"}


def _read_macro(name: str) -> Any:
    """Return the value of a macro in gin's table; None if it is not bound."""
    return gin.config._CONFIG.get((name, "gin.macro"), {}).get("value")  # noqa: SLF001 (see above)


def _check_macro_types(before: Mapping[str, Any], bindings: Sequence[str]) -> None:
    """Check that the command line keeps the types of macros: numbers or strings.

    Args:
      before: the values of the macros in the files.
      bindings: lines "NAME = VALUE" of the command line.

    Raises:
      UserError: an option sets a number to a string, or a string to a number.
    """
    for line in bindings:
        name = line.partition("=")[0].strip()
        old = 0 if name in _COUNT_MACROS else before.get(name)
        new = _read_macro(name)
        if isinstance(old, (int, float)) and isinstance(new, str):
            expected = "a number"
        elif isinstance(old, str) and isinstance(new, (int, float)):
            expected = "a string in quotes"
        else:
            continue
        example = "" if name in _COUNT_MACROS else f", as {old!r}"
        raise UserError(
            f"{new!r} is not {expected}",
            f"--gin.{name}",
            f"give {expected}{example}",
            kind=INVALID,
            value=new,
        )


def _find_references(value: Any) -> set[str]:
    """Return the macros that a value names itself, not through another macro."""
    references = gin.config.iterate_references(value)
    keys = (reference.config_key for reference in references)
    return {scope for scope, selector in keys if selector == "gin.macro"}


def find_used_macros(table: Table) -> set[str]:
    """Return the macros that a parameter of a configurable uses, also through other macros."""
    waiting: set[str] = set()
    for (_, selector), values in table.items():
        if selector != "gin.macro":
            waiting |= _find_references(dict(values))
    used: set[str] = set()
    while waiting:
        name = waiting.pop()
        used.add(name)
        waiting |= _find_references(table.get((name, "gin.macro"), {})) - used
    return used


def _suggest_name(name: str, known: Iterable[str]) -> str:
    """Return "did you mean NAME?", or "" if no known name is similar."""
    similar = difflib.get_close_matches(name, sorted(known), 1, 0.8)
    return f"did you mean {similar[0]}?" if similar else ""


def _report_unused_macros(files: Sequence[str], bindings: Sequence[str], known: set[str]) -> None:
    """Refuse an unused macro that looks misspelt, and warn of other unused macros.

    Args:
      files: the gin files of the run.
      bindings: lines "NAME = VALUE" of the command line.
      known: the macros that the files bind.

    Raises:
      UserError: an option sets a macro that no file has, or a user's file sets a macro with a name
        similar to that of a used macro.
    """
    used = find_used_macros(gin.config._CONFIG)  # noqa: SLF001 (see above)
    option_lines = {line.partition("=")[0].strip(): line for line in bindings}
    for name, line in option_lines.items():
        if name in used or "." in name or "/" in name:
            continue
        place = "--gin." + re.sub(r"\s*=\s*", "=", line.strip(), count=1)
        if name not in known:
            remedy = _suggest_name(name, used)
            if not remedy:
                remedy = "leave it out, or name a macro of the files (docs/reference/gin-files.md)"
            raise UserError(
                f"no gin file reads the macro {name}", place, remedy, kind=UNKNOWN, value=name
            )
        log.warn(f"{place} has no effect: nothing in this run reads {name}", once=True)
    for name, place in _find_user_macros(files).items():
        if name in used or name in option_lines:
            continue
        if suggestion := _suggest_name(name, used):
            raise UserError(
                f"no gin file reads the macro {name}", place, suggestion, kind=UNKNOWN, value=name
            )
        log.warn(f"{place}: {name} has no effect: nothing in this run reads it", once=True)


def _find_user_macros(files: Sequence[str]) -> dict[str, str]:
    """Return the macros that the user's own files bind, each with its file and line."""
    macros: dict[str, str] = {}
    for file in files:
        _add_file_macros(file, macros)
    return macros


def _add_file_macros(file: str, macros: dict[str, str]) -> None:
    """Add the macros of a user's file and of the files that it includes; skip shipped files.

    Args:
      file: the file, as gin files name it.
      macros: the file and line of each macro, by name; changed in place.
    """
    prefixes = gin.config._LOCATION_PREFIXES  # noqa: SLF001 (see above)
    paths = [os.path.join(prefix, file) for prefix in prefixes]
    path = next((path for path in paths if os.path.isfile(path)), None)
    if path is None or _is_shipped(path):
        return
    with open(path) as opened:
        for statement in config_parser.ConfigParser(opened, _NameParser()):
            if isinstance(statement, config_parser.IncludeStatement):
                _add_file_macros(statement.filename, macros)
            elif isinstance(statement, config_parser.BindingStatement) and not (
                statement.arg_name or statement.scope
            ):
                macros[statement.selector] = f"{path}:{statement.location.line_num}"


def _is_shipped(path: str) -> bool:
    """Return whether a file is in one of Python's folders, as rosetta's and T5X's files are."""
    folders = (str(gin_files.ROOT.resolve()), *map(os.path.realpath, sys.path[1:]))
    prefixes = tuple(f"{folder}/" for folder in folders if folder != os.getcwd())
    return os.path.realpath(path).startswith(prefixes) or "rosetta/t5x/gin/" in path


class _NameParser(config_parser.ParserDelegate):
    """A delegate of gin's parser that returns the names in values unchanged."""

    def configurable_reference(self, scoped_configurable_name: str, evaluate: bool) -> str:
        """Return the name of a configurable."""
        del evaluate
        return scoped_configurable_name

    def macro(self, macro_name: str) -> str:
        """Return the name of a macro."""
        return macro_name


def _make_paths_absolute() -> None:
    """Make the paths of a run's folders absolute.

    Orbax refuses relative paths, and a run may change its working folder.
    """
    for name in _PATH_MACROS:
        value = _read_macro(name)
        if not isinstance(value, str) or not value:
            continue
        path = parse_path(name, value)
        if path != value and not Path(value).is_absolute():
            gin.bind_parameter(f"{name}/gin.macro.value", path)
            log.info(f"{name}={value} counts from the current folder: {path}", once=True)
