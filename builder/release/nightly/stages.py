"""What a night consists of, stage by stage.

A source or a distribution that goes wrong holds back no other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from builder.core import log, machine_architecture
from builder.core.cache import remove_path
from builder.core.manifest import GitSource
from builder.release.bump import working_copy
from builder.release.nightly import night_folder as nights
from builder.release.nightly.night_folder import Record, Step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from builder.core.command_context import Context
    from builder.core.manifest import Manifest
    from builder.release.nightly.night_folder import Night

NAMES = ("bump", "patches", "images", "training", "publish")


@dataclass(frozen=True)
class Image:
    """What is built at a time: a distribution for an accelerator, on one architecture."""

    distribution: str
    accelerator: str
    architecture: str

    @property
    def title(self) -> str:
        return f"{self.distribution}-{self.accelerator}"

    @property
    def name(self) -> str:
        return f"{self.title}-{self.architecture}"

    @property
    def about(self) -> dict[str, str]:
        return {
            "distribution": self.distribution,
            "accelerator": self.accelerator,
            "architecture": self.architecture,
        }


@dataclass(frozen=True)
class Asked:
    """What of the night is to be done here: `images` and `sources` are those that were chosen;
    `public` is the file with the public half of `key`.
    """

    images: tuple[Image, ...]
    sources: tuple[str, ...]
    to: str = ""
    key: str = ""
    public: str = ""
    builder: str = ""
    untrained: tuple[str, ...] = ()  # architectures that may go out without a training


def images(
    shipped: Manifest,
    distributions: Sequence[str],
    accelerators: Sequence[str],
    architectures: Sequence[str],
) -> tuple[Image, ...]:
    """All that the manifest lists, in its order, as far as it is chosen; nothing chosen is
    everything.
    """
    return tuple(
        Image(name, accelerator, architecture)
        for name, entry in shipped.distributions.items()
        for accelerator in entry.accelerators
        for architecture in entry.architectures
        if (not distributions or name in distributions)
        and (not accelerators or accelerator in accelerators)
        and (not architectures or architecture in architectures)
    )


def bump(context: Context, night: Night, shipped: Manifest, asked: Asked) -> Iterator[Record]:
    """Move each pin by itself, and lock what its upstream asks for now; a pin whose packages cannot
    be locked goes back.
    """
    for name in asked.sources:
        source = shipped.source(name)
        if not isinstance(source, GitSource):
            continue
        before = night.folder / f"before-{name}"
        done, locked = (night.record(f"{which}-{name}") for which in ("bump", "lock"))
        if done and done.settled and not before.exists() and (locked is None or locked.settled):
            log.info(f"bump-{name}: done before ({done.state})")
            yield done
            continue
        if before.exists() and done and not done.key:
            working_copy.replace_folder(before, night.root)  # a kill came before it went back
        if not before.exists():
            working_copy.copy_folder(night.root, before)
        moved = nights.run(
            context,
            night,
            Step(
                f"bump-{name}",
                "bump",
                {"source": name},
                (("bump", name, "--manifest", str(night.manifest)),),
                f"{night.start} {name}",
            ),
        )
        changes = moved.result.get("locks") or {}
        lines = tuple(changes.get("lines", ()))
        problem = str(changes.get("problem") or "")
        if lines and not problem:
            step = Step(
                f"lock-{name}",
                "bump",
                {"source": name},
                (("lock", *lines, "--manifest", str(night.manifest)),),
                f"{night.start} {name} {' '.join(lines)}",
            )
            relocked = nights.run(context, night, step)
            problem = (
                ""
                if relocked.state == "ok"
                else f"the packages of {', '.join(lines)} could not be locked"
            )
            yield relocked
        if problem:
            log.info(f"{name}: its pin goes back: {problem}")
            moved = night.save(nights.held(moved, problem))
        if problem or moved.state == "error":
            working_copy.replace_folder(before, night.root)
        remove_path(before)
        yield moved


def patches(context: Context, night: Night, shipped: Manifest, asked: Asked) -> Iterator[Record]:
    """Each distribution's patches and overlays at the pins of this night; how much of ours there is
    now, and over time by our own history.
    """
    for name in dict.fromkeys(image.distribution for image in asked.images):
        sources = shipped.distribution(name).sources
        key = nights.key(night, context, step="patches", sources=list(sources))
        yield nights.run(
            context,
            night,
            Step(
                f"patches-{name}",
                "patches",
                {"distribution": name},
                (("patches", "check", *sources, "--manifest", str(night.manifest)),),
                key,
            ),
        )
    for name, file in (("debt", night.manifest), ("stats", context.manifest_path)):
        command = ("patches", "stats", *asked.sources, "--manifest", str(file))
        yield nights.run(
            context,
            night,
            Step(name, "patches", {}, (command,), nights.key(night, context, step=name)),
        )


def build_images(
    context: Context, night: Night, shipped: Manifest, asked: Asked
) -> Iterator[Record]:
    """Yield an OCI layout for each image whose patches apply."""
    del shipped
    for image in asked.images:
        tried = night.record(f"patches-{image.distribution}")
        if tried is None or not tried.settled:
            yield _block(
                night,
                f"image-{image.name}",
                "images",
                image,
                (
                    f"the patches of {image.distribution} "
                    f"{'do not apply' if tried else 'were not tried'}"
                ),
            )
            continue
        command = (
            "build",
            *_chosen(image),
            "--output",
            f"oci:{layout(night, image)}",
            "--locked",
            "--manifest",
            str(night.manifest),
        )
        yield nights.run(
            context,
            night,
            Step(
                f"image-{image.name}",
                "images",
                image.about,
                (command,),
                nights.key(night, context, command=_bare(command, night)),
            ),
        )


def training(context: Context, night: Night, shipped: Manifest, asked: Asked) -> Iterator[Record]:
    """Yield a tiny model trained in each image that can run here: what is loaded are the layers
    that will be published.
    """
    del shipped
    own = machine_architecture.detect_architecture()
    for image in asked.images:
        name, built = f"training-{image.name}", night.record(f"image-{image.name}")
        if built is None or not built.settled:
            yield _block(night, name, "training", image, "its image is not there")
        elif image.architecture != own:
            why = f"this machine is {own}: train on a machine that is {image.architecture}"
            yield _block(
                night,
                name,
                "training",
                image,
                why,
                state="left-out" if image.architecture in asked.untrained else "blocked",
            )
        else:
            local = f"localhost/rosetta-nightly:{image.title}"
            load = (
                "build",
                *_chosen(image),
                "--output",
                f"image:{local}",
                "--compression",
                "gzip",
                "--locked",
                "--manifest",
                str(night.manifest),
            )
            digest = built.result.get("digest")
            key = nights.key(night, context, digest=digest)
            found = nights.run(
                context,
                night,
                Step(name, "training", image.about, (load, ("verify", f"image:{local}")), key),
            )
            yield night.save(replace(found, result={**found.result, "digest": digest}))


def publish(context: Context, night: Night, shipped: Manifest, asked: Asked) -> Iterator[Record]:
    """Each distribution and accelerator whose images are all there and have trained: into its own
    repository, read back, and what is new.
    """
    for title, some in _titles(asked.images).items():
        first, name = some[0], f"publish-{title}"
        whole = [
            Image(first.distribution, first.accelerator, each)
            for each in shipped.distribution(first.distribution).architectures
        ]
        about = {"distribution": first.distribution, "accelerator": first.accelerator}
        if missing := [
            problem for image in whole if (problem := _missing(night, image, asked.untrained))
        ]:
            yield night.save(
                Record(
                    name,
                    "publish",
                    about,
                    "blocked",
                    error={
                        "what": "; ".join(missing),
                        "where": title,
                        "do": "nothing was sent; what is published stays as it is",
                    },
                )
            )
            for after in ("check", "changelog"):
                (night.folder / "steps" / f"{after}-{title}.json").unlink(missing_ok=True)
            continue
        repository = f"{asked.to}/{title}"
        command = (
            "publish",
            *(f"oci:{layout(night, image)}" for image in whole),
            "--to",
            repository,
            "--key",
            asked.key,
            "--date",
            night.date,
            "--manifest",
            str(night.manifest),
        )
        command += ("--builder-id", asked.builder) if asked.builder else ()
        digests = [
            record.result.get("digest")
            for image in whole
            if (record := night.record(f"image-{image.name}"))
        ]
        step = Step(
            name,
            "publish",
            about,
            (command,),
            nights.key(night, context, command=_bare(command, night), digests=digests),
        )
        sent = nights.run(context, night, step)
        yield sent
        if sent.state != "ok":
            continue
        digest, before = str(sent.result["digest"]), sent.result.get("previous", {}).get("latest")
        check = ("verify-published", f"{repository}@{digest}", "--key", asked.public)
        yield nights.run(
            context,
            night,
            Step(f"check-{title}", "publish", about, (check,), f"{repository} {digest}"),
        )
        if before and before != digest:
            changes = (
                "changelog",
                f"{repository}@{before}",
                f"{repository}@{digest}",
                "--key",
                asked.public,
            )
            yield nights.run(
                context,
                night,
                Step(
                    f"changelog-{title}",
                    "publish",
                    about,
                    (changes,),
                    f"{repository} {before} {digest}",
                ),
            )


DO: dict[str, Callable[[Context, Night, Manifest, Asked], Iterator[Record]]] = {
    "bump": bump,
    "patches": patches,
    "images": build_images,
    "training": training,
    "publish": publish,
}


def layout(night: Night, image: Image) -> str:
    """Where an image lies as an OCI layout."""
    return str(night.folder / "images" / image.name)


def _chosen(image: Image) -> tuple[str, ...]:
    return (
        "--distribution",
        image.distribution,
        "--accelerator",
        image.accelerator,
        "--platform",
        f"linux/{image.architecture}",
    )


def _bare(command: Sequence[str], night: Night) -> list[str]:
    """Return a command without the place of the night, which may be another on another machine."""
    return [part.replace(str(night.folder), "") for part in command]


def _titles(some: Iterable[Image]) -> dict[str, list[Image]]:
    found: dict[str, list[Image]] = {}
    for image in some:
        found.setdefault(image.title, []).append(image)
    return found


def _block(
    night: Night, name: str, stage: str, image: Image, why: str, *, state: str = "blocked"
) -> Record:
    log.info(f"{name}: {state}: {why}")
    return night.save(
        Record(name, stage, image.about, state, error={"what": why, "where": "", "do": ""})
    )


def _missing(night: Night, image: Image, untrained: Sequence[str]) -> str:
    """Why an image may not be published yet; "" if it may."""
    built, trained = (night.record(f"{which}-{image.name}") for which in ("image", "training"))
    if built is None or not built.settled:
        return f"linux/{image.architecture}: its image was not built"
    if image.architecture in untrained and (trained is None or trained.state == "left-out"):
        return ""
    if (
        trained is None
        or not trained.settled
        or trained.result.get("digest") != built.result.get("digest")
    ):
        return f"linux/{image.architecture}: no model was trained in it" + (
            f" ({trained.error['what']})" if trained and trained.error else ""
        )
    return ""
