"""What is attached is found the way the OCI specification and cosign look for it, and nothing that others attached is lost."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import pytest

from builder.images.oci import layer, oci_documents, reference
from builder.images.registry import download, image_push
from builder.images.registry.transport import Connection
from builder.release.publish import attachments, sigstore_bundle
from builder.release.publish.signed_statements import ENVELOPE, SIMPLE, Attachment
from builder.release.publish.sigstore_bundle import BUNDLE
from tests.support import errors, image_registry
from tests.support.image_registry import Fault

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.core.cache import Cache
    from tests.support.image_registry import Served

pytestmark = pytest.mark.registry

SIGNED, SAID, MORE = (
    Attachment(SIMPLE, b"payload", {"a": "1"}),
    Attachment(ENVELOPE, b"said", {"predicateType": "x"}),
    Attachment(ENVELOPE, b"more", {"predicateType": "y"}),
)


@pytest.fixture(name="there")
def there_(cache: Cache, served: Served) -> Iterator[tuple[Connection, attachments.Subject]]:
    """An image in a registry, without anything attached."""
    index = image_registry.make_image(cache, size=3200)
    with Connection(
        reference.parse_reference(f"{served.host}/team/thing"), "pull,push"
    ) as connection:
        image_push.upload_image(connection, functools.partial(layer.blob_path, cache), index)
        yield connection, attachments.Subject(oci_documents.INDEX, index.document)


def test_found_again_and_added_to(there: tuple[Connection, attachments.Subject]) -> None:
    connection, subject = there
    assert attachments.read_attachments(connection, subject.digest) == []
    attachments.attach(connection, subject, [SIGNED, SAID])
    assert attachments.read_attachments(connection, subject.digest) == [SIGNED, SAID]
    attachments.attach(connection, subject, [SAID, MORE])
    assert sorted(
        each.data for each in attachments.read_attachments(connection, subject.digest)
    ) == [
        b"more",
        b"payload",
        b"said",
    ]
    for suffix, artifact in (("sig", attachments.SIGNATURES), ("att", attachments.ATTESTATIONS)):
        manifest = download.read_document(
            connection, f"sha256-{subject.digest[7:]}.{suffix}"
        ).json()
        assert (manifest["subject"]["digest"], manifest["artifactType"]) == (
            subject.digest,
            artifact,
        )


def test_the_list_is_kept_where_the_specification_says(
    there: tuple[Connection, attachments.Subject], served: Served
) -> None:
    connection, subject = there
    attachments.attach(connection, subject, [SIGNED, SAID])
    status, _, _ = served.answer("GET", f"/v2/team/thing/referrers/{subject.digest}", {}, b"")
    tagged = attachments.find_document(connection, f"sha256-{subject.digest[7:]}")
    assert (status == 200) is (tagged is None)
    if tagged:
        assert {row["artifactType"] for row in tagged.json()["manifests"]} == {
            attachments.SIGNATURES,
            attachments.ATTESTATIONS,
        }


def test_every_bundle_has_a_manifest_of_its_own(
    there: tuple[Connection, attachments.Subject],
) -> None:
    connection, subject = there
    first, second = (
        Attachment(BUNDLE, f"bundle {number}".encode(), sigstore_bundle.make_annotations("x"))
        for number in (1, 2)
    )
    attachments.attach(connection, subject, [SIGNED, first])
    attachments.attach(connection, subject, [first, second])
    listed, _ = attachments._list_referrers(connection, subject.digest)
    rows = [row for row in listed if row["artifactType"] == BUNDLE]
    assert [row["annotations"] for row in rows] == [dict(first.annotations)] * 2
    for row in rows:
        manifest = download.read_document(connection, row["digest"]).json()
        assert (manifest["subject"]["digest"], len(manifest["layers"])) == (subject.digest, 1)
    read = attachments.read_attachments(connection, subject.digest)
    assert sorted(each.data for each in read) == [b"bundle 1", b"bundle 2", b"payload"]
    assert [each for each in (first, second) if each not in read] == []


def test_a_bundle_that_is_listed_by_the_type_of_its_config(
    there: tuple[Connection, attachments.Subject],
) -> None:
    """As cosign 3 lists its own where it has to write the index itself."""
    connection, subject = there
    bundle = Attachment(BUNDLE, b"bundle", sigstore_bundle.make_annotations("x"))
    attachments.attach(connection, subject, [bundle])
    (row,), by_registry = attachments._list_referrers(connection, subject.digest)
    if by_registry:
        pytest.skip("the registry makes its list by itself")
    row["artifactType"] = attachments.EMPTY_KIND
    index = {"schemaVersion": 2, "mediaType": oci_documents.INDEX, "manifests": [row]}
    image_push.move_tag(connection, subject.tag, oci_documents.encode_json(index))
    assert attachments.read_attachments(connection, subject.digest) == [bundle]


def test_what_others_attached_stays(there: tuple[Connection, attachments.Subject]) -> None:
    connection, subject = there
    attachments.attach(connection, subject, [SIGNED])
    listed, by_registry = attachments._list_referrers(connection, subject.digest)
    about, empty = (
        oci_documents.make_descriptor(subject.media_type, subject.data),
        oci_documents.make_descriptor(attachments.EMPTY_KIND, attachments.EMPTY),
    )
    theirs = oci_documents.encode_json(
        {
            "schemaVersion": 2,
            "mediaType": oci_documents.MANIFEST,
            "artifactType": "application/vnd.scan",
            "config": empty,
            "layers": [empty],
            "subject": about,
        }
    )
    image_push.move_tag(connection, oci_documents.compute_digest(theirs), theirs)
    if not by_registry:
        row = {
            **oci_documents.make_descriptor(oci_documents.MANIFEST, theirs),
            "artifactType": "application/vnd.scan",
        }
        image_push.move_tag(
            connection,
            subject.tag,
            oci_documents.encode_json(
                {"schemaVersion": 2, "mediaType": oci_documents.INDEX, "manifests": [*listed, row]}
            ),
        )
    attachments.attach(connection, subject, [SAID])
    assert oci_documents.compute_digest(theirs) in [
        row["digest"] for row in attachments._list_referrers(connection, subject.digest)[0]
    ]
    assert attachments.read_attachments(connection, subject.digest) == [SIGNED, SAID]


def test_a_list_that_another_writes_over_is_noticed(
    there: tuple[Connection, attachments.Subject], served: Served
) -> None:
    connection, subject = there
    if attachments._list_referrers(connection, subject.digest)[1]:
        pytest.skip("a registry that keeps the list itself loses nothing of it")
    attachments.attach(connection, subject, [SIGNED])
    before = download.read_document(connection, subject.tag).data
    done: list[str] = []

    def lose(method: str, path: str) -> None:
        """Another publisher's list, made before ours, arrives after ours was read back."""
        if (
            method == "GET"
            and path.endswith(f"referrers/{subject.digest}")
            and f"/v2/team/thing/manifests/{subject.tag}" in served.sent("PUT")[1:]
            and not done
        ):
            done.append(path)
            served.answer(
                "PUT",
                f"/v2/team/thing/manifests/{subject.tag}",
                {"Content-Type": oci_documents.INDEX},
                before,
            )

    served.log.clear()
    served.log.append(("PUT", "", 0, 0))
    served.before = lose
    with errors.expect_user_error(errors.CONFLICT, where="team/thing", remedy="again"):
        attachments.attach(connection, subject, [SAID])
    assert done
    served.before = lambda _method, _path: None
    attachments.attach(connection, subject, [SAID])
    assert attachments.read_attachments(connection, subject.digest) == [SIGNED, SAID]


def test_a_web_page_in_place_of_the_list_is_no_list(
    there: tuple[Connection, attachments.Subject], served: Served
) -> None:
    """A proxy's page for an unknown address: what the tag lists counts, if there is one."""
    connection, subject = there
    attachments.attach(connection, subject, [SIGNED])
    by_registry = attachments._list_referrers(connection, subject.digest)[1]
    served.faults.append(Fault("html", "GET", "referrers", times=9))
    assert attachments.read_attachments(connection, subject.digest) == (
        [] if by_registry else [SIGNED]
    )
