"""What a shell completes after `rosetta`: the settings of a run, their values, presets and GPUs.

shtab makes the completion file of a shell from the parsers. This module adds what the parsers do
not know. It does not import shtab: the builder has it, see builder/packages/completion.py.
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

SHELLS = ("bash", "zsh")  # tcsh has no functions, which values after NAME= need
_FILE, _FOLDER, _DATA = "<file>", "<folder>", "<data>"
_FILES = {"bash": "_rosetta_paths", "zsh": "_files"}
_FOLDERS = {"bash": "_rosetta_folders", "zsh": "_files -/"}
_PATHS = {"FILE": _FILES, "FILE.model": _FILES, "FOLDER": _FOLDERS, "DIR": _FOLDERS}
_DATA_SPEC = "SPEC"

# An entry NAME=ONE|TWO has what may follow NAME=. <file>, <folder> and <data> are paths.
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
# bash hands over a line that is split at = and :, too, and replaces only what follows the last one.
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
    """Say of each argument of rosetta what completes it, as shtab reads it.

    Args:
      parser: The parser of all commands.
    """
    for words, leaf in _find_leaf_parsers(parser):
        for action in leaf._actions:  # noqa: SLF001 (argparse has no public name for it)
            how = _choose_functions(" ".join(words), action)
            if how:
                action.complete = how  # type: ignore[attr-defined]


def render_preamble(shell: str) -> str:
    """Return the functions that the marks of `mark` call.

    Args:
      shell: One of SHELLS.
    """
    parts = [_FUNCTIONS[shell].strip()]
    for function, entries in _collect_entries().items():
        helper = (
            "_rosetta_settings" if any("=" in entry for entry in entries) else "_rosetta_values"
        )
        start = {"_rosetta_settings": '"$1"', "_rosetta_values": '"$1" ""'}[helper]
        words = [helper, *([start] if shell == "bash" else []), *map(shlex.quote, entries)]
        parts.append(f"{function}() {{\n  {' '.join(words)}\n}}")
    return "\n".join(parts)


def finish_file(shell: str, text: str) -> str:
    """Return the whole file of a shell.

    Args:
      shell: One of SHELLS.
      text: What shtab made, with the preamble.
    """
    # shtab's zsh completes only the first of several words.
    text = re.sub(r'"\(\*\)::([^"]*:_rosetta_\w+)"', r'"*:\1"', text)
    return f"{text.rstrip()}\n{_AFTER[shell]}".rstrip() + "\n"


def _find_leaf_parsers(
    parser: argparse.ArgumentParser, words: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], argparse.ArgumentParser]]:
    """Yield each command that has no commands below: its words, and its parser."""
    below = [
        action.choices
        for action in parser._actions  # noqa: SLF001 (argparse has no public name for it)
        if isinstance(action, argparse._SubParsersAction)  # noqa: SLF001 (nor for that)
    ]
    if not below:
        yield words, parser
    for choices in below:
        for name, child in choices.items():
            yield from _find_leaf_parsers(child, (*words, name))


def _choose_functions(command: str, action: argparse.Action) -> dict[str, str]:
    """Return shell -> function for an argument; {} if its choices say all."""
    shown = str(action.metavar or "")
    if shown == "NAME=VALUE" and not action.option_strings:
        return _for_every_shell(
            _name_settings_function(command) if command in readers.RUNS else "_rosetta_of_presets"
        )
    if shown.startswith("PRESET"):
        variables = "VARIABLE" in shown or "NAME=VALUE" in shown
        return _for_every_shell(
            "_rosetta_presets_and_settings" if variables else "_rosetta_presets"
        )
    if shown == "GPU":
        return _for_every_shell("_rosetta_gpus")
    if shown == _DATA_SPEC:
        return _for_every_shell("_rosetta_data")
    if action.choices or action.nargs == 0:
        return {}
    return _PATHS.get(shown, _FILES if action.type is Path else {})


def _for_every_shell(function: str) -> dict[str, str]:
    return dict.fromkeys(SHELLS, function)


def _name_settings_function(command: str) -> str:
    return f"_rosetta_of_{command.replace(' ', '_')}"


def _collect_entries() -> dict[str, list[str]]:
    """Return function -> its entries, see _FUNCTIONS."""
    training = [*lookup.list_training_settings("t5x"), *lookup.list_training_settings("pax")]
    presets = list(preset_files.load_presets())
    data = [f"{kind}:" for kind in data_spec.KINDS if kind != "synthetic"]
    lists = {
        _name_settings_function(command): _format_entries(lookup.list_settings(command))
        for command in readers.RUNS
    }
    return {
        **lists,
        "_rosetta_of_presets": _format_entries(training),
        "_rosetta_presets": presets,
        "_rosetta_presets_and_settings": [*presets, *_format_entries(training)],
        "_rosetta_gpus": list(gpus.GPUS),
        "_rosetta_data": ["synthetic", *data, _DATA],
    }


def _format_entries(variables: Iterable[Variable]) -> list[str]:
    """Return NAME=ONE|TWO for each name, with the values of all variables of that name."""
    values: dict[str, dict[str, None]] = {}
    for variable in variables:
        values.setdefault(variable.name, {}).update(dict.fromkeys(_list_values(variable)))
    return [f"{name}={'|'.join(choices)}" for name, choices in values.items()]


def _list_values(variable: Variable) -> list[str]:
    """Return what may follow NAME=."""
    kind = variable.type
    if isinstance(kind, value_types.DataSource):
        return [
            "synthetic",
            *(f"{name}:" for name in data_spec.KINDS if name != "synthetic"),
            _DATA,
        ]
    paths = {"file": [_FILE], "folder": [_FOLDER]}.get(kind.completes, [])
    names = list(preset_files.load_presets()) if variable.name == "ROSETTA_PRESET" else []
    return [*kind.choices, *names, *paths]


def make(shell: str, parser: argparse.ArgumentParser, complete: Any) -> str:
    """Return the completion file of a shell.

    Args:
      shell: One of SHELLS.
      parser: The parser of all commands.
      complete: shtab.complete.
    """
    mark_arguments(parser)
    return finish_file(shell, complete(parser, shell, preamble=render_preamble(shell)))
