"""latest-verified moves by digest only, and only with a signed test result that says which suite passed on it."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import pytest

from builder.images.oci import reference
from builder.images.registry.transport import Connection
from builder.release.publish import signed_statements, signing_key, tags, verification
from tests.support import errors, published_project
from tests.support.published_project import Project

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.image_registry import Served

pytestmark = pytest.mark.registry

NAME = "team/thing"


def _result(project: Project, text: str) -> Path:
    file = project.folder / "result.json"
    file.write_text(text)
    return file


def _good_result(project: Project, digest: str) -> Path:
    return _result(project, json.dumps(published_project.make_suite_result(digest)))


def _promote(
    project: Project, served: Served, digest: str, result: Path, *words: str, key: str = "ours"
) -> tuple[int, dict[str, Any]]:
    return project.run(
        "promote",
        f"{served.host}/{NAME}@{digest}",
        "--suite",
        "train t5",
        "--result",
        str(result),
        *words,
        key=key,
    )


def test_promoted(project: Project, served: Served) -> None:
    place = project.layout()
    digest = project.digest(place)
    result = _good_result(project, digest)
    assert project.publish(served, place)[0] == 0
    status, document = _promote(project, served, digest, result)
    assert status == 0, document
    assert served.tag(NAME, tags.VERIFIED) == digest
    assert project.run("verify-published", f"{served.host}/{NAME}:{tags.VERIFIED}")[0] == 0
    with Connection(reference.parse_reference(f"{served.host}/{NAME}"), "pull") as connection:
        found = verification.read_trusted_statements(
            connection, digest, signing_key.read_public_key(f"{project.keys['ours']}.pub")
        )
    assert found.predicates[signed_statements.TEST] == [
        {
            "result": "PASSED",
            "configuration": [
                {
                    "name": "train t5",
                    "digest": {"sha256": hashlib.sha256(result.read_bytes()).hexdigest()},
                }
            ],
            "passedTests": ["train t5", "fp8", "collective"],
        }
    ]

    # Published and promoted again: nothing that is attached is lost, nothing is attached twice.
    assert project.publish(served, place)[0] == 0
    assert _promote(project, served, digest, result)[0] == 0
    with Connection(reference.parse_reference(f"{served.host}/{NAME}"), "pull") as connection:
        found = verification.read_trusted_statements(
            connection, digest, signing_key.read_public_key(f"{project.keys['ours']}.pub")
        )
    assert {kind: len(said) for kind, said in found.predicates.items()} == {
        "signature": 1,
        signed_statements.SBOM: 1,
        signed_statements.PROVENANCE: 1,
        signed_statements.TEST: 1,
        signed_statements.RELEASE: 3,
    }


def test_a_release_is_given_to_what_was_tested_only(project: Project, served: Served) -> None:
    place = project.layout()
    digest = project.digest(place)
    assert project.publish(served, place)[0] == 0
    words = ("publish", "--to", f"{served.host}/{NAME}", "--tag", "v1", "--tested")
    status, document = project.run(*words, "--digest", digest)
    assert status == 2
    assert "test" in document["error"]["what"]
    assert not served.tag(NAME, "v1")
    assert _promote(project, served, digest, _good_result(project, digest))[0] == 0
    assert project.run(*words, "--digest", digest)[0] == 0
    assert served.tag(NAME, "v1") == digest
    assert project.run(*words, place)[0] == 2


def test_publish_does_not_move_it(project: Project, served: Served) -> None:
    status, document = project.run(
        "publish", project.layout(), "--to", f"{served.host}/{NAME}", "--tag", tags.VERIFIED
    )
    assert (status, served.log) == (2, [])
    assert "promote" in document["error"]["do"]


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ('{"ok": false}', errors.FAILED, "train t5"),
        ('{"ok": "true"}', errors.FAILED, "train t5"),
        ("junk", errors.INVALID, None),
        ("[]", errors.INVALID, None),
        ("{}", errors.INVALID, None),
        (
            json.dumps({"ok": True, "result": {"digest": "sha256:" + "0" * 64}}),
            errors.DIFFERS,
            "sha256:" + "0" * 64,
        ),
        ('{"ok": true, "digest": "x"}', errors.DIFFERS, "x"),
        ('{"ok": true, "digest": null}', errors.DIFFERS, "None"),
        ('{"ok": true, "digest": ""}', errors.DIFFERS, ""),
        ('{"ok": true, "digest": ["x"]}', errors.DIFFERS, "['x']"),
        ('{"ok": true, "result": {"digest": {}}}', errors.DIFFERS, "{}"),
        ('{"ok": true, "result": {"loss": 1.5}}', errors.MISSING, "digest"),
    ],
)
def test_what_has_not_passed_is_not_promoted(
    project: Project, tmp_path: Path, text: str, kind: str, value: str | None
) -> None:
    with published_project.serve_registry("memory", tmp_path) as served:
        place = project.layout()
        assert project.publish(served, place)[0] == 0
        status, document = _promote(project, served, project.digest(place), _result(project, text))
        assert status == 2
        errors.check_error(errors.from_document(document), kind, value=value)
        assert served.tag(NAME, tags.VERIFIED) == ""


def test_a_check_that_the_machine_could_not_run_is_signed_as_such(
    project: Project, served: Served
) -> None:
    place = project.layout()
    digest = project.digest(place)
    assert project.publish(served, place)[0] == 0
    gap = {"outcome": "not run", "lacks": "machine", "reason": "one GPU"}
    result = _result(
        project, json.dumps(published_project.make_suite_result(digest, collective=gap))
    )
    status, document = _promote(project, served, digest, result)
    assert status == 2
    errors.check_error(
        errors.from_document(document),
        errors.MISSING,
        value="collective",
        remedy="--accept-not-run collective",
    )
    assert served.tag(NAME, tags.VERIFIED) == ""
    status, document = _promote(project, served, digest, result, "--accept-not-run", "collective")
    assert status == 0, document
    statement = document["result"]["statement"]
    assert (statement["result"], statement["warnedTests"]) == ("WARNED", ["collective"])
    assert project.run("verify-published", f"{served.host}/{NAME}:{tags.VERIFIED}")[0] == 0


def test_by_another_key_or_by_a_tag(project: Project, served: Served) -> None:
    place = project.layout()
    assert project.publish(served, place)[0] == 0
    status, document = _promote(
        project,
        served,
        project.digest(place),
        _good_result(project, project.digest(place)),
        key="theirs",
    )
    assert status == 2
    assert "index: signature" in document["error"]["what"]
    result = str(_good_result(project, project.digest(place)))
    status, document = project.run(
        "promote", f"{served.host}/{NAME}:latest", "--suite", "s", "--result", result
    )
    assert status == 2
    errors.check_error(
        errors.from_document(document), errors.INVALID, remedy="HOST/NAME@sha256:DIGEST"
    )
    assert served.tag(NAME, tags.VERIFIED) == ""


def test_an_image_for_cpus_gets_a_verified_tag_of_its_own(project: Project, served: Served) -> None:
    place = project.layout(accelerator="cpu")
    assert project.publish(served, place)[0] == 0
    digest = project.digest(place)
    assert _promote(project, served, digest, _good_result(project, digest))[0] == 0
    tag = f"{tags.VERIFIED}-cpu"
    assert served.tag(NAME, tag) == project.digest(place)
    assert served.tag(NAME, tags.VERIFIED) == ""
    assert project.run("verify-published", f"{served.host}/{NAME}:{tag}", "--quick")[0] == 0
    untested = project.layout("other", accelerator="cpu")
    assert project.publish(served, untested, date="2026-01-03")[0] == 0
    status, _ = project.run(
        "publish",
        "--to",
        f"{served.host}/{NAME}",
        "--digest",
        project.digest(untested),
        "--tag",
        tag,
    )
    assert status == 2
