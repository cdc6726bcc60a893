"""Say what changed between two published images: pins with upstream's own log, patches, Python
packages and Debian packages, by their SBOMs.
"""

from __future__ import annotations

import dataclasses
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.core import log
from builder.core.command_context import Context, Result
from builder.images.oci import reference
from builder.images.registry import download
from builder.images.registry.transport import Connection
from builder.release.bump.commit_log import list_commits
from builder.release.publish import attachments, signed_statements, signing_key
from builder.release.publish.signed_statements import SBOM, SIMPLE, UntrustedError
from builder.upstream import local_mirror, tracked_branch
from builder.upstream.git import Git
from rosetta.core.errors import INVALID, MISSING, UserError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping

    from builder.release.publish.signing_key import Public
    from builder.upstream.breakage_search import Cause

_SHOWN = 40  # commits of a source in the text; --json has all


@dataclasses.dataclass(frozen=True)
class Published:
    """What the SBOM of an index says, taken apart.

    `packages`: by kind ("pypi", "deb") and name, the versions by platform and the hashes.
    `rosetta`: the commit and what is not committed, empty where the SBOM does not say.
    """

    name: str
    digest: str
    sources: dict[str, dict[str, Any]]
    packages: dict[str, dict[str, tuple[str, ...]]]
    rosetta: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to `parser`."""
    parser.add_argument(
        "old", metavar="OLD", help="the older image: HOST/NAME:TAG or HOST/NAME@sha256:DIGEST"
    )
    parser.add_argument("new", metavar="NEW", help="the newer image")
    parser.add_argument(
        "--key",
        metavar="FILE|env:NAME",
        default="",
        help="the public key that must have signed both SBOMs (default: no signature is checked)",
    )


def run(context: Context, arguments: argparse.Namespace) -> Result:
    """Run the command."""
    if context.offline:
        raise UserError("a registry cannot be reached with --offline", "changelog", "leave it out")
    public = signing_key.public(arguments.key) if arguments.key else None
    if public is None:
        log.warn("no --key: who signed the two SBOMs is not asked")
    old, new = (_published(each, public) for each in (arguments.old, arguments.new))
    data = {
        "from": {"reference": old.name, "digest": old.digest},
        "to": {"reference": new.name, "digest": new.digest},
        "rosetta": {"from": old.rosetta or None, "to": new.rosetta or None},
        "sources": _sources(context, old.sources, new.sources),
        "python": _packages(old.packages["pypi"], new.packages["pypi"]),
        "system": _packages(old.packages["deb"], new.packages["deb"]),
    }
    return Result(data, text(data))


def _published(name: str, public: Public | None) -> Published:
    wanted = reference.parse_reference(name)
    if not wanted.selector:
        raise UserError(
            "needs a tag or a digest",
            str(wanted),
            "give HOST/NAME:TAG or HOST/NAME@sha256:DIGEST",
            kind=MISSING,
        )
    with Connection(wanted, "pull") as connection:
        digest = download.read_document(connection, wanted.selector).digest
        why = "there is none"
        for item in attachments.items(connection, digest):
            try:
                kind, said = (
                    signed_statements.opened(item, public, digest)
                    if item.media_type != SIMPLE
                    else ("", {})
                )
            except UntrustedError as problem:
                why = str(problem)
                continue
            if kind == SBOM:
                return taken_apart(str(wanted), digest, said)
    raise UserError(
        f"has no SBOM to go by: {why}",
        str(wanted),
        "give an image that build.py publish has published"
        + (", signed by this key" if public else ""),
        kind=MISSING,
    )


def taken_apart(name: str, digest: str, said: Mapping[str, Any]) -> Published:
    """Return an SBOM of ours. Raises UserError for another's."""
    sources: dict[str, dict[str, Any]] = {}
    packages: dict[str, dict[str, set[str]]] = {"pypi": {}, "deb": {}}
    rosetta = ""
    try:
        for each in said["components"]:
            kind = str(each.get("purl", "")).removeprefix("pkg:").partition("/")[0]
            if kind in packages:
                packages[kind].setdefault(str(each["name"]), set()).add(_version(each))
            elif each["bom-ref"] == "rosetta":
                commits = each.get("pedigree", {}).get("commits", [])
                rosetta = ", ".join(
                    " ".join(
                        [str(row["uid"]), *([str(row["message"])] if "message" in row else [])]
                    )
                    for row in commits
                )
            elif str(each["bom-ref"]).startswith("source:"):
                (ancestor,) = each["pedigree"]["ancestors"]
                patches = dict(
                    row["value"].split(" sha256:")
                    for row in ancestor["properties"]
                    if row["name"] == "rosetta:patch"
                )
                commit = str(ancestor["version"])
                if not re.fullmatch(r"[0-9a-f]{40}", commit):
                    raise ValueError(commit)
                sources[str(each["name"])] = {
                    "commit": commit,
                    "url": ancestor["externalReferences"][0]["url"],
                    "patches": patches,
                }
            elif each["type"] == "operating-system":
                packages["deb"].setdefault(str(each["name"]), set()).add(str(each["version"]))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise UserError(
            "its SBOM is not one of rosetta's",
            name,
            "give an image that build.py publish has published",
            kind=INVALID,
        ) from error
    return Published(
        name,
        digest,
        sources,
        {
            kind: {each: tuple(sorted(versions)) for each, versions in found.items()}
            for kind, found in packages.items()
        },
        rosetta,
    )


def _version(component: Mapping[str, Any]) -> str:
    """Return the version; for a Debian package with its architecture, since those of two may
    differ.
    """
    architecture = str(component.get("purl", "")).partition("?arch=")[2].partition("&")[0]
    return f"{component['version']}" + (f" ({architecture})" if architecture else "")


def _sources(
    context: Context, old: Mapping[str, dict[str, Any]], new: Mapping[str, dict[str, Any]]
) -> dict[str, Any]:
    found = {}
    for name in sorted({*old, *new}):
        one, other = old.get(name), new.get(name)
        before, after = (one or {}).get("patches", {}), (other or {}).get("patches", {})
        commits = (
            _log(context, name, str(other["url"]), str(one["commit"]), str(other["commit"]))
            if one and other and one["commit"] != other["commit"]
            else []
        )
        found[name] = {
            "from": one["commit"] if one else None,
            "to": other["commit"] if other else None,
            "log": None if commits is None else [dataclasses.asdict(each) for each in commits],
            "patches": {
                "added": sorted(after.keys() - before.keys()),
                "removed": sorted(before.keys() - after.keys()),
                "changed": sorted(
                    each for each in before.keys() & after.keys() if before[each] != after[each]
                ),
            },
        }
    return found


def _log(context: Context, name: str, url: str, old: str, new: str) -> list[Cause] | None:
    """Upstream's commits from one pin to the other, newest first, by a clone at hand that has both;
    None where there is none.
    """
    for clone in _clones(context, name, url):
        if tracked_branch.has(clone, old) and tracked_branch.has(clone, new):
            with tempfile.TemporaryDirectory(prefix="rosetta-") as folder:
                git = Git(Path(folder), alternates=(clone.objects,))
                git.init()
                return list(list_commits(git, "--first-parent", f"{old}..{new}"))
    return None


def _clones(context: Context, name: str, url: str) -> Iterator[local_mirror.Mirror]:
    own = context.cache.path("git", f"{name}+history.git")
    for root in (*context.mirrors, own):
        if root.is_dir():
            yield from local_mirror.mirrors(root, local_mirror.word_of(url))


def _packages(
    old: Mapping[str, tuple[str, ...]], new: Mapping[str, tuple[str, ...]]
) -> list[dict[str, Any]]:
    """Return the packages that differ: each with its versions before and after, none where it is
    not there.
    """
    return [
        {"name": name, "from": list(old.get(name, ())), "to": list(new.get(name, ()))}
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name)
    ]


def text(data: Mapping[str, Any]) -> str:
    """Return the same in Markdown."""
    lines = [
        f"# {data['to']['reference']}",
        "",
        (
            f"Since {data['from']['reference']}: `{data['from']['digest'][:19]}` became "
            f"`{data['to']['digest'][:19]}`."
        ),
    ]
    old, new = (data["rosetta"][side] for side in ("from", "to"))
    if old != new:
        lines += ["", "## rosetta", "", f"* `{old or 'not recorded'}` -> `{new or 'not recorded'}`"]
    for name, each in data["sources"].items():
        rows = [
            f"* patch {what}: `{patch}`"
            for what, names in each["patches"].items()
            for patch in names
        ]
        if each["from"] != each["to"]:
            rows = [
                f"* `{_short(each['from'])}` -> `{_short(each['to'])}`",
                *rows,
                *_commits(each["log"]),
            ]
        if rows:
            lines += ["", f"## {name}", "", *rows]
    for title, key_ in (("Python packages", "python"), ("Operating system", "system")):
        if data[key_]:
            lines += [
                "",
                f"## {title}",
                "",
                *(
                    (
                        f"* {each['name']}: {', '.join(each['from']) or 'not there'} -> "
                        f"{', '.join(each['to']) or 'gone'}"
                    )
                    for each in data[key_]
                ),
            ]
    if len(lines) == 3:
        same = data["from"]["digest"] == data["to"]["digest"]
        unexplained = (
            "The digests differ, but the SBOMs do not say why: packages, sources, patches and "
            "rosetta's commit are the same."
        )
        lines += ["", "Nothing of it changed." if same else unexplained]
    return "\n".join(lines)


def _short(commit: str | None) -> str:
    return commit[:12] if commit else "none"


def _commits(found: list[dict[str, Any]] | None) -> list[str]:
    if found is None:
        return ["* upstream's log is not at hand (`--mirror DIR` with a complete clone shows it)"]
    rows = [
        (
            f"* {each['commit'][:12]} {each['date']} {_plain(each['author'])}: "
            f"{_plain(each['subject'])}"
        )
        for each in found[:_SHOWN]
    ]
    return [*rows, *([f"* and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else [])]


def _plain(words: str) -> str:
    """Upstream's words, which Markdown must not take for markup."""
    return "".join(f"\\{letter}" if letter in "\\`*_[]<>#|!" else letter for letter in words)
