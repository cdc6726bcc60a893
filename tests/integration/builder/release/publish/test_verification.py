"""Whatever is changed in what was published is refused, and named."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from builder import cli
from builder.core.cache import Cache
from builder.images.oci import layout, oci_documents, reference
from builder.images.registry import image_push
from builder.images.registry.transport import Connection
from builder.images.registry.upload import Meter, send_blob
from builder.release.publish import attachments, signed_statements, signing_key, tags
from builder.release.publish.signed_statements import Attachment
from builder.release.publish.sigstore_bundle import BUNDLE
from tests.support import image_registry, published_project
from tests.support.published_project import DAY, Project

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.image_registry import Served

pytestmark = pytest.mark.registry

NAME = "team/thing"


class Published:
    """Two published images, and what someone who may push can do to the first."""

    connection: Connection  # of the test that runs

    def __init__(self, project: Project, served: Served) -> None:
        self.project, self.served = project, served
        places = [project.layout("one"), project.layout("two")]
        for date, place in zip(("2026-01-01", DAY), places, strict=True):
            assert project.publish(served, place, date=date)[0] == 0
        self.other, self.index = (
            layout.read_layout(Path(place.removeprefix("oci:"))).index for place in places
        )
        self.key = signing_key.read_private_key(f"{project.keys['ours']}.pem")

    def verify(self, tag: str = "latest", *more: str) -> tuple[int, list[str]]:
        """Status, and what failed."""
        status, document = self.project.run(
            "verify-published", f"{self.served.host}/{NAME}:{tag}", *more
        )
        return status, [
            f"{row['what']}: {row['problem']}"
            for row in document["result"]["checks"]
            if not row["ok"]
        ]

    def refused(self, what: str, tag: str = "latest") -> None:
        status, failed = self.verify(tag)
        assert status == 1
        assert any(each.startswith(what) for each in failed), failed

    def attached(self, digest: str, kind: str) -> Attachment:
        """What is attached under this predicate's type, or with "" the signature."""
        return next(
            each
            for each in attachments.read_attachments(self.connection, digest)
            if each.media_type != BUNDLE and each.annotations.get("predicateType", "") == kind
        )

    def bundles(self, digest: str) -> list[Attachment]:
        """Every bundle of an image."""
        attached = attachments.read_attachments(self.connection, digest)
        return [each for each in attached if each.media_type == BUNDLE]

    def remove(self, digest: str, *artifacts: str) -> None:
        """Remove the manifests of these types from what refers to an image."""
        listed, by_registry = attachments._list_referrers(self.connection, digest)
        removed = [row["digest"] for row in listed if row["artifactType"] in artifacts]
        if by_registry:
            published_project.delete_manifests(self.served, removed)
            return
        rows = [row for row in listed if row["digest"] not in removed]
        index = {"schemaVersion": 2, "mediaType": oci_documents.INDEX, "manifests": rows}
        image_push.move_tag(
            self.connection, f"sha256-{digest[7:]}", oci_documents.encode_json(index)
        )

    def replace(self, subject: bytes, artifact: str, items: list[Attachment]) -> None:
        """Attach these in place of all of the kind, as our own manifest, without bundles."""
        self.remove(oci_documents.compute_digest(subject), BUNDLE)
        empty = oci_documents.make_descriptor(attachments.EMPTY_KIND, attachments.EMPTY)
        about = oci_documents.make_descriptor(json.loads(subject)["mediaType"], subject)
        document = oci_documents.encode_json(
            {
                "schemaVersion": 2,
                "mediaType": oci_documents.MANIFEST,
                "artifactType": artifact,
                "config": empty,
                "layers": [each.descriptor for each in items],
                "subject": about,
            }
        )
        with Meter("", 0) as meter:
            for each in items:
                send_blob(
                    self.connection,
                    oci_documents.compute_digest(each.data),
                    len(each.data),
                    each.data,
                    "",
                    meter,
                )
        image_push.move_tag(
            self.connection,
            f"sha256-{oci_documents.compute_digest(subject)[7:]}.{attachments._TAG_SUFFIXES[artifact]}",
            document,
        )
        listed, by_registry = attachments._list_referrers(
            self.connection, oci_documents.compute_digest(subject)
        )
        kept = [row for row in listed if row["artifactType"] != artifact]
        if by_registry:
            for row in listed:
                if row["artifactType"] == artifact and row[
                    "digest"
                ] != oci_documents.compute_digest(document):
                    published_project.overwrite_blob(
                        self.served, row["digest"], document
                    )  # a registry that lists by itself has to be told behind its back
        else:
            rows = [
                *kept,
                {
                    **oci_documents.make_descriptor(oci_documents.MANIFEST, document),
                    "artifactType": artifact,
                },
            ]
            image_push.move_tag(
                self.connection,
                f"sha256-{oci_documents.compute_digest(subject)[7:]}",
                oci_documents.encode_json(
                    {"schemaVersion": 2, "mediaType": oci_documents.INDEX, "manifests": rows}
                ),
            )


@pytest.fixture(scope="module", params=["memory", "referrers", "docker-registry"])
def publication(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Published, Callable[[], None]]]:
    """Published once for each registry, and what undoes a test's changes."""
    folder = tmp_path_factory.mktemp("publication")
    (folder / "project").mkdir()
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("HOME", str(folder))
        environment.setenv("ROSETTA_CACHE", str(folder / "cache"))
        with published_project.serve_registry(
            request.param, tmp_path_factory.mktemp("served")
        ) as served:
            made = Published(Project(folder / "project", Cache(folder / "cache")), served)
            yield made, published_project.take_snapshot(served, folder / "snapshot")


@pytest.fixture
def published(publication: tuple[Published, Callable[[], None]]) -> Iterator[Published]:
    made, restore = publication
    restore()
    with Connection(
        reference.parse_reference(f"{made.served.host}/{NAME}"), "pull,push"
    ) as made.connection:
        yield made


@pytest.fixture
def served(published: Published) -> Served:
    return published.served


def test_a_layer_that_was_changed(
    published: Published, served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = published.index.images[1].layers[1]
    blob = layout.blob_path(Path(published.project.layout("two").removeprefix("oci:")), wanted)
    data = bytearray(blob.read_bytes())
    data[50] ^= 1
    published_project.overwrite_blob(served, wanted.digest, bytes(data))
    published.refused("linux/arm64: image: reading blob " + wanted.digest[7:19])
    assert (
        published.verify("latest", "--quick")[0] == 0
    )  # sizes alone do not show it, which is what --quick says
    name = f"{served.host}/{NAME}:latest"
    capsys.readouterr()
    for quick, status, last in (
        ("--quick", 0, "what was checked is as it was signed; layers were not read (--quick)"),
        ("", 1, "refused, linux/arm64: image: "),
    ):
        words = [
            "verify-published",
            name,
            "--key",
            f"{published.project.keys['ours']}.pub",
            *filter(None, [quick]),
        ]
        assert cli.main(words) == status
        assert (
            f"{name} is {published.index.digest}: {last}"
            in capsys.readouterr().out.splitlines()[-1]
        )
    found = published.project.run("verify-published", name, "--quick")[1]["result"]
    assert found["layers_read"] is False


@pytest.mark.parametrize("which", ["config", "manifest", "index"])
def test_a_document_that_was_changed(
    published: Published, served: Served, which: str, capsys: pytest.CaptureFixture[str]
) -> None:
    image = published.index.images[0]
    digest, data = {
        "config": (image.config_digest, image.config),
        "manifest": (image.digest, image.manifest),
        "index": (published.index.digest, published.index.document),
    }[which]
    published_project.overwrite_blob(
        served,
        digest,
        data.replace(b"linux", b"minix")
        if which != "manifest"
        else data.replace(b'"schemaVersion":2', b'"schemaVersion":3'),
    )
    if which == "index":
        status, document = published.project.run(
            "verify-published", f"{served.host}/{NAME}@{digest}"
        )
        (row,) = document["result"]["checks"]
        assert (status, document["error"], row["what"], row["ok"]) == (
            1,
            None,
            "index: document",
            False,
        )
        assert row["problem"].startswith(
            f"reading document {digest[7:19]}… failed: the registry sent a document that is not {digest[7:19]}…"
        )
        assert document["result"]["layers_read"] is False
        name = f"{served.host}/{NAME}@{digest}"
        assert (
            cli.main(["verify-published", name, "--key", f"{published.project.keys['ours']}.pub"])
            == 1
        )
        text = capsys.readouterr()
        assert text.out.splitlines()[-1].endswith(
            "do not use the content: it was changed in the registry, or by a proxy on the way; have it published anew"
        )
        assert "run again" not in text.out + text.err
        return
    published.refused("linux/amd64: image: reading")


def test_another_index_under_the_tag(published: Published) -> None:
    """One platform was dropped: all that is left is whole and signed."""
    document = json.loads(published.index.document)
    document["manifests"] = document["manifests"][:1]
    image_push.move_tag(published.connection, "latest", oci_documents.encode_json(document))
    published.refused("index: signature: the signature is missing")


def test_an_index_that_does_not_list_its_images(published: Published) -> None:
    document = json.loads(published.index.document)
    del document["manifests"]
    image_push.move_tag(published.connection, "latest", oci_documents.encode_json(document))
    published.refused("index: platforms: ")


def test_an_index_signed_with_the_provenance_of_more_platforms(published: Published) -> None:
    """Even one that holds the key cannot forget a platform and keep the provenance."""
    document = json.loads(published.index.document)
    document["manifests"] = document["manifests"][:1]
    small = oci_documents.encode_json(document)
    digest = oci_documents.compute_digest(small)
    _, said = signed_statements.open_attestation(
        published.attached(published.index.digest, signed_statements.PROVENANCE),
        published.key.public,
        published.index.digest,
    )
    image_push.move_tag(published.connection, "latest", small)
    name = published.connection.reference.repository
    items = [
        signed_statements.make_signature(published.key, name, digest),
        signed_statements.make_attestation(
            published.key, name, digest, signed_statements.PROVENANCE, said
        ),
    ]
    attachments.attach(published.connection, attachments.Subject(oci_documents.INDEX, small), items)
    published.refused("index: platforms: missing from the index: linux/arm64")


def _payload(item: Attachment, change: Callable[[dict[str, Any]], None]) -> Attachment:
    """The envelope with another payload under the old signature."""
    envelope = json.loads(item.data)
    said = json.loads(base64.b64decode(envelope["payload"]))
    change(said)
    envelope["payload"] = base64.b64encode(oci_documents.encode_json(said)).decode()
    return signed_statements.Attachment(
        item.media_type, oci_documents.encode_json(envelope), item.annotations
    )


@pytest.mark.parametrize("where", ["index", "linux/arm64"])
@pytest.mark.parametrize("kind", [signed_statements.SBOM, signed_statements.PROVENANCE])
def test_an_attestation_that_was_changed(published: Published, kind: str, where: str) -> None:
    subject = published.index.document if where == "index" else published.index.images[1].manifest
    held = {
        each: published.attached(oci_documents.compute_digest(subject), each)
        for each in (signed_statements.SBOM, signed_statements.PROVENANCE)
    }
    held[kind] = _payload(held[kind], lambda said: said["predicate"].update(x="y"))
    published.replace(subject, attachments.ATTESTATIONS, list(held.values()))
    name = signed_statements.PREDICATE_NAMES[kind]
    published.refused(
        f"{where}: {name}: the {name} was not signed by this key, or was changed since"
    )
    status, failed = published.verify()
    others = ("index: platforms", "index: tag")  # what these two say is signed in the same manifest
    assert (status, len([row for row in failed if not row.startswith(others)])) == (1, 1), failed


@pytest.mark.parametrize("form", ["bundles", "envelopes"])
def test_one_form_of_all_that_is_signed_is_enough(published: Published, form: str) -> None:
    removed = (
        [BUNDLE] if form == "envelopes" else [attachments.SIGNATURES, attachments.ATTESTATIONS]
    )
    for digest in (published.index.digest, *(image.digest for image in published.index.images)):
        published.remove(digest, *removed)
        left = {
            each.media_type == BUNDLE
            for each in attachments.read_attachments(published.connection, digest)
        }
        assert left == {form == "bundles"}
    assert published.verify() == (0, [])


@pytest.mark.parametrize("kind", ["", signed_statements.SBOM])
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("payload", "was not signed by this key"),
        ("key", "was not signed by this key"),
        ("certificate", "was signed with a certificate"),
        ("repository", "does not name the repository"),
        ("image", "is about another image"),
        ("signatures", "is not a valid DSSE envelope"),
    ],
)
def test_a_bundle_that_is_not_ours(
    published: Published, kind: str, change: str, reason: str
) -> None:
    """Where the bundles are all there is, each of them counts."""
    digest = published.index.digest
    predicate_type = kind or signed_statements.COSIGN_SIGN
    held = published.bundles(digest)
    (wanted,) = (each for each in held if predicate_type in each.annotations.values())
    name = signed_statements.PREDICATE_NAMES[predicate_type]
    published.remove(digest, BUNDLE, attachments.SIGNATURES, attachments.ATTESTATIONS)
    subject = attachments.Subject(oci_documents.INDEX, published.index.document)
    changed = _change_bundle(published, wanted, change, predicate_type)
    others = [each for each in held if each is not wanted]
    attachments.attach(published.connection, subject, [*others, changed])
    published.refused(f"index: {name}: the {name} {reason}")
    attachments.attach(published.connection, subject, [wanted])
    assert published.verify() == (0, [])  # the other one has no effect


def _change_bundle(
    published: Published, bundle: Attachment, change: str, predicate_type: str
) -> Attachment:
    document = json.loads(bundle.data)
    envelope = document["dsseEnvelope"]
    said = json.loads(base64.b64decode(envelope["payload"]))
    theirs = signing_key.read_private_key(f"{published.project.keys['theirs']}.pem")
    repository = published.connection.reference.repository
    if change == "payload":
        said["predicate"]["x"] = "y"
        envelope["payload"] = base64.b64encode(oci_documents.encode_json(said)).decode()
    elif change == "certificate":
        document["verificationMaterial"] = {"certificate": {"rawBytes": "MIIC"}}
    elif change == "signatures":
        envelope["signatures"] *= 2
    else:
        signed = signed_statements.make_attestation(
            theirs if change == "key" else published.key,
            "" if change == "repository" else repository,
            published.other.digest if change == "image" else published.index.digest,
            predicate_type,
            said["predicate"],
        )
        return signed_statements.make_bundle(signed, theirs.public)
    return Attachment(BUNDLE, oci_documents.encode_json(document), bundle.annotations)


def test_the_attestations_of_another_image(published: Published) -> None:
    held = [
        published.attached(published.other.digest, each)
        for each in (signed_statements.SBOM, signed_statements.PROVENANCE)
    ]
    published.replace(published.index.document, attachments.ATTESTATIONS, held)
    published.refused("index: SBOM: the SBOM is about another image")
    published.refused("index: provenance: the provenance is about another image")


def test_the_signature_of_another_image(published: Published) -> None:
    published.replace(
        published.index.document,
        attachments.SIGNATURES,
        [published.attached(published.other.digest, "")],
    )
    published.refused("index: signature: the signature is that of another image")


def test_a_signature_by_another_key(published: Published) -> None:
    theirs = signing_key.read_private_key(f"{published.project.keys['theirs']}.pem")
    published.replace(
        published.index.document,
        attachments.SIGNATURES,
        [signed_statements.make_signature(theirs, NAME, published.index.digest)],
    )
    published.refused(
        "index: signature: the signature was not made by this key, or was changed since"
    )


def test_an_sbom_that_describes_another_image_inside(published: Published) -> None:
    digest = published.index.digest
    _, said = signed_statements.open_attestation(
        published.attached(published.other.digest, signed_statements.SBOM),
        published.key.public,
        published.other.digest,
    )
    wrong = signed_statements.make_attestation(
        published.key,
        published.connection.reference.repository,
        digest,
        signed_statements.SBOM,
        said,
    )
    published.replace(
        published.index.document,
        attachments.ATTESTATIONS,
        [wrong, published.attached(digest, signed_statements.PROVENANCE)],
    )
    published.refused("index: SBOM: its metadata does not describe this image")


def test_countersigned_by_others_is_fine(published: Published) -> None:
    theirs = signing_key.read_private_key(f"{published.project.keys['theirs']}.pem")
    subject = attachments.Subject(oci_documents.INDEX, published.index.document)
    repository = f"{published.served.host}/{NAME}"  # as ours has it: the same payload, so one blob with two signatures
    attachments.attach(
        published.connection,
        subject,
        [
            signed_statements.make_signature(theirs, repository, subject.digest),
            signed_statements.make_attestation(
                theirs, NAME, subject.digest, signed_statements.SBOM, {"of": "theirs"}
            ),
        ],
    )
    assert published.verify() == (0, [])
    assert (
        len(
            [
                each
                for each in attachments.read_attachments(published.connection, subject.digest)
                if each.media_type == signed_statements.SIMPLE
            ]
        )
        == 2
    )


def test_latest_verified_needs_a_signed_test(published: Published) -> None:
    image_push.move_tag(published.connection, tags.VERIFIED, published.index.document)
    published.refused("index: test result: the test result is missing", tags.VERIFIED)


def test_the_image_of_one_platform_is_no_index(published: Published, served: Served) -> None:
    status, document = published.project.run(
        "verify-published", f"{served.host}/{NAME}@{published.index.images[0].digest}"
    )
    assert (status, document["result"]["checks"][0]["problem"]) == (
        1,
        "this is the image of one platform, not an index over all platforms",
    )


def test_what_is_not_there(published: Published, served: Served) -> None:
    status, document = published.project.run(
        "verify-published", f"{served.host}/{NAME}:nightly-2020-01-01"
    )
    assert (status, document["ok"]) == (2, False)
    assert (
        image_registry.pull_manifest(f"{served.host}/{NAME}:latest").digest
        == published.index.digest
    )
