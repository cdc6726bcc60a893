"""What may be published: all architectures, of one build, into a repository of their own; anything else is refused before a request is sent."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import errors, image_bases, package_index, published_project, small_distribution
from tests.support.published_project import DAY, Project
from tests.support.small_distribution import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.image_registry import Served

pytestmark = pytest.mark.registry

NAME = "team/thing"


@pytest.fixture(name="local")
def local_(tmp_path: Path) -> Iterator[Served]:
    with published_project.serve_registry("memory", tmp_path) as served:
        yield served


def test_an_architecture_that_is_missing(project: Project, local: Served) -> None:
    status, document = project.publish(local, project.layout(architectures=("amd64",)))
    assert status == 2
    errors.check_error(
        errors.from_document(document),
        errors.MISSING,
        value="arm64",
        names=("arm64", "thing-cuda13"),
    )
    assert local.log == []


def test_layouts_of_one_architecture_each_give_the_same_as_one_of_both(
    project: Project, local: Served
) -> None:
    both = project.layout()
    apart = [project.layout(architectures=(each,)) for each in published_project.BOTH]
    status, document = project.publish(local, *apart[::-1])
    assert status == 0, document
    assert document["result"]["digest"] == project.digest(both) == local.tag(NAME, "latest")


def test_architectures_of_two_builds(project: Project, local: Served) -> None:
    first = project.layout(architectures=("amd64",))
    project.lock({"helper": "1.1"})
    status, document = project.publish(local, first, project.layout(architectures=("arm64",)))
    assert status == 2
    error = errors.from_document(document)
    errors.check_error(
        error, errors.DIFFERS, value="requirements", names=("linux/arm64", "linux/amd64")
    )
    status, document = project.publish(local, first, first)
    errors.check_error(errors.from_document(document), errors.EXISTS, value="amd64")
    assert local.log == []


@pytest.mark.parametrize("place", ["base", "transformer_engine"])
def test_an_image_with_newer_packages_than_the_locked_ones(
    place: str, project: Project, local: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A local build takes these where the locked ones are gone; nobody else could make the same."""
    record = project.record

    def replaced(architecture: str, accelerator: str) -> dict[str, Any]:
        made = record(architecture, accelerator)
        made[place] = {
            **(made[place] or {"version": "1", "wheel_sha256": "a" * 64}),
            "replaced": [{"name": "thing", "locked": "1.0", "taken": "1.1"}],
        }
        return made

    monkeypatch.setattr(project, "record", replaced)
    status, document = project.publish(local, project.layout())
    assert status == 2
    errors.check_error(
        errors.from_document(document), errors.CONFLICT, value=1, remedy="lock --base"
    )
    assert local.log == []


def test_a_repository_is_for_one_distribution(project: Project, local: Served) -> None:
    assert project.publish(local, project.layout("two", distribution="other"))[0] == 0
    status, document = project.publish(local, project.layout(), date="2026-01-03")
    assert status == 2
    error = errors.from_document(document)
    errors.check_error(error, errors.CONFLICT, value="other", names=("latest", "thing"))
    assert published_project.list_pullable_tags(local, NAME) == ["latest", f"nightly-{DAY}"]


def test_a_dry_run_sends_nothing(project: Project, local: Served) -> None:
    place = project.layout()
    status, document = project.run(
        "publish", place, "--to", f"{local.host}/{NAME}", "--date", DAY, "--dry-run", key=""
    )
    assert (status, document["result"]["digest"]) == (0, project.digest(place))
    assert document["result"]["tags"] == [f"nightly-{DAY}", "latest"]
    assert set(document["result"]["attached"][project.digest(place)]) == {"SBOM", "provenance"}
    assert local.log == []


@pytest.mark.parametrize(
    ("more", "kind", "where"),
    [
        *(
            (("--date", date), errors.INVALID, "--date")
            for date in (
                "2026-13-01",
                "2999-01-01",
                "20260101",
                "0001-01-01",
                "2019-12-31",
                "2025-02-31",
                "0000-00-00",
            )
        ),
        (("--tag", "nightly-2026-01-01"), errors.DENIED, "--tag nightly-2026-01-01"),
        (("--tag", "sha256-00"), errors.DENIED, "--tag sha256-00"),
        (("--tag", "a b"), errors.INVALID, "a b"),
        (("--digest", "sha256:" + "0" * 64), errors.CONFLICT, "--digest"),
        (("--withdraw", "x"), errors.INVALID, "--withdraw"),
        (("--builder-id", "me"), errors.INVALID, "--builder-id"),
        (("oci:nowhere",), errors.MISSING, "nowhere"),
        (("--offline",), errors.CONFLICT, "publish"),
        (("--to", "host:1/a:tag"), errors.INVALID, "--to"),
    ],
)
def test_bad_requests(
    project: Project, local: Served, more: tuple[str, ...], kind: str, where: str
) -> None:
    what = () if more[0].startswith("oci:") else (project.layout(),)
    status, document = project.run(
        "publish", *what, *more, *(() if "--to" in more else ("--to", f"{local.host}/{NAME}"))
    )
    assert status == 2
    errors.check_error(errors.from_document(document), kind, where=where)
    assert local.log == []


def test_without_a_key_or_anything_to_publish(project: Project, local: Served) -> None:
    status, document = project.run(
        "publish", project.layout(), "--to", f"{local.host}/{NAME}", key=""
    )
    assert status == 2
    errors.check_error(errors.from_document(document), errors.MISSING, remedy="--key FILE")
    status, document = project.run("publish", "--to", f"{local.host}/{NAME}")
    assert status == 2
    errors.check_error(errors.from_document(document), errors.MISSING, remedy="oci:DIR")


def test_built_published_and_reproduced_elsewhere(tmp_path: Path) -> None:
    """From a distribution's name to its tags; then another home with an empty cache makes the published digest again from the lock in the image."""
    keys = published_project.make_key_pair(tmp_path, "ours")
    with (
        package_index.serve_index() as index,
        published_project.serve_registry("docker-registry", tmp_path) as served,
    ):
        chain = small_distribution.make_distribution(tmp_path / "chain", index)
        base = image_bases.copy_base(chain.folder)
        manifest = chain.folder / "manifest.yaml"
        text = manifest.read_text().replace(
            "common: locks/line/common.in}", "common: locks/line/common.in, base: any}"
        )
        manifest.write_text(
            text + 'bases:\n  any: {image: "debian:trixie-slim", bootstrap: trixie}\n'
        )

        def run(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
            common = [
                "--manifest",
                str(manifest),
                "--mirror",
                str(chain.mirror),
                "--base",
                f"oci:{base}",
            ]
            argv = [
                sys.executable,
                "-I",
                "-c",
                small_distribution._MAIN,
                str(ROOT),
                *arguments,
                *common,
            ]
            return subprocess.run(
                argv,
                capture_output=True,
                text=True,
                check=False,
                env=chain.environment() | more,
                cwd=chain.folder,
            )

        done = run(
            "publish",
            "thing",
            "--to",
            f"{served.host}/{NAME}",
            "--date",
            DAY,
            "--key",
            f"{keys}.pem",
        )
        assert done.returncode == 0, done.stderr
        digest = served.tag(NAME, f"nightly-{DAY}-cpu")
        (tmp_path / "home").mkdir()
        elsewhere = {
            "HOME": str(tmp_path / "home"),
            "ROSETTA_CACHE": str(tmp_path / "cache"),
            "UV_CACHE_DIR": str(tmp_path / "uv"),
            "TZ": "Asia/Tokyo",
        }
        done = run("reproduce", f"registry:{served.host}/{NAME}@{digest}", **elsewhere)
        assert done.returncode == 0, (done.stdout, done.stderr)
        assert done.stdout.strip() == f"the same, byte for byte: {digest}"
    assert os.path.isdir(tmp_path / "cache/layers")
