"""Which paths an upstream, a patch or a wheel may have: what no file system, git or shell takes for
anything else.
"""

from __future__ import annotations

import re
import unicodedata

from rosetta.core.errors import INVALID, TOO_BIG, UserError

_LONGEST = 1024
_IGNORED_BY_HFS = dict.fromkeys(
    (0x200C, 0x200D, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x206A, 0x2070), 0xFEFF)
)
_GIT = re.compile(
    r"\.git|git~[0-9]+|\.gitmodules|gitmod~[0-9]+|gi7eba~[0-9]+"
)  # with the short names that NTFS makes of them
_DO = "take no source that holds it"


def check_name(name: str, where: str) -> str:
    """One component of a path, returned as it came; a UserError at `where` if it is hostile."""
    if name in ("", ".", ".."):
        raise UserError(f"holds the path component {name!r}", where, _DO, kind=INVALID, value=name)
    if "/" in name or "\\" in name:
        raise UserError(
            f"holds the name {name!r} with a slash in it", where, _DO, kind=INVALID, value=name
        )
    if any(unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") for char in name):
        raise UserError(
            f"holds the name {name!r} with control characters or bytes that are not UTF-8",
            where,
            _DO,
            kind=INVALID,
            value=name,
        )
    if re.match(r"[A-Za-z]:", name):
        raise UserError(
            f"holds the name {name!r} that begins with a drive letter",
            where,
            _DO,
            kind=INVALID,
            value=name,
        )
    seen = (
        unicodedata.normalize("NFKC", name.translate(_IGNORED_BY_HFS))
        .casefold()
        .split(":")[0]
        .rstrip(" .")
    )
    if _GIT.fullmatch(seen):
        raise UserError(f"holds {name!r}, which is git's own", where, _DO, kind=INVALID, value=name)
    return name


def check_path(path: str, where: str) -> str:
    """Return a relative path with `/` between its components, returned as it came; a UserError at
    `where` if it is hostile.
    """
    if path.startswith("/"):
        raise UserError(f"holds the absolute path {path!r}", where, _DO, kind=INVALID, value=path)
    if len(path.encode("utf-8", "surrogateescape")) > _LONGEST:
        raise UserError(
            f"holds a path of {len(path)} characters", where, _DO, kind=TOO_BIG, value=len(path)
        )
    for name in path.split("/"):
        check_name(name, where)
    return path
