"""Read the name of a container image, and write it in the form of each place that runs a job.

One name means different images in different places. Docker reads `ghcr.io/me/t5x` as an image of
the registry ghcr.io; enroot, which pyxis calls, reads it as one of Docker Hub before version 4, and
wants `ghcr.io#me/t5x`. Apptainer reads a name without `docker://` as a path.

Sources:
  Docker: distribution/reference, reference.go and normalize.go (grammar, and when the first
    component is a registry).
  enroot: doc/cmd/import.md and src/docker.sh, versions 3.0.1 to 4.1.2. A digest is written in place
    of the tag, as IMAGE:sha256:HEX: before version 4, IMAGE@sha256:HEX is read as the image
    "sha256" of the user IMAGE.
  pyxis: args.c and pyxis_slurmstepd.c (a name that begins with a dot or a slash is the path of a
    squash file).
  Apptainer: its user guide, "Support for Docker and OCI Containers"; github.com/containers/image,
    docker/docker_transport.go (a reference with a tag and a digest is refused).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from rosetta.core.errors import INVALID, UNKNOWN, UNSUPPORTED, UserError

DOCKER_HUB = ("docker.io", "index.docker.io", "registry-1.docker.io")
# Schemes that only one place accepts. What follows the scheme is left as it is.
_SCHEME_PLACES = {
    "dockerd": "pyxis",
    "podman": "pyxis",
    **dict.fromkeys(
        (
            "library",
            "oras",
            "shub",
            "instance",
            "http",
            "https",
            "docker-daemon",
            "docker-archive",
            "oci",
            "oci-archive",
        ),
        "apptainer",
    ),
}
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*):(//)?(.*)", re.DOTALL)
_PATH = re.compile(r"(\.{0,2}/|~).*|\.\.?|.*\.(sif|sqsh|sqfs|squashfs|img|simg|tar)", re.DOTALL)
_NOT_FOR_ENROOT = (".sif", ".simg", ".img", ".tar")  # files that enroot cannot start
_HOST = re.compile(r"(\[[0-9a-fA-F:]+\]|[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?)(:[0-9]+)?")
_COMPONENT = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"{_COMPONENT}(?:/{_COMPONENT})*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class ImageReference:
    """The parts of an image's name.

    Attributes:
      registry: HOST or HOST:PORT; empty for Docker Hub.
      repository: the path in the registry.
      tag: empty for none.
      digest: sha256:HEX, empty for none. It decides which image is meant, whatever the tag is.
      user: the user that enroot logs in as; empty for none.
      path: of a file or folder. The fields above are empty then.
      other: a name with a scheme that only one place accepts. All other fields are empty then.
    """

    registry: str = ""
    repository: str = ""
    tag: str = ""
    digest: str = ""
    user: str = ""
    path: str = ""
    other: str = ""


def read_image(text: str, where: str) -> ImageReference:
    """Return the parts of an image's name.

    The name is a reference in Docker's form, a reference in enroot's form (HOST#PATH), or a path.

    Args:
      text: the name.
      where: the option that set it, for messages.

    Raises:
      UserError: the name is not valid.
    """
    if (
        not text
        or text.startswith("-")
        or text != text.strip()
        or any(ord(character) < 32 for character in text)
    ):
        raise _make_refusal(text, where)
    scheme = _SCHEME.fullmatch(text)
    if (
        scheme
        and scheme[1] in _SCHEME_PLACES
        and (scheme[2] or scheme[1].startswith(("docker-", "oci")))
    ):
        return ImageReference(other=text)
    if scheme and scheme[2] and scheme[1] != "docker":
        known_schemes = ", ".join(["docker", *sorted(_SCHEME_PLACES)])
        raise UserError(
            f"the scheme {scheme[1]!r} is not known",
            f"{where}{text}",
            f"give one of: {known_schemes}",
            kind=UNKNOWN,
            value=scheme[1],
        )
    if scheme and scheme[2]:
        text = scheme[3]
    elif _PATH.fullmatch(text):
        return ImageReference(path=text)
    return _read_reference(text, where)


def _read_reference(text: str, where: str) -> ImageReference:
    """Return a reference in Docker's form or in enroot's; see read_image."""
    if "#" in text:
        user, registry, path = _split_enroot_name(text, where)
    else:
        _refuse_password(text, where)
        user, registry, path = "", "", text
    name, at_sign, digest = path.partition("@")
    folder, _, last = name.rpartition("/")
    last, colon, tag = last.partition(":")
    if tag.startswith("sha256:") and not digest:  # enroot writes a digest in place of the tag.
        tag, colon, digest = "", "", tag
    repository = f"{folder}/{last}" if folder else last
    if not registry:
        registry, repository = _split_registry(repository)
    is_valid = (
        _REPOSITORY.fullmatch(repository)
        and (not registry or _HOST.fullmatch(registry))
        and (not colon or _TAG.fullmatch(tag))
        and (not (at_sign or digest) or _DIGEST.fullmatch(digest))
    )
    if not is_valid:
        raise _make_refusal(text, where)
    return ImageReference("" if registry in DOCKER_HUB else registry, repository, tag, digest, user)


def _split_enroot_name(text: str, where: str) -> tuple[str, str, str]:
    """Return user, registry and path of a name in enroot's form, [USER@]HOST#PATH."""
    head, _, path = text.partition("#")
    user, _, registry = head.rpartition("@")
    if ":" in user:
        advice = (
            "keep it where the place looks for it: enroot's .credentials, apptainer registry "
            "login, docker login"
        )
        raise UserError(
            "a password does not belong into an image's name",
            where.rstrip("="),
            advice,
            kind=INVALID,
        )
    if not _HOST.fullmatch(registry):
        raise _make_refusal(text, where)
    return user, registry, path


def _refuse_password(text: str, where: str) -> None:
    """Refuse a name such as USER:PASSWORD@HOST, and do not print it."""
    head, at_sign, rest = text.partition("@")
    if at_sign and ":" in head and "/" not in head and not _DIGEST.fullmatch(rest):
        raise UserError(
            "not a valid image reference",
            where.rstrip("="),
            "write HOST/PATH:TAG, without a user and a password",
            kind=INVALID,
        )


def _split_registry(name: str) -> tuple[str, str]:
    """Return the registry and the repository of a name in Docker's form; "" for Docker Hub."""
    first, slash, rest = name.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return first, rest
    return "", name


def _make_refusal(text: str, where: str) -> UserError:
    """Return the error about a name that is not valid."""
    advice = (
        "write HOST/PATH:TAG or HOST/PATH@sha256:DIGEST, with 64 hexadecimal digits, or the path "
        "of an image file such as ./t5x.sqsh"
    )
    return UserError("not a valid image reference", f"{where}{text}", advice, kind=INVALID)


def write_image(image: ImageReference, place: str, where: str) -> str:
    """Return an image's name in the form of a place.

    Args:
      image: as read_image returns it.
      place: "docker", "jobset", "pyxis" or "apptainer".
      where: the option that set it, for messages.

    Raises:
      UserError: the place cannot run this image.
    """
    if image.other:
        needed = _SCHEME_PLACES[image.other.partition(":")[0]]
        if needed != place:
            raise UserError(
                f"only {needed} reads such a name",
                f"{where}{image.other}",
                f"give HOST/PATH:TAG, or use --on {needed}",
                kind=UNSUPPORTED,
            )
        return image.other
    if image.path:
        return _write_path(image.path, place, where)
    if image.user and place != "pyxis":
        login = "apptainer registry login" if place == "apptainer" else "docker login"
        raise UserError(
            "only pyxis reads a user in an image's name",
            f"{where}{image.user}@{image.registry}#{image.repository}",
            f"leave out {image.user!r} and '@', and log in with {login}",
            kind=UNSUPPORTED,
            value=image.user,
        )
    tag = f":{image.tag}" if image.tag else ""
    digest = f"@{image.digest}" if image.digest else ""
    full_name = f"{image.registry}/{image.repository}" if image.registry else image.repository
    if place == "pyxis":
        name = f"{image.registry}#{image.repository}" if image.registry else image.repository
        user = f"{image.user}@" if image.user else ""
        return f"{user}{name}:{image.digest}" if image.digest else f"{user}{name}{tag}"
    if place == "apptainer":
        return f"docker://{full_name}{digest or tag}"
    return f"{full_name}{tag}{digest}"


def _write_path(path: str, place: str, where: str) -> str:
    """Return the path of an image file in the form of a place; see write_image."""
    if place in ("docker", "jobset"):
        raise UserError(
            f"{place} takes an image of a registry, and this is a path",
            f"{where}{path}",
            "give HOST/PATH:TAG",
            kind=UNSUPPORTED,
            value=path,
        )
    if path.startswith("~"):
        raise UserError(
            "no place reads '~' as the home folder",
            f"{where}{path}",
            "give the whole path",
            kind=UNSUPPORTED,
            value=path,
        )
    if place == "apptainer":
        return path
    if path.endswith(_NOT_FOR_ENROOT):
        raise UserError(
            "pyxis starts squash files (.sqsh) only",
            f"{where}{path}",
            "convert it with enroot import, give HOST/PATH:TAG, or use --on apptainer",
            kind=UNSUPPORTED,
            value=path,
        )
    return path if path.startswith((".", "/")) else f"./{path}"


def describe_dropped_tag(image: ImageReference, place: str) -> str | None:
    """Return a note if the place accepts a digest only, so that the tag is left out; else None."""
    if image.tag and image.digest and place in ("pyxis", "apptainer"):
        return (
            f"{place} takes a tag or a digest: the tag {image.tag!r} is left out, and the digest "
            "decides which image runs"
        )
    return None
