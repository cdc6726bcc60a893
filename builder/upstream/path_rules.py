"""Check the paths that an upstream repository, a patch or a wheel brings.

A path is refused if a file system, git or a shell could take it for another path.
"""

from __future__ import annotations

import re
import unicodedata

from rosetta.core.errors import INVALID, TOO_BIG, UserError

# Bytes of a path.
_LONGEST = 1024
# Characters that the file system HFS+ ignores in a name.
_IGNORED_BY_HFS = dict.fromkeys(
    (0x200C, 0x200D, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x206A, 0x2070), 0xFEFF)
)
# Names that git itself uses, with the short names that NTFS makes of them.
_GIT_NAMES = re.compile(r"\.git|git~[0-9]+|\.gitmodules|gitmod~[0-9]+|gi7eba~[0-9]+")
_REMEDY = "choose another source"


def check_name(name: str, where: str) -> str:
    """Check one component of a path, and return it unchanged.

    Args:
        name: The component.
        where: The place that an error names.

    Raises:
        UserError: The name is unsafe.
    """
    if name in ("", ".", ".."):
        raise UserError(
            f"has the path component {name!r}", where, _REMEDY, kind=INVALID, value=name
        )
    if "/" in name or "\\" in name:
        raise UserError(
            f"has the name {name!r} with a slash in it", where, _REMEDY, kind=INVALID, value=name
        )
    if any(unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") for char in name):
        raise UserError(
            f"has the name {name!r} with control characters or bytes that are not UTF-8",
            where,
            _REMEDY,
            kind=INVALID,
            value=name,
        )
    if re.match(r"[A-Za-z]:", name):
        raise UserError(
            f"has the name {name!r} that begins with a drive letter",
            where,
            _REMEDY,
            kind=INVALID,
            value=name,
        )
    # What the file systems HFS+ and NTFS make of the name.
    simplified = (
        unicodedata.normalize("NFKC", name.translate(_IGNORED_BY_HFS))
        .casefold()
        .split(":")[0]
        .rstrip(" .")
    )
    if _GIT_NAMES.fullmatch(simplified):
        raise UserError(
            f"has the name {name!r}, which git itself uses",
            where,
            _REMEDY,
            kind=INVALID,
            value=name,
        )
    return name


def check_path(path: str, where: str) -> str:
    """Check a relative path with slashes between its components, and return it unchanged.

    Args:
        path: The path.
        where: The place that an error names.

    Raises:
        UserError: The path is absolute or too long, or one of its components is unsafe.
    """
    if path.startswith("/"):
        raise UserError(f"has the absolute path {path!r}", where, _REMEDY, kind=INVALID, value=path)
    if len(path.encode("utf-8", "surrogateescape")) > _LONGEST:
        raise UserError(
            f"has a path of {len(path)} characters", where, _REMEDY, kind=TOO_BIG, value=len(path)
        )
    for name in path.split("/"):
        check_name(name, where)
    return path
