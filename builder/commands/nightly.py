"""A night by one command: bump, try the patches, build, train in what was built, publish, report.

It goes on where it was stopped.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from builder.core import manifest
from builder.core.cache import stage_key
from builder.core.command_context import Context, Result
from builder.images.oci import reference
from builder.release.nightly import night_folder as nights
from builder.release.nightly import report, stages
from builder.release.publish import provenance, signing_key
from rosetta.core.atomic_files import write_atomic
from rosetta.core.errors import CONFLICT, INVALID, MISSING, UserError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from builder.core.manifest import Manifest
    from builder.release.nightly.night_folder import Night, Record


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to `parser`."""
    parser.add_argument(
        "--folder",
        metavar="DIR",
        default="build/nightly",
        help="the folder of the night (default: build/nightly)",
    )
    parser.add_argument(
        "--date",
        metavar="YYYY-MM-DD",
        default="",
        help="the day of the night (default: today, UTC)",
    )
    parser.add_argument(
        "--only",
        metavar="STAGE",
        action="append",
        default=[],
        choices=[*stages.NAMES, "report"],
        help=(
            f"run only this stage of the night (may be repeated): {', '.join(stages.NAMES)}, report"
        ),
    )
    parser.add_argument(
        "--fresh", action="store_true", help="start the night again from the beginning"
    )
    parser.add_argument(
        "--distribution",
        metavar="NAME",
        action="append",
        default=[],
        help="only this distribution (may be repeated; default: all)",
    )
    parser.add_argument(
        "--accelerator",
        action="append",
        default=[],
        choices=["cpu", "cuda12", "cuda13"],
        help="only this accelerator (may be repeated)",
    )
    parser.add_argument(
        "--architecture",
        action="append",
        default=[],
        choices=["amd64", "arm64"],
        help=(
            "only this architecture (may be repeated); a publication still needs all architectures"
        ),
    )
    parser.add_argument(
        "--to",
        metavar="HOST/NAMESPACE",
        default="",
        help="publish: the place that has a repository for each distribution and accelerator",
    )
    parser.add_argument(
        "--key", metavar="FILE|env:NAME", default="", help="publish: the private key to sign with"
    )
    parser.add_argument(
        "--builder-id",
        metavar="URI",
        default="",
        help="publish: the builder that the provenance names",
    )
    parser.add_argument(
        "--untrained",
        action="append",
        default=[],
        choices=["amd64", "arm64"],
        help="publish this architecture although no machine here can train on it",
    )


def run(context: Context, arguments: argparse.Namespace) -> Result:
    """Run the command."""
    folder = Path(arguments.folder).absolute()
    shipped = manifest.load(context.manifest_path)
    wanted = [
        name
        for name in stages.NAMES
        if name in arguments.only or (not arguments.only and (name != "publish" or arguments.to))
    ]
    begins = not arguments.only or "bump" in arguments.only
    if arguments.fresh and not begins:
        raise UserError(
            "begins with the stage bump",
            "--fresh",
            "add --only bump, or leave it out",
            kind=CONFLICT,
        )
    date = _date(arguments.date, begins=begins)
    asked = _asked(shipped, arguments, folder, publishes="publish" in wanted)
    with context.cache.lock(f"nightly-{stage_key('folder', {'path': str(folder)})[:16]}"):
        night = nights.opened(context, shipped, folder, date, begins=begins, fresh=arguments.fresh)
        if asked.key:
            _write_public(asked)
        done = [
            record for name in wanted for record in stages.DO[name](context, night, shipped, asked)
        ]
        return _result(context, night, done)


def _date(text: str, *, begins: bool) -> str:
    """Return the day that is meant; "" where a night that was begun goes on, whatever day it is
    of.
    """
    if not text:
        return "" if not begins else dt.datetime.now(dt.UTC).strftime("%Y-%m-%d")
    try:
        if not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text):
            raise ValueError(text)
        dt.date.fromisoformat(text)
    except ValueError as error:
        raise UserError(
            f"{text[:40]!r} is no day",
            "--date",
            "give YYYY-MM-DD, in UTC",
            kind=INVALID,
            value=text[:40],
        ) from error
    return text


def _asked(
    shipped: Manifest, arguments: argparse.Namespace, folder: Path, *, publishes: bool
) -> stages.Asked:
    """Return what is to be done, refused before anything is."""
    for name in arguments.distribution:
        shipped.distribution(name)
    images = stages.images(
        shipped, arguments.distribution, arguments.accelerator, arguments.architecture
    )
    if not images:
        raise UserError(
            "the manifest lists no such image",
            "nightly",
            "choose another --distribution, --accelerator or --architecture",
            kind=MISSING,
        )
    names = dict.fromkeys(image.distribution for image in images)
    sources = tuple(
        dict.fromkeys(source for name in names for source in shipped.distribution(name).sources)
    )
    if not publishes:
        return stages.Asked(images, sources, untrained=tuple(arguments.untrained))
    for option in ("to", "key"):
        if not getattr(arguments, option):
            raise UserError(
                "is needed to publish",
                f"--{option}",
                "give it, or leave the stage publish out",
                kind=MISSING,
            )
    to = arguments.to.rstrip("/")
    for image in images:
        if reference.parse(f"{to}/{image.title}").wanted:
            raise UserError("names a tag or a digest", f"--to {to}", "give HOST/NAMESPACE")
    if arguments.builder_id:
        provenance.builder_id(arguments.builder_id)
    signer = (
        arguments.key if arguments.key.startswith("env:") else str(Path(arguments.key).absolute())
    )
    return stages.Asked(
        images,
        sources,
        to,
        signer,
        str(folder / "signed-by.pub"),
        arguments.builder_id,
        tuple(arguments.untrained),
    )


def _write_public(asked: stages.Asked) -> None:
    """Write the public half of the key, by which what was published is checked, here and by
    others.
    """
    half = signing_key.private(asked.key).public.key.public_bytes(
        Encoding.PEM, PublicFormat.SubjectPublicKeyInfo
    )
    write_atomic(Path(asked.public), half)


def _result(context: Context, night: Night, done: Sequence[Record]) -> Result:
    """Return the report of the whole night; ok where all is that was done now or, with nothing
    done, all of it.
    """
    found = report.document(
        night, manifest.load(night.manifest), provenance.of_checkout(context.root).get("commit")
    )
    text = report.markdown(found)
    write_atomic(
        night.folder / "reports" / f"{night.date}.json", json.dumps(found, indent=1) + "\n"
    )
    write_atomic(night.folder / "report.md", text)
    fine = all(record.state in nights.GOOD for record in done) if done else bool(found["ok"])
    return Result(
        {"folder": str(night.folder), "report": found},
        f"{text}\nthe whole of it: {night.folder}",
        ok=fine,
    )
