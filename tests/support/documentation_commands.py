"""The commands in a bash block, checked against the parsers of rosetta, scripts and build.py."""

from __future__ import annotations

import contextlib
import functools
import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from builder import cli as builder_cli
from builder.commands.registry import PROGRAM as BUILDER
from rosetta import cli
from rosetta.core.command_line import ProgramParser
from rosetta.core.commands import PROGRAM as ROSETTA
from rosetta.core.errors import UserError
from rosetta.core.variables import lookup, misspellings, readers, setting_values
from rosetta.launch import scripts
from rosetta.pax.run import settings as pax_settings
from rosetta.t5x.run import settings as t5x_settings

_SEPARATORS = frozenset(";&|()\n")
_WORD_ENDS = _SEPARATORS | frozenset(" \t<>")
_REDIRECTION = re.compile(r"[0-9]*(?:&>>|&>|>>|>&|<&|>\||<<<|<<-|<<|<>|>|<)")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)
_SETTING = re.compile(r"[A-Z][A-Z0-9_]*=.*", re.DOTALL)
_RESERVED = ("if", "then", "elif", "else", "do", "while", "until", "!", "{", "time", "exec")
# Programs that start the command which their last words are.
_STARTERS = ("docker", "podman", "srun", "nohup", "timeout", "env", "nice", "sudo", "apptainer")
_POSITIONALS = {**t5x_settings.POSITIONALS, **pax_settings.POSITIONALS}


@dataclass
class Command:
    """One command of a shell.

    Attributes:
      words: The program and its arguments, without quotes and redirections.
      variables: The assignments before it.
    """

    words: list[str] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)


def find_problems(text: str) -> list[str]:
    """Return what the real parsers refuse in a bash block, a line for each command."""
    found = list[str]()
    for command in split_commands(text):
        try:
            check_command(command)
        except UserError as error:
            found.append(f"{' '.join(command.words)}: {error}")
    return found


def check_command(command: Command) -> None:
    """Check a command if it is one of ours.

    Raises:
      UserError: The program refuses an option, a setting or a value.
    """
    for name, meant in misspellings.find_unknown_variables(command.variables, lookup.TABLE):
        raise UserError(f"{name} is not a variable", "environment", f"did you mean {meant}?")
    words = own_words(command.words)
    if not words:
        return
    program, arguments = words[0], words[1:]
    if program == "rosetta":
        _check_rosetta(arguments, command.variables)
    elif program == "build.py":
        _check_builder(arguments)
    else:
        _check_script(program, arguments, command.variables)


def own_words(words: list[str]) -> list[str]:
    """Return the words from our program on, which is "rosetta", "build.py" or the name of a script;
    [] if the command starts none of them.
    """
    rest = words
    while rest:
        program = rest[0].rpartition("/")[2]
        if program.startswith("python") and rest[1:2] and rest[1].rpartition("/")[2] == "build.py":
            return ["build.py", *rest[2:]]
        if program.startswith("python") and rest[1:3] == ["-m", "rosetta"]:
            return ["rosetta", *rest[3:]]
        if program in ("rosetta", "build.py") or program.removesuffix(".sh") in scripts.SCRIPTS:
            return [program.removesuffix(".sh"), *rest[1:]]
        if rest is words and program not in _STARTERS:
            return []
        rest = rest[1:]
    return []


def _check_rosetta(words: list[str], variables: Mapping[str, str]) -> None:
    own, inner = _split_inner(words)
    name = ROSETTA.find_called_command(own)
    if not _parse_words(_rosetta_parser(name), words if inner else own):
        return
    if inner:
        check_command(Command(inner, dict(variables)))
    reader = " ".join([name, *(word for word in own[1:] if f"{name} {word}" in readers.RUNS)][:2])
    is_run = reader in readers.RUNS
    settings = [word for word in own[1:] if _SETTING.fullmatch(word)]
    for word in settings:
        if is_run:
            setting_values.parse_setting_word(word, reader, "see the page of variables")
        variable, _, value = word.partition("=")
        _check_value(variable, value, reader)
    for variable, value in variables.items():
        _check_value(variable, value, reader)


@functools.cache
def _rosetta_parser(name: str) -> ProgramParser:
    return cli.build_parser(name)


@functools.cache
def _builder_parser() -> ProgramParser:
    return builder_cli.make_parser()


def _split_inner(words: list[str]) -> tuple[list[str], list[str]]:
    """Return the words of the command itself, and those after "--", which are another command."""
    if "--" not in words:
        return words, []
    place = words.index("--")
    return words[:place], words[place + 1 :]


def _check_builder(words: list[str]) -> None:
    own, inner = _split_inner(words)
    name = BUILDER.find_called_command(own)
    if name == "test":
        words, inner = own, []
    if not own or own[0] != name:
        words = [name, *words]
    if _parse_words(_builder_parser(), words if name else own) and inner:
        check_command(Command(inner))


def _parse_words(parser: ProgramParser, words: list[str]) -> bool:
    """Return False if the words only ask for help."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            parser.parse_args(words)
    except SystemExit:
        return False
    return True


def _check_script(name: str, words: list[str], variables: Mapping[str, str]) -> None:
    if not set(scripts.HELP_OPTIONS).isdisjoint(words):
        return
    positionals = _POSITIONALS[name]
    values = [word for word in words if word != scripts.DRY_RUN]
    scripts._refuse_unknown_options(name, values, positionals)
    if len(values) > len(positionals):
        raise UserError(
            f"{len(values)} words, of {len(positionals)}", f"{name}.sh", "leave some out"
        )
    given = {**variables, **dict(zip(positionals, values, strict=False))}
    for variable, value in given.items():
        _check_value(variable, value, name)


def _check_value(name: str, value: str, reader: str) -> None:
    """Check a value by the table of variables. What the shell would replace is not known here."""
    if value and "$" not in value and lookup.is_known_variable(name):
        setting_values.parse_value(lookup.find_variable(name, reader), value)


def split_commands(text: str) -> list[Command]:
    """Return the commands of a bash text, those in `$(...)` and in the parts of loops included.

    Heredocs and redirections are left out. Quotes are removed, and nothing else is expanded.
    """
    return list(_Reader(text).commands())


class _Reader:
    """Reads a bash text from its start to its end."""

    def __init__(self, text: str) -> None:
        self._text = text.replace("\\\n", " ")
        self._place = 0
        self._heredocs: list[str] = []
        self._inner: list[str] = []

    def commands(self) -> Iterator[Command]:
        """Yield the commands in the order of their ends."""
        words = list[str]()
        while self._place < len(self._text):
            char = self._text[self._place]
            if char in " \t":
                self._place += 1
            elif char == "#":
                self._skip_line()
            elif redirection := _REDIRECTION.match(self._text, self._place):
                self._skip_redirection(redirection)
            elif char in _SEPARATORS:
                self._place += 1
                if char == "\n":
                    self._skip_heredocs()
                yield from self._finish(words)
                words = []
            else:
                words.append(self._word())
        yield from self._finish(words)

    def _finish(self, words: list[str]) -> Iterator[Command]:
        for text in self._inner:
            yield from split_commands(text)
        self._inner = []
        while words and words[0] in _RESERVED:
            words = words[1:]
        command = Command(words)
        while command.words and _ASSIGNMENT.fullmatch(command.words[0]):
            name, _, value = command.words.pop(0).partition("=")
            command.variables[name] = value
        if command.words or command.variables:
            yield command

    def _skip_line(self) -> None:
        end = self._text.find("\n", self._place)
        self._place = len(self._text) if end < 0 else end

    def _skip_redirection(self, redirection: re.Match[str]) -> None:
        self._place = redirection.end()
        while self._text[self._place : self._place + 1] in (" ", "\t"):
            self._place += 1
        word = self._word()
        if redirection[0].endswith(("<<", "<<-")):
            self._heredocs.append(word)

    def _skip_heredocs(self) -> None:
        for end in self._heredocs:
            match = re.compile(rf"^\t*{re.escape(end)}$", re.MULTILINE).search(
                self._text, self._place
            )
            self._place = match.end() if match else len(self._text)
        self._heredocs = []

    def _word(self) -> str:
        parts = list[str]()
        while self._place < len(self._text):
            char = self._text[self._place]
            if char in _WORD_ENDS:
                break
            parts.append(self._part(char))
        return "".join(parts)

    def _part(self, char: str) -> str:
        start = self._place
        if char == "\\":
            self._place += 2
            return self._text[start + 1 : start + 2]
        if char == "'":
            return self._quoted("'")
        if char == '"':
            return self._double_quoted()
        if self._text.startswith("$(", start):
            return self._substitution()
        self._place += 1
        return char

    def _quoted(self, mark: str) -> str:
        start = self._place + 1
        end = self._text.find(mark, start)
        self._place = len(self._text) if end < 0 else end + 1
        return self._text[start : self._place - 1]

    def _double_quoted(self) -> str:
        parts = list[str]()
        self._place += 1
        while self._place < len(self._text) and self._text[self._place] != '"':
            if self._text.startswith("$(", self._place):
                parts.append(self._substitution())
                continue
            if self._text[self._place] == "\\":
                self._place += 1
            parts.append(self._text[self._place : self._place + 1])
            self._place += 1
        self._place += 1
        return "".join(parts)

    def _substitution(self) -> str:
        """Keep the commands in `$(...)` for later; return the text as it is."""
        start, depth = self._place, 0
        while self._place < len(self._text):
            char = self._text[self._place]
            depth += (char == "(") - (char == ")")
            self._place += 1
            if char == ")" and not depth:
                break
        text = self._text[start : self._place]
        if not text.startswith("$(("):
            self._inner.append(text[2:-1])
        return text
