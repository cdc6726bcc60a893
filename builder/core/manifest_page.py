"""Render docs/reference/manifest.md from the pydantic models that read manifest.yaml."""

from __future__ import annotations

import inspect
import types
from typing import TYPE_CHECKING, Any, NamedTuple, get_args, get_origin

from builder.core import manifest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pydantic import BaseModel

PAGE = "docs/reference/manifest.md"
_HEAD = """# manifest.yaml

*Reference: every key of `manifest.yaml`. Generated from builder/core/manifest.py by
`python build.py docs`. Edit that file, not this page.*

`manifest.yaml` says what is built, from which commits, and why. This is a small one:

```yaml
{example}```

After a change, run `python3 build.py lock`. [Add packages](../how-to/add-packages.md) and
[update pins](../how-to/update-pins.md) show the usual changes.

## Syntax

The file is a strict subset of YAML. These are errors, and the message names the line:

- a key that this page does not have, or the same key twice
- an anchor, an alias, a merge key or a tag
- a date, a number with a point, or `yes` or `no` without quotes

A table names one of these types for each value:

| type | example | what is accepted |
|---|---|---|
"""
EXAMPLE = """version: 1
sources:
  t5x:
    git: https://github.com/google-research/t5x.git
    track: main
    commit: cc342d419ec3e3e9c4bf1df33c82330cafdc1e16
    patches: patches/t5x
lines:
  current:
    python: "3.13"
    pythons: ["3.12", "3.13"]
    common: locks/current/common.in
    base: trixie
distributions:
  t5x: {line: current, sources: [t5x], accelerators: [cpu, cuda13], architectures: [amd64]}
overrides:
  - {drop: seqio-nightly, why: "it overwrites files of the package seqio"}
bases:
  trixie: {bootstrap: trixie, image: "debian:trixie-slim"}
"""


class _NamedType(NamedTuple):
    """A type of values, as the page presents it.

    Attributes:
        annotation: The `Annotated` type in builder/core/manifest.py.
        name: Its name on the page.
        example: A value, in Markdown.
        accepted: Which values are accepted.
    """

    annotation: Any
    name: str
    example: str
    accepted: str


_TYPES: tuple[_NamedType, ...] = (
    _NamedType(manifest.Name, "name", "`pax-1.4`", "lower-case letters, digits, dots and dashes"),
    _NamedType(
        manifest.RepoPath,
        "path",
        "`patches/t5x`",
        "relative to the folder of the manifest, and below it",
    ),
    _NamedType(
        manifest.FilePattern,
        "file pattern",
        "`tensorflow/include/`",
        "a path below site-packages, with `*` and `**`",
    ),
    _NamedType(
        manifest.Url,
        "URL",
        "`https://github.com/google/praxis.git`",
        "https or ssh; file with `--allow-protocol file`; no password",
    ),
    _NamedType(manifest.Branch, "branch", "`main`", "a branch or a tag"),
    _NamedType(manifest.Sha1, "commit", "40 hex digits", "the whole hash, in lower case"),
    _NamedType(manifest.Sha256, "sha256", "64 hex digits", "the whole hash, in lower case"),
    _NamedType(manifest.WheelPin, "release", "`paxml==1.4.0`", "a project and one version"),
    _NamedType(
        manifest.Release, "version", '`"2.20.2"`', "digits with points between them, in quotes"
    ),
    _NamedType(manifest.PythonVersion, "Python version", '`"3.13"`', "3.11 to 3.19, in quotes"),
    _NamedType(
        manifest.Project, "project", "`rouge-score`", "the normalised name of a Python project"
    ),
    _NamedType(
        manifest.PackageRequirement,
        "requirement",
        "`protobuf==4.25.9`",
        "as in requirements files, without a URL",
    ),
    _NamedType(
        manifest.EnvironmentMarker,
        "marker",
        "`python_version < '3.13'`",
        "an environment marker of Python packaging",
    ),
    _NamedType(
        manifest.Image, "image", "`debian:trixie-slim`", "the name of an image, and its tag"
    ),
    _NamedType(manifest.Day, "day", '`"2027-12-31"`', "year, month and day, in quotes"),
    _NamedType(manifest.Why, "text", '`"has no wheel for Python 3.13"`', "ten characters or more"),
)
# The title of each section -> the model of its keys.
_MODELS: dict[str, type[BaseModel]] = {
    "The top of the file": manifest.Manifest,
    "sources.NAME": manifest.Source,
    "lines.NAME": manifest.Line,
    "distributions.NAME": manifest.Distribution,
    "projects.NAME": manifest.AddedProject,
    "overrides[]": manifest.Override,
    "sdists[]": manifest.Sdist,
    "strip[]": manifest.Strip,
    "bases.NAME": manifest.Base,
    "transformer-engine": manifest.TransformerEngine,
}


def render() -> str:
    """Return the text of the page."""
    type_rows = [f"| {kind.name} | {kind.example} | {kind.accepted} |" for kind in _TYPES]
    sections = [_render_section(title, model) for title, model in _MODELS.items()]
    return "\n".join([_HEAD.format(example=EXAMPLE) + "\n".join(type_rows), "", *sections])


def _render_section(title: str, model: type[BaseModel]) -> str:
    """Return a section: the docstring of a model, and the table of its keys."""
    lines = [
        f"## {title}",
        "",
        inspect.cleandoc(model.__doc__ or ""),
        "",
        "| key | type | required | meaning |",
        "|---|---|---|---|",
        *_render_rows(model),
        "",
    ]
    return "\n".join(lines)


def _render_rows(model: type[BaseModel]) -> Iterator[str]:
    """Yield a row of the table for each key of a model."""
    for name, field in model.model_fields.items():
        type_text = _describe_type(field.annotation, field.metadata)
        required = "yes" if field.is_required() else "no"
        yield f"| `{field.alias or name}` | {type_text} | {required} | {field.description} |"


def _describe_type(annotation: Any, metadata: Sequence[Any] = ()) -> str:
    """Describe a type in the words of the page.

    Args:
        annotation: The type of a field, or a part of it.
        metadata: The metadata of an `Annotated` type. Pydantic keeps it apart from a field's type.
    """
    # An `Annotated` type is known by its validators: the bare type is nearly always `str`.
    for kind in _TYPES:
        if any(validator in metadata for validator in get_args(kind.annotation)[1:]):
            return kind.name
    if hasattr(annotation, "__metadata__"):
        return _describe_type(annotation.__origin__, annotation.__metadata__)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is types.UnionType or str(origin) == "typing.Union":
        # Each union is `X | None`: a key that is not required.
        (argument,) = [item for item in arguments if item is not types.NoneType]
        return _describe_type(argument)
    if origin is tuple:
        item_text = _describe_type(arguments[0])
        is_named = any(item_text == kind.name for kind in _TYPES)
        return f"list of {item_text}{'s' if is_named else ''}"
    if origin is dict:
        return f"mapping of names to {_link_model(arguments[1])}"
    if str(origin) == "typing.Literal":
        return ", ".join(f"`{value}`" for value in arguments)
    return _link_model(annotation)


def _link_model(model: Any) -> str:
    """Return a link to the section of a model. The anchor is the one that GitHub makes."""
    (title,) = [title for title, known in _MODELS.items() if known is model]
    anchor = "".join(letter for letter in title.lower() if letter.isalnum() or letter == "-")
    return f"[{title}](#{anchor})"
