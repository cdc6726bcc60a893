"""Run the programs of container engines, and explain their failures in one line."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
from typing import IO, TYPE_CHECKING, NamedTuple

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


class _KnownFailure(NamedTuple):
    """A failure of engines that their messages show.

    Attributes:
        pattern: A regular expression that the message matches, in any case of its letters.
        problem: What is wrong, in words for the user.
        remedy: What the user can do.
        kind: The kind of the error.
    """

    pattern: str
    problem: str
    remedy: str
    kind: str


# The first pattern that matches counts. The output of a script inside the container is searched for
# _MACHINE_FAILURES only: there, "connection refused" is about a package archive, not a registry.
_MACHINE_FAILURES = (
    _KnownFailure(
        r"no space left on device|disk quota exceeded",
        "the disk is full",
        (
            "free some space (the engine's storage counts: docker system prune, buildah rmi "
            "--prune), then run again"
        ),
        TOO_BIG,
    ),
    _KnownFailure(
        r"exec format error|exec user process caused",
        "the engine cannot run programs of that architecture",
        (
            "apt-get install qemu-user-static binfmt-support on the engine's machine, or build on "
            "one of that architecture"
        ),
        UNSUPPORTED,
    ),
)
_KNOWN_FAILURES = (
    *_MACHINE_FAILURES,
    _KnownFailure(
        r"permission denied while trying to connect|connect: permission denied",
        "the Docker daemon refuses connections from this user",
        "add the user to the group docker and log in again, or give --engine buildah",
        DENIED,
    ),
    _KnownFailure(
        (
            r"cannot connect to the docker daemon|is the docker daemon running|error during "
            r"connect|docker\.sock: no such file|failed to connect to the docker api"
        ),
        "the Docker daemon does not answer",
        "start it (systemctl start docker), set DOCKER_HOST, or give --engine buildah",
        UNREACHABLE,
    ),
    _KnownFailure(
        (
            r"buildx component is missing|buildkit is enabled but|unknown flag: "
            r"--(secret|progress)|the --mount option requires buildkit"
        ),
        "Docker's BuildKit is not installed",
        (
            "install docker-buildx (docker-buildx-plugin in Docker's own packages), or give "
            "--engine buildah"
        ),
        MISSING,
    ),
    _KnownFailure(
        (
            r"no matching manifest for|no image found in (image index|manifest list)|does not "
            r"provide the specified platform|does not match the specified platform"
        ),
        "the image is not available for that architecture",
        "give another --base or --platform",
        UNSUPPORTED,
    ),
    _KnownFailure(
        r"unauthorized|authentication required|denied: ",
        "the registry denies access to the image, or has no image of that name",
        "log in to it (docker login, buildah login), or check the name",
        DENIED,
    ),
    _KnownFailure(
        (
            r"manifest unknown|pull access denied|repository does not exist|: not found|image not "
            r"known|no such image|name unknown"
        ),
        "there is no such image",
        "check its name and tag",
        MISSING,
    ),
    _KnownFailure(
        (
            r"no such host|dial tcp|i/o timeout|tls handshake|x509|connection refused|temporary "
            r"failure|network is unreachable|server misbehaving"
        ),
        "the registry cannot be reached",
        "check the network, or give --base bootstrap",
        UNREACHABLE,
    ),
)
# Progress, empty lines and quotes from the Dockerfile.
_NOISE_LINE = re.compile(
    r"^(#\d+ "
    r"(CACHED|DONE|\.\.\.|\[|transferring|sha256|exporting)|-+$|\s*>|\s*$|"
    r"Dockerfile\.base:\d+$|\s+\d+ \||Storing signatures|Writing manifest|"
    r"Copying (blob|config)|time=)"
)
# The words that engines put before the reason why a step failed.
_WRAPPER = re.compile(
    r'(failed to (build|solve): |building at STEP ".*?": |process ".*" did not complete '
    r"successfully: |while running runtime: )"
)
# A message that has an exit status and no reason.
_STATUS_ONLY = re.compile(r"exit (code|status):? \d+")
_SHOWN_LINES = 5  # lines of an engine's message that an error shows


def run_program(
    *argv: str,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    write_input: Callable[[IO[bytes]], None] | None = None,
    output_file: Path | None = None,
    where: str = "",
    check: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Run a program of an engine.

    Args:
        *argv: The program and its arguments.
        env: Variables to set in addition to those of this process.
        cwd: The folder to run in.
        write_input: Writes the program's standard input to the stream it gets; None for no input.
        output_file: The file to write the standard output to; None to return the output.
        where: The place that an error names; "" for the start of the command.
        check: Whether to raise an error if the exit status is not 0.

    Raises:
        UserError: The program is missing or cannot be started, or failed and `check` is set.
    """
    with contextlib.ExitStack() as stack:
        opened = open(output_file, "wb") if output_file else tempfile.TemporaryFile()  # noqa: SIM115 - closed by the stack
        stdout_file: IO[bytes] = stack.enter_context(opened)
        stderr_file: IO[bytes] = stack.enter_context(tempfile.TemporaryFile())
        environment = _make_environment(argv[0], env)
        try:
            process = subprocess.Popen(
                [*_make_parent_death_prefix(argv[0], environment.get("PATH")), *argv],
                stdin=subprocess.PIPE if write_input else subprocess.DEVNULL,
                stdout=stdout_file,
                stderr=stderr_file,
                env=environment,
                cwd=cwd,
            )
        except OSError as error:
            remedy, kind = f"correct the problem with {error.filename}", FAILED
            if isinstance(error, FileNotFoundError) and error.filename == argv[0]:
                remedy, kind = f"install {argv[0]}", MISSING
            raise UserError(
                f"{argv[0]} cannot be run ({error.strerror})",
                where or argv[0],
                remedy,
                kind=kind,
                value=argv[0],
            ) from error
        try:
            if write_input and process.stdin:
                # If the program stopped reading, its own message says why.
                with contextlib.suppress(BrokenPipeError), process.stdin as stream:
                    write_input(stream)
            process.wait()
        except BaseException:
            process.kill()
            process.wait()
            raise
        stdout = "" if output_file else _read_text(stdout_file)
        stderr = _read_text(stderr_file)
    completed = subprocess.CompletedProcess(argv, process.returncode, stdout, stderr)
    if check and completed.returncode:
        raise explain_failure(
            f"{completed.stdout}\n{completed.stderr}", where or " ".join(argv[:2])
        )
    return completed


def _make_environment(program: str, env: Mapping[str, str] | None) -> dict[str, str]:
    """Return the environment of a program: this process's, messages in English, and `env`."""
    environment = {**os.environ, "LC_ALL": "C.UTF-8", **(env or {})}
    settings = os.path.join(environment.get("DOCKER_CONFIG", ""), "config.json")
    if program != "docker" and not os.path.exists(settings):
        # buildah and podman stop if the variable names a folder without that file.
        environment.pop("DOCKER_CONFIG", None)
    return environment


def _make_parent_death_prefix(program: str, path: str | None) -> list[str]:
    """Return the start of a command line that makes the kernel kill the program with the builder.

    Otherwise the program would outlive the builder and tag its image after the next run has
    removed that tag. The prefix is empty if setpriv or the program is not installed.
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
        where: The place that the error names.
    """
    output = _drop_warnings(output)
    # The script docker/install-packages, which runs inside the container, marks its own errors with
    # "rosetta: ".
    script_errors = re.findall(r"(?m)^(?:#\d+ [\d.]+ )?rosetta: (.+)$", output)
    for failure in _MACHINE_FAILURES if script_errors else _KNOWN_FAILURES:
        if match := re.search(failure.pattern, output, re.IGNORECASE):
            line = _shorten_line(_find_line(output, match.group(0)))
            return UserError(
                f"{failure.problem} ({line})", where, failure.remedy, kind=failure.kind
            )
    lines = [line for line in output.splitlines() if not _NOISE_LINE.match(line)]
    if script_errors:
        message = script_errors[-1]
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
        "correct the problem in the engine's message, then run again",
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
