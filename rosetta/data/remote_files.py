"""Data files that are named by an address: copied once into rosetta's home folder.

https:// and http:// are read with the standard library. gs://, s3:// and every other scheme that
fsspec knows are read with fsspec and its package for that scheme.

A copy is `downloads/ADDRESS/VERSION/NAME`, with hashes of the address and of what the server says
of the version of the file. A file that has changed at its address is copied again, and a run that
reads the earlier copy keeps it. If the server says nothing of the version, each process copies the
file, and the version is a hash of the content. If the server does not answer, the last copy is
used, and a line says so; which files a pattern matches is not known then. This module needs the
standard library alone until an address of another scheme is read.
"""

from __future__ import annotations

import errno
import functools
import glob
import hashlib
import http.client
import importlib
import os
import shutil
import ssl
import string
import urllib.error
import urllib.parse
import urllib.request
from typing import TYPE_CHECKING, Any

from rosetta.core import atomic_files, file_lock, home_folder, log, path_checks
from rosetta.core.errors import (
    DENIED,
    INVALID,
    MISSING,
    TOO_BIG,
    UNKNOWN,
    UNREACHABLE,
    UNSUPPORTED,
    UserError,
)
from rosetta.core.value_parsing import split_scheme

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

COPIES_FOLDER = "downloads"  # in rosetta's home folder
TIMEOUT_SECONDS = 30
_ATTEMPTS = 3
_BLOCK_BYTES = 1 << 20
_ANNOUNCED_BYTES = 1 << 24
_HASH_DIGITS = 24  # of the name of a folder of copies
_WEB_SCHEMES = ("https://", "http://")
# Scheme -> the package with which fsspec reads it.
_PACKAGES = {"gs": "gcsfs", "gcs": "gcsfs", "s3": "s3fs", "hdfs": "pyarrow", "abfs": "adlfs"}
_DENIED_STATUSES, _MISSING_STATUSES = (401, 403, 407), (404, 410)
_RETRY = "check the address and the network; proxies are those of HTTPS_PROXY"
# What says that no connection came about, or that it broke.
_NETWORK_ERRORS = (
    urllib.error.URLError,
    http.client.HTTPException,
    ssl.SSLError,
    TimeoutError,
    ConnectionError,
)
_VERSION_HEADERS = ("ETag", "Last-Modified", "Content-Length")
_NEW_FOLDER = "new"  # of a copy whose version is not known before its content
_NAME_BYTES = 200  # A name of a copy has at most so many bytes.
_END_BYTES = 40  # A name that is cut keeps so many bytes at its end, with the suffixes.


def describe_address(address: str) -> str:
    """Return an address without its query, which may have a signature that is a secret."""
    return address.partition("?")[0] if address.startswith(_WEB_SCHEMES) else address


def fetch_files(pattern: str, where: str) -> dict[str, str]:
    """Copy the files that an address or a pattern of addresses names, unless there are copies.

    Args:
        pattern: The address. Addresses of object stores may have `*`, `?` and `[...]`.
        where: The setting that names it, for errors.

    Returns:
        The address of each file by the path of its copy; {} if there is no such file.

    Raises:
        UserError: A package is missing, the file may not be read, or the server does not answer.
    """
    if pattern.startswith(_WEB_SCHEMES):
        path = _fetch_from_web(pattern, where)
        return {path: describe_address(pattern)} if path else {}
    return _fetch_with_fsspec(pattern, where)


@functools.cache
def _fetch_from_web(address: str, where: str) -> str | None:
    """Return the path of the copy of a file of a web server; None if there is no such file."""
    path_checks.check_certificates()
    shown = describe_address(address)
    request = _make_request(address, where)
    copies = _find_copies_folder(address)

    def copy_once() -> str:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response:  # noqa: S310
            facts = [response.headers.get(name) for name in _VERSION_HEADERS]
            if not any(facts):
                return str(_copy_without_version(copies, address, response.read))
            path = copies / _hash_text(repr(facts)) / _find_name(address)
            if not path.exists():
                _write_copy(path, shown, response.length, response.read)
            return str(path)

    for attempt in range(_ATTEMPTS):
        try:
            with file_lock.hold_lock(copies / "lock", f"{shown} is copied by another process"):
                return copy_once()
        except urllib.error.HTTPError as error:
            error.close()
            if error.code in _MISSING_STATUSES:
                return None
            if error.code in _DENIED_STATUSES:
                raise UserError(
                    f"the server refuses the file: {error.code} {error.reason}",
                    shown,
                    "copy the file yourself, or name an address that needs no login",
                    kind=DENIED,
                    value=error.code,
                ) from None
            reason = f"{error.code} {error.reason}"
        except _NETWORK_ERRORS as error:
            reason = str(getattr(error, "reason", error)) or type(error).__name__
        log.debug(f"data: attempt {attempt + 1} to read {shown}: {reason}")
    return _use_last_copy(address, where, reason)


def _make_request(address: str, where: str) -> urllib.request.Request:
    """Return the request for a file of a web server.

    Raises:
        UserError: The address is not a valid one.
    """
    try:
        parts = urllib.parse.urlsplit(address)
        if not parts.hostname or not parts.hostname.isascii():
            raise ValueError("its host is missing, or is not ASCII")
        _ = parts.port  # ValueError if it is not a port
        address.encode()
    except ValueError as error:
        raise UserError(
            f"not a valid address: {_first_line(error)}",
            where,
            "write https://HOST/PATH",
            kind=INVALID,
            value=describe_address(address),
        ) from None
    quoted = urllib.parse.quote(address, safe=string.punctuation)
    return urllib.request.Request(quoted, headers={"User-Agent": "rosetta"})  # noqa: S310 (the scheme was checked)


def _copy_without_version(copies: Path, address: str, read: Callable[[int], bytes]) -> Path:
    """Copy a file whose server does not say a version: the version is a hash of its content.

    Args:
        copies: The folder of the copies of the file.
        address: Where the file comes from.
        read: See _write_copy.

    Returns:
        The path of the copy; an earlier one if the content is the same.
    """
    name = _find_name(address)
    new = copies / _NEW_FOLDER / name
    _write_copy(new, describe_address(address), None, read)
    with new.open("rb") as file:
        version = hashlib.file_digest(file, "sha256").hexdigest()[:_HASH_DIGITS]
    path = copies / version / name
    if path.exists():
        new.unlink()
    else:
        path.parent.mkdir(exist_ok=True)
        # The file is complete: replace_file gave it its first name, before its content was known.
        new.replace(path)
    return path


def _fetch_with_fsspec(pattern: str, where: str) -> dict[str, str]:
    """Return the address of each file that a pattern matches, by the path of its copy."""
    scheme = split_scheme(pattern)[0]
    file_system = _open_file_system(scheme.removesuffix("://"), where)
    try:
        addresses = _list_addresses(file_system, scheme, pattern)
        return {_copy_with_fsspec(file_system, address, where): address for address in addresses}
    except UserError:
        raise
    except PermissionError as error:
        raise UserError(
            f"the file may not be read: {_first_line(error)}",
            pattern,
            "log in to the object store on this machine, or mount its credentials",
            kind=DENIED,
        ) from None
    except Exception as error:  # noqa: BLE001 (dozens of kinds, from the packages of fsspec)
        path = _use_last_copy(pattern, where, _first_line(error))
        return {path: pattern}


def _open_file_system(protocol: str, where: str) -> Any:
    """Return fsspec's file system of a scheme.

    Raises:
        UserError: fsspec or its package for the scheme is missing, or fsspec does not know the
            scheme or needs more than the address.
    """
    package = "fsspec"
    try:
        fsspec = importlib.import_module("fsspec")
        package = _PACKAGES.get(protocol, f"of fsspec for {protocol}://")
        file_system: Any = fsspec.filesystem(protocol)
    except ImportError:
        raise UserError(
            f"reading {protocol}:// needs the package {package}",
            where,
            f"pip install {package}, or copy the files and name the copies",
            kind=MISSING,
            value=package,
        ) from None
    except Exception as error:  # noqa: BLE001 (each package of fsspec has its own kinds)
        remedy = "name a path, or an address of https://, gs:// or s3://"
        if protocol not in fsspec.available_protocols():
            what, kind = f"{protocol}:// is not a known scheme", UNKNOWN
        else:
            what, kind = f"{protocol}:// cannot be opened: {_first_line(error)}", UNSUPPORTED
        raise UserError(what, where, remedy, kind=kind, value=f"{protocol}://") from None
    return file_system


@functools.cache
def _list_addresses(file_system: Any, scheme: str, pattern: str) -> tuple[str, ...]:
    """Return the addresses of the files that a pattern matches, sorted."""
    path = pattern.removeprefix(scheme)
    if _is_file(file_system, path):
        return (pattern,)
    matches = file_system.glob(path) if set("*?[") & set(path) else []
    names = sorted(str(match) for match in matches if _is_file(file_system, match))
    return tuple(scheme + name.lstrip("/") for name in names)


def _is_file(file_system: Any, path: str) -> bool:
    """Return whether a path is a file.

    fsspec's own `isfile` returns False if the server does not answer, so it is not used.
    """
    try:
        return bool(file_system.info(path)["type"] == "file")
    except FileNotFoundError:
        return False


@functools.cache
def _copy_with_fsspec(file_system: Any, address: str, where: str) -> str:
    """Return the path of the copy of a file of an object store."""
    del where  # Two settings that name the same file have the same copy.
    path = split_scheme(address)[1]
    copies = _find_copies_folder(address)
    with file_lock.hold_lock(copies / "lock", f"{address} is copied by another process"):
        version = _hash_text(str(file_system.ukey(path)))
        copy = copies / version / _find_name(address)
        if not copy.exists():
            with file_system.open(path, "rb") as file:
                _write_copy(copy, address, file_system.info(path).get("size"), file.read)
    return str(copy)


def _write_copy(path: Path, address: str, size: int | None, read: Callable[[int], bytes]) -> None:
    """Write a copy.

    Args:
        path: The file to write.
        address: Where it comes from, for messages.
        size: Its size in bytes; None if the server does not say it.
        read: A function that returns the next bytes, at most so many, and b"" at the end.

    Raises:
        UserError: There is no room for it.
        ConnectionError: The file ended early.
    """
    if size is not None and size >= _ANNOUNCED_BYTES:
        log.info(f"data: copying {address} ({size / 1e6:,.0f} MB) into {path.parents[2]}")
    path.parent.mkdir(parents=True, exist_ok=True)
    # Only the process that holds the lock writes here: what is there is of a killed process.
    temporary = path.with_name(f"{atomic_files.TEMPORARY_PREFIX}{path.name}")
    try:
        if size is not None and size > shutil.disk_usage(path.parent).free:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        with atomic_files.replace_file(path, temporary=temporary) as new, new.open("wb") as file:
            count = 0
            while block := read(_BLOCK_BYTES):
                file.write(block)
                count += len(block)
            if size is not None and count != size:
                raise ConnectionError(f"{count:,} of {size:,} bytes came")
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(
                f"there is no room for the copy of {address}",
                str(path.parents[2]),
                "free space there, or set ROSETTA_HOME to a folder on a larger disk",
                kind=TOO_BIG,
            ) from None
        raise


def _use_last_copy(address: str, where: str, reason: str) -> str:
    """Return the newest copy of a file that cannot be reached, and warn.

    Raises:
        UserError: There is no copy.
    """
    shown = describe_address(address)
    copies = sorted(
        _find_copies_folder(address).glob(f"*/{glob.escape(_find_name(address))}"),
        key=os.path.getmtime,
    )
    if not copies:
        raise UserError(
            f"{shown} cannot be reached: {reason[:160]}", where, _RETRY, kind=UNREACHABLE
        )
    log.warn(f"data: {shown} cannot be reached ({reason[:160]}); its last copy is used", once=True)
    return str(copies[-1])


def _find_copies_folder(address: str) -> Path:
    """Return the folder of the copies of a file.

    The query of a web address is left out, since a signature in it changes from day to day.
    """
    name = _hash_text(describe_address(address))
    return home_folder.make_home_folder() / COPIES_FOLDER / name


def _find_name(address: str) -> str:
    """Return the name of the copy of the file that an address names.

    The name is that of the file, cut in front of its suffixes if it is too long, or "data".
    """
    if address.startswith(_WEB_SCHEMES):
        path = urllib.parse.unquote(urllib.parse.urlsplit(address).path)
    else:
        path = split_scheme(address)[1]
    name = os.path.basename(path.rstrip("/"))
    if name in ("", ".", "..") or "\0" in name:
        return "data"
    content = name.encode("utf-8", "surrogateescape")
    if len(content) > _NAME_BYTES:
        content = content[: _NAME_BYTES - _END_BYTES] + content[-_END_BYTES:]
        name = content.decode(errors="ignore")
    return name


def _hash_text(text: str) -> str:
    """Return hex digits that stand for a text."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:_HASH_DIGITS]


def _first_line(error: BaseException) -> str:
    """Return the first line of an error's message."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
