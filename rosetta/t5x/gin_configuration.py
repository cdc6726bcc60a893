"""The gin configuration of a run: parsed with every error in one line, and nothing in it ignored in
silence.
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

    # Gin's table of bindings: (scope, name of a configurable) -> parameter -> value.
    Table = Mapping[tuple[str, str], Mapping[str, Any]]

# What gin, and what it calls, raise over a configuration that is wrong. RuntimeError is not here:
# JAX raises it for what no configuration can mend.
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
_COUNT_MACROS = ("TRAIN_STEPS", "FT_STEPS")  # numbers that the files leave to the user
_REQUIRED = re.compile(r"Required bindings for `(.+?)` not provided in config: (.+)")
_UNSET = re.compile(r"(.*?)(?:/macro\.value)? set to `%gin\.REQUIRED`")
_NO_MACRO = re.compile(r"No bindings specified for '(.+?)/gin\.macro'")
_PERIOD_CONFLICT = re.compile(r"Checkpoint period \((\d+)\), eval period \((\d+)\)")
_TOTAL_STEPS_PASSED = re.compile(r"Unexpected total_steps \((\d+)\) < checkpoint step\s+\((\d+)\)")
_IN_FILE = re.compile(r'In file "(.+?)", line (\d+)')
_IN_BINDINGS = re.compile(r"In bindings string line \d+\n\s*(\S+)\s*=\s*(.*)")
_CALLED = re.compile(r"In call to configurable '(.+?)'")
_REMEDY = "mend the gin file or the --gin.NAME=VALUE word"


def install() -> None:
    """Let gin's own entry, which T5X's programs call, parse as `parse_files_and_bindings` does."""
    gin.parse_config_files_and_bindings = parse_files_and_bindings


# T5X calls gin's entry, which `install` replaces: this one has to stay at hand.
_gin_parse = gin.parse_config_files_and_bindings


def parse_files_and_bindings(
    config_files: Sequence[str] | None,
    bindings: Sequence[str] | None,
    finalize_config: bool = True,
    skip_unknown: bool | Sequence[str] = False,
    print_includes_and_imports: bool = False,
) -> Any:
    """Parse gin files and then bindings into gin's table. The arguments are those of gin's own
    function.

    A relative path of a run's folders counts from the current folder, as it does in the scripts.

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
        with _locate_unfinished_text("--gin words"):
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
    """Raise UserError for a text that ends inside a bracket or a string: Python's error for it
    names neither the file nor the word.

    Args:
      where: what is parsed.
    """
    try:
        yield
    except tokenize.TokenError as error:
        place = _IN_FILE.search(str(error))
        raise UserError(
            "not valid gin: a bracket or a string does not end",
            f"{place[1]}:{place[2]}" if place else where,
            "close it",
            kind=INVALID,
        ) from error


def is_configuration_error(error: Exception) -> bool:
    """Return whether an error that was raised before the first step comes from the configuration.

    Args:
      error: as raised. What gin's calls raise has the calls named in its text. A full disk or a
        missing permission is no matter of gin.
    """
    if system_errors.explain_system_error(error) is not None:
        return False
    text = str(error)
    if isinstance(error, RuntimeError):
        return bool(_REQUIRED.search(text) or _UNSET.search(text))
    return isinstance(error, CONFIGURATION_ERRORS) and bool(_CALLED.search(text))


def explain_error(error: Exception) -> UserError:
    """Return the one line that stands for what gin raised, or what it raised while it built a run.

    Args:
      error: as raised. Gin adds lines to its text that say in which file or call it happened.
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
            f"%{macro[1]} is read, and nothing sets it",
            place,
            _suggest_name(macro[1], known) or _REMEDY,
            kind=MISSING,
            value=macro[1],
        )
    if required := _REQUIRED.search(text):
        return UserError(f"{required[1]} needs {required[2]}", place, _REMEDY, kind=MISSING)
    if periods := _PERIOD_CONFLICT.search(text):
        what = f"SAVE_PERIOD is {periods[1]} and EVAL_PERIOD {periods[2]}"
        return UserError(what, place, "make one of them a multiple of the other", kind=CONFLICT)
    if behind := _TOTAL_STEPS_PASSED.search(text):
        what = f"its checkpoint is at step {behind[2]} already"
        return UserError(
            what,
            f"TRAIN_STEPS={behind[1]}",
            "give a larger TRAIN_STEPS, or name another folder",
            kind=CONFLICT,
        )
    first = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
    if isinstance(error, KeyError) and first in ("'inputs'", "'targets'"):
        what = f"there is no length for {first}"
        do = "give all, as in {'inputs': 512, 'targets': 128}"
        return UserError(what, "TASK_FEATURE_LENGTHS", do, kind=INVALID)
    if isinstance(error, KeyError):
        first = f"there is no {first}"
    return UserError(first.rstrip("."), place, _REMEDY, kind=INVALID)


def _explain_syntax(error: SyntaxError) -> UserError:
    """Return the line for a text that gin cannot parse; most often a string has no quotes."""
    line = (error.text or "").strip()
    name, _, value = (part.strip() for part in line.partition("="))
    in_file = error.filename and not error.filename.startswith("<")
    if not value:
        where = f"{error.filename}:{error.lineno}" if in_file else "gin"
        return UserError(
            f"not valid gin: {line!r}",
            where,
            "write NAME = VALUE, one on a line",
            kind=INVALID,
            value=line,
        )
    do = f"a string needs quotes: {name} = '{value}'"
    if not in_file:
        do = f"a string needs quotes, also from the shell: '--gin.{name}=\"{value}\"'"
    where = f"{error.filename}:{error.lineno}" if in_file else f"--gin.{name}={value}"
    return UserError(f"not a valid value: {value}", where, do, kind=INVALID, value=value)


def _find_place(text: str) -> str:
    """Return where gin says that an error happened: a file and line, a word, or a configurable."""
    if in_file := _IN_FILE.search(text):
        return f"{in_file[1]}:{in_file[2]}"
    if in_bindings := _IN_BINDINGS.search(text):
        return f"--gin.{in_bindings[1]}={in_bindings[2]}"
    if called := _CALLED.search(text):
        return f"gin configuration of {called[1]!r}"
    return "gin configuration"


def _list_macros(table: Table) -> set[str]:
    """Return the macros that gin's table has."""
    return {scope for scope, selector in table if selector == "gin.macro"}


def _read_macro(name: str) -> Any:
    """Return what gin's table binds a macro to, None for nothing."""
    return gin.config._CONFIG.get((name, "gin.macro"), {}).get("value")  # noqa: SLF001 (see above)


def _check_macro_types(before: Mapping[str, Any], bindings: Sequence[str]) -> None:
    """Refuse a text for a macro that is a number, and a number for one that is a text.

    Args:
      before: the macros' values in the files.
      bindings: lines "NAME = VALUE" of the command line.

    Raises:
      UserError: a word changes the type.
    """
    for line in bindings:
        name = line.partition("=")[0].strip()
        old, new = 0 if name in _COUNT_MACROS else before.get(name), _read_macro(name)
        for number, text, kind in ((old, new, "a number"), (new, old, "a string in quotes")):
            if isinstance(number, (int, float)) and isinstance(text, str):
                example = "" if name in _COUNT_MACROS else f", as {old!r}"
                raise UserError(
                    f"not {kind}: {new!r}",
                    f"--gin.{name}",
                    f"give {kind}{example}",
                    kind=INVALID,
                    value=new,
                )


def _find_references(value: Any) -> set[str]:
    """Return the macros that a value names, directly."""
    references = gin.config.iterate_references(value)
    keys = (reference.config_key for reference in references)
    return {scope for scope, selector in keys if selector == "gin.macro"}


def find_used_macros(table: Table) -> set[str]:
    """Return the macros that some parameter of a configurable reads, through other macros too."""
    waiting: set[str] = set()
    for (_, selector), values in table.items():
        if selector != "gin.macro":
            waiting |= _find_references(dict(values))
    read: set[str] = set()
    while waiting:
        name = waiting.pop()
        read.add(name)
        waiting |= _find_references(table.get((name, "gin.macro"), {})) - read
    return read


def _suggest_name(name: str, known: Iterable[str]) -> str:
    """Return "did you mean NAME?", or nothing where no known name is near."""
    near = difflib.get_close_matches(name, sorted(known), 1, 0.8)
    return f"did you mean {near[0]}?" if near else ""


def _report_unused_macros(files: Sequence[str], bindings: Sequence[str], known: set[str]) -> None:
    """Refuse a macro that nothing reads where it looks misspelt, and otherwise say that it has no
    effect.

    Args:
      files: the gin files of the run.
      bindings: lines "NAME = VALUE" of the command line.
      known: the macros that the files bind.

    Raises:
      UserError: a word sets a macro that no file has, or a user's file one that is nearly another's
        name.
    """
    read = find_used_macros(gin.config._CONFIG)  # noqa: SLF001 (see above)
    words = {line.partition("=")[0].strip(): line for line in bindings}
    for name, line in words.items():
        if name in read or "." in name or "/" in name:
            continue
        place = "--gin." + re.sub(r"\s*=\s*", "=", line.strip(), count=1)
        if name not in known:
            do = (
                _suggest_name(name, read)
                or "leave it out, or name a macro of the files (docs/reference/gin-files.md)"
            )
            raise UserError(
                f"no gin file reads the macro {name}", place, do, kind=UNKNOWN, value=name
            )
        log.warn(f"{place} has no effect: nothing in this run reads {name}", once=True)
    for name, place in _find_user_macros(files).items():
        if name in read or name in words:
            continue
        if suggestion := _suggest_name(name, read):
            raise UserError(
                f"no gin file reads the macro {name}", place, suggestion, kind=UNKNOWN, value=name
            )
        log.warn(f"{place}: {name} has no effect: nothing in this run reads it", once=True)


def _find_user_macros(files: Sequence[str]) -> dict[str, str]:
    """Return the macros that files other than shipped ones bind, each with its file and line."""
    macros: dict[str, str] = {}
    for file in files:
        _add_file_macros(file, macros)
    return macros


def _add_file_macros(file: str, macros: dict[str, str]) -> None:
    """Add the macros of a file of the user's, and of the files that it includes.

    Args:
      file: as gin files name it.
      macros: by name, with file and line; changed in place.
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
    """Return whether a file lies in one of Python's folders, as ours and T5X's do."""
    folders = (str(gin_files.ROOT.resolve()), *map(os.path.realpath, sys.path[1:]))
    others = tuple(f"{folder}/" for folder in folders if folder != os.getcwd())
    return os.path.realpath(path).startswith(others) or "rosetta/t5x/gin/" in path


class _NameParser(config_parser.ParserDelegate):
    """What gin's parser makes of the names in values: the names."""

    def configurable_reference(self, scoped_configurable_name: str, evaluate: bool) -> str:
        del evaluate
        return scoped_configurable_name

    def macro(self, macro_name: str) -> str:
        return macro_name


def _make_paths_absolute() -> None:
    """Make a run's folders absolute: Orbax refuses others, and a run may change its folder."""
    for name in _PATH_MACROS:
        value = _read_macro(name)
        if (
            isinstance(value, str)
            and value
            and parse_path(name, value) != value
            and not Path(value).is_absolute()
        ):
            path = parse_path(name, value)
            gin.bind_parameter(f"{name}/gin.macro.value", path)
            log.info(f"{name}={value} counts from the current folder: {path}", once=True)
