"""Compare two published images by their SBOMs."""

from __future__ import annotations

import re
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.images.oci import reference
from builder.images.registry import download
from builder.images.registry.transport import Connection
from builder.release.bump.commit_log import list_commits
from builder.release.publish import attachments, signed_statements
from builder.release.publish.signed_statements import SBOM, SIMPLE, UntrustedError
from builder.upstream import local_mirror, tracked_branch
from builder.upstream.git import Git
from rosetta.core.errors import INVALID, MISSING, UserError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from builder.core.command_context import Context
    from builder.release.publish.signing_key import PublicKey
    from builder.upstream.breakage_search import Cause

    Versions = Mapping[str, set[str]]  # name of a package -> its versions

_MAX_COMMITS_SHOWN = 40  # of a source in the text; --json has all
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass
class PublishedImage:
    """What the SBOM of an index lists.

    Attributes:
        name: The image as the user named it.
        digest: The digest of the index.
        sources: The commit, the URL and the patches of each source.
        python_packages: The versions of each Python package.
        system_packages: The versions of each Debian package, or of the base as a whole.
        rosetta: The commit of rosetta, and a note if not everything was committed; or "".
    """

    name: str
    digest: str
    sources: dict[str, dict[str, Any]] = field(default_factory=dict)
    python_packages: dict[str, set[str]] = field(default_factory=dict)
    system_packages: dict[str, set[str]] = field(default_factory=dict)
    rosetta: str = ""

    def add_component(self, component: Mapping[str, Any]) -> None:
        """Add a component of the SBOM. Components that are not compared are ignored.

        Raises:
            KeyError, TypeError, ValueError, AttributeError, IndexError: the component does not
                have the form of rosetta's SBOMs.
        """
        kind = str(component.get("purl", "")).removeprefix("pkg:").partition("/")[0]
        if kind == "pypi":
            packages, version = self.python_packages, str(component["version"])
        elif kind == "deb":
            packages, version = self.system_packages, _debian_version(component)
        elif component["bom-ref"] == "rosetta":
            self.rosetta = _read_rosetta_commit(component)
            return
        elif str(component["bom-ref"]).startswith("source:"):
            self.sources[str(component["name"])] = _read_source(component)
            return
        elif component["type"] == "operating-system":
            packages, version = self.system_packages, str(component["version"])
        else:
            return
        packages.setdefault(str(component["name"]), set()).add(version)


def _debian_version(component: Mapping[str, Any]) -> str:
    """Return a version with its architecture, because architectures may have other versions."""
    architecture = str(component.get("purl", "")).partition("?arch=")[2].partition("&")[0]
    version = str(component["version"])
    return f"{version} ({architecture})" if architecture else version


def _read_rosetta_commit(component: Mapping[str, Any]) -> str:
    commits = []
    for commit in component.get("pedigree", {}).get("commits", []):
        words = [str(commit["uid"])]
        if "message" in commit:
            words.append(str(commit["message"]))
        commits.append(" ".join(words))
    return ", ".join(commits)


def _read_source(component: Mapping[str, Any]) -> dict[str, Any]:
    (ancestor,) = component["pedigree"]["ancestors"]
    commit = str(ancestor["version"])
    if not _COMMIT.fullmatch(commit):
        raise ValueError(commit)
    patches = [
        entry["value"].split(" sha256:")
        for entry in ancestor["properties"]
        if entry["name"] == "rosetta:patch"
    ]
    return {
        "commit": commit,
        "url": ancestor["externalReferences"][0]["url"],
        "patches": dict(patches),
    }


def read_published_image(name: str, key: PublicKey | None) -> PublishedImage:
    """Read the SBOM of a published image from its registry.

    Args:
        name: HOST/NAME:TAG or HOST/NAME@sha256:DIGEST.
        key: The key that must have signed the SBOM; None accepts any.

    Raises:
        UserError: the image has no such SBOM.
    """
    image = reference.parse_reference(name)
    if not image.selector:
        raise UserError(
            "needs a tag or a digest",
            str(image),
            "give HOST/NAME:TAG or HOST/NAME@sha256:DIGEST",
            kind=MISSING,
        )
    with Connection(image, "pull") as connection:
        digest = download.read_document(connection, image.selector).digest
        reason = "there is none"
        for attachment in attachments.read_attachments(connection, digest):
            if attachment.media_type == SIMPLE:
                continue
            try:
                kind, predicate = signed_statements.open_attestation(attachment, key, digest)
            except UntrustedError as problem:
                reason = str(problem)
                continue
            if kind == SBOM:
                return parse_sbom(str(image), digest, predicate)
    signed = ", signed by this key" if key else ""
    raise UserError(
        f"has no SBOM to compare: {reason}",
        str(image),
        f"give an image that build.py publish has published{signed}",
        kind=MISSING,
    )


def parse_sbom(name: str, digest: str, sbom: Mapping[str, Any]) -> PublishedImage:
    """Return what an SBOM lists.

    Raises:
        UserError: the SBOM was not made by rosetta.
    """
    image = PublishedImage(name, digest)
    try:
        for component in sbom["components"]:
            image.add_component(component)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise UserError(
            "its SBOM is not one of rosetta's",
            name,
            "give an image that build.py publish has published",
            kind=INVALID,
        ) from error
    return image


def compare_images(context: Context, old: PublishedImage, new: PublishedImage) -> dict[str, Any]:
    """Return what changed between two images: the result of `changelog --json`.

    Args:
        context: The context of the command, whose mirrors may have upstream's commits.
        old: The older image.
        new: The newer image.
    """
    return {
        "from": {"reference": old.name, "digest": old.digest},
        "to": {"reference": new.name, "digest": new.digest},
        "rosetta": {"from": old.rosetta or None, "to": new.rosetta or None},
        "sources": {
            name: _compare_source(context, name, old.sources.get(name), new.sources.get(name))
            for name in sorted({*old.sources, *new.sources})
        },
        "python": _compare_packages(old.python_packages, new.python_packages),
        "system": _compare_packages(old.system_packages, new.system_packages),
    }


def _compare_source(
    context: Context, name: str, old: dict[str, Any] | None, new: dict[str, Any] | None
) -> dict[str, Any]:
    old_patches = old["patches"] if old else {}
    new_patches = new["patches"] if new else {}
    common = old_patches.keys() & new_patches.keys()
    commits: list[Cause] | None = []
    if old and new and old["commit"] != new["commit"]:
        commits = _list_upstream_commits(
            context, name, str(new["url"]), str(old["commit"]), str(new["commit"])
        )
    return {
        "from": old["commit"] if old else None,
        "to": new["commit"] if new else None,
        "log": None if commits is None else [asdict(commit) for commit in commits],
        "patches": {
            "added": sorted(new_patches.keys() - old_patches.keys()),
            "removed": sorted(old_patches.keys() - new_patches.keys()),
            "changed": sorted(
                patch for patch in common if old_patches[patch] != new_patches[patch]
            ),
        },
    }


def _list_upstream_commits(
    context: Context, name: str, url: str, old: str, new: str
) -> list[Cause] | None:
    """Return upstream's commits from one pin to another, newest first.

    Returns:
        None if no mirror, and no clone in the cache, has both commits.
    """
    for clone in _list_clones(context, name, url):
        if tracked_branch.has_commit(clone, old) and tracked_branch.has_commit(clone, new):
            with tempfile.TemporaryDirectory(prefix="rosetta-") as folder:
                git = Git(Path(folder), alternates=(clone.objects,))
                git.init()
                return list_commits(git, "--first-parent", f"{old}..{new}")
    return None


def _list_clones(context: Context, name: str, url: str) -> Iterator[local_mirror.Mirror]:
    cached_clone = context.cache.path("git", f"{name}+history.git")
    for root in (*context.mirrors, cached_clone):
        if root.is_dir():
            yield from local_mirror.find_mirrors(root, local_mirror.repository_name(url))


def _compare_packages(old: Versions, new: Versions) -> list[dict[str, Any]]:
    """Return the packages that differ, with all their versions before and after."""
    return [
        {"name": name, "from": sorted(old.get(name, ())), "to": sorted(new.get(name, ()))}
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name)
    ]


def comparison_as_markdown(comparison: Mapping[str, Any]) -> str:
    """Return what `compare_images` returned as Markdown."""
    old, new = comparison["from"], comparison["to"]
    summary = f"Since {old['reference']}: `{old['digest'][:19]}` became `{new['digest'][:19]}`."
    sections = [
        _format_section("rosetta", _rosetta_lines(comparison["rosetta"])),
        *(
            _format_section(name, _source_lines(change))
            for name, change in comparison["sources"].items()
        ),
        _format_section("Python packages", _package_lines(comparison["python"])),
        _format_section("Operating system", _package_lines(comparison["system"])),
    ]
    lines = [f"# {new['reference']}", "", summary]
    for section in sections:
        lines += section
    if not any(sections):
        unexplained = (
            "The digests differ, but the SBOMs do not say why: packages, sources, patches and "
            "rosetta's commit are the same."
        )
        is_same = old["digest"] == new["digest"]
        lines += ["", "Nothing changed." if is_same else unexplained]
    return "\n".join(lines)


def _format_section(title: str, lines: list[str]) -> list[str]:
    return ["", f"## {title}", "", *lines] if lines else []


def _rosetta_lines(change: Mapping[str, Any]) -> list[str]:
    if change["from"] == change["to"]:
        return []
    return [f"* `{change['from'] or 'not recorded'}` -> `{change['to'] or 'not recorded'}`"]


def _source_lines(change: Mapping[str, Any]) -> list[str]:
    patch_lines = [
        f"* patch {verb}: `{patch}`"
        for verb, patches in change["patches"].items()
        for patch in patches
    ]
    if change["from"] == change["to"]:
        return patch_lines
    old, new = _shorten_commit(change["from"]), _shorten_commit(change["to"])
    return [f"* `{old}` -> `{new}`", *patch_lines, *_commit_lines(change["log"])]


def _shorten_commit(commit: str | None) -> str:
    return commit[:12] if commit else "none"


def _commit_lines(commits: list[dict[str, Any]] | None) -> list[str]:
    if commits is None:
        return ["* upstream's commits are not available; give `--mirror DIR` with a complete clone"]
    lines = [
        f"* {commit['commit'][:12]} {commit['date']} {_escape_markdown(commit['author'])}: "
        + _escape_markdown(commit["subject"])
        for commit in commits[:_MAX_COMMITS_SHOWN]
    ]
    if len(commits) > _MAX_COMMITS_SHOWN:
        lines.append(f"* and {len(commits) - _MAX_COMMITS_SHOWN} more")
    return lines


def _package_lines(changes: list[dict[str, Any]]) -> list[str]:
    lines = []
    for change in changes:
        old = ", ".join(change["from"]) or "not installed"
        new = ", ".join(change["to"]) or "not installed"
        lines.append(f"* {change['name']}: {old} -> {new}")
    return lines


def _escape_markdown(text: str) -> str:
    """Escape the characters of upstream's texts that mean something in Markdown."""
    return "".join(f"\\{letter}" if letter in "\\`*_[]<>#|!" else letter for letter in text)
