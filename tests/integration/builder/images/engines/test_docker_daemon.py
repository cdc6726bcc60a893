"""The ways to the Docker daemon: its socket, and the docker program for a context."""

from __future__ import annotations

import os
import subprocess
from typing import IO, TYPE_CHECKING

import pytest

from builder.images.engines import docker_daemon
from builder.images.engines.docker import Docker
from rosetta.core.errors import UserError
from tests.support import container_engines, errors

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.engine


@pytest.fixture(params=["socket", "context", "current context"])
def daemon(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> docker_daemon.Daemon:
    """The daemon of this machine, found in each way."""
    container_engines.need_engine("docker")
    if request.param != "socket":
        address = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
        _use_context(tmp_path, monkeypatch, address, current=request.param == "current context")
    return docker_daemon.Daemon()


def _use_context(
    folder: Path, monkeypatch: pytest.MonkeyPatch, address: str, *, current: bool
) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(folder))
    docker = ["docker", "context"]
    subprocess.run([*docker, "create", "away", "--docker", f"host={address}"], check=True)
    if current:
        subprocess.run([*docker, "use", "away"], check=True)
    else:
        monkeypatch.setenv("DOCKER_CONTEXT", "away")


def test_questions_and_answers(daemon: docker_daemon.Daemon) -> None:
    assert daemon.inspect("localhost/rosetta-test:there-is-none") == {}
    daemon.remove("localhost/rosetta-test:there-is-none")
    expected = subprocess.check_output(["docker", "image", "ls", "-q", "--no-trunc"], text=True)
    assert daemon.list_image_ids() == sorted(set(expected.split()))
    with errors.expect_user_error(errors.MISSING, where="localhost/rosetta-test:new"):
        daemon.tag("localhost/rosetta-test:there-is-none", "localhost/rosetta-test:new")
    with errors.expect_user_error(errors.MISSING, where="docker create"):
        daemon.create_container("localhost/rosetta-test:there-is-none", "")


def test_an_archive_that_is_none(daemon: docker_daemon.Daemon) -> None:
    def write_noise(out: IO[bytes]) -> None:
        for _ in range(64):
            out.write(os.urandom(1 << 20))

    with pytest.raises(UserError) as problem:
        daemon.load(write_noise)
    assert problem.value.where in ("docker load", "docker")


def test_a_writer_that_fails_says_why(daemon: docker_daemon.Daemon) -> None:
    def fail(out: IO[bytes]) -> None:
        out.write(b"oci-layout")
        raise failure

    failure = FileNotFoundError(2, "no such blob")
    with pytest.raises(FileNotFoundError) as problem:
        daemon.load(fail)
    assert problem.value is failure


def test_a_context_that_leads_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    container_engines.need_engine("docker")
    _use_context(tmp_path, monkeypatch, f"unix://{tmp_path}/none.sock", current=True)
    problem = Docker().find_problem()
    assert problem is not None
    assert (problem.kind, problem.where) == (errors.UNREACHABLE, "docker")
