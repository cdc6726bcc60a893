"""Fetch models and vocabularies of the Hugging Face Hub into $ROSETTA_HOME/hub, by commit.

A name is hf:OWNER/NAME[@REVISION]. A revision is a branch, a tag or a commit; the default is main.
HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE count as in all programs that use huggingface_hub, which
downloads the files and resumes a download that broke off. This module adds what a job with many
processes needs:

- One process downloads, and the others wait for it.
- All processes of a job read the same commit, even if the branch moves on meanwhile.
- Each file is compared with the hash that the Hub gives, once.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import re
import shutil
import time
import urllib.parse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rosetta.core import file_lock, home_folder, log, path_checks
from rosetta.core.atomic_files import write_atomic
from rosetta.core.errors import (
    DAMAGED,
    DENIED,
    FAILED,
    INVALID,
    MISSING,
    TOO_BIG,
    UNREACHABLE,
    UNSUPPORTED,
    UserError,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

SCHEME = "hf:"
DEFAULT_REVISION = "main"
PLACEHOLDER = "hf:OWNER/NAME[@REVISION]"
TOKENIZER, WEIGHTS = "tokenizer", "weights"  # what to fetch of a model
TOKENIZER_FILES = (
    "spiece.model",
    "tokenizer.model",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)
_SETTINGS_FILES = ("config.json", "generation_config.json")
# The formats of weights, the preferred one first. A model often has its weights in both.
WEIGHT_FILES = (
    re.compile(r"model.*\.safetensors(\.index\.json)?"),
    re.compile(r"pytorch_model.*\.bin(\.index\.json)?"),
)
# How long the commit of a branch is used without asking the Hub again, in seconds. The processes of
# a job start within that time.
_FRESH_SECONDS = 600
TIMEOUT_SECONDS = 30
_DOWNLOADS = 4  # files at a time
_COMMIT = re.compile(r"[0-9a-f]{40}")
_NAME = re.compile(r"(?:[A-Za-z0-9][A-Za-z0-9._-]{0,95}/)?[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND, _TOO_MANY_REQUESTS = 401, 403, 404, 429


@dataclass(frozen=True)
class HubName:
    """The name of a model on the Hub.

    Attributes:
        repository: OWNER/NAME; models of the Hub's first days have no owner.
        revision: A branch, a tag or a commit.
    """

    repository: str
    revision: str

    def __str__(self) -> str:
        """Return the name as users write it."""
        suffix = "" if self.revision == DEFAULT_REVISION else f"@{self.revision}"
        return f"{SCHEME}{self.repository}{suffix}"


@dataclass(frozen=True)
class StoredFile:
    """A file as the Hub lists it.

    Attributes:
        name: The name of the file.
        size: Its bytes.
        sha256: The hash of a large file; "" for others.
        blob: The hash of a small file as git computes it.
    """

    name: str
    size: int
    sha256: str
    blob: str


def is_hub_name(text: str) -> bool:
    """Return whether a value of a setting names a model on the Hub, and not a path."""
    return text.startswith(SCHEME)


def parse_name(text: str, where: str) -> HubName:
    """Return the name of a model on the Hub.

    Args:
        text: hf:OWNER/NAME[@REVISION].
        where: The setting, for the error.

    Raises:
        UserError: The text is not such a name.
    """
    repository, _, revision = text.removeprefix(SCHEME).partition("@")
    is_valid = _NAME.fullmatch(repository) and not re.search(r"\.\.|--|\.git$", repository)
    if not is_hub_name(text) or not is_valid or (text.endswith("@") or not revision.isprintable()):
        raise UserError(
            "not a valid name of a model on the Hugging Face Hub",
            where,
            f"write {PLACEHOLDER}, for example hf:google/t5-v1_1-small",
            kind=INVALID,
            value=text,
        )
    return HubName(repository, revision or DEFAULT_REVISION)


def fetch_model(text: str, where: str, purpose: str) -> Path:
    """Return a folder with files of a model on the Hub; download what the cache lacks.

    Args:
        text: hf:OWNER/NAME[@REVISION].
        where: The setting that names the model, for errors.
        purpose: TOKENIZER for the files of the tokenizer, WEIGHTS for these and the weights.

    Returns:
        The folder, whose name is the commit. Nothing may be changed in it.

    Raises:
        UserError: The name is not valid, the model does not exist or is private, the Hub does not
            answer and the cache lacks the model, the disk is full, or a file is damaged.
    """
    name = parse_name(text, where)
    cache = home_folder.make_home_folder() / "hub"
    repository = _Repository(name, cache, where)
    with file_lock.hold_lock(
        repository.folder / "rosetta.lock", f"{name} is downloaded by another process"
    ):
        commit = repository.find_commit()
        snapshot = repository.find_complete_snapshot(commit, purpose)
        return snapshot or repository.download(commit, purpose)


def import_library(where: str) -> Any:
    """Return the module huggingface_hub.

    Args:
        where: The setting or option that names the model, for the error.

    Raises:
        UserError: The package is not installed, or a file of certificates is missing.
    """
    path_checks.check_certificates()
    try:
        hub = importlib.import_module("huggingface_hub")
    except ImportError:
        raise UserError(
            "the huggingface_hub package is not installed",
            where,
            "pip install huggingface_hub, or name a local folder of the model",
            kind=MISSING,
            value="huggingface_hub",
        ) from None
    if not os.isatty(2):
        importlib.import_module("huggingface_hub.utils").disable_progress_bars()
    return hub


def list_files(info: Any) -> list[StoredFile]:
    """Return the files that the Hub's description of a model lists.

    Args:
        info: The ModelInfo of huggingface_hub, with the metadata of files.
    """
    return [
        StoredFile(
            sibling.rfilename,
            sibling.size or 0,
            sibling.lfs.sha256 if sibling.lfs else "",
            sibling.blob_id or "",
        )
        for sibling in info.siblings or ()
    ]


class _Repository:
    """A model on the Hub and its part of the cache, while this process holds the lock."""

    def __init__(self, name: HubName, cache: Path, where: str) -> None:
        """Describe the model; nothing is read.

        Args:
            name: The name of the model.
            cache: The folder of all models.
            where: The setting that names the model, for errors.
        """
        self.name = name
        self.where = where
        self.cache = cache
        # huggingface_hub has its files in the same folder.
        self.folder = cache / f"models--{name.repository.replace('/', '--')}"
        self._files: list[StoredFile] | None = None

    def find_commit(self) -> str:
        """Return the commit of the revision: from the Hub, or the one that the cache has.

        Raises:
            UserError: The Hub does not have the revision, or does not answer and the cache does
                not have it.
        """
        if _COMMIT.fullmatch(self.name.revision):
            return self.name.revision
        record = self.folder / "commits" / urllib.parse.quote(self.name.revision, safe="")
        known, age = "", float("inf")
        if record.is_file():
            known = record.read_text(encoding="utf-8").strip()
            age = time.time() - record.stat().st_mtime
        if known and (is_offline() or age < _FRESH_SECONDS):
            return known
        try:
            commit = self._read_listing(self.name.revision)
        except UserError as error:
            if not known or error.kind != UNREACHABLE:
                raise
            log.warn(f"{error.what}: {self.name} is read from the cache, commit {known[:12]}")
            return known
        write_atomic(record, commit + "\n")
        return commit

    def find_complete_snapshot(self, commit: str, purpose: str) -> Path | None:
        """Return the folder of a commit if all files for a purpose are there, else None."""
        record = self._find_record(commit, purpose)
        snapshot = self.folder / "snapshots" / commit
        try:
            sizes = json.loads(record.read_text(encoding="utf-8"))
            if all((snapshot / name).stat().st_size == size for name, size in sizes.items()):
                return snapshot
        except (OSError, ValueError):
            pass
        return None

    def download(self, commit: str, purpose: str) -> Path:
        """Download the files for a purpose, and compare them with the hashes of the Hub.

        Returns:
            The folder of the commit.

        Raises:
            UserError: See fetch_model.
        """
        if self._files is None:
            self._read_listing(commit)
        files = self._choose_files(purpose)
        self._check_space(files)
        total = sum(file.size for file in files)
        log.info(f"downloading {self.name} ({total / 1e6:,.1f} MB, commit {commit[:12]})")
        hub = self._import_library()
        try:
            folder = hub.snapshot_download(
                self.name.repository,
                revision=commit,
                cache_dir=self.cache,
                allow_patterns=[file.name for file in files],
                token=get_token(),
                endpoint=get_endpoint(),
                max_workers=_DOWNLOADS,
                etag_timeout=TIMEOUT_SECONDS,
            )
        except Exception as error:  # noqa: BLE001 (errors of several libraries)
            raise self._explain_error(error) from None
        snapshot = Path(folder)
        self._remove_damaged_files(snapshot, files)
        sizes = {file.name: file.size for file in files}
        write_atomic(self._find_record(commit, purpose), json.dumps(sizes, indent=2) + "\n")
        return snapshot

    def _find_record(self, commit: str, purpose: str) -> Path:
        """Return the file that lists what was downloaded and compared."""
        return self.folder / "verified" / f"{commit}.{purpose}.json"

    def _import_library(self) -> Any:
        """Return huggingface_hub. Raise UserError if it is not installed, or if it is offline."""
        if is_offline():
            raise UserError(
                "the cache lacks the model, and HF_HUB_OFFLINE is set",
                self.where,
                "fill the cache on a machine with a network: start the same command with "
                f"--dry-run there, with the same ROSETTA_HOME ({self.cache.parent})",
                kind=MISSING,
                value=str(self.name),
            )
        return import_library(self.where)

    def _read_listing(self, revision: str) -> str:
        """Read the commit and the files of a revision from the Hub; return the commit."""
        hub = self._import_library()
        try:
            info = hub.HfApi(endpoint=get_endpoint(), token=get_token()).model_info(
                self.name.repository,
                revision=revision,
                files_metadata=True,
                timeout=TIMEOUT_SECONDS,
            )
        except Exception as error:  # noqa: BLE001 (errors of several libraries)
            raise self._explain_error(error) from None
        commit = str(info.sha)
        if not _COMMIT.fullmatch(commit):
            raise UserError(
                "the Hub gave no valid commit",
                self.where,
                "check HF_ENDPOINT, or try again later",
                kind=FAILED,
                value=commit,
            )
        self._files = list_files(info)
        return commit

    def _choose_files(self, purpose: str) -> list[StoredFile]:
        """Return the files to download for a purpose."""
        files = {file.name: file for file in self._files or ()}
        names = [name for name in (*_SETTINGS_FILES, *TOKENIZER_FILES) if name in files]
        if purpose == WEIGHTS:
            names += self._choose_weights(files)
        elif not any(name in files for name in TOKENIZER_FILES):
            raise UserError(
                "the model has no tokenizer",
                self.where,
                f"name another model: {PLACEHOLDER}",
                kind=MISSING,
                value=str(self.name),
            )
        return [files[name] for name in names]

    def _choose_weights(self, names: Iterable[str]) -> Sequence[str]:
        """Return the names of the files of weights, in the preferred format."""
        for pattern in WEIGHT_FILES:
            matching = sorted(name for name in names if pattern.fullmatch(name))
            if matching:
                return matching
        raise UserError(
            "the model has no weights in safetensors or pytorch_model.bin",
            self.where,
            "name another model or revision",
            kind=UNSUPPORTED,
            value=str(self.name),
        )

    def _check_space(self, files: Iterable[StoredFile]) -> None:
        """Raise UserError if the disk has no room for the files that are not there yet."""
        blobs = self.folder / "blobs"
        needed = sum(f.size for f in files if not (blobs / (f.sha256 or f.blob or "-")).exists())
        free = shutil.disk_usage(self.folder).free
        if needed > free:
            raise UserError(
                f"{needed / 1e6:,.0f} MB are needed and {free / 1e6:,.0f} MB are free",
                str(self.cache),
                "free some space, or set ROSETTA_HOME to another folder",
                kind=TOO_BIG,
            )

    def _remove_damaged_files(self, snapshot: Path, files: Iterable[StoredFile]) -> None:
        """Remove the files that differ from what the Hub lists, and raise UserError if any does."""
        damaged = [file.name for file in files if not is_intact(snapshot / file.name, file)]
        for name in damaged:
            with contextlib.suppress(OSError):
                (snapshot / name).resolve().unlink()
                (snapshot / name).unlink()
        if damaged:
            raise UserError(
                "a downloaded file differs from the one on the Hub; it was removed",
                f"{self.name}: {damaged[0]}",
                "start again to download it again",
                kind=DAMAGED,
                value=damaged[0],
            )

    def _explain_error(self, error: Exception) -> UserError:
        """Return the error for an exception of the library.

        Nothing of the exception's text is shown but the status of an answer, because the text may
        have the address with its query.
        """
        errors = importlib.import_module("huggingface_hub.errors")
        status = find_status(error)
        has_token = bool(get_token())
        if isinstance(error, errors.RevisionNotFoundError):
            what, do, kind = (
                f"the model has no revision {self.name.revision!r}",
                "name a branch, a tag or a commit of the model",
                MISSING,
            )
        elif isinstance(error, errors.GatedRepoError) or status == _FORBIDDEN:
            what, do, kind = (
                "the Hub refuses the model to this user",
                "accept the model's terms on the Hub, and set HF_TOKEN to a token that may read it",
                DENIED,
            )
        elif status in (_UNAUTHORIZED, _NOT_FOUND):
            remedy = "check the name"
            if not has_token:
                remedy += "; a private model needs HF_TOKEN"
            elif status == _UNAUTHORIZED:
                remedy += ", and whether HF_TOKEN is valid and may read the model"
            what, do, kind = (
                f"the Hub has no such model, or hides it from this user (status {status})",
                remedy,
                DENIED if status == _UNAUTHORIZED else MISSING,
            )
        elif status == _TOO_MANY_REQUESTS:
            what, do, kind = (
                "the Hub takes no more requests for now (status 429)",
                "wait some minutes, or set HF_TOKEN, which raises the limit",
                UNREACHABLE,
            )
        elif isinstance(error, OSError) and error.errno is not None and status is None:
            what, do, kind = (
                f"the model cannot be written ({error.strerror})",
                f"check {self.cache}, or set ROSETTA_HOME to another folder",
                FAILED,
            )
        else:
            reason = f"status {status}" if status else type(error).__name__
            what, do, kind = (
                f"the Hub does not answer as expected ({reason})",
                "check the network and HF_ENDPOINT; a start after a broken download resumes it",
                UNREACHABLE,
            )
        return UserError(what, self.where, do, kind=kind, value=str(self.name))


def find_status(error: BaseException | None) -> int | None:
    """Return the status of the answer that an exception, or one of its causes, is about."""
    while error is not None:
        status = getattr(getattr(error, "response", None), "status_code", None)
        if isinstance(status, int):
            return status
        error = error.__cause__
    return None


def is_intact(path: Path, file: StoredFile) -> bool:
    """Return whether a file has the size and the hash that the Hub lists for it."""
    if not path.is_file() or path.stat().st_size != file.size:
        return False
    digest = hashlib.sha256()
    if not file.sha256:
        digest = hashlib.sha1(f"blob {file.size}\0".encode(), usedforsecurity=False)
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest() == (file.sha256 or file.blob)


def get_token() -> str | None:
    """Return HF_TOKEN; None lets the library use the token of a login."""
    return os.environ.get("HF_TOKEN") or None


def get_endpoint() -> str | None:
    """Return HF_ENDPOINT; None for the public Hub."""
    return (os.environ.get("HF_ENDPOINT") or "").rstrip("/") or None


def is_offline() -> bool:
    """Return whether HF_HUB_OFFLINE forbids requests. It counts as in huggingface_hub."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}
