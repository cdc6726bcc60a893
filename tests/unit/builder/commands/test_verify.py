"""How an image is verified: by its digest where it is published, on a GPU only where it really was, and what the document says."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from builder import cli
from builder.images.engines import container_engine, docker, engine_program
from builder.images.engines.buildah import Buildah
from builder.images.engines.container_engine import PulledImage, RunLimits
from tests.support import errors

DIGEST = f"sha256:{'d' * 64}"


class Recorder:
    """An engine that has one image, answers as the self-test would, and notes what was asked of it."""

    name = "docker"

    def __init__(self, platform: str = "cpu", *, ok: bool = True) -> None:
        self.pulled: list[tuple[str, str]] = []
        self.removed: list[str] = []
        self.ran: list[tuple[str, list[str], RunLimits]] = []
        run = {
            "devices": 1,
            "platform": platform,
            "mesh": "data=1",
            "losses": {"5": 3.0},
            "resumed_losses": {"10": 2.0},
            "resumed_from": 5,
            "steps_per_second": 1.0,
        }
        self.answer: dict[str, Any] = {
            "error": None,
            "result": {"ok": ok, "problems": [], "runs": [run]},
        }

    def pull(self, reference: str, architecture: str, tag: str) -> PulledImage:
        assert architecture in ("amd64", "arm64")
        self.pulled.append((reference, tag))
        return PulledImage(DIGEST)

    def remove(self, tags: Sequence[str]) -> None:
        self.removed += tags

    def find_digest(self, tag: str) -> str:
        return "" if tag == "none" else "sha256:1"

    def run(
        self, image: str, command: Sequence[str], limits: RunLimits
    ) -> subprocess.CompletedProcess[str]:
        self.ran.append((image, list(command), limits))
        return subprocess.CompletedProcess([], 0, json.dumps(self.answer), "words\n")


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    found = Recorder()
    monkeypatch.setattr(container_engine, "choose_engine", lambda _: found)
    return found


def _argv(*more: str) -> int:
    return cli.main(["verify", *more, "--json"])


def test_a_published_image_is_pulled_by_digest_tried_and_forgotten(
    engine: Recorder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        _argv(f"registry:reg.example/ns/x@{DIGEST}", "--write", str(tmp_path / "new/suite.json"))
        == 0
    )
    document = json.loads(capsys.readouterr().out)
    assert document["result"]["digest"] == DIGEST
    assert json.loads((tmp_path / "new/suite.json").read_text()) == document
    ((reference, tag),) = engine.pulled
    assert reference == f"reg.example/ns/x@{DIGEST}"
    assert engine.removed == [tag]
    ((image, command, limits),) = engine.ran
    assert (image, command[:2], limits.read_only, limits.gpus, dict(limits.env)) == (
        tag,
        ["rosetta", "selftest"],
        True,
        False,
        {},
    )


@pytest.mark.parametrize(
    "name", ["reg.example/ns/x:latest", f"reg.example/ns/x:latest@{DIGEST}", "reg.example/ns/x"]
)
def test_a_tag_is_not_what_was_tested(
    engine: Recorder, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _argv(f"registry:{name}") == 2
    assert "digest" in json.loads(capsys.readouterr().out)["error"]["what"]
    assert engine.pulled == []


def test_the_image_goes_away_after_a_failure_too(engine: Recorder) -> None:
    engine.answer = {"error": {"what": "no", "where": "", "do": ""}, "result": None}
    assert _argv(f"registry:reg.example/ns/x@{DIGEST}") == 2
    assert len(engine.removed) == 1


def test_a_red_suite_is_written_as_red(engine: Recorder, tmp_path: Path) -> None:
    engine.answer["result"]["ok"] = False
    assert _argv("image:x", "--write", str(tmp_path / "suite.json")) == 1
    assert json.loads((tmp_path / "suite.json").read_text())["ok"] is False


def test_on_a_gpu_it_trains_on_one_and_on_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Recorder("cuda")
    monkeypatch.setattr(container_engine, "choose_engine", lambda _: found)
    assert _argv("image:x", "--gpu") == 0
    ((_, command, limits),) = found.ran
    assert command[-2:] == ["--devices", "1"]
    assert (limits.gpus, dict(limits.env)) == (True, {"ROSETTA_SELFTEST_PLATFORM": "cuda"})


def test_a_training_on_the_cpu_is_no_training_on_a_gpu(
    engine: Recorder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _argv("image:x", "--gpu") == 2
    error = errors.from_document(json.loads(capsys.readouterr().out))
    errors.check_error(error, errors.UNSUPPORTED, where="image:x", value="cpu", remedy="--gpu")
    del engine.answer["result"]["runs"][0]["platform"]
    assert _argv("image:x", "--gpu") == 2


@pytest.mark.parametrize(
    "argv",
    [
        ("env:/none", "--gpu"),
        ("image:none",),
        ("oci:x",),
        ("registry:",),
        (f"registry:reg.example/x@{DIGEST}", "--offline"),
        ("image:x", "--write", "."),
    ],
)
def test_what_cannot_be_is_refused(engine: Recorder, argv: tuple[str, ...]) -> None:
    assert _argv(*argv) == 2
    assert engine.ran == []


def test_docker_is_given_the_gpus_and_buildah_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, ...]] = []
    monkeypatch.setattr(engine_program, "run_program", lambda *argv, **_: seen.append(argv))
    for gpus in (True, False):
        docker.Docker().run("x", ["true"], RunLimits(gpus=gpus))
    assert ["--gpus" in argv for argv in seen] == [True, False]
    with errors.expect_user_error(errors.UNSUPPORTED, where="x", remedy="--engine docker"):
        Buildah().run("x", ["true"], RunLimits(gpus=True))
