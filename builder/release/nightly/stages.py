"""The stages of a nightly run.

A source or a distribution that fails does not stop the others.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from builder.core import log, machine_architecture
from builder.core.cache import remove_path
from builder.core.manifest import GitSource
from builder.pipeline.step_plans import goldens, plan_runs
from builder.release.bump import working_copy
from builder.release.nightly.nightly_run import (
    Step,
    StepRecord,
    mark_as_held,
    run_step,
    step_key,
)
from builder.release.publish import image_variants

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from builder.core.command_context import Context
    from builder.core.manifest import Manifest
    from builder.release.nightly.nightly_run import NightlyRun


@dataclass(frozen=True)
class ImageTarget:
    """An image to build: a distribution for an accelerator, on one architecture."""

    distribution: str
    accelerator: str
    architecture: str

    @property
    def title(self) -> str:
        """The distribution and the accelerator."""
        return f"{self.distribution}-{self.accelerator}"

    @property
    def name(self) -> str:
        """The name of the image in the names of steps and folders."""
        return f"{self.title}-{self.architecture}"

    @property
    def subject(self) -> dict[str, str]:
        """The image as records and reports describe it."""
        return {
            "distribution": self.distribution,
            "accelerator": self.accelerator,
            "architecture": self.architecture,
        }


@dataclass(frozen=True)
class NightlyRequest:
    """What a nightly run shall do.

    Attributes:
        images: The images to build.
        sources: The sources to bump.
        to: The registry and namespace to publish in.
        key: The private key to sign with.
        public_key: The file with the public half of the key.
        builder_id: The builder that the provenance names.
        untrained: The architectures whose images are published without a training.
    """

    images: tuple[ImageTarget, ...]
    sources: tuple[str, ...]
    to: str = ""
    key: str = ""
    public_key: str = ""
    builder_id: str = ""
    untrained: tuple[str, ...] = ()


def list_images(
    manifest: Manifest,
    distributions: Sequence[str] = (),
    accelerators: Sequence[str] = (),
    architectures: Sequence[str] = (),
) -> tuple[ImageTarget, ...]:
    """Return the images that the manifest lists, in its order.

    Args:
        manifest: The manifest.
        distributions: The distributions to choose. Default: all.
        accelerators: The accelerators to choose. Default: all.
        architectures: The architectures to choose. Default: all.
    """
    images: list[ImageTarget] = []
    for name in _choose_names(manifest.distributions, distributions):
        distribution = manifest.distributions[name]
        pairs = itertools.product(
            _choose_names(distribution.accelerators, accelerators),
            _choose_names(distribution.architectures, architectures),
        )
        images += [ImageTarget(name, *pair) for pair in pairs]
    return tuple(images)


def _choose_names(names: Iterable[str], chosen: Sequence[str]) -> list[str]:
    """Return the names that are chosen, or all of them if none is chosen."""
    return [name for name in names if not chosen or name in chosen]


def bump_sources(
    context: Context, run: NightlyRun, manifest: Manifest, request: NightlyRequest
) -> Iterator[StepRecord]:
    """Move the pin of each source, and lock the packages that its upstream requires now.

    If the packages cannot be locked, the pin is moved back. Then lock the newest releases of the
    projects that a line names for that.
    """
    for name in request.sources:
        if isinstance(manifest.source(name), GitSource):
            yield from _bump_source(context, run, name)
    lines = [manifest.distribution(image.distribution).line for image in request.images]
    for line in dict.fromkeys(lines):
        if projects := manifest.lines[line].newest:
            yield _upgrade_line(context, run, line, projects)


def _bump_source(context: Context, run: NightlyRun, name: str) -> Iterator[StepRecord]:
    backup = run.folder / f"before-{name}"
    bump, lock = run.read_record(f"bump-{name}"), run.read_record(f"lock-{name}")
    if bump and bump.is_final and not backup.exists() and (lock is None or lock.is_final):
        log.info(f"bump-{name}: already done ({bump.state})")
        yield bump
        return
    if backup.exists() and bump and not bump.key:
        # A kill came after the bump was marked as held, and before the copy was restored.
        working_copy.replace_folder(backup, run.tree)
    if not backup.exists():
        working_copy.copy_folder(run.tree, backup)
    bump = run_step(context, run, _bump_step(run, name))
    changes = bump.result.get("locks") or {}
    problem = str(changes.get("problem") or "")
    lines = tuple(changes.get("lines", ()))
    if lines and not problem:
        lock = run_step(context, run, _lock_step(run, name, lines))
        if lock.state != "ok":
            problem = f"the packages of {', '.join(lines)} could not be locked"
        yield lock
    if problem:
        log.info(f"{name}: its pin is moved back: {problem}")
        bump = run.save_record(mark_as_held(bump, problem))
    if problem or bump.state == "error":
        working_copy.replace_folder(backup, run.tree)
    remove_path(backup)
    yield bump


def _bump_step(run: NightlyRun, name: str) -> Step:
    command = ("bump", name, "--manifest", str(run.manifest_path))
    key = f"{run.start_digest} {name}"
    return Step(f"bump-{name}", "bump", {"source": name}, (command,), key)


def _lock_step(run: NightlyRun, name: str, lines: Sequence[str]) -> Step:
    command = ("lock", *lines, "--manifest", str(run.manifest_path))
    key = f"{run.start_digest} {name} {' '.join(lines)}"
    return Step(f"lock-{name}", "bump", {"source": name}, (command,), key)


def _upgrade_line(
    context: Context, run: NightlyRun, line: str, projects: Sequence[str]
) -> StepRecord:
    """Lock the newest release of some projects of a line.

    `build.py lock` changes no file if it fails: the line then keeps the packages that it has.
    """
    command = ("lock", line, *(word for name in projects for word in ("--upgrade", name)))
    command += ("--manifest", str(run.manifest_path))
    key = f"{run.start_digest} {line} {' '.join(projects)}"
    step = Step(f"upgrade-{line}", "bump", {"line": line}, (command,), key)
    return run_step(context, run, step)


def check_patches(
    context: Context, run: NightlyRun, manifest: Manifest, request: NightlyRequest
) -> Iterator[StepRecord]:
    """Check the patches of each distribution at the new pins, and compute their statistics.

    The statistics are computed at the new pins ("debt") and for this repository's history
    ("stats").
    """
    for name in dict.fromkeys(image.distribution for image in request.images):
        sources = manifest.distribution(name).sources
        command = ("patches", "check", *sources, "--manifest", str(run.manifest_path))
        key = step_key(run, context, step="patches", sources=list(sources))
        step = Step(f"patches-{name}", "patches", {"distribution": name}, (command,), key)
        yield run_step(context, run, step)
    for name, path in (("debt", run.manifest_path), ("stats", context.manifest_path)):
        command = ("patches", "stats", *request.sources, "--manifest", str(path))
        key = step_key(run, context, step=name)
        yield run_step(context, run, Step(name, "patches", {}, (command,), key))


def audit_locks(
    context: Context, run: NightlyRun, manifest: Manifest, request: NightlyRequest
) -> Iterator[StepRecord]:
    """List the known vulnerabilities of the packages that are locked now."""
    del manifest, request
    if context.offline:
        log.info("audit: left out: OSV cannot be asked with --offline")
        error = {"what": "OSV was not asked, because of --offline", "where": "", "do": ""}
        yield run.save_record(StepRecord("audit", "audit", {}, "left-out", error=error))
        return
    command = ("audit", "--manifest", str(run.manifest_path))
    key = step_key(run, context, step="audit", date=run.date)
    yield run_step(context, run, Step("audit", "audit", {}, (command,), key))


def compare_plans(
    context: Context, run: NightlyRun, manifest: Manifest, request: NightlyRequest
) -> Iterator[StepRecord]:
    """Compile the steps of all recorded plans at the new pins, and compare their figures."""
    del manifest
    machine = machine_architecture.detect_architecture()
    recorded = [
        golden
        for golden in goldens.choose_goldens(context.root / goldens.FOLDER, [goldens.ALL])
        if golden.record
    ]
    for image in request.images:
        names = [entry.name for entry in recorded if entry.distribution == image.distribution]
        if not names or (image.accelerator, image.architecture) != (plan_runs.ACCELERATOR, machine):
            continue
        command = ("test", "--plans", *names, "--manifest", str(run.manifest_path))
        key = step_key(run, context, step="plans", distribution=image.distribution)
        subject = {"distribution": image.distribution}
        step = Step(f"plans-{image.distribution}", "plans", subject, (command,), key)
        yield run_step(context, run, step)


def check_projects(
    context: Context, run: NightlyRun, manifest: Manifest, request: NightlyRequest
) -> Iterator[StepRecord]:
    """Import the projects built on each distribution, and train a tiny model of each on the CPU."""
    machine = machine_architecture.detect_architecture()
    for image in request.images:
        names = manifest.projects_of(image.distribution)
        if not names or (image.accelerator, image.architecture) != ("cpu", machine):
            continue
        command = ("test", "--projects", *names, "--manifest", str(run.manifest_path))
        key = step_key(run, context, step="projects", distribution=image.distribution)
        subject = {"distribution": image.distribution}
        step = Step(f"projects-{image.distribution}", "projects", subject, (command,), key)
        yield run_step(context, run, step)


def build_images(
    context: Context, run: NightlyRun, manifest: Manifest, request: NightlyRequest
) -> Iterator[StepRecord]:
    """Build an OCI layout of each image whose patches apply."""
    del manifest
    for image in request.images:
        name = f"image-{image.name}"
        patches = run.read_record(f"patches-{image.distribution}")
        if patches is None or not patches.is_final:
            outcome = "do not apply" if patches else "were not checked"
            reason = f"the patches of {image.distribution} {outcome}"
            yield _skip_step(run, name, "images", image, reason)
            continue
        output = f"oci:{_layout_folder(run, image)}"
        command = ("build", *_image_options(image), "--output", output, "--locked")
        command += ("--manifest", str(run.manifest_path))
        key = step_key(run, context, command=_without_folder(command, run))
        yield run_step(context, run, Step(name, "images", image.subject, (command,), key))


def train_images(
    context: Context, run: NightlyRun, manifest: Manifest, request: NightlyRequest
) -> Iterator[StepRecord]:
    """Train a tiny model in each image that this machine can run.

    The layers that are tested are the ones that will be published.
    """
    del manifest
    machine = machine_architecture.detect_architecture()
    for image in request.images:
        name = f"training-{image.name}"
        built = run.read_record(f"image-{image.name}")
        if built is None or not built.is_final:
            yield _skip_step(run, name, "training", image, "the image was not built")
        elif image.architecture != machine:
            reason = f"this machine is {machine}: train on a machine that is {image.architecture}"
            state = "left-out" if image.architecture in request.untrained else "blocked"
            yield _skip_step(run, name, "training", image, reason, state=state)
        else:
            yield _train_image(context, run, image, built)


def _train_image(
    context: Context, run: NightlyRun, image: ImageTarget, built: StepRecord
) -> StepRecord:
    name = f"image:localhost/rosetta-nightly:{image.title}"
    load = ("build", *_image_options(image), "--output", name, "--compression", "gzip")
    load += ("--locked", "--manifest", str(run.manifest_path))
    digest = built.result.get("digest")
    key = step_key(run, context, digest=digest)
    commands = (load, ("verify", name))
    step = Step(f"training-{image.name}", "training", image.subject, commands, key)
    record = run_step(context, run, step)
    return run.save_record(replace(record, result={**record.result, "digest": digest}))


def publish_images(
    context: Context, run: NightlyRun, manifest: Manifest, request: NightlyRequest
) -> Iterator[StepRecord]:
    """Publish each distribution and accelerator whose images were built and trained.

    Each distribution has a repository, and each accelerator tags of its own in there. What was
    published is verified.
    """
    for title, images in _group_by_title(request.images).items():
        distribution = images[0].distribution
        complete = [
            ImageTarget(distribution, images[0].accelerator, architecture)
            for architecture in manifest.distribution(distribution).architectures
        ]
        problems = [_find_problem(run, image, request.untrained) for image in complete]
        if any(problems):
            yield _block_publication(run, complete[0], "; ".join(filter(None, problems)))
            for name in ("check", "changelog"):
                run.delete_record(f"{name}-{title}")
        else:
            yield from _publish_title(context, run, request, complete)


def _block_publication(run: NightlyRun, image: ImageTarget, reason: str) -> StepRecord:
    error = {
        "what": reason,
        "where": image.title,
        "do": "nothing was published; the registry stays as it is",
    }
    return run.save_record(
        StepRecord(
            f"publish-{image.title}", "publish", _title_subject(image), "blocked", error=error
        )
    )


def _publish_title(
    context: Context, run: NightlyRun, request: NightlyRequest, images: Sequence[ImageTarget]
) -> Iterator[StepRecord]:
    """Publish the images of all architectures, verify them, and list what is new."""
    title, subject = images[0].title, _title_subject(images[0])
    repository = f"{request.to}/{images[0].distribution}"
    published = run_step(context, run, _publish_step(context, run, request, images, repository))
    yield published
    if published.state != "ok":
        return
    digest = str(published.result["digest"])
    check = ("verify-published", f"{repository}@{digest}", "--key", request.public_key)
    key = f"{repository} {digest}"
    yield run_step(context, run, Step(f"check-{title}", "publish", subject, (check,), key))
    latest = f"latest{image_variants.find_suffix(images[0].accelerator)}"
    previous = published.result.get("previous", {}).get(latest)
    if previous and previous != digest:
        images_to_compare = (f"{repository}@{previous}", f"{repository}@{digest}")
        compare = ("changelog", *images_to_compare, "--key", request.public_key)
        key = f"{repository} {previous} {digest}"
        step = Step(f"changelog-{title}", "publish", subject, (compare,), key)
        yield run_step(context, run, step)


def _publish_step(
    context: Context,
    run: NightlyRun,
    request: NightlyRequest,
    images: Sequence[ImageTarget],
    repository: str,
) -> Step:
    layouts = [f"oci:{_layout_folder(run, image)}" for image in images]
    command: tuple[str, ...] = ("publish", *layouts, "--to", repository, "--key", request.key)
    command += ("--date", run.date, "--manifest", str(run.manifest_path))
    if request.builder_id:
        command += ("--builder-id", request.builder_id)
    records = [run.read_record(f"image-{image.name}") for image in images]
    digests = [record.result.get("digest") for record in records if record]
    key = step_key(run, context, command=_without_folder(command, run), digests=digests)
    name = f"publish-{images[0].title}"
    return Step(name, "publish", _title_subject(images[0]), (command,), key)


STAGES: dict[
    str, Callable[[Context, NightlyRun, Manifest, NightlyRequest], Iterator[StepRecord]]
] = {
    "bump": bump_sources,
    "patches": check_patches,
    "audit": audit_locks,
    "plans": compare_plans,
    "projects": check_projects,
    "images": build_images,
    "training": train_images,
    "publish": publish_images,
}
STAGE_NAMES = tuple(STAGES)


def _layout_folder(run: NightlyRun, image: ImageTarget) -> Path:
    """Return the folder of the OCI layout of an image."""
    return run.folder / "images" / image.name


def _image_options(image: ImageTarget) -> tuple[str, ...]:
    return (
        "--distribution",
        image.distribution,
        "--accelerator",
        image.accelerator,
        "--platform",
        f"linux/{image.architecture}",
    )


def _without_folder(command: Sequence[str], run: NightlyRun) -> list[str]:
    """Return a command without the folder of the run, which differs between machines."""
    return [word.replace(str(run.folder), "") for word in command]


def _group_by_title(images: Iterable[ImageTarget]) -> dict[str, list[ImageTarget]]:
    groups: dict[str, list[ImageTarget]] = {}
    for image in images:
        groups.setdefault(image.title, []).append(image)
    return groups


def _title_subject(image: ImageTarget) -> dict[str, str]:
    return {"distribution": image.distribution, "accelerator": image.accelerator}


def _skip_step(
    run: NightlyRun,
    name: str,
    stage: str,
    image: ImageTarget,
    reason: str,
    *,
    state: str = "blocked",
) -> StepRecord:
    """Save the record of a step that cannot run, or is not meant to."""
    log.info(f"{name}: {state}: {reason}")
    error = {"what": reason, "where": "", "do": ""}
    return run.save_record(StepRecord(name, stage, image.subject, state, error=error))


def _find_problem(run: NightlyRun, image: ImageTarget, untrained: Sequence[str]) -> str:
    """Return why an image cannot be published, or "" if it can."""
    built = run.read_record(f"image-{image.name}")
    trained = run.read_record(f"training-{image.name}")
    if built is None or not built.is_final:
        return f"linux/{image.architecture}: the image was not built"
    if image.architecture in untrained and (trained is None or trained.state == "left-out"):
        return ""
    is_trained = trained is not None and trained.is_final
    if trained and is_trained and trained.result.get("digest") == built.result.get("digest"):
        return ""
    reason = f" ({trained.error['what']})" if trained and trained.error else ""
    return f"linux/{image.architecture}: no model was trained in it{reason}"
