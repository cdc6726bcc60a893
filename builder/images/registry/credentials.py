"""The credentials for registries that `docker login` and `podman login` have stored.

No credential is ever printed.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rosetta.core.errors import FAILED, INVALID, UserError

if TYPE_CHECKING:
    from builder.images.oci.reference import Reference

_HELPER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class Credentials:
    """A user and a password, or a token that a login gave to be exchanged for other tokens."""

    user: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    identity_token: str = field(default="", repr=False)

    @property
    def basic_header(self) -> str:
        """The value of the Authorization header; empty without a user."""
        if not self.user:
            return ""
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()


ANONYMOUS = Credentials()


def list_files() -> list[Path]:
    """Return the files that may have credentials, in the order in which they are searched."""
    home = Path(os.path.expanduser("~"))
    files = []
    if auth_file := os.environ.get("REGISTRY_AUTH_FILE"):
        files.append(Path(auth_file))
    files.append(Path(os.environ.get("DOCKER_CONFIG") or home / ".docker") / "config.json")
    if runtime_folder := os.environ.get("XDG_RUNTIME_DIR"):
        files.append(Path(runtime_folder) / "containers/auth.json")
    config_folder = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    files.append(config_folder / "containers/auth.json")
    return files


def find_credentials(reference: Reference) -> Credentials:
    """Return the stored credentials for a repository, or ANONYMOUS if there are none.

    Raises:
        UserError: A file with credentials or a credential helper does not work.
    """
    for file in list_files():
        settings = _read_file(file)
        if isinstance(settings, dict):
            credentials = _search_settings(settings, reference, file)
            if credentials is not None:
                return credentials
    return ANONYMOUS


def _read_file(file: Path) -> Any:
    """Return the content of a file with credentials; None if there is no such file."""
    try:
        text = file.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            "the credentials of registries cannot be read",
            str(file),
            "correct it, or log in again",
        ) from error
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(
            "is not JSON", str(file), "correct it, or log in again", kind=INVALID
        ) from error


def _list_login_names(reference: Reference) -> list[str]:
    """Return the names under which a login may be stored, the narrowest first."""
    parts = reference.name.split("/")
    names = [f"{reference.host}/{'/'.join(parts[:end])}" for end in range(len(parts), 0, -1)]
    names.append(reference.host)
    if reference.host == "docker.io":
        names.append(f"index.{reference.host}")
    return names


def _group_by_registry(value: Any) -> dict[str, list[tuple[str, Any]]]:
    """Return the entries of an object by the registry that their keys name.

    Programs write a scheme, a version and slashes around the name of the registry. Keys without
    them come first. Each entry keeps its key unchanged.
    """
    if not isinstance(value, dict):
        return {}
    entries: dict[str, list[tuple[str, Any]]] = {}
    for key, item in sorted(value.items(), key=lambda pair: len(pair[0])):
        bare = re.sub(r"^https?://", "", key, flags=re.IGNORECASE).rstrip("/")
        entries.setdefault(re.sub(r"/v[12]$", "", bare), []).append((key, item))
    return entries


def _search_settings(
    settings: dict[str, Any], reference: Reference, file: Path
) -> Credentials | None:
    """Return the credentials for a repository from one file; None if the file has none.

    The helpers of single registries come first, then the logins in the file, then the helper of
    all registries.
    """
    names = _list_login_names(reference)
    helpers = _group_by_registry(settings.get("credHelpers"))
    for name in names:
        for key, helper in helpers.get(name, []):
            credentials = _ask_helper(helper, key, file)
            if credentials is not None:
                return credentials
    logins = _group_by_registry(settings.get("auths"))
    stored = [entry for name in names for entry in logins.get(name, [])]
    for _, login in stored:
        credentials = _parse_login(login, file) if isinstance(login, dict) else None
        if credentials is not None:
            return credentials
    if store := settings.get("credsStore"):
        for key in dict.fromkeys([*(key for key, _ in stored), reference.host]):
            credentials = _ask_helper(store, key, file)
            if credentials is not None:
                return credentials
    return None


def _parse_login(login: dict[str, Any], file: Path) -> Credentials | None:
    """Return the credentials of one login in a file; None if the file names only the registry."""
    token = login.get("identitytoken")
    if isinstance(token, str) and token:
        return Credentials(identity_token=token)
    user, password = login.get("username"), login.get("password")
    encoded = login.get("auth")
    if isinstance(encoded, str) and encoded:
        user, password = _decode_login(encoded, file)
    if isinstance(user, str) and user and isinstance(password, str):
        return Credentials(user, password)
    return None


def _decode_login(encoded: str, file: Path) -> tuple[str, str]:
    """Return the user and the password of an `auth` field."""
    try:
        text = base64.b64decode(encoded, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        text = ""
    user, colon, password = text.rstrip("\0").partition(":")
    if not colon:
        raise UserError(
            "the credentials of a registry are not base64 of user:password",
            str(file),
            "log in again",
            kind=INVALID,
        )
    return user, password


def _ask_helper(helper: Any, key: str, file: Path) -> Credentials | None:
    """Return what a credential helper has for a registry; None if it has nothing.

    The helper's output is never shown: it may have secrets.

    Args:
        helper: X of the program docker-credential-X.
        key: The registry, as the file names it.
        file: The file that names the helper, for errors.
    """
    if not isinstance(helper, str) or not _HELPER_NAME.fullmatch(helper):
        raise UserError(
            "names no credential helper",
            str(file),
            "give the X of a program docker-credential-X",
            kind=INVALID,
        )
    program = f"docker-credential-{helper}"
    try:
        done = subprocess.run(
            [program, "get"], input=key.encode(), capture_output=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(
            f"{program} does not run", str(file), "install it, or take it out of the file"
        ) from error
    if done.returncode:
        if b"credentials not found" in done.stdout + done.stderr:
            return None
        raise UserError(
            f"{program} failed with status {done.returncode}",
            str(file),
            f"try it: echo {key} | {program} get",
            kind=FAILED,
        )
    try:
        answer = json.loads(done.stdout)
        user, secret = str(answer["Username"]), str(answer["Secret"])
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{program} did not answer as a credential helper does",
            str(file),
            "install another one",
        ) from error
    if not secret:
        return None
    return Credentials(identity_token=secret) if user == "<token>" else Credentials(user, secret)
