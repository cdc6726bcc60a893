"""Publishing as a whole, on registries of a few lines with and without the referrers API and on a real one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from builder.image import layout
from tests.builder.publish import publishkit
from tests.builder.publish.publishkit import DAY, SECRET, Project

if TYPE_CHECKING:
    from tests.builder.image.registrykit import Served


def test_published_and_verified(project: Project, served: Served) -> None:
    place = project.layout()
    status, document = project.publish(served, place)
    assert status == 0, document
    digest = project.digest(place)
    assert document["result"]["digest"] == digest
    assert document["result"]["tags"] == [f"nightly-{DAY}", "latest"]
    assert served.tag("team/thing", f"nightly-{DAY}") == served.tag("team/thing", "latest") == digest
    manifests = [path for path in served.sent("PUT") if "manifests" in path]
    assert [path.rpartition("/")[2] for path in manifests[-2:]] == [f"nightly-{DAY}", "latest"]
    for name in (":latest", f"@{digest}"):
        status, document = project.run("verify-published", f"{served.host}/team/thing{name}")
        assert status == 0, document
        assert [row["what"] for row in document["result"]["checks"] if "attachments" not in row["what"]] == [
            *(f"index: {what}" for what in ("signature", "SBOM", "provenance", "platforms")),
            *(f"linux/{arch}: {what}" for arch in publishkit.BOTH for what in ("image", "signature", "SBOM", "provenance")),
        ]
