"""A release wheel as a source: its files, and the one commit that stands for them."""

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

DATE = 315532800  # 1980-01-01T00:00:00Z, where a zip's clock starts
_LARGEST_FILE = 64 << 20
_LARGEST_WHEEL = 512 << 20
_MOST_FILES = 100_000
_DO = "take no wheel that holds it"


def read_wheel_files(wheel: Path) -> dict[str, tuple[str, bytes]]:
    """Every file of a wheel as the zip has it: {path: (mode, content)}, all with mode 100644,
    sorted by path.

    Raises UserError for what is no zip, for names that climb out or are git's own, for links, for
    duplicates and for files that are larger than they say or than 64 MiB (512 MiB together).
    Nothing is written.
    """
    where = wheel.name
    files: dict[str, tuple[str, bytes]] = {}
    total = 0
    try:
        with zipfile.ZipFile(wheel) as archive:
            if len(archive.infolist()) > _MOST_FILES:
                raise UserError(f"holds more than {_MOST_FILES} files", where, _DO)
            for info in archive.infolist():
                is_folder = _check_member(info, where)
                total += info.file_size
                if info.file_size > _LARGEST_FILE or total > _LARGEST_WHEEL:
                    raise UserError(
                        f"unpacks to more than a source may hold, at {info.filename!r}",
                        where,
                        _DO,
                        kind=TOO_BIG,
                        value=info.filename,
                    )
                if is_folder:
                    continue
                if info.filename in files:
                    raise UserError(
                        f"holds {info.filename!r} twice",
                        where,
                        _DO,
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
                "is not a sound zip file "
                f"({str(error).splitlines()[0] if str(error) else 'it ends early'})"
            ),
            where,
            "get it anew",
            kind=DAMAGED,
        ) from error
    except OSError as error:
        raise UserError(f"cannot be read ({error.strerror})", str(wheel), "get it anew") from error
    check_layout([Entry(path, mode, "") for path, (mode, _) in files.items()], {}, where)
    return dict(sorted(files.items()))


def _check_member(info: zipfile.ZipInfo, where: str) -> bool:
    """Whether a member is a folder; a UserError if it is hostile."""
    if info.orig_filename != info.filename:
        raise UserError(
            f"holds the name {info.orig_filename!r} with a NUL in it",
            where,
            _DO,
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
            f"holds {info.filename!r}, which is neither a plain file nor a folder",
            where,
            _DO,
            kind=INVALID,
            value=info.filename,
        )
    if info.flag_bits & 0x1:
        raise UserError(f"holds {info.filename!r} encrypted", where, _DO)
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise UserError(
            f"holds {info.filename!r} with compression method {info.compress_type}", where, _DO
        )
    return is_folder


def render_commit(tree: str, requirement: str, sha256: str) -> bytes:
    """Return the content of the root commit that holds a wheel's files; it depends on nothing but
    its arguments.
    """
    person = f"rosetta <rosetta@localhost> {DATE} +0000"
    message = f"{requirement}\n\nThe files of its wheel (sha256 {sha256})\n"
    return f"tree {tree}\nauthor {person}\ncommitter {person}\n\n{message}".encode()
