"""How an engine's program is run, and one line for what went wrong."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from builder.images.engines import engine_program
from rosetta.core.errors import UserError
from tests.support import errors

if TYPE_CHECKING:
    from pathlib import Path


def test_input_and_output(tmp_path: Path) -> None:
    done = engine_program.run_program(
        "sh",
        "-c",
        "cat; echo err >&2",
        write_input=lambda out: out.write(b"in"),  # type: ignore[arg-type]
        output_file=tmp_path / "out",
    )
    assert (done.returncode, (tmp_path / "out").read_bytes(), done.stderr) == (0, b"in", "err\n")
    assert engine_program.run_program("sh", "-c", "exit 3", check=False).returncode == 3


def test_a_program_that_is_missing() -> None:
    with errors.expect_user_error(
        errors.MISSING,
        where="no-such-engine",
        value="no-such-engine",
        remedy="install no-such-engine",
    ):
        engine_program.run_program("no-such-engine", "version", check=False)


def test_a_program_that_cannot_be_started_is_not_called_missing(tmp_path: Path) -> None:
    folder = tmp_path / "nowhere"
    with errors.expect_user_error(errors.FAILED, where="sh", remedy=folder):
        engine_program.run_program("sh", "-c", "true", cwd=folder)
    program = tmp_path / "engine"
    program.write_text("")
    with errors.expect_user_error(errors.FAILED, where=program, remedy=program):
        engine_program.run_program(str(program), "version")


def test_one_that_stops_reading_is_judged_by_its_own_words() -> None:
    def feed(out: object) -> None:
        for _ in range(1000):
            out.write(bytes(1 << 16))  # type: ignore[attr-defined]

    with errors.expect_user_error(errors.TOO_BIG, where="sh -c", names="/x"):
        engine_program.run_program(
            "sh", "-c", "echo 'write /x: no space left on device' >&2; exit 1", write_input=feed
        )


def test_what_stops_the_feeding_stops_the_program() -> None:
    def feed(_: object) -> None:
        raise UserError("is gone", "blob", "run again", kind=errors.MISSING)

    with errors.expect_user_error(errors.MISSING, where="blob", remedy="run again"):
        engine_program.run_program("sh", "-c", "cat > /dev/null", write_input=feed)


@pytest.mark.parametrize(
    ("printed", "kind", "remedy"),
    [
        (
            "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?",
            errors.UNREACHABLE,
            "systemctl",
        ),
        (
            "error during connect: this error may indicate that the docker daemon is not running",
            errors.UNREACHABLE,
            "DOCKER_HOST",
        ),
        (
            "permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock",
            errors.DENIED,
            "group docker",
        ),
        (
            "ERROR: BuildKit is enabled but the buildx component is missing or broken.",
            errors.MISSING,
            "docker-buildx",
        ),
        (
            "#5 0.1 exec /bin/sh: exec format error",
            errors.UNSUPPORTED,
            "qemu-user-static",
        ),
        (
            "Error processing tar file(exit status 1): write /x: no space left on device",
            errors.TOO_BIG,
            "buildah rmi",
        ),
        (
            "manifest for x:1 not found: manifest unknown: manifest unknown",
            errors.MISSING,
            "tag",
        ),
        (
            "no matching manifest for linux/arm64/v8 in the manifest list entries",
            errors.UNSUPPORTED,
            "--platform",
        ),
        (
            "denied: requested access to the resource is denied",
            errors.DENIED,
            "log in",
        ),
        (
            'Head "https://registry.invalid/v2/": dial tcp: lookup registry.invalid: no such host',
            errors.UNREACHABLE,
            "--base bootstrap",
        ),
    ],
)
def test_meanings(printed: str, kind: str, remedy: str) -> None:
    error = engine_program.explain_failure(f"#1 DONE\n{printed}\n", "engine")
    errors.check_error(error, kind, where="engine", remedy=remedy)
    assert "\n" not in str(error)


DOCKER_STEP = """#6 [2/2] RUN sh install-packages
#6 0.21 first
#6 0.22 mkdir: /x: Permission denied
#6 ERROR: process "/bin/sh -c sh install-packages" did not complete successfully: exit code: 1
------
 > [2/2] RUN sh install-packages:
0.21 first
0.22 mkdir: /x: Permission denied
------
Dockerfile.base:17
--------------------
  16 |
  17 | >>> RUN sh install-packages
--------------------
ERROR: failed to solve: process "/bin/sh -c sh install-packages" did not complete successfully: exit code: 1
"""


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        (DOCKER_STEP, "first | mkdir: /x: Permission denied"),
        (
            'ERROR: failed to solve: process "/bin/sh -c x" did not complete successfully: user 7: invalid argument\n',
            "user 7: invalid argument",
        ),
        (
            'STEP 2/3: USER 7\nmkdir: denied\nError: building at STEP "RUN x": while running runtime: exit status 1\n',
            "STEP 2/3: USER 7 | mkdir: denied",
        ),
        (
            'ERROR: failed to solve: process "x" did not complete successfully: exit code: 7\n',
            "exit code: 7",
        ),
        ("\x1b[31mred\n", r"\x1b[31mred"),
    ],
)
def test_the_end_of_the_engines_message_is_shown(printed: str, shown: str) -> None:
    error = engine_program.explain_failure(printed, "engine")
    errors.check_error(error, errors.FAILED, where="engine")
    assert error.what == shown


def test_an_engine_that_prints_nothing() -> None:
    error = engine_program.explain_failure("", "engine")
    errors.check_error(error, errors.FAILED, where="engine", names="no message")


def test_our_own_words_come_first_and_with_apts() -> None:
    error = engine_program.explain_failure(
        "#5 1.2 E: Unable to locate: nope\n#5 1.2 rosetta: apt-get install failed\n#5 ERROR: process did not complete successfully: exit code: 1\n",
        "step",
    )
    assert error.what == "apt-get install failed (Unable to locate: nope)"


def test_an_archive_out_of_reach_is_no_registry() -> None:
    error = engine_program.explain_failure(
        "#5 1.2 E: Temporary failure resolving 'mirror'\n#5 1.2 rosetta: apt-get update failed: the package archive cannot be reached\n",
        "step",
    )
    assert error.what.startswith("apt-get update failed")
    assert "sources, proxies" in error.do
    full = f"E: write: {os.strerror(errno.ENOSPC)}\nrosetta: apt-get install failed\n"
    errors.check_error(engine_program.explain_failure(full, "step"), errors.TOO_BIG, where="step")


def test_nothing_secret_is_shown() -> None:
    error = engine_program.explain_failure(
        "E: Failed to fetch http://user:hunter2@mirror/x MY_TOKEN=hunter2\nrosetta: apt-get update failed\n",
        "step",
    )
    assert "hunter2" not in str(error)
    assert "hunter2" not in str(
        engine_program.explain_failure("Error: cannot reach https://user:hunter2@host/v2/", "step")
    )


def test_warnings_are_not_the_cause() -> None:
    error = engine_program.explain_failure(
        'time="x" level=warning msg="no space left on device, retrying"\nError: short-name "nope" did not resolve\n',
        "buildah",
    )
    assert error.what.startswith("short-name")
