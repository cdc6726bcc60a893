"""Run the programs of container engines, and explain their failures in one line."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
from typing import IO, TYPE_CHECKING

from builder.core.secrets import redact
from builder.core.subprocesses import join_lines
from rosetta.core.errors import (
    DENIED,
    FAILED,
    MISSING,
    TOO_BIG,
    UNREACHABLE,
    UNSUPPORTED,
    UserError,
)
from rosetta.core.printable_text import escape

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

# Patterns of engines' messages: what they mean, what to do, and the kind of the error. The first
# pattern that matches counts.
_MEANINGS = (
    (
        r"no space left on device|disk quota exceeded",
        "the disk is full",
        (
            "free some space (the engine's storage counts: docker system prune, buildah rmi "
            "--prune), then run again"
        ),
        TOO_BIG,
    ),
    (
        r"exec format error|exec user process caused",
        "the engine cannot run programs of that architecture",
        (
            "apt-get install qemu-user-static binfmt-support on the engine's machine, or build on "
            "one of that architecture"
        ),
        UNSUPPORTED,
    ),
    (
        r"permission denied while trying to connect|connect: permission denied",
        "the Docker daemon does not let this user in",
        "add the user to the group docker and log in again, or give --engine buildah",
        DENIED,
    ),
    (
        (
            r"cannot connect to the docker daemon|is the docker daemon running|error during "
            r"connect|docker\.sock: no such file|failed to connect to the docker api"
        ),
        "the Docker daemon does not answer",
        "start it (systemctl start docker), set DOCKER_HOST, or give --engine buildah",
        UNREACHABLE,
    ),
    (
        (
            r"buildx component is missing|buildkit is enabled but|unknown flag: "
            r"--(secret|progress)|the --mount option requires buildkit"
        ),
        "docker has no BuildKit",
        (
            "install docker-buildx (docker-buildx-plugin in Docker's own packages), or give "
            "--engine buildah"
        ),
        MISSING,
    ),
    (
        (
            r"no matching manifest for|no image found in (image index|manifest list)|does not "
            r"provide the specified platform|does not match the specified platform"
        ),
        "the image is not there for that architecture",
        "give another --base or --platform",
        UNSUPPORTED,
    ),
    (
        r"unauthorized|authentication required|denied: ",
        "the registry does not let this user have the image, or has none of that name",
        "log in to it (docker login, buildah login), or check the name",
        DENIED,
    ),
    (
        (
            r"manifest unknown|pull access denied|repository does not exist|: not found|image not "
            r"known|no such image|name unknown"
        ),
        "there is no such image",
        "check its name and tag",
        MISSING,
    ),
    (
        (
            r"no such host|dial tcp|i/o timeout|tls handshake|x509|connection refused|temporary "
            r"failure|network is unreachable|server misbehaving"
        ),
        "the registry cannot be reached",
        "check the network, or give --base bootstrap",
        UNREACHABLE,
    ),
)
_NOISE_LINE = re.compile(
    r"^(#\d+ "
    r"(CACHED|DONE|\.\.\.|\[|transferring|sha256|exporting)|-+$|\s*>|\s*$|"
    r"Dockerfile\.base:\d+$|\s+\d+ \||Storing signatures|Writing manifest|"
    r"Copying (blob|config)|time=)"
)
# What engines put before the reason of a failed step. _STATUS_ONLY is a message without a reason.
_WRAPPER = re.compile(
    r'(failed to (build|solve): |building at STEP ".*?": |process ".*" did not complete '
    r"successfully: |while running runtime: )"
)
_STATUS_ONLY = re.compile(r"exit (code|status):? \d+")
_SHOWN_LINES = 5  # lines of an engine's message that an error shows


def run_program(
    *argv: str,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    feed: Callable[[IO[bytes]], None] | None = None,
    into: Path | None = None,
    where: str = "",
    check: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Run a program of an engine.

    Args:
        *argv: The program and its arguments.
        env: Added to the environment.
        cwd: The folder to run in.
        feed: Writes the standard input, if given.
        into: A file for the standard output, if given.
        where: What the error names as its place.
        check: Whether a bad exit status is an error.

    Raises:
        UserError: The program is missing, or failed and `check` is set.
    """
    with contextlib.ExitStack() as stack:
        out: IO[bytes] = stack.enter_context(open(into, "wb") if into else tempfile.TemporaryFile())  # noqa: SIM115 - closed by the stack
        err: IO[bytes] = stack.enter_context(tempfile.TemporaryFile())
        environment = _make_environment(argv[0], env)
        try:
            process = subprocess.Popen(
                [*_kill_with_parent(argv[0], environment.get("PATH")), *argv],
                stdin=subprocess.PIPE if feed else subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=environment,
                cwd=cwd,
            )
        except OSError as error:
            raise UserError(
                f"{argv[0]} cannot be run ({error.strerror})",
                where or argv[0],
                f"install {argv[0]}",
                kind=MISSING,
                value=argv[0],
            ) from error
        try:
            if feed and process.stdin:
                # If the program gave up reading, its own message says why.
                with contextlib.suppress(BrokenPipeError), process.stdin as stream:
                    feed(stream)
            process.wait()
        except BaseException:
            process.kill()
            process.wait()
            raise
        stdout, stderr = "" if into else _read_text(out), _read_text(err)
    done = subprocess.CompletedProcess(argv, process.returncode, stdout, stderr)
    if check and done.returncode:
        raise explain_failure(f"{done.stdout}\n{done.stderr}", where or " ".join(argv[:2]))
    return done


def _make_environment(program: str, env: Mapping[str, str] | None) -> dict[str, str]:
    environment = {**os.environ, "LC_ALL": "C.UTF-8", **(env or {})}
    settings = os.path.join(environment.get("DOCKER_CONFIG", ""), "config.json")
    if program != "docker" and not os.path.exists(settings):
        # buildah and podman stop if the variable names a folder without that file.
        environment.pop("DOCKER_CONFIG", None)
    return environment


def _kill_with_parent(program: str, path: str | None) -> list[str]:
    """Return the words before a program that make the kernel kill it when the builder dies.

    Otherwise the program would go on, and give its image a name that the next run has removed.
    """
    if shutil.which("setpriv", path=path) and shutil.which(program, path=path):
        return ["setpriv", "--pdeathsig", "KILL", "--"]
    return []


def _read_text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8", "replace")


def explain_failure(output: str, where: str) -> UserError:
    """Return the error for a failed program.

    Args:
        output: What the program printed.
        where: What the error names as its place.
    """
    output = _drop_warnings(output)
    # docker/install-packages marks its own errors with "rosetta: ".
    own_errors = re.findall(r"(?m)^(?:#\d+ [\d.]+ )?rosetta: (.+)$", output)
    for pattern, what, do, kind in _MEANINGS[:2] if own_errors else _MEANINGS:
        if match := re.search(pattern, output, re.IGNORECASE):
            line = _find_line(output, match.group(0))
            return UserError(f"{what} ({_shorten_line(line)})", where, do, kind=kind)
    lines = [line for line in output.splitlines() if not _NOISE_LINE.match(line)]
    if own_errors:
        message = own_errors[-1]
        apt_errors = [line for line in lines if re.match(r"(#\d+ [\d.]+ )?E: ", line)]
        if apt_errors:
            message += f" ({_shorten_line(apt_errors[0])})"
        return UserError(
            escape(redact(message)),
            where,
            (
                "check the package archive's settings (sources, proxies, certificates), or give "
                "another --base"
            ),
            kind=FAILED,
        )
    messages = [_drop_wrapper(_shorten_line(line)) for line in lines]
    reasons = [line for line in messages if not _STATUS_ONLY.fullmatch(line)]
    return UserError(
        join_lines((reasons or messages)[-_SHOWN_LINES:]),
        where,
        "correct what the engine's message names, then run again",
        kind=FAILED,
    )


def _drop_warnings(output: str) -> str:
    """Return the output without warnings and notes of the engine, if anything else is left."""
    serious = [
        line
        for line in output.splitlines()
        if not re.match(r'time="[^"]*" level=(warning|info|debug)', line)
    ]
    return "\n".join(serious) if any(line.strip() for line in serious) else output


def _find_line(output: str, text: str) -> str:
    """Return the line of the output that has a text; empty if the text has several lines."""
    if "\n" in text:
        return ""
    return next(line for line in output.splitlines() if text in line)


def _drop_wrapper(line: str) -> str:
    """Return a line without the words that an engine puts before the reason."""
    return _WRAPPER.sub("", line)


def _shorten_line(line: str) -> str:
    """Return a line without secrets, prefixes and what is longer than 300 characters."""
    text = re.sub(
        r"^(#\d+ )?([\d.]+ )?((ERROR|Error|error|E):? )?", "", escape(redact(line).strip())
    )
    return text if len(text) <= 300 else f"{text[:297]}..."
