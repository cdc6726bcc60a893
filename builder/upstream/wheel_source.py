"""Read the files of a release wheel, and make the git commit that represents them."""

from __future__ import annotations

import stat
import zipfile
import zlib
from typing import TYPE_CHECKING

from builder.upstream.git_objects import FILE, Entry
from builder.upstream.path_rules import check_path
from builder.upstream.tree_export import check_layout
from rosetta.core.errors import CONFLICT, DAMAGED, INVALID, TOO_BIG, UserError

if TYPE_CHECKING:
    from pathlib import Path

# 1980-01-01T00:00:00Z, the earliest date of a zip file.
DATE = 315532800
# Sizes in bytes.
_LARGEST_FILE = 64 << 20
_LARGEST_WHEEL = 512 << 20
_MOST_FILES = 100_000
_REMEDY = "choose another wheel"


def read_wheel_files(wheel: Path) -> dict[str, tuple[str, bytes]]:
    """Return the mode and the content of each file of a wheel, by path in sorted order.

    The mode is always 100644. Nothing is written to the disk.

    Raises:
        UserError: The file is not a valid zip file, or a path is unsafe, a link, encrypted or there
            twice, or a file is larger than 64 MiB, or all files together than 512 MiB.
    """
    where = wheel.name
    files: dict[str, tuple[str, bytes]] = {}
    total = 0
    try:
        with zipfile.ZipFile(wheel) as archive:
            if len(archive.infolist()) > _MOST_FILES:
                raise UserError(f"has more than {_MOST_FILES} files", where, _REMEDY)
            for info in archive.infolist():
                is_folder = _check_member(info, where)
                total += info.file_size
                if info.file_size > _LARGEST_FILE or total > _LARGEST_WHEEL:
                    raise UserError(
                        f"unpacks to more than a source may have, at {info.filename!r}",
                        where,
                        _REMEDY,
                        kind=TOO_BIG,
                        value=info.filename,
                    )
                if is_folder:
                    continue
                if info.filename in files:
                    raise UserError(
                        f"has {info.filename!r} twice",
                        where,
                        _REMEDY,
                        kind=CONFLICT,
                        value=info.filename,
                    )
                with archive.open(info) as member:
                    files[info.filename] = (FILE, member.read(_LARGEST_FILE + 1))
    except (
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        NotImplementedError,
        UnicodeDecodeError,
    ) as error:
        raise UserError(
            (
                "is not a valid zip file "
                f"({str(error).splitlines()[0] if str(error) else 'the file ends early'})"
            ),
            where,
            "download the wheel again",
            kind=DAMAGED,
        ) from error
    except OSError as error:
        raise UserError(
            f"cannot be read ({error.strerror})", str(wheel), "download the wheel again"
        ) from error
    check_layout([Entry(path, mode, "") for path, (mode, _) in files.items()], {}, where)
    return dict(sorted(files.items()))


def _check_member(info: zipfile.ZipInfo, where: str) -> bool:
    """Return whether a member of the zip file is a folder, and refuse an unsafe member."""
    if info.orig_filename != info.filename:
        raise UserError(
            f"has the name {info.orig_filename!r} with a zero byte in it",
            where,
            _REMEDY,
            kind=INVALID,
            value=info.orig_filename,
        )
    is_folder = info.filename.endswith("/")
    check_path(info.filename.removesuffix("/"), where)
    kind = stat.S_IFMT(info.external_attr >> 16)
    if kind not in (0, stat.S_IFDIR if is_folder else stat.S_IFREG) or (
        is_folder and info.file_size
    ):
        raise UserError(
            f"has {info.filename!r}, which is neither a plain file nor a folder",
            where,
            _REMEDY,
            kind=INVALID,
            value=info.filename,
        )
    if info.flag_bits & 0x1:
        raise UserError(f"has the encrypted file {info.filename!r}", where, _REMEDY)
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise UserError(
            f"has {info.filename!r} with compression method {info.compress_type}", where, _REMEDY
        )
    return is_folder


def render_commit(tree: str, requirement: str, sha256: str) -> bytes:
    """Return the content of the commit for a wheel's files. It has no parents.

    The content depends on the arguments only, so every machine makes the same commit.

    Args:
        tree: The tree of the wheel's files.
        requirement: The wheel as PROJECT==VERSION.
        sha256: The hash of the wheel.
    """
    person = f"rosetta <rosetta@localhost> {DATE} +0000"
    message = f"{requirement}\n\nThe files of its wheel (sha256 {sha256})\n"
    return f"tree {tree}\nauthor {person}\ncommitter {person}\n\n{message}".encode()
