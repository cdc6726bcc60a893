"""One patch file: read strictly, so that what a reviewer reads is what git does; written in one way
only.

`From: NAME <MAIL>`, `Subject: [PATCH] ...`, an empty line, the fields (`Why`, `Upstream-Status`,
`Drop-When`, perhaps `Origin`; lines that continue a field start with a space), an empty line,
`---`, and the diff as `git diff -U1 --full-index` writes it.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.upstream import patch_path_rules
from builder.upstream.patch_hunks import Hunk
from rosetta.core.errors import UserError
from rosetta.core.printable_text import escape

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

STATUSES = ("Pending", "Submitted", "Backport", "Denied", "Inappropriate")
REQUIRED = ("Why", "Upstream-Status", "Drop-When")
OPTIONAL = ("Origin",)  # the commit that an imported patch was made from

_FROM = re.compile(r"From: (?P<who>[^<>\x00-\x1f]+ <[^<>\s]+@[^<>\s]+>)")
_SUBJECT = re.compile(r"Subject: \[PATCH\] (?P<subject>\S.*)")
_FIELD = re.compile(r"(?P<key>[A-Z][A-Za-z-]*): (?P<value>\S.*)")
_STATUS = re.compile(rf"(?P<status>{'|'.join(STATUSES)})(?: \[(?P<reason>[^\[\]]*\w[^\[\]]*)\])?")
_INDEX = re.compile(r"index (?P<old>[0-9a-f]{40})\.\.(?P<new>[0-9a-f]{40}) (?P<mode>[0-7]{6})")
_HUNK = re.compile(r"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@(?: .*)?")
_SPECIAL = {
    "new file mode": "creates a file: that is the overlay's work",
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
    """What a patch does to one file: `old` and `new` are the blobs before and after, as the patch
    file claims.
    """

    path: str
    old: str
    new: str
    mode: str
    hunks: tuple[Hunk, ...]

    @property
    def added(self) -> int:
        return sum(hunk.count("+") for hunk in self.hunks)

    @property
    def removed(self) -> int:
        return sum(hunk.count("-") for hunk in self.hunks)


@dataclass(frozen=True)
class Patch:
    """A patch file that passed every rule that can be told from the file alone."""

    file: Path
    raw: bytes
    sender: str
    subject: str
    fields: Mapping[str, str]
    files: tuple[FilePatch, ...]
    diff: bytes

    @property
    def name(self) -> str:
        return self.file.name.removesuffix(".patch")

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.raw).hexdigest()

    @property
    def message(self) -> str:
        """The commit's message: the subject, then the fields."""
        return f"{self.subject}\n\n{_render_fields(self.fields)}"

    def with_diff(self, diff: bytes) -> bytes:
        """Return the file's bytes with another diff under the same head."""
        return render_patch(self.sender, self.subject, self.fields, diff)


def render_patch(sender: str, subject: str, fields: Mapping[str, str], diff: bytes) -> bytes:
    """Return the bytes of a patch file."""
    return (
        f"From: {sender}\nSubject: [PATCH] {subject}\n\n{_render_fields(fields)}\n---\n".encode()
        + diff
    )


def _render_fields(fields: Mapping[str, str]) -> str:
    return "".join(
        f"{key}: {fields[key].replace(chr(10), chr(10) + ' ')}\n"
        for key in (*REQUIRED, *OPTIONAL)
        if key in fields
    )


def parse_patch(file: Path, raw: bytes) -> Patch:
    """Read one patch; the first thing that is wrong is a UserError naming file and line."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            "is not UTF-8", f"{file}:{raw[: error.start].count(10) + 1}", "patches are UTF-8 text"
        ) from error
    reader = _Lines(file, text)
    sender, subject = (
        reader.match(_FROM, "`From: NAME <MAIL>`")["who"],
        reader.match(_SUBJECT, "`Subject: [PATCH] ...`")["subject"],
    )
    reader.expect("", "an empty line after the subject")
    fields = _read_fields(reader)
    reader.refuse_hidden()
    reader.expect("---", "`---` before the diff")
    diff_from = reader.at
    files: list[FilePatch] = []
    while (line := reader.peek()) is not None:
        if not line.startswith("diff --git "):
            reader.fail(f"`diff --git` expected, not {line[:40]!r}")
        files.append(_read_file(reader))
        if files[-1].path in {one.path for one in files[:-1]}:
            reader.fail(f"{files[-1].path} comes twice")
    diff = "".join(f"{line}\n" for line in reader.lines[diff_from:]).encode()
    return Patch(file, raw, sender, subject, fields, tuple(files), diff)


class _Lines:
    """The lines of one file and a position among them."""

    def __init__(self, file: Path, text: str) -> None:
        self.file, self.at = file, 0
        for number, line in enumerate(text.split("\n"), 1):
            if "\r" in line or "\0" in line:
                self.at = number - 1
                self.fail(
                    "has a carriage return" if "\r" in line else "has a NUL byte",
                    "patches are plain text with LF line ends",
                )
        if not text.endswith("\n"):
            self.at = text.count("\n")
            self.fail("the last line does not end")
        self.lines = text.split("\n")[:-1]

    def fail(self, what: str, do: str = "see docs/reference/patches.md", back: int = 0) -> None:
        raise UserError(what, f"{self.file}:{self.at + 1 - back}", do)

    def refuse_hidden(self) -> None:
        """Fail at a character above the current line that is not visible: it would control the
        terminals that show the head.
        """
        end = self.at
        for number, line in enumerate(self.lines[:end]):
            if hidden := next(
                (character for character in line if escape(character, keep="\t") != character), ""
            ):
                self.at = number
                self.fail(
                    f"has the hidden character {escape(hidden, keep='')}",
                    "write the head of a patch in visible characters",
                )
        self.at = end

    def peek(self) -> str | None:
        return self.lines[self.at] if self.at < len(self.lines) else None

    def take(self, wanted: str) -> str:
        if (line := self.peek()) is None:
            self.fail(f"ends where {wanted} should stand")
        self.at += 1
        return line or ""

    def expect(self, exact: str, wanted: str) -> None:
        if self.take(wanted) != exact:
            self.fail(f"{wanted} expected", back=1)

    def match(self, pattern: re.Pattern[str], wanted: str) -> re.Match[str]:
        found = pattern.fullmatch(self.take(wanted))
        if not found:
            self.fail(f"{wanted} expected", back=1)
        return found  # type: ignore[return-value]


def _read_fields(reader: _Lines) -> dict[str, str]:
    fields: dict[str, str] = {}
    key = ""
    while line := reader.take("an empty line after the fields"):
        if line.startswith(" ") and key:
            fields[key] += "\n" + line[1:]
            continue
        found = _FIELD.fullmatch(line)
        if not found or found["key"] not in (*REQUIRED, *OPTIONAL):
            reader.fail(
                f"unknown field {line.split(':')[0]!r}",
                f"the fields are {', '.join((*REQUIRED, *OPTIONAL))}",
                back=1,
            )
        elif found["key"] in fields:
            reader.fail(f"a second {found['key']}", back=1)
        else:
            key = found["key"]
            fields[key] = found["value"]
            if key == "Upstream-Status" and (wrong := find_status_problem(found["value"])):
                reader.fail(wrong, back=1)
    for missing in (name for name in REQUIRED if name not in fields):
        reader.fail(
            f"no {missing}",
            "every patch says why it exists, where upstream stands and when it goes",
            back=1,
        )
    if list(fields) != [name for name in (*REQUIRED, *OPTIONAL) if name in fields]:
        reader.fail(
            f"the fields stand in another order than {', '.join((*REQUIRED, *OPTIONAL))}", back=1
        )
    return fields


def is_valid_sender(text: str) -> bool:
    """Whether `text` may stand after From."""
    return _FROM.fullmatch(f"From: {text}") is not None and escape(text, keep="") == text


def find_status_problem(value: str) -> str | None:
    """Return what is wrong with an Upstream-Status."""
    found = _STATUS.fullmatch(value)
    if not found:
        return (
            f"Upstream-Status is one of {', '.join(STATUSES)}, then perhaps a [reason]; not "
            f"{value!r}"
        )
    if found["status"] in {"Denied", "Inappropriate"} and not found["reason"]:
        return f"Upstream-Status {found['status']} needs its [reason]"
    return None


def _read_file(reader: _Lines) -> FilePatch:
    names = reader.take("diff --git").removeprefix("diff --git ")
    if '"' in names:
        reader.fail("a quoted path", "paths are printable ASCII", back=1)
    path = names[2 : 2 + (len(names) - 5) // 2]
    if names != f"a/{path} b/{path}":
        reader.fail("the two names of a file differ", "a patch renames nothing", back=1)
    if wrong := patch_path_rules.find_path_problem(path):
        reader.fail(f"path {path!r} {wrong}", back=1)
    line = reader.peek() or ""
    for start, what in _SPECIAL.items():
        if line.startswith(start):
            reader.fail(
                f"the patch {what} ({path})",
                "a patch changes a few lines of files that upstream has",
            )
    found = reader.match(_INDEX, "`index <40 hex>..<40 hex> <mode>`")
    if found["mode"] not in {"100644", "100755"}:
        reader.fail(f"{path} has mode {found['mode']}: not a plain file", back=1)
    line = reader.peek() or ""
    for start, what in _SPECIAL.items():
        if line.startswith(start):
            reader.fail(
                f"the patch {what} ({path})",
                "a patch changes a few lines of files that upstream has",
            )
    tab = "\t" if " " in path else ""
    reader.expect(f"--- a/{path}{tab}", f"`--- a/{path}`")
    reader.expect(f"+++ b/{path}{tab}", f"`+++ b/{path}`")
    hunks: list[Hunk] = []
    shift = end = 0
    while (reader.peek() or "").startswith("@@"):
        hunk, shift = _read_hunk(reader, shift, end)
        end = hunk.old_start + len(hunk.before)
        hunks.append(hunk)
    if not hunks:
        reader.fail(f"no hunk for {path}")
    return FilePatch(path, found["old"], found["new"], found["mode"], tuple(hunks))


def _read_hunk(reader: _Lines, shift: int, after: int) -> tuple[Hunk, int]:
    line = reader.at + 1
    found = reader.match(_HUNK, "`@@ -a,b +c,d @@`")
    old_start, new_start = int(found[1]), int(found[3])
    old, new = (int(found[group]) if found[group] is not None else 1 for group in (2, 4))
    left_old, left_new = old, new
    body: list[tuple[str, bytes]] = []
    while left_old > 0 or left_new > 0:
        text = reader.take("the rest of a hunk")
        op = text[:1]
        if op not in {" ", "-", "+"}:
            reader.fail("a hunk is shorter than its head says", back=1)
        left_old, left_new = left_old - (op != "+"), left_new - (op != "-")
        if min(left_old, left_new) < 0:
            reader.fail("a hunk is longer than its head says", back=1)
        end = b"\n"
        if (reader.peek() or "").startswith("\\"):
            reader.expect("\\ No newline at end of file", "`\\ No newline at end of file`")
            end = b""
        body.append((op, text[1:].encode() + end))
    hunk = Hunk(line, old_start, new_start, tuple(body))
    if all(op == " " for op, _ in body):
        reader.fail("a hunk that changes nothing", back=1)
    if old and old_start == 1 and all(op != " " for op, _ in body):
        reader.fail(
            "the patch replaces the whole file",
            "whole files of ours belong into the overlay",
            back=1,
        )
    # An empty side names the line before it.
    if (
        (new_start + (new == 0)) - (old_start + (old == 0)) != shift
        or old_start < after
        or (old and not old_start)
        or (new and not new_start)
    ):
        raise UserError(
            "a hunk's line numbers do not add up",
            f"{reader.file}:{line}",
            "see docs/reference/patches.md",
        )
    return hunk, shift + new - old
