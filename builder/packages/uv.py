"""Run the pinned uv with the machine's index settings, and explain its failures in one line."""

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
    from collections.abc import Callable, Mapping

# The settings of uv that say how and from where to fetch. Other settings could change what is
# installed.
_PASSED_SETTINGS = re.compile(
    r"UV_(CACHE_DIR|DEFAULT_INDEX|INDEX|INDEX_URL|EXTRA_INDEX_URL|INDEX_\w+_(USERNAME|PASSWORD)|HTTP_\w+|REQUEST_TIMEOUT|NATIVE_TLS|SYSTEM_CERTS|"
    r"INSECURE_HOST|KEYRING_PROVIDER|CONCURRENT_\w+|LOCK_TIMEOUT)"
)
# The number of characters of uv's message that an error shows. The reason is at the beginning, and
# the hints are at the end.
_LONGEST = 1000
DOWNLOADED = "Downloaded "  # what a line begins with that names a package
_PROGRESS_LINES = ("Using ", "Resolved", "warning:", "Downloading ", DOWNLOADED, "Prepared ")


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
    """Return the environment variables for uv.

    They are the caller's variables without those that would change uv's result. If uv's settings
    name no index, the variables name the index that pip would use.

    Args:
        offline: Let uv fetch nothing from the network.
        extra: More variables, which take precedence.
    """
    env = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("UV_", "VIRTUAL_ENV", "PYTHON")) or _PASSED_SETTINGS.fullmatch(key)
    }
    env |= {
        "UV_NO_PROGRESS": "1",
        "NO_COLOR": "1",
        "UV_NO_CONFIG": "1",
        "UV_PYTHON_DOWNLOADS": "never",
        "UV_NO_INSTALLER_METADATA": "1",
    }
    # Hard links, which "clone" falls back to, would share files with uv's cache: people edit the
    # files of other environments. "copy" makes reflinks if the file system supports them, because
    # Rust's fs::copy calls copy_file_range.
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
    read_line: Callable[[str], None] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run uv and return the finished process.

    Args:
        *args: The arguments.
        offline: Fetch nothing from the network.
        cwd: The working folder.
        env: More environment variables.
        where: What the error message names as the place of a failure.
        check: Turn a failure into a UserError.
        binary: The program, instead of the builder's own uv.
        read_line: Called with each line of stderr as soon as uv has written it.

    Raises:
        UserError: uv failed and `check` is set; the error names the reason that uv gave.
    """
    words = [binary or find_program(), *args]
    variables = make_environment(offline=offline, extra=env)
    if read_line is None:
        done = subprocess.run(
            words, capture_output=True, text=True, check=False, cwd=cwd, env=variables
        )
    else:
        done = _run_while_reading(words, cwd, variables, read_line)
    if check and done.returncode:
        reason, remedy, kind = explain_failure(done.stderr, offline=offline)
        raise UserError(reason, where, remedy, kind=kind)
    return done


def _run_while_reading(
    words: list[str],
    cwd: Path | None,
    variables: Mapping[str, str],
    read_line: Callable[[str], None],
) -> subprocess.CompletedProcess[str]:
    """Run a program that writes to stderr alone, and hand on each line while it runs."""
    with subprocess.Popen(
        words,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env=dict(variables),
    ) as process:
        lines = []
        try:
            for line in process.stderr or ():
                lines.append(line)
                read_line(line.strip())
        except BaseException:
            process.terminate()
            raise
    return subprocess.CompletedProcess(words, process.returncode, "", "".join(lines))


def explain_failure(stderr: str, *, offline: bool) -> tuple[str, str, str]:
    """Explain why uv failed.

    Args:
        stderr: What uv printed.
        offline: Whether uv ran without network.

    Returns:
        The reason with uv's hints in one line, what to do, and the kind of the error.
    """
    lines = [re.sub(r"^[\s×╰├│─▶>-]+", "", line).strip() for line in stderr.splitlines()]  # noqa: RUF001 - what uv draws
    lines = [
        line.removeprefix("error: ")
        for line in lines
        if line and not line.startswith(_PROGRESS_LINES)
    ]
    text = output_end(" ".join(lines), longest=_LONGEST)
    if refused := explain_refusal(stderr):
        return refused
    if "hash mismatch" in text.lower():
        return (
            f"a downloaded package is not the locked one: {text}",
            "nothing was installed; run again; if the error persists, the index is at fault",
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
            "check the network and the index settings, then run again: fetched files are kept",
            UNREACHABLE,
        )
    return f"uv failed: {text}", "correct what uv reports, then run again", FAILED


def explain_refusal(stderr: str) -> tuple[str, str, str] | None:
    """Explain that an index or a proxy refused the user; return None if none did.

    uv treats a refusal as a missing package, and reports the refusal only in a hint.
    """
    refusal = re.search(
        (
            r"lack of valid authentication credentials|401 Unauthorized|403 Forbidden|407 Proxy "
            r"Authentication"
        ),
        stderr,
    )
    if not refusal:
        return None
    start = stderr.rfind("\n", 0, refusal.start()) + 1
    line = output_end(stderr[start:].split("\n", 1)[0].strip().removeprefix("hint: "))
    if refusal[0].startswith("407"):
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
