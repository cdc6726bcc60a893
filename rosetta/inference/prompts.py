"""Prompts: from the command line, a file or standard input, as text or as ids."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rosetta.core.errors import CONFLICT, DENIED, INVALID, MISSING, TOO_BIG, UserError
from rosetta.core.value_parsing import parse_digits
from rosetta.data import json_lines
from rosetta.data.bad_records import RecordFault

if TYPE_CHECKING:
    from collections.abc import Sequence

STANDARD_INPUT = "-"
_FIELDS = ("prompt", "inputs", "text")  # of JSON lines; the first that a record has
_ID_FIELDS = ("id", "idx")


@dataclass(frozen=True)
class Prompt:
    """A text to continue.

    Attributes:
      id: The name of the prompt in its file, or its number, from 1.
      text: The text; for prompts of ids, the ids with spaces between them.
      where: The place of the prompt, for errors.
    """

    id: Any
    text: str
    where: str


def read_prompts(words: Sequence[str], file: str | None) -> list[Prompt]:
    """Return the prompts of a command line.

    Args:
      words: The prompts themselves.
      file: A file with a prompt on each line, or with JSON lines if its name ends in .jsonl; "-"
        for standard input. A blank line is an empty prompt, and is skipped among JSON lines.

    Raises:
      UserError: There are no prompts, prompts come from both places, or the file cannot be read.
    """
    if words and file is not None:
        raise UserError(
            "prompts come from the command line and from a file",
            f"--file {file}",
            "leave one of them out",
            kind=CONFLICT,
        )
    if words:
        return [Prompt(i, word, f"prompt {i}") for i, word in enumerate(words, 1)]
    if file is None:
        raise UserError(
            "there is no prompt",
            "PROMPT",
            "write a prompt after the checkpoint, or name a file: --file FILE (- for stdin)",
            kind=MISSING,
        )
    where = "standard input" if file == STANDARD_INPUT else file
    lines = _read_bytes(file).splitlines()
    numbered_lines = list(enumerate(lines, 1))
    is_json = file.endswith(".jsonl")
    if is_json:
        numbered_lines = [(number, line) for number, line in numbered_lines if line.strip()]
    if not numbered_lines:
        raise UserError("there is no prompt", where, "put a prompt on each line", kind=MISSING)
    if is_json:
        return [_parse_record(line, i, f"{where}:{i}") for i, line in numbered_lines]
    try:
        return [Prompt(i, line.decode("utf-8"), f"{where}:{i}") for i, line in numbered_lines]
    except UnicodeDecodeError as error:
        raise UserError(
            f"not UTF-8 text ({error.reason})", where, "convert it with iconv", kind=INVALID
        ) from None


def _read_bytes(file: str) -> bytes:
    """Return the bytes of a file or of standard input; UserError if they cannot be read."""
    if file == STANDARD_INPUT:
        return sys.stdin.buffer.read()
    try:
        return Path(file).read_bytes()
    except OSError as error:
        kind = MISSING if isinstance(error, FileNotFoundError) else DENIED
        raise UserError(
            f"the file cannot be read ({error.strerror})",
            file,
            "name a file with a prompt on each line",
            kind=kind,
        ) from None


def _parse_record(line: bytes, number: int, where: str) -> Prompt:
    """Return the prompt of a line of JSON; UserError if it has none."""
    try:
        record = json_lines.parse_object(line)
        field = next((name for name in _FIELDS if name in record), _FIELDS[0])
        text = json_lines.get_text(record, field)
    except RecordFault as fault:
        raise UserError(
            str(fault.what), where, f"give each line a text in the field {_FIELDS[0]}", kind=INVALID
        ) from None
    name = next((record[field] for field in _ID_FIELDS if field in record), number)
    return Prompt(name, text, where)


def parse_ids(prompt: Prompt, vocab_size: int) -> list[int]:
    """Return the ids of a prompt that is written as numbers with spaces between them.

    Raises:
      UserError: A word is not an id of the model.
    """
    ids = []
    for word in prompt.text.split():
        number = parse_digits(word)
        if number is None or number >= vocab_size:
            raise UserError(
                f"{word!r} is not an id of the model",
                prompt.where,
                f"give numbers from 0 to {vocab_size - 1}",
                kind=INVALID,
                value=word,
            )
        ids.append(number)
    return ids


def check_length(prompt: Prompt, tokens: int, max_tokens: int | None, length: int) -> None:
    """Check that a prompt and its answer fit into a model.

    Args:
      prompt: The prompt.
      tokens: The number of its tokens.
      max_tokens: The tokens of an answer that the user asks for; None if at least one is enough.
      length: The longest text of the model.

    Raises:
      UserError: They do not fit, or there is no token to begin with.
    """
    if not tokens:
        raise UserError(
            "the prompt has no token to begin with",
            prompt.where,
            "write something, or leave out --no-bos",
            kind=INVALID,
        )
    wanted = max_tokens or 1
    if tokens + wanted > length:
        fits = tokens < length
        raise UserError(
            f"the prompt has {tokens} tokens, and the model's texts have at most {length}",
            prompt.where,
            f"give --max-tokens {length - tokens} or less" if fits else "shorten the prompt",
            kind=TOO_BIG,
            value=tokens,
        )
