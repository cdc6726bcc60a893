"""uv as a subroutine: the pinned program beside our Python, the machine's index settings, errors in
one line.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from builder.core import package_index
from builder.core.subprocesses import output_end
from rosetta.core.errors import (
    DAMAGED,
    DENIED,
    FAILED,
    MISSING,
    TOO_BIG,
    UNREACHABLE,
    UserError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

# Of uv's settings only those that say where from and how to fetch; none that could change what is
# installed.
_TAKEN = re.compile(
    r"UV_(CACHE_DIR|DEFAULT_INDEX|INDEX|INDEX_URL|EXTRA_INDEX_URL|INDEX_\w+_(USERNAME|PASSWORD)|HTTP_\w+|REQUEST_TIMEOUT|NATIVE_TLS|SYSTEM_CERTS|"
    r"INSECURE_HOST|KEYRING_PROVIDER|CONCURRENT_\w+|LOCK_TIMEOUT)"
)
# Characters of uv's message that an error shows: its reason stands at the beginning, its hints at
# the end.
_LONGEST = 1000


def find_program() -> str:
    """Return the path of the uv that the builder's own lock pins."""
    path = Path(sys.executable).with_name("uv")
    if not path.is_file():
        raise UserError(
            "the builder's uv is missing",
            str(path),
            "delete the folder .venv and run build.py again",
        )
    return str(path)


def make_environment(
    *, offline: bool = False, extra: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the caller's environment without what would change uv's result.

    Where uv's settings name no index, the environment names the one that pip would use.
    """
    env = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("UV_", "VIRTUAL_ENV", "PYTHON")) or _TAKEN.fullmatch(key)
    }
    env |= {
        "UV_NO_PROGRESS": "1",
        "NO_COLOR": "1",
        "UV_NO_CONFIG": "1",
        "UV_PYTHON_DOWNLOADS": "never",
        "UV_NO_INSTALLER_METADATA": "1",
    }
    # Never hard links, which "clone" falls back to as well: uv's cache serves other environments,
    # whose files people edit. "copy" makes reflinks where the file system can (Rust's fs::copy
    # calls copy_file_range).
    env["UV_LINK_MODE"] = "copy"
    if not any(env.get(name) for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL")) and (
        url := package_index.find_index_url()
    ):
        env["UV_DEFAULT_INDEX"] = url
    if (bundle := package_index.find_ca_bundle()) and not env.get("SSL_CERT_FILE"):
        env["SSL_CERT_FILE"] = bundle
    if offline:
        env["UV_OFFLINE"] = "1"
    return env | dict(extra or {})


def run(
    *args: str,
    offline: bool = False,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    where: str = "uv",
    check: bool = True,
    binary: str = "",
) -> subprocess.CompletedProcess[str]:
    """Run `uv *args` (the program `binary`, else ours); with `check`, a failure is a UserError
    with the cause that uv names.
    """
    done = subprocess.run(
        [binary or find_program(), *args],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env=make_environment(offline=offline, extra=env),
    )
    if check and done.returncode:
        what, do, kind = explain_failure(done.stderr, offline=offline)
        raise UserError(what, where, do, kind=kind)
    return done


def explain_failure(stderr: str, *, offline: bool) -> tuple[str, str, str]:
    """Return one line for what uv printed, its hints included, what to do, and the kind."""
    lines = [re.sub(r"^[\s×╰├│─▶>-]+", "", line).strip() for line in stderr.splitlines()]  # noqa: RUF001 - what uv draws
    lines = [
        line.removeprefix("error: ")
        for line in lines
        if line and not line.startswith(("Using ", "Resolved", "warning:"))
    ]
    text = output_end(" ".join(lines), longest=_LONGEST)
    if refused := explain_refusal(stderr):
        return refused
    if "hash mismatch" in text.lower():
        return (
            f"a downloaded package is not the locked one: {text}",
            "nothing was installed; run again, and if it stays, the index serves a different file",
            DAMAGED,
        )
    if "no space left" in text.lower():
        return f"the disk is full: {text}", "free some space and run again", TOO_BIG
    if offline and re.search(
        r"offline|network was disabled|not found in the cache|connectivity is disabled",
        text,
        re.IGNORECASE,
    ):
        return (
            f"a locked package is not in the cache: {text}",
            "run once without --offline",
            MISSING,
        )
    if re.search(
        (
            r"dns error|connect error|connection|timed? ?out|network|sending "
            r"request|unreachable|failed to fetch"
        ),
        text,
        re.IGNORECASE,
    ):
        return (
            f"the package index cannot be reached: {text}",
            "check the network and the index settings, then run again: what was fetched is kept",
            UNREACHABLE,
        )
    return f"uv failed: {text}", "mend what uv names, then run again", FAILED


def explain_refusal(stderr: str) -> tuple[str, str, str] | None:
    """Return what to say, what to do and the kind where an index or a proxy refused the user.

    None where none did.

    uv reads a refusal as a package that does not exist, and names it in a hint only.
    """
    found = re.search(
        (
            r"lack of valid authentication credentials|401 Unauthorized|403 Forbidden|407 Proxy "
            r"Authentication"
        ),
        stderr,
    )
    if not found:
        return None
    start = stderr.rfind("\n", 0, found.start()) + 1
    line = output_end(stderr[start:].split("\n", 1)[0].strip().removeprefix("hint: "))
    if found[0].startswith("407"):
        return (
            f"the proxy refuses the user: {line}",
            "check the user and the password of the proxy settings",
            DENIED,
        )
    return (
        f"the package index refuses the credentials, or was given none: {line}",
        "check the user and the password of the index settings",
        DENIED,
    )
