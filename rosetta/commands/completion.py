"""The shell completion of `rosetta`: settings of a run and their values, presets and GPUs.

The library shtab makes the completion file of a shell from the parsers. This module adds what the
parsers do not know. It does not import shtab, which only the builder has: see
builder/packages/completion.py. That module also runs the `make` of older commits, so that its name
and its arguments stay.
"""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rosetta.core import gpus
from rosetta.core.variables import lookup, readers, value_types
from rosetta.data import data_spec
from rosetta.presets import preset_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rosetta.core.variables.declaration import Variable

# tcsh is missing: it has no functions, which completing values after NAME= needs.
SHELLS = ("bash", "zsh")
# In the list of an entry's values, these stand for paths.
_FILE, _FOLDER, _DATA = "<file>", "<folder>", "<data>"
# The functions of each shell that complete files and folders.
_FILES = {"bash": "_rosetta_paths", "zsh": "_files"}
_FOLDERS = {"bash": "_rosetta_folders", "zsh": "_files -/"}
# The metavar of an option that takes a path -> what completes it.
_PATHS = {"FILE": _FILES, "FILE.model": _FILES, "FOLDER": _FOLDERS, "DIR": _FOLDERS}
_DATA_SPEC = "SPEC"

# Shell functions that take entries. An entry NAME=ONE|TWO has the values that may follow NAME=.
_FUNCTIONS = {
    "bash": r"""
_rosetta_paths() { # START [HEAD [-d]]: print the files or folders whose paths begin with START
  local path
  while IFS= read -r path; do
    [[ ! -d $path ]] || path+=/
    printf '%s\n' "$2${path// /\\ }"
  done < <(compgen "${3:--f}" -- "$1")
}
_rosetta_folders() { # START
  _rosetta_paths "$1" "" -d
}
_rosetta_values() { # START HEAD VALUE...: print the values that begin with START, after HEAD
  local start=$1 head=$2 value
  shift 2
  for value in "$@"; do
    case $value in
      '<file>') _rosetta_paths "$start" "$head" ;;
      '<folder>') _rosetta_paths "$start" "$head" -d ;;
      '<data>') [[ $start != *:* ]] || _rosetta_paths "${start#*:}" "$head${start%%:*}:" ;;
      "$start"*) printf '%s\n' "$head$value" ;;
    esac
  done
}
_rosetta_settings() { # WORD ENTRY...: print what WORD may become
  local word=$1 entry
  local -a values
  shift
  for entry in "$@"; do
    if [[ $entry != *=* || $word != *=* ]]; then
      [[ $entry != "$word"* ]] || printf '%s\n' "${entry/=*/=}"
    elif [[ ${entry%%=*} == "${word%%=*}" ]]; then
      IFS='|' read -ra values <<<"${entry#*=}"
      _rosetta_values "${word#*=}" "${word%%=*}=" "${values[@]}"
    fi
  done
}
""",
    "zsh": r"""
_rosetta_values() { # VALUE...: complete the values
  local value
  for value in "$@"; do
    case $value in
      '<file>') _files ;;
      '<folder>') _files -/ ;;
      '<data>') compset -P '*:' && _files ;;
      *:) compadd -S '' -- $value ;;
      *) compadd -- $value ;;
    esac
  done
}
_rosetta_settings() { # ENTRY...: complete NAME=, or the value after it
  local entry name
  local -a names words
  if compset -P '*='; then
    name=${IPREFIX%=}
    for entry in "$@"; do
      [[ ${entry%%=*} != $name ]] || _rosetta_values ${(s:|:)entry#*=}
    done
  else
    for entry in "$@"; do
      if [[ $entry == *=* ]]; then names+=(${entry%%=*}); else words+=($entry); fi
    done
    compadd -S = -- $names
    compadd -- $words
  fi
}
""",
}
# bash also splits a line at = and :, and replaces only what follows the last of them.
_AFTER = {
    "bash": r"""
_rosetta() {
  local line=${COMP_LINE:0:COMP_POINT} word breaks head
  local -a words=()
  read -ra words <<<"$line"
  [[ $line != *[[:space:]] ]] || words+=("")
  COMP_WORDS=()
  for word in "${words[@]}"; do
    if [[ $word == --*=* ]]; then
      COMP_WORDS+=("${word%%=*}" "${word#*=}")
    else
      COMP_WORDS+=("$word")
    fi
  done
  COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
  _shtab_rosetta
  [[ $word != --*=* ]] || COMPREPLY=("${COMPREPLY[@]/#/${word%%=*}=}")
  breaks=${COMP_WORDBREAKS//[^=:]/}
  if [[ -n $breaks ]]; then
    head=${word%"${word##*[$breaks]}"}
    COMPREPLY=("${COMPREPLY[@]#"$head"}")
  fi
  [[ ${#COMPREPLY[@]} != 1 || ${COMPREPLY[0]} != *[=:/] ]] || compopt -o nospace
}
complete -o bashdefault -o default -F _rosetta rosetta
""",
    "zsh": "",
}


def mark_arguments(parser: argparse.ArgumentParser) -> None:
    """Set the attribute `complete` of each argument, from which shtab reads what completes it.

    Args:
      parser: The parser of all commands.
    """
    for words, leaf in _find_leaf_parsers(parser):
        for action in leaf._actions:  # noqa: SLF001 (argparse has no public name for it)
            functions = _choose_functions(" ".join(words), action)
            if functions:
                action.complete = functions  # type: ignore[attr-defined]


def render_preamble(shell: str) -> str:
    """Return the shell functions that the attributes of `mark_arguments` name.

    Args:
      shell: One of SHELLS.
    """
    parts = [_FUNCTIONS[shell].strip()]
    for function, entries in _collect_entries().items():
        if any("=" in entry for entry in entries):
            helper, bash_arguments = "_rosetta_settings", ['"$1"']
        else:
            helper, bash_arguments = "_rosetta_values", ['"$1"', '""']
        arguments = bash_arguments if shell == "bash" else []
        words = [helper, *arguments, *(shlex.quote(entry) for entry in entries)]
        parts.append(f"{function}() {{\n  {' '.join(words)}\n}}")
    return "\n".join(parts)


def finish_file(shell: str, text: str) -> str:
    """Return the complete file of a shell.

    Args:
      shell: One of SHELLS.
      text: The text of the completion file that shtab wrote, with the preamble.
    """
    # shtab's zsh completes only the first of several words.
    text = re.sub(r'"\(\*\)::([^"]*:_rosetta_\w+)"', r'"*:\1"', text)
    return f"{text.rstrip()}\n{_AFTER[shell]}".rstrip() + "\n"


def _find_leaf_parsers(
    parser: argparse.ArgumentParser, words: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], argparse.ArgumentParser]]:
    """Yield the words and the parser of each command without subcommands."""
    subcommands = [
        action.choices
        for action in parser._actions  # noqa: SLF001 (argparse has no public name for it)
        if isinstance(action, argparse._SubParsersAction)  # noqa: SLF001 (nor for that)
    ]
    if not subcommands:
        yield words, parser
    for choices in subcommands:
        for name, child in choices.items():
            yield from _find_leaf_parsers(child, (*words, name))


def _choose_functions(command: str, action: argparse.Action) -> dict[str, str]:
    """Return shell -> the function that completes an argument; {} if its choices are enough."""
    metavar = str(action.metavar or "")
    if metavar == "NAME=VALUE" and not action.option_strings:
        if command in readers.RUNS:
            return _for_every_shell(_name_settings_function(command))
        return _for_every_shell("_rosetta_of_presets")
    if metavar.startswith("PRESET"):
        has_settings = "VARIABLE" in metavar or "NAME=VALUE" in metavar
        function = "_rosetta_presets_and_settings" if has_settings else "_rosetta_presets"
        return _for_every_shell(function)
    if metavar == "GPU":
        return _for_every_shell("_rosetta_gpus")
    if metavar == _DATA_SPEC:
        return _for_every_shell("_rosetta_data")
    if action.choices or action.nargs == 0:
        return {}
    return _PATHS.get(metavar, _FILES if action.type is Path else {})


def _for_every_shell(function: str) -> dict[str, str]:
    """Return shell -> function, for a function that every shell has."""
    return dict.fromkeys(SHELLS, function)


def _name_settings_function(command: str) -> str:
    """Return the name of the function that completes the settings of a command."""
    return f"_rosetta_of_{command.replace(' ', '_')}"


def _collect_entries() -> dict[str, list[str]]:
    """Return function -> its entries, see _FUNCTIONS."""
    training = [*lookup.list_training_settings("t5x"), *lookup.list_training_settings("pax")]
    presets = list(preset_files.load_presets())
    entries = {
        _name_settings_function(command): _format_entries(lookup.list_settings(command))
        for command in readers.RUNS
    }
    return {
        **entries,
        "_rosetta_of_presets": _format_entries(training),
        "_rosetta_presets": presets,
        "_rosetta_presets_and_settings": [*presets, *_format_entries(training)],
        "_rosetta_gpus": list(gpus.GPUS),
        "_rosetta_data": _list_data_values(),
    }


def _list_data_values() -> list[str]:
    """Return the kinds of data, and the sign for the paths that may follow them."""
    kinds = [f"{kind}:" for kind in data_spec.KINDS if kind != "synthetic"]
    return ["synthetic", *kinds, _DATA]


def _format_entries(variables: Iterable[Variable]) -> list[str]:
    """Return NAME=ONE|TWO for each name, with the values of all variables of that name."""
    values: dict[str, dict[str, None]] = {}
    for variable in variables:
        values.setdefault(variable.name, {}).update(dict.fromkeys(_list_values(variable)))
    return [f"{name}={'|'.join(choices)}" for name, choices in values.items()]


def _list_values(variable: Variable) -> list[str]:
    """Return what may follow NAME= for a variable."""
    if isinstance(variable.type, value_types.DataSource):
        return _list_data_values()
    paths = {"file": [_FILE], "folder": [_FOLDER]}.get(variable.type.completes, [])
    presets = list(preset_files.load_presets()) if variable.name == "ROSETTA_PRESET" else []
    return [*variable.type.choices, *presets, *paths]


def make(shell: str, parser: argparse.ArgumentParser, complete: Any) -> str:
    """Return the completion file of a shell.

    Args:
      shell: One of SHELLS.
      parser: The parser of all commands.
      complete: The function shtab.complete.
    """
    mark_arguments(parser)
    return finish_file(shell, complete(parser, shell, preamble=render_preamble(shell)))
