"""What a real docker makes of the words that it is given: a container that is created, looked at and never started."""

from __future__ import annotations

import io
import json
import os
import subprocess
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from rosetta.core.run_description import Run
from rosetta.launch import docker
from rosetta.launch.rendering import Options, Rendering
from tests.unit.rosetta.launch.test_hostile import HOSTILE, SECRETS

pytestmark = pytest.mark.engine

IMAGE = "rosetta-test/empty:1"
ENV = {**{f"NAME_{number}": value for number, value in enumerate(HOSTILE)}, **SECRETS}
RUN = Run(
    "pax",
    ("rosetta", *HOSTILE),
    "Pile126M",
    gpus_per_node=2,
    processes_per_node="node",
    env=ENV,
    xla_flags={"xla_dump_to": "/a b"},
)


def engine(*words: str, stdin: bytes = b"", env: Mapping[str, str] = MappingProxyType({})) -> bytes:
    done = subprocess.run(
        ["docker", *words],
        input=stdin,
        env={**os.environ, **env},
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


@pytest.fixture(scope="module")
def image() -> Iterator[str]:
    """One with a file in it."""
    try:
        engine("version")
    except (OSError, AssertionError, subprocess.TimeoutExpired):
        pytest.skip("NOT TESTED: no Docker daemon answers; start dockerd")
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as out:
        out.addfile(tarfile.TarInfo("file"))
    engine("import", "-", IMAGE, stdin=held.getvalue())
    yield IMAGE
    engine("image", "rm", "--force", IMAGE)


def created(found: Rendering) -> dict[str, Any]:
    """Create the container instead of running it; return what docker knows of it."""
    assert found.argv[:2] == ["docker", "run"]
    name = engine("create", *found.argv[2:], env=found.env).decode().strip()
    try:
        about: dict[str, Any] = json.loads(engine("container", "inspect", name))[0]
    finally:
        engine("rm", name)
    return about


def test_variables_and_words(image: str) -> None:
    about = created(docker.render_docker(RUN, Options(image=image), {}))
    assert [*about["Config"]["Cmd"]] == ["rosetta", *HOSTILE]
    env = dict(each.split("=", 1) for each in about["Config"]["Env"])
    assert {name: env.get(name) for name in ENV} == ENV
    assert env["XLA_FLAGS"] == "--xla_dump_to='/a b'"
    host = about["HostConfig"]
    assert (host["IpcMode"], host["AutoRemove"], host["Init"], about["Config"]["User"]) == (
        "host",
        True,
        True,
        f"{os.getuid()}:{os.getgid()}",
    )
    assert {each["Name"]: (each["Soft"], each["Hard"]) for each in host["Ulimits"]} == {
        "memlock": (-1, -1),
        "stack": (67108864, 67108864),
    }


@pytest.mark.parametrize(
    ("visible", "count", "ids"),
    [({}, 2, None), ({"CUDA_VISIBLE_DEVICES": "4, 5,6"}, 0, ["4", "5"])],
)
def test_gpus(image: str, visible: dict[str, str], count: int, ids: list[str] | None) -> None:
    (asked,) = created(
        docker.render_docker(RUN, Options(image=image, name="rosetta-test-gpus"), visible)
    )["HostConfig"]["DeviceRequests"]
    assert (asked["Count"], asked["DeviceIDs"], asked["Capabilities"]) == (count, ids, [["gpu"]])
    assert not created(
        docker.render_docker(
            replace(RUN, env={"JAX_PLATFORMS": "cpu"}), Options(image=image), visible
        )
    )["HostConfig"]["DeviceRequests"]


def test_mounts(image: str, tmp_path: Path) -> None:
    folders = [
        tmp_path / name
        for name in (
            "with space",
            "quo\"te's",
            "comma,target=x",
            "new\nline",
            "co:lon",
            "ümläut",
            "$(touch pwned)",
        )
    ]
    for folder in folders:
        folder.mkdir()
    about = created(
        docker.render_docker(
            replace(RUN, mounts=tuple((str(folder), f"/in/{folder.name}") for folder in folders)),
            Options(image=image),
            {},
        )
    )
    assert [
        (each["Type"], each["Source"], each["Target"]) for each in about["HostConfig"]["Mounts"]
    ] == [("bind", str(folder), f"/in/{folder.name}") for folder in folders]
