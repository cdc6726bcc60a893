"""Who we are to a registry: what `docker login` or `podman login` left, read where they leave it.

Nothing here is ever printed.
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
    from collections.abc import Iterator

    from builder.images.oci.reference import Reference

_HELPER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class Credentials:
    """A user and a password, or the token that a login gave to be exchanged for others."""

    user: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    identity_token: str = field(default="", repr=False)

    @property
    def basic_header(self) -> str:
        """The Authorization header of these; empty without a user."""
        return (
            "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
            if self.user
            else ""
        )


ANONYMOUS = Credentials()


def list_files() -> list[Path]:
    """Where logins are kept, the first to be asked first."""
    home = Path(os.path.expanduser("~"))
    docker = Path(os.environ.get("DOCKER_CONFIG") or home / ".docker") / "config.json"
    found = [Path(own)] if (own := os.environ.get("REGISTRY_AUTH_FILE")) else []
    found.append(docker)
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        found.append(Path(runtime) / "containers/auth.json")
    return [
        *found,
        Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config") / "containers/auth.json",
    ]


def find_credentials(reference: Reference) -> Credentials:
    """Return the credentials for a repository; NOBODY where none are kept.

    Raises UserError for a file or a helper that is broken.
    """
    for file in list_files():
        try:
            raw = file.read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(
                "the credentials of registries cannot be read",
                str(file),
                "mend it, or log in again",
            ) from error
        try:
            settings = json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise UserError(
                "is not JSON", str(file), "mend it, or log in again", kind=INVALID
            ) from error
        if (
            isinstance(settings, dict)
            and (found := _read_settings(settings, reference, file)) is not None
        ):
            return found
    return ANONYMOUS


def _login_names(reference: Reference) -> Iterator[str]:
    """Yield the names under which a login may stand, the narrowest first."""
    parts = reference.name.split("/")
    for end in range(len(parts), 0, -1):
        yield f"{reference.host}/{'/'.join(parts[:end])}"
    hosts = [
        reference.host,
        *([f"index.{reference.host}"] if reference.host == "docker.io" else []),
    ]
    yield from hosts


def _group_by_registry(value: Any) -> dict[str, list[tuple[str, Any]]]:
    """Return the entries of an object, each with its key as it stands, by the registry that the key
    names.

    Programs write a scheme, a version and slashes around the name; a key without them comes first.
    """
    entries: dict[str, list[tuple[str, Any]]] = {}
    for key, item in (
        sorted(value.items(), key=lambda pair: len(pair[0])) if isinstance(value, dict) else ()
    ):
        bare = re.sub(r"^https?://", "", key, flags=re.IGNORECASE).rstrip("/")
        entries.setdefault(re.sub(r"/v[12]$", "", bare), []).append((key, item))
    return entries


def _read_settings(
    settings: dict[str, Any], reference: Reference, file: Path
) -> Credentials | None:
    helpers, auths = (_group_by_registry(settings.get(name)) for name in ("credHelpers", "auths"))
    names = list(_login_names(reference))
    for key, helper in [entry for name in names for entry in helpers.get(name, [])]:
        if (found := _ask_helper(helper, key, file)) is not None:
            return found
    stored = [entry for name in names for entry in auths.get(name, [])]
    for _, known in stored:
        if isinstance(known, dict) and (found := _read_stored_login(known, file)) is not None:
            return found
    if store := settings.get("credsStore"):
        for key in dict.fromkeys([*(key for key, _ in stored), reference.host]):
            if (found := _ask_helper(store, key, file)) is not None:
                return found
    return None


def _read_stored_login(known: dict[str, Any], file: Path) -> Credentials | None:
    identity = known.get("identitytoken")
    if isinstance(identity, str) and identity:
        return Credentials(identity_token=identity)
    user, password = known.get("username"), known.get("password")
    if isinstance(known.get("auth"), str) and known["auth"]:
        try:
            user, colon, password = (
                base64.b64decode(known["auth"], validate=True).decode().rstrip("\0").partition(":")
            )
        except (binascii.Error, UnicodeDecodeError):
            colon = ""
        if not colon:
            raise UserError(
                "the credentials of a registry are not base64 of user:password",
                str(file),
                "log in again",
                kind=INVALID,
            )
    return (
        Credentials(user, password)
        if isinstance(user, str) and user and isinstance(password, str)
        else None
    )


def _ask_helper(helper: Any, key: str, file: Path) -> Credentials | None:
    """Return what a program of the user's keeps for `key`; None where it keeps nothing.

    Its output is never shown: it may hold what we keep secret.
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
