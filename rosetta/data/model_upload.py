"""Upload a model folder to the Hugging Face Hub, and compare what the Hub has afterwards.

huggingface_hub uploads the files. Its LFS protocol is used unless HF_HUB_DISABLE_XET says
otherwise: mirrors know it, and the Hub lists the SHA-256 of each file that was sent with it. A file
that the Hub has already is not sent again. All files appear in one commit, or none does.
"""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rosetta.core import log
from rosetta.core.errors import (
    CONFLICT,
    DENIED,
    DIFFERS,
    INVALID,
    MISSING,
    UNREACHABLE,
    UserError,
)
from rosetta.data import model_hub

if TYPE_CHECKING:
    from pathlib import Path

_UNAUTHORIZED, _FORBIDDEN, _TOO_MANY_REQUESTS = 401, 403, 429


@dataclass(frozen=True)
class Upload:
    """What an upload did.

    Attributes:
        commit: The commit that has the files.
        removed: The files of older weights that the commit removed.
        private: Whether only members of the owner see the model.
    """

    commit: str
    removed: tuple[str, ...]
    private: bool


class Target:
    """A model on the Hub to upload to: its branch main.

    Attributes:
        name: The name of the model.
        public: Whether everybody may see the model.
    """

    def __init__(self, text: str, where: str, *, public: bool) -> None:
        """Check the name, the token and the settings. The Hub is asked nothing.

        Args:
            text: hf:OWNER/NAME.
            where: The option that names the model, for errors.
            public: Whether everybody may see the model.

        Raises:
            UserError: The name has no owner or has a revision, there is no token, HF_HUB_OFFLINE is
                set, or huggingface_hub is not installed.
        """
        self.name = model_hub.parse_name(text, where)
        self.public = public
        self._where = where
        if "/" not in self.name.repository or "@" in text:
            raise UserError(
                "not the name of a model to upload to",
                where,
                "write hf:OWNER/NAME, without a revision: an upload goes to the branch main",
                kind=INVALID,
                value=text,
            )
        if model_hub.is_offline():
            raise UserError(
                "HF_HUB_OFFLINE is set, so nothing can be uploaded",
                where,
                "unset HF_HUB_OFFLINE, or leave the option out",
                kind=CONFLICT,
                value=text,
            )
        os.environ.setdefault("HF_HUB_DISABLE_XET", "1")
        hub = model_hub.import_library(where)
        self._token = model_hub.get_token() or hub.get_token()
        if not self._token:
            raise UserError(
                "an upload needs a token of the Hugging Face Hub",
                where,
                "set HF_TOKEN to a token that may write",
                kind=MISSING,
                value=text,
            )
        self._hub = hub
        self._api = hub.HfApi(endpoint=model_hub.get_endpoint(), token=self._token)

    def check_visibility(self) -> None:
        """Check that the model does not exist yet, or is as public as it should be.

        Raises:
            UserError: A model that exists is more or less public, or the Hub does not answer.
        """
        info = self._read_model()
        if info is None or bool(info.private) != self.public:
            return
        if self.public:
            what = "the model exists and is private"
            do = "leave out --public, or make the model public in its settings on the Hub"
        else:
            what = "the model exists and is public"
            do = "add --public, or name a new model"
        raise UserError(what, self._where, do, kind=CONFLICT, value=str(self.name))

    def upload(self, folder: Path) -> Upload:
        """Upload the files of a folder, and compare what the Hub lists afterwards.

        Weights of the model that the folder does not have are removed in the same commit, because a
        program could read them in place of the new ones.

        Args:
            folder: A model folder in Hugging Face's layout. Folders in it are not uploaded.

        Raises:
            UserError: The Hub refuses the upload or does not answer, or has other files afterwards.
        """
        self.check_visibility()
        paths = {path.name: path for path in sorted(folder.iterdir()) if path.is_file()}
        total = sum(path.stat().st_size for path in paths.values())
        log.info(f"uploading {len(paths)} files ({total / 1e6:,.1f} MB) to {self.name}")
        try:
            self._api.create_repo(self.name.repository, private=not self.public, exist_ok=True)
            info = self._api.model_info(self.name.repository, files_metadata=True)
            stale = tuple(
                file.name
                for file in model_hub.list_files(info)
                if file.name not in paths and _is_weight_file(file.name)
            )
            operations = [
                *(self._hub.CommitOperationDelete(name) for name in stale),
                *(self._hub.CommitOperationAdd(name, path) for name, path in paths.items()),
            ]
            commit = self._api.create_commit(
                self.name.repository, operations, commit_message="Upload a converted model"
            )
            info = self._api.model_info(
                self.name.repository, revision=commit.oid, files_metadata=True
            )
        except Exception as error:  # noqa: BLE001 (errors of several libraries)
            raise self._explain_error(error) from None
        self._compare(paths, stale, info)
        return Upload(str(commit.oid), stale, bool(info.private))

    def _read_model(self) -> Any:
        """Return the Hub's description of the model, or None if there is no such model."""
        errors = importlib.import_module("huggingface_hub.errors")
        try:
            return self._api.model_info(
                self.name.repository, timeout=model_hub.TIMEOUT_SECONDS, files_metadata=True
            )
        except errors.RepositoryNotFoundError:
            return None
        except Exception as error:  # noqa: BLE001 (errors of several libraries)
            raise self._explain_error(error) from None

    def _compare(self, paths: dict[str, Path], stale: tuple[str, ...], info: Any) -> None:
        """Raise UserError unless the Hub lists the files with their hashes, and no stale one."""
        listed = {file.name: file for file in model_hub.list_files(info)}
        differing = [
            name
            for name, path in paths.items()
            if name not in listed or not model_hub.is_intact(path, listed[name])
        ]
        differing += [name for name in stale if name in listed]
        if differing:
            raise UserError(
                f"the Hub has another {differing[0]!r} than was uploaded",
                self._where,
                "start the same command again",
                kind=DIFFERS,
                value=differing[0],
            )

    def _explain_error(self, error: Exception) -> UserError:
        """Return the error for an exception of the library.

        Nothing of the exception's text is shown, because the text may have an address with a query.
        """
        status = model_hub.find_status(error)
        if status in (_UNAUTHORIZED, _FORBIDDEN):
            what = f"the Hub does not let this token write the model (status {status})"
            do = "set HF_TOKEN to a token that may write, and check the owner's name"
            kind = DENIED
        elif status == _TOO_MANY_REQUESTS:
            what = "the Hub takes no more requests for now (status 429)"
            do = "wait some minutes, and start the same command again"
            kind = UNREACHABLE
        else:
            reason = f"status {status}" if status else type(error).__name__
            what = f"the Hub does not answer as expected ({reason})"
            do = "check the network and HF_ENDPOINT, and start the same command again"
            kind = UNREACHABLE
        return UserError(what, self._where, do, kind=kind, value=str(self.name))


def _is_weight_file(name: str) -> bool:
    """Return whether the name of a file is that of weights."""
    return any(pattern.fullmatch(name) for pattern in model_hub.WEIGHT_FILES)
