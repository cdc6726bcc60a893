"""The two ends of a bisect: what `--good` and `--bad` may name, and how it is read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from builder.core import manifest
from builder.images.oci import reference
from builder.images.registry.transport import Connection
from builder.release.bisect import image_origin, repository
from builder.release.bisect.build_contents import EndpointManifest
from builder.release.publish import tags
from rosetta.core.errors import UserError

if TYPE_CHECKING:
    from builder.core.command_context import Context
    from builder.images.oci.reference import Reference
    from builder.release.bisect.repository import Repository
    from builder.release.publish.tags import Position

LOCK = "opt/rosetta/lock.json"
_BUILT_KINDS = ("env", "oci", "registry", "image")
FORMS = (
    "a folder with manifest.yaml, a revision of this repository, env:DIR, oci:PATH, "
    "registry:HOST/NAME:TAG or image:NAME"
)


@dataclass(frozen=True)
class Endpoint:
    """One end of a bisect, resolved once so that it stays the same until the bisect is done.

    Attributes:
        text: The end as the user typed it.
        kind: "folder", "revision", or the kind of something built: env, oci, registry or image.
        place: The path, the commit or the image.
    """

    text: str
    kind: str
    place: str


def resolve_endpoint(text: str, context: Context, option: str) -> Endpoint:
    """Return the end that the value of `--good` or `--bad` names.

    Raises:
        UserError: the value names nothing. The error is of the option `option`.
    """
    kind, colon, place = text.partition(":")
    if colon and kind in _BUILT_KINDS and place:
        is_path = kind in ("env", "oci")
        return Endpoint(text, kind, str(Path(place).absolute()) if is_path else place)
    path = Path(text)
    if (path / LOCK).is_file():
        return Endpoint(text, "env", str(path.absolute()))
    file = path if path.is_file() else path / "manifest.yaml"
    if file.is_file():
        return Endpoint(text, "folder", str(file.absolute()))
    checkout = repository.find_repository(context.manifest_path.parent)
    if checkout and text and not text.startswith("-"):
        commit = checkout.resolve_commit(text)
        if commit:
            return Endpoint(text, "revision", commit)
    raise UserError(
        f"{text!r} is not a folder, a revision, an environment or an image",
        option,
        f"give {FORMS}",
    )


def read_endpoint(endpoint: Endpoint, context: Context, scratch: Path) -> EndpointManifest:
    """Read the manifest of an end. Files that have to be written go into the new folder `scratch`.

    Raises:
        UserError: the manifest cannot be read or reconstructed.
    """
    if endpoint.kind == "folder":
        return EndpointManifest(endpoint.text, manifest.load(Path(endpoint.place)))
    if endpoint.kind == "revision":
        checkout = repository.find_repository(context.manifest_path.parent)
        if checkout:
            return _read_revision(endpoint, checkout, context, scratch)
    record = image_origin.write_manifest_of_built(endpoint.kind, endpoint.place, context, scratch)
    return EndpointManifest(
        endpoint.text,
        manifest.load(scratch / "manifest.yaml"),
        distribution=record["distribution"],
        accelerator=record["accelerator"],
    )


def _read_revision(
    endpoint: Endpoint, checkout: Repository, context: Context, scratch: Path
) -> EndpointManifest:
    """Export a revision's manifest and the files that it names, and read them."""
    file_name, commit = context.manifest_path.name, endpoint.place
    checkout.export_files(commit, [file_name], scratch)
    if not (scratch / file_name).is_file():
        raise UserError(
            f"has no {file_name}", f"revision {endpoint.text}", "name a revision that has one"
        )
    revision_manifest = manifest.load(scratch / file_name)
    folders = {"locks": None}
    for source in revision_manifest.sources.values():
        folders |= {folder: None for folder in (source.patches, source.overlay) if folder}
    checkout.export_files(commit, list(folders), scratch)
    label = commit[:12] if endpoint.text == commit else f"{endpoint.text} ({commit[:12]})"
    return EndpointManifest(label, revision_manifest, commit)


def list_nightlies_between(good: Endpoint, bad: Endpoint) -> list[Endpoint]:
    """Return the nightly images of a registry between two of them, in order from good to bad.

    The list is empty if the ends are not two nightly images of one repository and one accelerator.
    """
    if good.kind != "registry" or bad.kind != "registry":
        return []
    good_image = reference.parse_reference(good.place)
    bad_image = reference.parse_reference(bad.place)
    if (good_image.host, good_image.name) != (bad_image.host, bad_image.name):
        return []
    good_position, bad_position = map(_parse_nightly, (good_image, bad_image))
    if not good_position or not bad_position or good_position.suffix != bad_position.suffix:
        return []
    first, last = sorted((good_position, bad_position))
    with Connection(good_image, "pull") as connection:
        published = [tags.parse_nightly(tag) for tag in tags.list_tags(connection)]
    between = sorted(
        position
        for position in published
        if position and position.suffix == first.suffix and first < position < last
    )
    if good_position > bad_position:
        between.reverse()
    images = [f"{good_image.host}/{good_image.name}:{position.tag}" for position in between]
    return [Endpoint(f"registry:{image}", "registry", image) for image in images]


def _parse_nightly(image: Reference) -> Position | None:
    """Return the position of a nightly image, or None if a reference does not name one by a tag."""
    return None if image.digest else tags.parse_nightly(image.tag)
