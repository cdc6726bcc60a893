"""Images for several accelerators in one repository, each with tags and releases of its own."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from builder.core import manifest
from builder.release.bisect import endpoints
from builder.release.bisect.endpoints import Endpoint
from builder.release.publish import image_table, image_variants
from tests.support import errors, published_project
from tests.support.published_project import DAY, Project

if TYPE_CHECKING:
    from tests.support.image_registry import Served

pytestmark = pytest.mark.registry

NAME = "team/thing"
NEXT = "2026-01-03"


def _verify(project: Project, served: Served, tag: str) -> int:
    return project.run("verify-published", f"{served.host}/{NAME}:{tag}", "--quick")[0]


@pytest.mark.parametrize(
    ("tag", "suffix"),
    [
        ("latest", ""),
        ("latest-cuda12", "-cuda12"),
        ("nightly-2026-11-01-cpu", "-cpu"),
        ("1.2-cuda14", "-cuda14"),
        ("cpu", ""),
        ("latest-cpus", ""),
    ],
)
def test_the_suffix_of_a_tag(tag: str, suffix: str) -> None:
    assert image_variants.read_suffix(tag) == suffix
    assert image_variants.add_suffix(tag, suffix) == tag
    assert image_variants.add_suffix(tag.removesuffix(suffix), suffix) == tag


def test_three_variants_share_a_repository(project: Project, served: Served) -> None:
    layouts = {
        suffix: project.layout(accelerator, accelerator=accelerator)
        for accelerator, suffix in (("cuda13", ""), ("cuda12", "-cuda12"), ("cpu", "-cpu"))
    }
    for suffix, layout in layouts.items():
        status, document = project.publish(served, layout)
        assert status == 0, document
        assert document["result"]["tags"] == [f"nightly-{DAY}{suffix}", f"latest{suffix}"]
    for suffix, layout in layouts.items():
        for tag in (f"nightly-{DAY}{suffix}", f"latest{suffix}"):
            assert served.tag(NAME, tag) == project.digest(layout)
            assert _verify(project, served, tag) == 0


def test_a_newer_image_of_another_variant_holds_nothing(project: Project, served: Served) -> None:
    for date, accelerator in ((NEXT, "cpu"), (DAY, "cuda13")):
        layout = project.layout(accelerator, accelerator=accelerator)
        status, document = project.publish(served, layout, date=date)
        assert (status, document["result"]["held"]) == (0, [])
    older = project.layout("older", accelerator="cpu")
    _, document = project.publish(served, older)
    assert document["result"]["held"] == ["latest-cpu"]
    assert _verify(project, served, "latest") == 0
    assert _verify(project, served, "latest-cpu") == 0


def test_an_image_gets_no_tag_of_another_variant(project: Project, served: Served) -> None:
    gpu, cpu = project.layout("gpu"), project.layout("cpu", accelerator="cpu")
    for tag, layout in (("latest-cpu", gpu), ("1.0-cuda12", cpu)):
        status, document = project.run(
            "publish", layout, "--to", f"{served.host}/{NAME}", "--date", DAY, "--tag", tag
        )
        assert status == 2
        error = errors.from_document(document)
        errors.check_error(error, errors.CONFLICT, value=tag)
    assert published_project.list_pullable_tags(served, NAME) == []

    assert project.publish(served, gpu)[0] == project.publish(served, cpu)[0] == 0
    back = ("publish", "--to", f"{served.host}/{NAME}", "--digest", project.digest(cpu))
    assert project.run(*back, "--tag", "latest-cuda12")[0] == 2
    status, document = project.run(*back, "--tag", "good")
    assert (status, document["result"]["tags"]) == (0, ["good-cpu"])
    assert served.tag(NAME, "good") == ""
    assert _verify(project, served, "good-cpu") == 0


def test_a_tag_that_was_moved_to_another_variant_is_refused(project: Project) -> None:
    """Whoever may push can move a tag, but cannot sign."""
    with published_project.serve_registry("memory", project.folder) as served:
        gpu, cpu = project.layout("gpu"), project.layout("cpu", accelerator="cpu")
        assert project.publish(served, gpu)[0] == project.publish(served, cpu, date=NEXT)[0] == 0
        for tag in ("latest", f"nightly-{DAY}", "latest-cuda12"):
            _, headers, data = served.answer(
                "GET", f"/v2/{NAME}/manifests/{project.digest(cpu)}", {}, b""
            )
            served.answer("PUT", f"/v2/{NAME}/manifests/{tag}", dict(headers), data)
            assert served.tag(NAME, tag) == project.digest(cpu)
            assert _verify(project, served, tag) == 1


def test_a_bisect_lists_the_nightlies_of_its_variant(project: Project, served: Served) -> None:
    dates = ("2026-01-02", "2026-01-03", "2026-01-04")
    for date in dates:
        for accelerator in ("cuda13", "cpu"):
            layout = project.layout(f"{date}-{accelerator}", accelerator=accelerator)
            assert project.publish(served, layout, date=date)[0] == 0

    def name_end(date: str, suffix: str) -> Endpoint:
        place = f"{served.host}/{NAME}:nightly-{date}{suffix}"
        return Endpoint(f"registry:{place}", "registry", place)

    good, bad = name_end(dates[2], "-cpu"), name_end(dates[0], "-cpu")
    assert endpoints.list_nightlies_between(good, bad) == [name_end(dates[1], "-cpu")]
    assert endpoints.list_nightlies_between(good, name_end(dates[0], "")) == []


def test_the_table_of_images_is_made_from_the_registry(project: Project, served: Served) -> None:
    layout = project.layout("gpu")
    assert project.publish(served, layout)[0] == 0
    assert project.publish(served, project.layout("cpu", accelerator="cpu"), date=NEXT)[0] == 0
    loaded = manifest.load(project.manifest)
    record = image_table.read_images(loaded, f"{served.host}/team")
    assert set(record["images"]["thing"]) == {"cuda13", "cpu"}
    image = record["images"]["thing"]["cuda13"]
    assert (image["date"], image["digest"]) == (DAY, project.digest(layout))
    assert set(image["sizes"]) == {"amd64", "arm64"}
    sizes = [
        sum(image_layer.size for image_layer in project.image("amd64", "gpu")[0].layers)
        + len(project.image("amd64", "gpu")[0].config)
    ]
    assert image["sizes"]["amd64"] == sizes[0]

    empty = f"before\n{image_table._START}{image_table._END}after\n"
    text = image_table.render_readme(empty, loaded, record)
    rows = [line for line in text.splitlines() if line.startswith("| `thing`")]
    assert len(rows) == 3
    assert DAY in rows[0]
    assert image["digest"][:19] in rows[0]
    assert image_table.render_readme(text, loaded, record) == text
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    with errors.expect_user_error(errors.INVALID, where="README.md"):
        image_table.render_readme("no place", loaded, record)


def test_a_nightly_tag_of_another_program_is_named(project: Project) -> None:
    with published_project.serve_registry("memory", project.folder) as served:
        assert project.publish(served, project.layout())[0] == 0
        _, _, data = served.answer("GET", f"/v2/{NAME}/manifests/latest", {}, b"")
        platform = str(json.loads(data)["manifests"][0]["digest"])
        _, headers, data = served.answer("GET", f"/v2/{NAME}/manifests/{platform}", {}, b"")
        served.answer("PUT", f"/v2/{NAME}/manifests/nightly-{NEXT}", dict(headers), data)
        with errors.expect_user_error(errors.INVALID, where=f"{NAME}:nightly-{NEXT}"):
            image_table.read_images(manifest.load(project.manifest), f"{served.host}/team")
