"""Read manifest.yaml: what is shipped, and why.

The models below are the schema of the file, its checks, and the text of docs/reference/manifest.md.
"""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from packaging.markers import InvalidMarker, Marker
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)

from builder.core.accelerators import Accelerator  # noqa: TC001 - pydantic reads the annotation
from builder.core.secrets import redact
from rosetta.core import strict_yaml
from rosetta.core.errors import CONFLICT, INVALID, MISSING, UNKNOWN, UserError

if TYPE_CHECKING:
    from collections.abc import Iterable

Architecture = Literal["amd64", "arm64"]


def _check_relative_path(value: str) -> str:
    parts = PurePosixPath(value).parts
    if (
        not parts
        or value.startswith(("/", "-"))
        or ".." in parts
        or "\\" in value
        or "\0" in value
        or ".git" in parts
    ):
        raise ValueError("not a relative path that stays inside the repository")
    return value


def _check_day(value: str) -> str:
    try:
        if dt.date.fromisoformat(value).isoformat() == value:
            return value
    except ValueError:
        pass
    raise ValueError("not a day such as '2027-06-30'")


def _check_url(value: str) -> str:
    match = re.fullmatch(r"(https|ssh|file)://([^/@\s]*@)?([^/\s]*)/[^\s]*", value)
    if not match:
        raise ValueError("not an https://, ssh:// or file:// URL")
    scheme, user, host = match.groups()
    has_password = bool(user) and (scheme != "ssh" or ":" in user)
    if has_password or (scheme == "https" and "@" in value):
        raise ValueError(
            "holds credentials: leave them out, a credential never belongs in a manifest"
        )
    if host.startswith("-") or (not host and scheme != "file"):
        raise ValueError("names no valid host")
    return value


def _check_branch(value: str) -> str:
    if (
        not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._/+-]*", value)
        or ".." in value
        or value.endswith((".lock", "/", "."))
        or "//" in value
    ):
        raise ValueError("not the name of a branch or tag")
    return value


def _check_requirement(value: str) -> str:
    try:
        parsed = Requirement(value)
    except InvalidRequirement as error:
        raise ValueError(f"not a requirement: {str(error).splitlines()[0]}") from error
    if parsed.url:
        raise ValueError("a requirement by URL cannot be locked: name a version")
    return value


def _check_marker(value: str) -> str:
    try:
        Marker(value)
    except InvalidMarker as error:
        raise ValueError(f"not an environment marker: {str(error).splitlines()[0]}") from error
    return value


def _check_image(value: str) -> str:
    if (
        not re.fullmatch(
            r"[a-z0-9]([a-z0-9._/:-]*[a-z0-9])?(:[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?", value
        )
        or "//" in value
    ):
        raise ValueError("not the name of an image and its tag")
    return value


def _check_project(value: str) -> str:
    if canonicalize_name(value, validate=False) != value or not re.fullmatch(
        r"[a-z0-9][a-z0-9-]*", value
    ):
        raise ValueError("not a normalised project name (lower case, dashes)")
    return value


def _check_file_pattern(value: str) -> str:
    parts = value.removesuffix("/").split("/")
    if not all(parts) or {".", ".."} & set(parts) or set(value) <= set("*/"):
        raise ValueError("not a pattern of paths below site-packages")
    return value


RepoPath = Annotated[str, AfterValidator(_check_relative_path)]
FilePattern = Annotated[str, AfterValidator(_check_file_pattern)]
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9.-]*$")]
Project = Annotated[str, AfterValidator(_check_project)]
Why = Annotated[str, StringConstraints(min_length=10, strip_whitespace=True)]
PythonVersion = Annotated[str, StringConstraints(pattern=r"^3\.(1[1-9])$")]
Image = Annotated[str, AfterValidator(_check_image)]
Url = Annotated[str, AfterValidator(_check_url)]
Branch = Annotated[str, AfterValidator(_check_branch)]
WheelPin = Annotated[str, StringConstraints(pattern=r"^[a-z0-9-]+==[0-9][0-9a-z.]*$")]
PackageRequirement = Annotated[str, AfterValidator(_check_requirement)]
EnvironmentMarker = Annotated[str, AfterValidator(_check_marker)]
Day = Annotated[str, AfterValidator(_check_day)]
Release = Annotated[str, StringConstraints(pattern=r"^[0-9]+([.][0-9]+)+(\.post[0-9]+)?$")]
Sha1 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}$")]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Source(_Model):
    """An upstream project at one commit of its git repository, or one of its release wheels.

    A source has either `git`, `track` and `commit`, or `wheel` and `sha256`.
    """

    git: Url | None = Field(None, description="The public URL of the git repository.")
    track: Branch | None = Field(
        None,
        description="The branch that the commit is on. `build.py bump` moves the pin along it.",
    )
    commit: Sha1 | None = Field(None, description="The pin of a git repository.")
    wheel: WheelPin | None = Field(
        None, description="The release to take. Its wheel must be pure Python."
    )
    sha256: Sha256 | None = Field(None, description="The pin of a wheel: the hash of its file.")
    patches: RepoPath = Field(
        description="The folder of the [patches](patches.md), with the file `series`."
    )
    overlay: RepoPath | None = Field(
        None,
        description="The folder of the [overlay](patches.md#overlays), with the file `REPLACES`.",
    )
    absent: tuple[RepoPath, ...] = Field(
        (),
        description="Upstream paths that are left out of every environment and image.",
        strict=False,
    )

    @model_validator(mode="after")
    def _check_kind(self) -> Source:
        if (self.git is None) == (self.wheel is None):
            raise ValueError("needs exactly one of git and wheel")
        git_keys = {"track": self.track, "commit": self.commit}
        wheel_keys = {"sha256": self.sha256}
        required, excluded = (git_keys, wheel_keys) if self.git else (wheel_keys, git_keys)
        missing = [key for key, value in required.items() if value is None]
        if missing:
            raise ValueError(f"lacks {' and '.join(missing)}")
        extra = [key for key, value in excluded.items() if value is not None]
        if extra:
            raise ValueError(f"does not go with {' and '.join(extra)}")
        return self


class Line(_Model):
    """A set of packages that its distributions share. All of them are resolved together."""

    python: PythonVersion = Field(
        description=(
            "The version to prefer, where the machine or the base of an image has several of "
            "`pythons`."
        )
    )
    pythons: tuple[PythonVersion, ...] = Field(
        description="Every Python that the locks are made for.", min_length=1, strict=False
    )
    common: RepoPath = Field(
        description=(
            "The requirements of every distribution of the line. The lock has the same name, "
            "and ends in `.txt`."
        )
    )
    base: Name | None = Field(
        None, description="The base of the line's images. Without it, the line has no images."
    )
    newest: tuple[Project, ...] = Field(
        (),
        description=(
            "The projects whose newest release the nightly locks. `common` names them without a "
            "version."
        ),
        strict=False,
    )
    support: Why | None = Field(
        None,
        description=(
            "What support the line gets. [Support](../project/support.md) explains the words."
        ),
    )
    until: Day | None = Field(
        None, description="The last day of support. Leave the key out while no day is set."
    )

    @property
    def lock(self) -> str:
        """The path of the lock of the common requirements."""
        return self.common.removesuffix(".in") + ".txt"

    @model_validator(mode="after")
    def _check_python(self) -> Line:
        if self.python not in self.pythons:
            raise ValueError(f"python {self.python} is not among pythons")
        return self


class Distribution(_Model):
    """A thing to build: `build.py --distribution NAME` builds it."""

    line: Name = Field(description="The line whose packages the distribution uses.")
    sources: tuple[Name, ...] = Field(
        description="The sources of the distribution. The last one is the framework.",
        min_length=1,
        strict=False,
    )
    accelerators: tuple[Accelerator, ...] = Field(
        description="The values of `--accelerator` that the distribution is built for.",
        min_length=1,
        strict=False,
    )
    architectures: tuple[Architecture, ...] = Field(
        description="The processors that the distribution is built for.",
        min_length=1,
        strict=False,
    )
    requirements: RepoPath | None = Field(
        None,
        description=(
            "What the distribution needs beyond what its sources declare. Default: "
            "`locks/NAME.in`, if that file exists."
        ),
    )


class AddedProject(_Model):
    """A project built on a distribution: `build.py --distribution NAME --with PROJECT` adds it.

    A project has the name of its source. `build.py test --projects` imports its modules and trains
    it.
    """

    distribution: Name = Field(description="The distribution that the project is added to.")
    needs: tuple[Name, ...] = Field(
        (),
        description="The other projects that this one imports. They are added too.",
        strict=False,
    )

    def lock(self, name: str) -> str:
        """Return the path of the lock of the packages that the project adds."""
        return f"locks/projects/{name}.txt"


class Override(_Model):
    """A departure from what the packages require. An override has either `drop` or `pin`."""

    drop: Project | None = Field(None, description="A project that is not installed.")
    unless: EnvironmentMarker | None = Field(
        None, description="With `drop`: where the project is installed all the same."
    )
    pin: PackageRequirement | None = Field(
        None, description="A requirement that replaces what all packages require of this project."
    )
    lines: tuple[Name, ...] | None = Field(
        None, description="The lines that the override is for. Default: all.", strict=False
    )
    why: Why = Field(description="The reason, and the error that the override prevents.")

    @model_validator(mode="after")
    def _check_kind(self) -> Override:
        if (self.drop is None) == (self.pin is None):
            raise ValueError("needs exactly one of drop and pin")
        if self.unless and not self.drop:
            raise ValueError("unless goes with drop only")
        return self

    @property
    def project(self) -> str:
        """The normalised name of the project that is overridden."""
        return self.drop or str(canonicalize_name(Requirement(cast("str", self.pin)).name))


class Sdist(_Model):
    """A project that publishes no wheel. The builder makes one from the locked sdist, without
    network.
    """

    name: Project = Field(description="The project.")
    why: Why = Field(description="Why the project may be built from its sdist.")


class Strip(_Model):
    """Parts of a project that are left out of every environment and image.

    With `files`, the files that the patterns match are left out. Licence texts always stay. A
    pattern that matches no file of the installed project ends the build.

    Without `files`, the compiled parts are left out: the project publishes compiled wheels for
    amd64 only, and the builder uses their pure Python part on `architectures`.
    """

    name: Project = Field(description="The project.")
    files: tuple[FilePattern, ...] = Field(
        (),
        description=(
            "Paths below site-packages. `*` stands for any characters but `/`, `**` for any "
            "characters. A path that ends in `/` stands for everything below that folder."
        ),
        strict=False,
    )
    architectures: tuple[Architecture, ...] | None = Field(
        None,
        description="The architectures that go without the parts. Default with `files`: all.",
        strict=False,
    )
    lines: tuple[Name, ...] | None = Field(
        None, description="The lines that the entry is for. Default: all.", strict=False
    )
    why: Why = Field(description="Why the other parts work alone.")

    @model_validator(mode="after")
    def _check_kind(self) -> Strip:
        if not self.files and not self.architectures:
            raise ValueError("needs files, or else architectures")
        return self

    def applies_to(self, architecture: str) -> bool:
        """Return whether an architecture goes without the parts."""
        return self.architectures is None or architecture in self.architectures


class TransformerEngine(_Model):
    """Transformer Engine for JAX.

    NVIDIA publishes its libraries as wheels, and its bindings for JAX as source. The builder
    compiles the bindings for each JAX, CUDA, Python and architecture.
    """

    version: Release = Field(description="The release of the libraries and of the bindings.")
    sha256: Sha256 = Field(description="The hash of the sdist of `transformer-engine-jax`.")
    lines: tuple[Name, ...] = Field(
        description=(
            "The lines that have Transformer Engine. `te-ACCELERATOR.in`, in the folder of "
            "`common`, lists its other requirements."
        ),
        min_length=1,
        strict=False,
    )
    accelerators: tuple[Literal["cuda12", "cuda13"], ...] = Field(
        description=(
            "The values of `--accelerator` that have Transformer Engine. A line has it for those "
            "of its distributions."
        ),
        min_length=1,
        strict=False,
    )
    why: Why = Field(description="The reason for this release.")


class Base(_Model):
    """The operating system below the images of a line.

    `locks/base-NAME-ARCHITECTURE.json` pins it: the image by its digest, or the Debian packages by
    their hashes.
    """

    bootstrap: Name = Field(
        description="The Debian release whose locked packages the base is made from."
    )
    image: Image = Field(
        description="The image of a registry that is the base if the lock has no packages."
    )


def source_folder_name(address: str) -> str:
    """Return the folder name of a source: its project, from its URL or `project==version`."""
    if "==" in address:
        return address.partition("==")[0]
    return address.rstrip("/").rpartition("/")[2].removesuffix(".git")


@dataclass(frozen=True)
class GitSource:
    """An upstream repository at its pin, its paths resolved."""

    name: str
    git: str
    track: str
    commit: str
    patches: Path
    overlay: Path | None
    absent: tuple[str, ...]


@dataclass(frozen=True)
class WheelSource:
    """A release wheel of an upstream project, its paths resolved."""

    name: str
    wheel: str
    sha256: str
    patches: Path
    overlay: Path | None
    absent: tuple[str, ...] = ()


class Manifest(_Model):
    """The whole of `manifest.yaml`."""

    version: Literal[1] = Field(description="The version of this format.")
    sources: dict[Name, Source] = Field(description="The upstream projects.")
    lines: dict[Name, Line] = Field(description="The sets of packages.")
    distributions: dict[Name, Distribution] = Field(description="What can be built.")
    projects: dict[Name, AddedProject] = Field(
        {}, description="The projects that can be added to a distribution."
    )
    overrides: tuple[Override, ...] = Field(
        (), description="Departures from what the packages require.", strict=False
    )
    sdists: tuple[Sdist, ...] = Field(
        (), description="Projects that are built from source.", strict=False
    )
    strip: tuple[Strip, ...] = Field(
        (), description="Parts of projects that are left out.", strict=False
    )
    bases: dict[Name, Base] = Field({}, description="The operating systems of images.")
    transformer_engine: TransformerEngine | None = Field(
        None,
        alias="transformer-engine",
        description="Transformer Engine, which the images for CUDA have.",
    )

    @property
    def root(self) -> Path:
        """The folder that the manifest's paths start from."""
        return cast("Path", self.__dict__["_root"])

    def folder(self, path: str) -> Path:
        """Resolve a path of the manifest on disk.

        Raises:
            UserError: A link of the path leads out of the repository or cannot be followed.
        """
        full = self.root / path
        try:
            is_inside = full.resolve().is_relative_to(self.root.resolve())
        except (OSError, RuntimeError) as error:
            raise UserError(
                f"{path[:80]} cannot be followed", str(self.root), "mend the path or the link"
            ) from error
        if not is_inside:
            raise UserError(
                f"{path} leads out of the repository through a link",
                str(self.root),
                "keep it inside",
                kind=INVALID,
                value=path,
            )
        return full

    def source(self, name: str) -> GitSource | WheelSource:
        """Return a source by its name, with the paths of its patches and overlay resolved."""
        if name not in self.sources:
            raise UserError(f"no source {name!r}", "manifest", f"one of: {', '.join(self.sources)}")
        entry = self.sources[name]
        patches = self.folder(entry.patches)
        overlay = self.folder(entry.overlay) if entry.overlay else None
        if entry.git and entry.track and entry.commit:
            return GitSource(
                name, entry.git, entry.track, entry.commit, patches, overlay, entry.absent
            )
        return WheelSource(
            name,
            cast("str", entry.wheel),
            cast("str", entry.sha256),
            patches,
            overlay,
            entry.absent,
        )

    def overrides_for_line(self, line: str) -> list[Override]:
        """Return the overrides that apply to a line."""
        return [
            override
            for override in self.overrides
            if override.lines is None or line in override.lines
        ]

    def strips_for_line(self, line: str) -> list[Strip]:
        """Return the entries of `strip` that apply to a line."""
        return [entry for entry in self.strip if entry.lines is None or line in entry.lines]

    def distribution(self, name: str) -> Distribution:
        """Return a distribution by its name.

        Raises:
            UserError: The manifest does not define the distribution.
        """
        try:
            return self.distributions[name]
        except KeyError:
            known = ", ".join(self.distributions)
            raise UserError(
                f"no distribution {name!r}",
                "--distribution",
                f"one of: {known}",
                kind=UNKNOWN,
                value=name,
            ) from None

    def projects_of(self, distribution: str) -> list[str]:
        """Return the names of all projects of a distribution, each after those that it needs."""
        names = [
            name for name, entry in self.projects.items() if entry.distribution == distribution
        ]
        return self.choose_projects(distribution, names)

    def choose_projects(self, distribution: str, names: Iterable[str]) -> list[str]:
        """Return projects and those that they need, each once and after those that it needs.

        Args:
            distribution: The distribution that the projects are added to.
            names: The names that the user gave.

        Raises:
            UserError: The manifest does not list a project, or lists it for another distribution.
        """
        chosen: list[str] = []
        for name in names:
            entry = self.projects.get(name)
            if entry is None or entry.distribution != distribution:
                raise self._unknown_project(distribution, name)
            needed = self.choose_projects(distribution, entry.needs)
            chosen += [found for found in (*needed, name) if found not in chosen]
        return chosen

    def _unknown_project(self, distribution: str, name: str) -> UserError:
        known = [key for key, entry in self.projects.items() if entry.distribution == distribution]
        return UserError(
            f"no project {name!r} for {distribution}",
            "projects",
            f"one of: {', '.join(known)}" if known else f"{distribution} has no projects",
            kind=UNKNOWN,
            value=name,
        )


def load(path: Path) -> Manifest:
    """Read and check a manifest.

    Raises:
        UserError: The file cannot be read or is not valid. The error has the line and the key of
            the first mistake.
    """
    # A device or a pipe may have no end.
    if path.exists() and not path.is_file() and not path.is_dir():
        raise UserError("is a device or a pipe, not a file", str(path), "give --manifest FILE")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise UserError(
            f"cannot be read ({reason})", str(path), "give --manifest FILE", kind=MISSING
        ) from error
    document = strict_yaml.parse_document(
        text, str(path) if path.name != "manifest.yaml" else path.name
    )
    if not isinstance(document.data, dict):
        raise UserError(
            "is not a mapping", document.format_place(()), "see docs/reference/manifest.md"
        )
    try:
        manifest = Manifest.model_validate(document.data)
    except ValidationError as error:
        raise _describe_first_mistake(error, document) from error
    manifest.__dict__["_root"] = path.absolute().parent
    _check_references(manifest, document)
    return manifest


def _describe_first_mistake(error: ValidationError, document: strict_yaml.Document) -> UserError:
    """Return the error for the mistake that comes first in the file."""

    def line_number(problem: Any) -> int:
        return int(document.format_place(problem["loc"]).split(":")[1])

    problem = min(error.errors(include_url=False), key=line_number)
    path = tuple(part for part in problem["loc"] if part != "[key]")
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        message = "unknown key"
    elif problem["type"] == "missing":
        message = "is missing"
    elif problem["type"] == "string_pattern_mismatch":
        expected = _PATTERNS.get(str(path[-1]), "a valid name")
        message = f"{problem['input']!r} is not {expected}"
    elif isinstance(problem["input"], str):
        message = f"{redact(problem['input'])!r}: {message}"
    return UserError(
        message, document.format_place(path), "see docs/reference/manifest.md", kind=INVALID
    )


# The name of a folder below opt/ that needs no quoting anywhere.
_FOLDER_NAME = r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?"
_PATTERNS = {
    "commit": "a full commit: 40 lower-case hex digits",
    "sha256": "a sha256: 64 lower-case hex digits",
    "wheel": "project==version",
    "python": "a Python version such as '3.13'",
}


def _check_references(manifest: Manifest, document: strict_yaml.Document) -> None:
    """Check that every name that one part of the manifest uses is defined in another.

    Raises:
        UserError: A name is not defined, two sources share a folder, or two overrides conflict.
    """
    _check_lines(manifest, document)
    _check_distributions(manifest, document)
    _check_projects(manifest, document)
    if manifest.transformer_engine:
        _check_names(
            manifest.transformer_engine.lines,
            manifest.lines,
            "line",
            document,
            ("transformer-engine", "lines"),
        )
    _check_overrides(manifest, document)
    for index, strip in enumerate(manifest.strip):
        path = ("strip", index, "lines")
        _check_names(strip.lines or (), manifest.lines, "line", document, path)


def _check_names(
    names: Iterable[str],
    defined_names: Iterable[str],
    kind: str,
    document: strict_yaml.Document,
    path: tuple[str | int, ...],
) -> None:
    """Check that the names of a list are defined.

    Args:
        names: The names that the list has.
        defined_names: The names that it may have.
        kind: What the names are of, for the message: "line", "source".
        document: The document, for the place in the message.
        path: The keys that lead to the list.
    """
    for index, name in enumerate(names):
        if name not in defined_names:
            raise _undefined_name(kind, name, document.format_place((*path, index)), defined_names)


def _undefined_name(kind: str, name: str, place: str, defined_names: Iterable[str]) -> UserError:
    return UserError(
        f"no {kind} {name!r}",
        place,
        f"one of: {', '.join(defined_names)}",
        kind=UNKNOWN,
        value=name,
    )


def _check_lines(manifest: Manifest, document: strict_yaml.Document) -> None:
    for name, line in manifest.lines.items():
        if line.base is not None and line.base not in manifest.bases:
            place = document.format_place(("lines", name, "base"))
            raise _undefined_name("base", line.base, place, manifest.bases)


def _check_distributions(manifest: Manifest, document: strict_yaml.Document) -> None:
    for name, distribution in manifest.distributions.items():
        path = ("distributions", name)
        _check_names([distribution.line], manifest.lines, "line", document, (*path, "line"))
        _check_names(distribution.sources, manifest.sources, "source", document, (*path, "sources"))
        _check_source_folders(manifest, distribution, document, (*path, "sources"))


def _check_source_folders(
    manifest: Manifest,
    distribution: Distribution,
    document: strict_yaml.Document,
    path: tuple[str, ...],
) -> None:
    """Check that the sources of a distribution get folders of different, plain names."""
    taken_folders = {"rosetta"}
    for index, source_name in enumerate(distribution.sources):
        source = manifest.sources[source_name]
        folder = source_folder_name(source.git or str(source.wheel))
        if not re.fullmatch(_FOLDER_NAME, folder) or folder in taken_folders:
            raise UserError(
                f"{source_name} would lie in the folder {folder!r}, which is not free",
                document.format_place((*path, index)),
                "sources need addresses with distinct, plain last parts",
            )
        taken_folders.add(folder)


def _check_projects(manifest: Manifest, document: strict_yaml.Document) -> None:
    """Check that each project has a source, and a distribution that can take it."""
    earlier: dict[str, list[str]] = {name: [] for name in manifest.distributions}
    for name, project in manifest.projects.items():
        path = ("projects", name)
        _check_names([name], manifest.sources, "source", document, path)
        where = (*path, "distribution")
        _check_names(
            [project.distribution], manifest.distributions, "distribution", document, where
        )
        # A project comes after those that it needs, so that no two can need each other.
        names = earlier[project.distribution]
        _check_names(project.needs, names, "earlier project", document, (*path, "needs"))
        names.append(name)
    for distribution, names in earlier.items():
        entry = manifest.distributions[distribution]
        extended = entry.model_copy(update={"sources": (*entry.sources, *names)})
        _check_source_folders(manifest, extended, document, ("distributions", distribution))


def _check_overrides(manifest: Manifest, document: strict_yaml.Document) -> None:
    """Check that the lines of overrides exist, and that a line overrides a project only once."""
    overridden_projects: set[tuple[str, str]] = set()
    for index, override in enumerate(manifest.overrides):
        path = ("overrides", index)
        _check_names(override.lines or (), manifest.lines, "line", document, (*path, "lines"))
        for line in override.lines or tuple(manifest.lines):
            if (line, override.project) in overridden_projects:
                raise UserError(
                    f"a second override of {override.project}",
                    document.format_place(path),
                    "keep one",
                    kind=CONFLICT,
                    value=override.project,
                )
            overridden_projects.add((line, override.project))
