"""`build.py nightly`: bump, check patches, build, train, publish and report, by one command.

A run that was stopped continues where it was.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from builder.core import manifest
from builder.core.accelerators import ACCELERATORS
from builder.core.cache import stage_key
from builder.core.command_context import Context, Result
from builder.images.oci import reference
from builder.release.nightly import report, stages
from builder.release.nightly.nightly_run import GREEN_STATES, open_run
from builder.release.nightly.stages import NightlyRequest
from builder.release.publish import provenance, signing_key, step_outputs
from builder.upstream import checkout
from rosetta.core.atomic_files import write_atomic
from rosetta.core.errors import CONFLICT, INVALID, MISSING, UserError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from builder.core.manifest import Manifest
    from builder.release.nightly.nightly_run import NightlyRun, StepRecord
    from builder.release.nightly.stages import ImageTarget


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
        choices=[*stages.STAGE_NAMES, "report"],
        help=(
            "run only this stage of the night (may be repeated): "
            f"{', '.join(stages.STAGE_NAMES)}, report"
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
        choices=ACCELERATORS,
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
        "--step-outputs",
        metavar="FILE",
        default="",
        help=(
            "publish: append `repository=` and `digest=` of what was published to this file, for "
            "one distribution and accelerator (GitHub's outputs of a step)"
        ),
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
    stage_names = _choose_stages(arguments)
    may_begin = not arguments.only or "bump" in arguments.only
    if arguments.fresh and not may_begin:
        raise UserError(
            "needs the stage bump",
            "--fresh",
            "add --only bump, or leave --fresh out",
            kind=CONFLICT,
        )
    date = _choose_date(arguments.date, may_begin=may_begin)
    request = _read_request(shipped, arguments, folder, publishes="publish" in stage_names)
    lock = stage_key("folder", {"path": str(folder)})[:16]
    with context.cache.lock(f"nightly-{lock}"):
        nightly_run = open_run(
            context, shipped, folder, date, may_begin=may_begin, fresh=arguments.fresh
        )
        if request.key:
            _write_public_key(request)
        records: list[StepRecord] = []
        for name in stage_names:
            records += stages.STAGES[name](context, nightly_run, shipped, request)
        if arguments.step_outputs:
            _append_step_outputs(Path(arguments.step_outputs), nightly_run, request)
        return _write_report(context, nightly_run, records)


def _choose_stages(arguments: argparse.Namespace) -> list[str]:
    """Return the stages to run, in their order. Publishing needs `--to`."""
    if arguments.only:
        return [name for name in stages.STAGE_NAMES if name in arguments.only]
    return [name for name in stages.STAGE_NAMES if name != "publish" or arguments.to]


def _choose_date(text: str, *, may_begin: bool) -> str:
    """Return the day of the run, or "" for the day of the existing run."""
    if not text:
        return dt.datetime.now(dt.UTC).strftime("%Y-%m-%d") if may_begin else ""
    try:
        if not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text):
            raise ValueError(text)
        dt.date.fromisoformat(text)
    except ValueError as error:
        raise UserError(
            f"{text[:40]!r} is not a valid day",
            "--date",
            "give YYYY-MM-DD, in UTC",
            kind=INVALID,
            value=text[:40],
        ) from error
    return text


def _read_request(
    shipped: Manifest, arguments: argparse.Namespace, folder: Path, *, publishes: bool
) -> NightlyRequest:
    """Return what the run shall do.

    Raises:
        UserError: an option is missing or not valid. Nothing has been done then.
    """
    for name in arguments.distribution:
        shipped.distribution(name)
    images = stages.list_images(
        shipped, arguments.distribution, arguments.accelerator, arguments.architecture
    )
    if not images:
        raise UserError(
            "the manifest does not list such an image",
            "nightly",
            "choose another --distribution, --accelerator or --architecture",
            kind=MISSING,
        )
    sources: dict[str, None] = {}
    for image in images:
        sources |= dict.fromkeys(shipped.distribution(image.distribution).sources)
        sources |= dict.fromkeys(shipped.projects_of(image.distribution))
    if arguments.step_outputs:
        _check_step_outputs(images, publishes=publishes)
    untrained = tuple(arguments.untrained)
    if not publishes:
        return NightlyRequest(images, tuple(sources), untrained=untrained)
    _check_publishing_options(arguments, images)
    key = arguments.key
    return NightlyRequest(
        images,
        tuple(sources),
        to=arguments.to.rstrip("/"),
        key=key if key.startswith("env:") else str(Path(key).absolute()),
        public_key=str(folder / "signed-by.pub"),
        builder_id=arguments.builder_id,
        untrained=untrained,
    )


def _check_publishing_options(arguments: argparse.Namespace, images: Sequence[ImageTarget]) -> None:
    for option, value in (("--to", arguments.to), ("--key", arguments.key)):
        if not value:
            raise UserError(
                "is needed to publish",
                option,
                "give it, or leave the stage publish out",
                kind=MISSING,
            )
    to = arguments.to.rstrip("/")
    for image in images:
        if reference.parse_reference(f"{to}/{image.distribution}").selector:
            raise UserError("names a tag or a digest", f"--to {to}", "give HOST/NAMESPACE")
    if arguments.builder_id:
        provenance.parse_builder_id(arguments.builder_id)


def _write_public_key(request: NightlyRequest) -> None:
    """Write the public half of the key, with which the publication is verified."""
    public = signing_key.read_private_key(request.key).public.key
    pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    write_atomic(Path(request.public_key), pem)


def _check_step_outputs(images: Sequence[ImageTarget], *, publishes: bool) -> None:
    """Refuse `--step-outputs` for anything but one publication."""
    titles = {image.title for image in images}
    if not publishes or len(titles) != 1:
        raise UserError(
            "is for one publication",
            "--step-outputs",
            "give --to, one --distribution and one --accelerator with it, or leave the option out",
            kind=CONFLICT,
        )


def _append_step_outputs(file: Path, nightly_run: NightlyRun, request: NightlyRequest) -> None:
    """Append the repository and the digest of the publication to a file, if it succeeded."""
    record = nightly_run.read_record(f"publish-{request.images[0].title}")
    if record is None or record.state != "ok":
        return
    step_outputs.append_publication(file, record.result)


def _write_report(
    context: Context, nightly_run: NightlyRun, records: Sequence[StepRecord]
) -> Result:
    """Write the report of the whole run.

    The result is ok if the steps of this command succeeded. Without such steps, it is ok if all
    steps of the run succeeded.
    """
    data = report.report_as_json(
        nightly_run,
        manifest.load(nightly_run.manifest_path),
        checkout.describe_checkout(context.root).get("commit"),
    )
    text = report.report_as_markdown(data)
    folder = nightly_run.folder
    write_atomic(folder / "reports" / f"{nightly_run.date}.json", json.dumps(data, indent=1) + "\n")
    write_atomic(folder / "report.md", text)
    is_green = bool(data["ok"])
    if records:
        is_green = all(record.state in GREEN_STATES for record in records)
    return Result(
        {"folder": str(folder), "report": data},
        f"{text}\nthe folder of this run: {folder}",
        ok=is_green,
    )
