"""Read and write one patch file.

A patch file has `From: NAME <MAIL>`, `Subject: [PATCH] ...`, an empty line, the fields, an empty
line, `---`, and the diff as `git diff -U1 --full-index` writes it. The fields are `Why`,
`Upstream-Status`, `Drop-When` and, for an imported patch, `Origin`. A line that continues a field
starts with a space. The parser is strict, so that git applies exactly what a reviewer reads.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from builder.upstream import patch_path_rules
from builder.upstream.patch_hunks import Hunk
from rosetta.core.errors import UserError
from rosetta.core.printable_text import escape

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

STATUSES = ("Pending", "Submitted", "Backport", "Denied", "Inappropriate")
REQUIRED = ("Why", "Upstream-Status", "Drop-When")
OPTIONAL = ("Origin",)  # the commit from which an imported patch was made

_FROM = re.compile(r"From: (?P<sender>[^<>\x00-\x1f]+ <[^<>\s]+@[^<>\s]+>)")
_SUBJECT = re.compile(r"Subject: \[PATCH\] (?P<subject>\S.*)")
_FIELD = re.compile(r"(?P<key>[A-Z][A-Za-z-]*): (?P<value>\S.*)")
_STATUS = re.compile(rf"(?P<status>{'|'.join(STATUSES)})(?: \[(?P<reason>[^\[\]]*\w[^\[\]]*)\])?")
_INDEX = re.compile(r"index (?P<old>[0-9a-f]{40})\.\.(?P<new>[0-9a-f]{40}) (?P<mode>[0-7]{6})")
_HUNK = re.compile(r"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@(?: .*)?")
_SPECIAL = {
    "new file mode": "creates a file, which is what the overlay is for",
    "deleted file mode": "deletes a file",
    "old mode": "changes a file's mode",
    "new mode": "changes a file's mode",
    "rename ": "renames a file",
    "copy ": "copies a file",
    "similarity ": "renames or copies a file",
    "dissimilarity ": "rewrites a file",
    "GIT binary patch": "is binary",
    "Binary files": "is binary",
}


@dataclass(frozen=True)
class FilePatch:
    """The change that a patch makes to one file.

    `old` and `new` are the blobs before and after the change, as the patch file states them.
    """

    path: str
    old: str
    new: str
    mode: str
    hunks: tuple[Hunk, ...]

    @property
    def added(self) -> int:
        """The number of lines that the patch adds to the file."""
        return sum(hunk.count("+") for hunk in self.hunks)

    @property
    def removed(self) -> int:
        """The number of lines that the patch removes from the file."""
        return sum(hunk.count("-") for hunk in self.hunks)


@dataclass(frozen=True)
class Patch:
    """A patch file that passed every check that needs the file alone."""

    file: Path
    raw: bytes
    sender: str
    subject: str
    fields: Mapping[str, str]
    files: tuple[FilePatch, ...]
    diff: bytes

    @property
    def name(self) -> str:
        """The file's name without `.patch`, as `series` lists the patch."""
        return self.file.name.removesuffix(".patch")

    @property
    def sha256(self) -> str:
        """The SHA-256 of the whole file, in hexadecimal."""
        return hashlib.sha256(self.raw).hexdigest()

    @property
    def message(self) -> str:
        """The message of the patch's commit: the subject, then the fields."""
        return f"{self.subject}\n\n{_render_fields(self.fields)}"

    def with_diff(self, diff: bytes) -> bytes:
        """Return the bytes of this patch file with `diff` in place of its diff."""
        return render_patch(self.sender, self.subject, self.fields, diff)


def render_patch(sender: str, subject: str, fields: Mapping[str, str], diff: bytes) -> bytes:
    """Return the bytes of a patch file."""
    return (
        f"From: {sender}\nSubject: [PATCH] {subject}\n\n{_render_fields(fields)}\n---\n".encode()
        + diff
    )


def _render_fields(fields: Mapping[str, str]) -> str:
    lines = []
    for key in (*REQUIRED, *OPTIONAL):
        if key in fields:
            value = fields[key].replace("\n", "\n ")
            lines.append(f"{key}: {value}\n")
    return "".join(lines)


def parse_patch(file: Path, raw: bytes) -> Patch:
    """Return the patch that `raw`, the content of `file`, describes.

    Raises:
        UserError: the content breaks a rule; the error names the file and the line.
    """
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line_number = raw[: error.start].count(b"\n") + 1
        raise UserError(
            "is not UTF-8", f"{file}:{line_number}", "patches are UTF-8 text"
        ) from error
    reader = _LineReader(file, text)
    sender = reader.match(_FROM, "`From: NAME <MAIL>`")["sender"]
    subject = reader.match(_SUBJECT, "`Subject: [PATCH] ...`")["subject"]
    reader.expect("", "an empty line after the subject")
    fields = _read_fields(reader)
    reader.refuse_hidden_characters()
    reader.expect("---", "`---` before the diff")
    diff_start = reader.position
    files = _read_files(reader)
    diff = "".join(f"{line}\n" for line in reader.lines[diff_start:]).encode()
    return Patch(file, raw, sender, subject, fields, files, diff)


class _LineReader:
    """The lines of one patch file, and the position of the next line to read."""

    def __init__(self, file: Path, text: str) -> None:
        self.file, self.position = file, 0
        for position, line in enumerate(text.split("\n")):
            if "\r" in line or "\0" in line:
                self.position = position
                self.fail(
                    "has a carriage return" if "\r" in line else "has a NUL byte",
                    "patches are plain text with LF line ends",
                )
        if not text.endswith("\n"):
            self.position = text.count("\n")
            self.fail("the last line does not end")
        self.lines = text.split("\n")[:-1]

    def fail(
        self, problem: str, remedy: str = "see docs/reference/patches.md", back: int = 0
    ) -> NoReturn:
        """Raise a UserError at the next line, or `back` lines before it."""
        raise UserError(problem, f"{self.file}:{self.position + 1 - back}", remedy)

    def refuse_hidden_characters(self) -> None:
        """Refuse an invisible character in the lines that were read.

        Such a character would control the terminal that shows the head of the patch.
        """
        end = self.position
        for position, line in enumerate(self.lines[:end]):
            for character in line:
                if escape(character, keep="\t") != character:
                    self.position = position
                    self.fail(
                        f"has the hidden character {escape(character, keep='')}",
                        "write the head of a patch in visible characters",
                    )

    def peek(self) -> str | None:
        """Return the next line without reading it; None at the end of the file."""
        return self.lines[self.position] if self.position < len(self.lines) else None

    def take(self, expected: str) -> str:
        """Read the next line; `expected` describes it for the error at the end of the file."""
        line = self.peek()
        if line is None:
            self.fail(f"the file ends where {expected} is expected")
        self.position += 1
        return line

    def expect(self, exact: str, expected: str) -> None:
        """Read the next line, which must be `exact`."""
        if self.take(expected) != exact:
            self.fail(f"{expected} expected", back=1)

    def match(self, pattern: re.Pattern[str], expected: str) -> re.Match[str]:
        """Read the next line and return its match with `pattern`."""
        match = pattern.fullmatch(self.take(expected))
        if not match:
            self.fail(f"{expected} expected", back=1)
        return match


def _read_fields(reader: _LineReader) -> dict[str, str]:
    """Read the fields and the empty line after them."""
    known = (*REQUIRED, *OPTIONAL)
    fields: dict[str, str] = {}
    key = ""
    while line := reader.take("an empty line after the fields"):
        if line.startswith(" ") and key:
            fields[key] += "\n" + line[1:]
            continue
        match = _FIELD.fullmatch(line)
        if not match or match["key"] not in known:
            reader.fail(
                f"unknown field {line.split(':')[0]!r}",
                f"the fields are {', '.join(known)}",
                back=1,
            )
        key = match["key"]
        if key in fields:
            reader.fail(f"a second {key}", back=1)
        fields[key] = match["value"]
        if key == "Upstream-Status" and (problem := find_status_problem(fields[key])):
            reader.fail(problem, back=1)
    for missing in (name for name in REQUIRED if name not in fields):
        reader.fail(
            f"no {missing}",
            "every patch gives its reason, its status upstream and when it can be dropped",
            back=1,
        )
    if list(fields) != [name for name in known if name in fields]:
        reader.fail(f"the fields are not in the order {', '.join(known)}", back=1)
    return fields


def is_valid_sender(text: str) -> bool:
    """Return whether `text` is a valid value of the line `From:`."""
    return _FROM.fullmatch(f"From: {text}") is not None and escape(text, keep="") == text


def find_status_problem(value: str) -> str | None:
    """Return why `value` is not a valid Upstream-Status; None if it is valid."""
    match = _STATUS.fullmatch(value)
    if not match:
        return (
            f"Upstream-Status is one of {', '.join(STATUSES)}, then perhaps a [reason]; not "
            f"{value!r}"
        )
    if match["status"] in {"Denied", "Inappropriate"} and not match["reason"]:
        return f"Upstream-Status {match['status']} needs its [reason]"
    return None


def _read_files(reader: _LineReader) -> tuple[FilePatch, ...]:
    """Read the changes of every file up to the end of the patch."""
    files: dict[str, FilePatch] = {}
    while (line := reader.peek()) is not None:
        if not line.startswith("diff --git "):
            reader.fail(f"`diff --git` expected, not {line[:40]!r}")
        file = _read_file(reader)
        if file.path in files:
            reader.fail(f"{file.path} comes twice")
        files[file.path] = file
    return tuple(files.values())


def _read_file(reader: _LineReader) -> FilePatch:
    """Read the changes of one file."""
    path = _read_path(reader)
    _refuse_special_change(reader, path)
    blobs = reader.match(_INDEX, "`index <40 hex>..<40 hex> <mode>`")
    if blobs["mode"] not in {"100644", "100755"}:
        reader.fail(f"{path} has mode {blobs['mode']}: not a plain file", back=1)
    _refuse_special_change(reader, path)
    tab = "\t" if " " in path else ""
    reader.expect(f"--- a/{path}{tab}", f"`--- a/{path}`")
    reader.expect(f"+++ b/{path}{tab}", f"`+++ b/{path}`")
    hunks = _read_hunks(reader)
    if not hunks:
        reader.fail(f"no hunk for {path}")
    return FilePatch(path, blobs["old"], blobs["new"], blobs["mode"], hunks)


def _read_path(reader: _LineReader) -> str:
    """Read the line `diff --git a/PATH b/PATH` and return PATH."""
    names = reader.take("diff --git").removeprefix("diff --git ")
    if '"' in names:
        reader.fail("a quoted path", "paths are printable ASCII", back=1)
    path = names[2 : 2 + (len(names) - 5) // 2]
    if names != f"a/{path} b/{path}":
        reader.fail("the two names of a file differ", "a patch renames nothing", back=1)
    if problem := patch_path_rules.find_path_problem(path):
        reader.fail(f"path {path!r} {problem}", back=1)
    return path


def _refuse_special_change(reader: _LineReader, path: str) -> None:
    """Refuse a next line that creates, deletes, renames or rewrites the file `path`."""
    line = reader.peek() or ""
    for start, change in _SPECIAL.items():
        if line.startswith(start):
            reader.fail(
                f"the patch {change} ({path})",
                "a patch changes a few lines of files that upstream has",
            )


def _read_hunks(reader: _LineReader) -> tuple[Hunk, ...]:
    """Read all hunks of one file and check that their line numbers add up."""
    hunks: list[Hunk] = []
    shift = previous_end = 0
    while (reader.peek() or "").startswith("@@"):
        hunk = _read_hunk(reader)
        old_count, new_count = len(hunk.before), len(hunk.after)
        # An empty side names the line before it.
        new_line = hunk.new_start + (new_count == 0)
        old_line = hunk.old_start + (old_count == 0)
        if (
            new_line - old_line != shift
            or hunk.old_start < previous_end
            or (old_count and not hunk.old_start)
            or (new_count and not hunk.new_start)
        ):
            raise UserError(
                "a hunk's line numbers do not add up",
                f"{reader.file}:{hunk.line}",
                "see docs/reference/patches.md",
            )
        shift += new_count - old_count
        previous_end = hunk.old_start + old_count
        hunks.append(hunk)
    return tuple(hunks)


def _read_hunk(reader: _LineReader) -> Hunk:
    """Read one hunk: its head and as many lines as the head announces."""
    line = reader.position + 1
    head = reader.match(_HUNK, "`@@ -a,b +c,d @@`")
    old_start, new_start = int(head[1]), int(head[3])
    old_count = 1 if head[2] is None else int(head[2])
    new_count = 1 if head[4] is None else int(head[4])
    body = _read_hunk_body(reader, old_count, new_count)
    operations = [operation for operation, _ in body]
    if all(operation == " " for operation in operations):
        reader.fail("a hunk that changes nothing", back=1)
    if old_count and old_start == 1 and " " not in operations:
        reader.fail(
            "the patch replaces the whole file",
            "put the whole file into the overlay",
            back=1,
        )
    return Hunk(line, old_start, new_start, tuple(body))


def _read_hunk_body(reader: _LineReader, old_count: int, new_count: int) -> list[tuple[str, bytes]]:
    """Read the lines of a hunk.

    Args:
        reader: The reader, after the head of the hunk.
        old_count: The number of lines before the change, as the head states it.
        new_count: The number of lines after the change, as the head states it.
    """
    body: list[tuple[str, bytes]] = []
    while old_count > 0 or new_count > 0:
        text = reader.take("the rest of a hunk")
        operation = text[:1]
        if operation not in {" ", "-", "+"}:
            reader.fail("a hunk is shorter than its head says", back=1)
        old_count -= operation != "+"
        new_count -= operation != "-"
        if min(old_count, new_count) < 0:
            reader.fail("a hunk is longer than its head says", back=1)
        line_end = b"\n"
        if (reader.peek() or "").startswith("\\"):
            reader.expect("\\ No newline at end of file", "`\\ No newline at end of file`")
            line_end = b""
        body.append((operation, text[1:].encode() + line_end))
    return body
