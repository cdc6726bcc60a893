"""`build.py publish`: upload an image with its SBOM, provenance and signature, then move tags."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder import __version__
from builder.commands import image_options
from builder.core import log, manifest
from builder.core.accelerators import ACCELERATORS
from builder.core.command_context import Context, Result
from builder.images.oci import oci_documents, reference
from builder.images.registry.transport import Connection
from builder.images.registry.upload import format_size
from builder.release import release_version
from builder.release.publish import (
    image_variants,
    platform_images,
    provenance,
    publication,
    signed_statements,
    signing_key,
    step_outputs,
    tags,
)
from builder.release.publish.publication import PublicationRequest
from builder.upstream import checkout
from rosetta.core.errors import CONFLICT, DENIED, INVALID, MISSING, UserError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from builder.images.oci.reference import Reference
    from builder.release.publish.platform_images import PublishableIndex
    from builder.release.publish.publication import Predicates
    from builder.release.publish.signing_key import PrivateKey

_RESERVED_TAG = re.compile(r"nightly-.*|moved-.*|claim-.*|sha256-.*")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to `parser`."""
    parser.add_argument(
        "what",
        nargs="*",
        metavar="DISTRIBUTION|oci:DIR",
        help=(
            "what to build and publish, or the image layout that has it; several layouts, or a "
            "folder of them, each with some architectures, are joined"
        ),
    )
    parser.add_argument(
        "--to",
        metavar="HOST/NAMESPACE/NAME",
        required=True,
        help="the repository of this distribution, for example ghcr.io/OWNER/t5x",
    )
    parser.add_argument(
        "--key",
        metavar="FILE|env:NAME",
        default="",
        help="the private key to sign with (PEM, ECDSA P-256)",
    )
    parser.add_argument(
        "--date",
        metavar="YYYY-MM-DD",
        default="",
        help="the day of the nightly tag (default: today, UTC)",
    )
    parser.add_argument(
        "--tag",
        metavar="NAME",
        action="append",
        default=[],
        help=(
            "also move this tag, after the nightly one (may be repeated; default: latest); tags "
            "of images for CPUs end with -cpu, of those for an older CUDA version with -cuda12, "
            "and the command adds that"
        ),
    )
    parser.add_argument(
        "--release",
        metavar="vX.Y.Z",
        default="",
        help=(
            "publish the release of this tag in git, as X.Y.Z and X.Y and not as a nightly image; "
            "the tag has to be that of the checkout's version"
        ),
    )
    parser.add_argument(
        "--digest",
        metavar="sha256:HEX",
        default="",
        help=(
            "go back to an image that is published already: move the tags of --tag to it, and do "
            "nothing else"
        ),
    )
    parser.add_argument(
        "--tested",
        action="store_true",
        help=("with --digest: only if this key signed a passed test of the image, as promote does"),
    )
    parser.add_argument(
        "--withdraw",
        metavar="sha256:HEX",
        default="",
        help="first withdraw the claim of a publisher that will not come back",
    )
    parser.add_argument(
        "--builder-id",
        metavar="URI",
        default=provenance.BUILDER,
        help=f"the builder that the provenance names (default: {provenance.BUILDER})",
    )
    parser.add_argument(
        "--step-outputs",
        metavar="FILE",
        default="",
        help=(
            "append `repository=` and `digest=` of what was published to this file (GitHub's "
            "outputs of a step)"
        ),
    )
    parser.add_argument(
        "--accelerator",
        default="",
        choices=ACCELERATORS,
        help=(
            "CPUs, or GPUs of this CUDA version (default: the newest CUDA version that the "
            "distribution is built for, else cpu)"
        ),
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="build the image and print what would be sent, but send nothing",
    )
    image_options.add_arguments(parser)


def run(context: Context, arguments: argparse.Namespace) -> Result:
    """Run the command."""
    request = _read_request(arguments)
    if context.offline:
        raise UserError(
            "a registry cannot be reached with --offline", "publish", "leave it out", kind=CONFLICT
        )
    if not arguments.key and not arguments.dry_run:
        raise UserError(
            "needs a key to sign with",
            "publish",
            "give --key FILE; docs/how-to/publish-images.md shows how to make one",
            kind=MISSING,
        )
    key = signing_key.read_private_key(arguments.key) if arguments.key else None
    if request.digest:
        return _move_tags_back(request, key, arguments)
    builder = provenance.parse_builder_id(arguments.builder_id)
    arguments.accelerator = arguments.accelerator or _choose_accelerator(context, arguments.what)
    image = platform_images.collect_images(
        context, image_options.read_image_options(arguments), arguments.what
    )
    predicates = publication.make_predicates(
        image, request.repository, checkout.describe_checkout(context.root), builder
    )
    if key is None or arguments.dry_run:
        return _describe_dry_run(image, request, predicates)
    with (
        log.stage(f"publish {image.title} to {request.repository}"),
        Connection(request.repository, "pull,push") as connection,
    ):
        data = publication.publish_image(connection, image, request, predicates, key)
    if arguments.step_outputs:
        step_outputs.append_publication(Path(arguments.step_outputs), data)
    return Result(data, _describe_publication(data))


def _choose_accelerator(context: Context, names: Sequence[str]) -> str:
    """Return the newest CUDA version that a distribution is built for, else "cpu".

    An image layout says itself what it is for. The result is "" then.
    """
    if names[0].startswith("oci:"):
        return ""
    distribution = manifest.load(context.manifest_path).distribution(names[0])
    return max(distribution.accelerators, key=ACCELERATORS.index)


def _read_request(arguments: argparse.Namespace) -> PublicationRequest:
    """Return what the options ask for.

    Raises:
        UserError: an option is not valid, or options contradict each other.
    """
    repository = reference.parse_reference(arguments.to)
    if repository.selector:
        raise UserError(
            "has a tag or a digest",
            "--to",
            "give HOST/NAMESPACE/NAME; tags are given by --date and --tag",
            kind=INVALID,
        )
    today = tags.read_today()  # only a tag depends on it, nothing in the image
    date = arguments.date or today
    if not tags.is_release_day(date) or date > today:
        raise UserError(
            f"{date!r} is not a valid day from 2020 up to today",
            "--date",
            "give YYYY-MM-DD, in UTC",
            kind=INVALID,
            value=date,
        )
    for name in arguments.tag:
        _check_tag(repository, name)
    _check_image_options(arguments)
    if arguments.release:
        _check_release_options(arguments)
        names = release_version.list_image_tags(__version__)
        return PublicationRequest(repository, date, names, version=__version__)
    return PublicationRequest(
        repository,
        date,
        tuple(dict.fromkeys(arguments.tag or ["latest"])),
        arguments.digest,
        arguments.withdraw,
    )


def _check_release_options(arguments: argparse.Namespace) -> None:
    """Refuse a release of another version, and options that are for nightly images."""
    release_version.check_git_tag(arguments.release)
    for name in ("date", "tag", "digest", "withdraw"):
        if getattr(arguments, name):
            raise UserError(
                "is not for a release, which has the tags of its version",
                f"--{name}",
                "leave it out, or leave --release out",
                kind=CONFLICT,
            )


def _check_tag(repository: Reference, name: str) -> None:
    """Refuse a tag that is not valid, or that this command must not move."""
    reference.parse_reference(f"{repository}:{name}")
    if image_variants.is_tag_of(name, tags.VERIFIED):
        raise UserError(
            "moves only with a signed test result",
            f"--tag {name}",
            "python build.py promote HOST/NAME@sha256:... --suite NAME --result FILE --key FILE",
            kind=DENIED,
            value=name,
        )
    if _RESERVED_TAG.fullmatch(name):
        raise UserError(
            "is reserved for nightly images, positions, claims and attachments",
            f"--tag {name}",
            "give another name",
            kind=DENIED,
            value=name,
        )


def _check_image_options(arguments: argparse.Namespace) -> None:
    """Refuse options that do not name one image to publish."""
    if arguments.digest and (
        arguments.what or not arguments.tag or not reference.is_digest(arguments.digest)
    ):
        raise UserError(
            "moves tags to an image that is already published",
            "--digest",
            "give --digest sha256:HEX with --tag NAME, and neither a distribution nor a layout",
            kind=CONFLICT,
        )
    if not arguments.digest and not arguments.what:
        raise UserError(
            "no image to publish is named",
            "publish",
            "give a distribution, oci:DIR, or --digest with --tag",
            kind=MISSING,
        )
    if arguments.tested and not arguments.digest:
        raise UserError("a new image has not been tested yet", "--tested", "give it with --digest")
    if arguments.withdraw and not reference.is_digest(arguments.withdraw):
        raise UserError(
            f"{arguments.withdraw[:80]!r} is not a valid digest",
            "--withdraw",
            "give sha256: and 64 hexadecimal digits, as in the message that named it",
            kind=INVALID,
            value=arguments.withdraw[:80],
        )


def _move_tags_back(
    request: PublicationRequest, key: PrivateKey | None, arguments: argparse.Namespace
) -> Result:
    if key is None:
        raise UserError(
            "needs a key", "--digest", "give --key FILE, whose public half must verify the image"
        )
    data = publication.move_tags_back(
        request, key, require_test=arguments.tested, dry_run=arguments.dry_run
    )
    verb = "would become" if arguments.dry_run else "is"
    lines = []
    for name in data["tags"]:
        previous = data["previous"].get(name, "a new tag")
        lines.append(f"{data['repository']}:{name} {verb} {data['digest']}, it was {previous}")
    return Result(data, "\n".join(lines))


def _describe_publication(data: Mapping[str, Any]) -> str:
    repository = data["repository"]
    lines = [
        f"{repository}@{data['digest']} is published: uploaded {format_size(data['moved'])} of "
        + format_size(data["total"])
    ]
    lines += [f"  {repository}:{name}" for name in data["tags"]]
    return "\n".join(lines)


def _describe_dry_run(
    image: PublishableIndex, request: PublicationRequest, predicates: Mapping[str, Predicates]
) -> Result:
    images: list[dict[str, Any]] = [
        {
            "platform": f"linux/{platform.architecture}",
            "digest": platform.digest,
            "size": platform.size,
        }
        for platform in image.index.images
    ]
    suffix = image_variants.find_suffix(image.accelerator)
    names = [image_variants.add_suffix(name, suffix) for name in request.tags]
    if not request.version:
        names.insert(0, tags.Position(request.date, suffix=suffix).tag)
    data = {
        "repository": str(request.repository),
        "digest": image.index.digest,
        "title": image.title,
        "tags": names,
        "images": images,
        "attached": {digest: _measure_predicates(pairs) for digest, pairs in predicates.items()},
    }
    lines = [f"would publish {image.title} as {request.repository}@{image.index.digest}"]
    lines += [
        f"  {entry['platform']}  {format_size(entry['size'])}  {entry['digest']}"
        for entry in images
    ]
    lines += [f"  then the tag {name}" for name in names]
    return Result(data, "\n".join(lines))


def _measure_predicates(predicates: Predicates) -> dict[str, int]:
    """Return the size of each statement in bytes, by its name."""
    return {
        signed_statements.PREDICATE_NAMES[kind]: len(oci_documents.encode_json(predicate))
        for kind, predicate in predicates
    }
