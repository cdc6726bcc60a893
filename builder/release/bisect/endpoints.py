"""What --good and --bad may name: a folder, a manifest, a revision of this repository, an
environment or an image.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from builder.core import manifest
from builder.images.oci import reference
from builder.images.registry.transport import Connection
from builder.release.bisect import image_origin, repository
from builder.release.bisect.build_contents import Side
from builder.release.publish import tags
from rosetta.core.errors import UserError

if TYPE_CHECKING:
    from builder.core.command_context import Context
    from builder.release.bisect.repository import Repository

LOCK = "opt/rosetta/lock.json"
_IMAGES = ("env", "oci", "registry", "image")
FORMS = (
    "a folder with manifest.yaml, a revision of this repository, env:DIR, oci:PATH, "
    "registry:HOST/NAME:TAG or image:NAME"
)


@dataclass(frozen=True)
class Asked:
    """What an end stands for, looked up once: `place` may be opened again later and gives the
    same.
    """

    text: str
    kind: str
    place: str


def look(text: str, context: Context, option: str) -> Asked:
    """Return what `text` names. Raises UserError where it names nothing."""
    kind, colon, rest = text.partition(":")
    if colon and kind in _IMAGES and rest:
        return Asked(
            text, kind, rest if kind in ("registry", "image") else str(Path(rest).absolute())
        )
    path = Path(text)
    if (path / LOCK).is_file():
        return Asked(text, "env", str(path.absolute()))
    if path.is_file() or (path / "manifest.yaml").is_file():
        return Asked(
            text, "folder", str((path if path.is_file() else path / "manifest.yaml").absolute())
        )
    ours = repository.around(context.manifest_path.parent)
    if ours and text and not text.startswith("-") and (commit := ours.commit(text)):
        return Asked(text, "revision", commit)
    raise UserError(f"{text!r} names nothing", option, f"give {FORMS}")


def opened(asked: Asked, context: Context, scratch: Path) -> tuple[Side, str, str]:
    """Return the side, and the distribution and accelerator that it is of, "" where it is of many.

    What has to be written goes into the new folder `scratch`.
    """
    if asked.kind == "folder":
        return Side(asked.text, manifest.load(Path(asked.place))), "", ""
    if asked.kind == "revision" and (ours := repository.around(context.manifest_path.parent)):
        return _revision(asked, ours, context, scratch), "", ""
    record = image_origin.write(asked.kind, asked.place, context, scratch)
    return (
        Side(asked.text, manifest.load(scratch / "manifest.yaml")),
        record["distribution"],
        record["accelerator"],
    )


def _revision(asked: Asked, ours: Repository, context: Context, scratch: Path) -> Side:
    name, commit = context.manifest_path.name, asked.place
    ours.write(commit, [name], scratch)
    if not (scratch / name).is_file():
        raise UserError(f"has no {name}", f"revision {asked.text}", "name a revision that has one")
    shipped = manifest.load(scratch / name)
    folders = [
        folder
        for source in shipped.sources.values()
        for folder in (source.patches, source.overlay)
        if folder
    ]
    ours.write(commit, ["locks", *dict.fromkeys(folders)], scratch)
    return Side(
        f"{asked.text} ({commit[:12]})" if asked.text != commit else commit[:12], shipped, commit
    )


def nights(good: Asked, bad: Asked) -> list[Asked]:
    """Return the nightlies of a repository between two of them, oldest first as seen from `good`;
    none where the two ends are something else.
    """
    if good.kind != "registry" or bad.kind != "registry":
        return []
    ends = [reference.parse(each.place) for each in (good, bad)]
    dates = [tags.day(each.tag) for each in ends]
    if (
        not all(dates)
        or any(each.digest for each in ends)
        or (ends[0].host, ends[0].name) != (ends[1].host, ends[1].name)
    ):
        return []
    first, last = sorted(dates)
    with Connection(ends[0], "pull") as connection:
        between = sorted(
            date for tag in tags.listed(connection) if first < (date := tags.day(tag)) < last
        )
    names = [f"{ends[0].host}/{ends[0].name}:{tags.nightly(date)}" for date in between]
    return [
        Asked(f"registry:{name}", "registry", name)
        for name in (names if ends[0].tag <= ends[1].tag else reversed(names))
    ]
