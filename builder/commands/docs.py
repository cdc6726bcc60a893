"""Write the generated pages (the manifest's keys, commands, GPUs, variables) and the Slurm files.

With --check, say only whether all of them are current. With --site, also build the site.
"""

from __future__ import annotations

import inspect
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_origin

from builder.commands import command_page
from builder.core import gpu_page, manifest, variable_page
from builder.core.command_context import Context, Result
from builder.release.documentation_site import configuration, site_build
from builder.upstream import slurm_files
from rosetta.core.atomic_files import write_atomic

if TYPE_CHECKING:
    import argparse

    from pydantic import BaseModel

PAGE = "docs/manifest.md"
GPU_PAGE = "docs/reference/gpus.md"
_HEAD = """# manifest.yaml

*Generated from builder/core/manifest.py by `python build.py docs`: edit there.*

The manifest says what is shipped and why. It is plain data: unknown or duplicate keys, anchors,
tags, numbers with a point, dates and yes/no are errors that name the line. Paths are relative to
the manifest and stay below it.
"""
_MODELS: dict[str, type[BaseModel]] = {
    "The file": manifest.Manifest,
    "sources.NAME": manifest.Source,
    "lines.NAME": manifest.Line,
    "distributions.NAME": manifest.Distribution,
    "overrides[]": manifest.Override,
    "sdists[]": manifest.Sdist,
    "strip[]": manifest.Strip,
    "bases.NAME": manifest.Base,
    "transformer-engine": manifest.TransformerEngine,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to `parser`."""
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--check",
        action="store_true",
        help="write nothing; end with status 1 if a file is not current",
    )
    what.add_argument(
        "--site",
        metavar="DIR",
        default="",
        help="then build the searchable site of docs/ in this folder, and check all of its links",
    )
    parser.add_argument(
        "--repository",
        metavar="URL",
        type=configuration.parse_repository,
        help="the repository on the web that the site links to (default: that of zensical.toml)",
    )


def run(context: Context, arguments: argparse.Namespace) -> Result:
    """Run the command."""
    variables = variable_page.render()
    variable_page.refuse_removals(_read(context.root / variable_page.PAGE), variables)
    pages = {
        PAGE: render(),
        command_page.PAGE: command_page.render(),
        GPU_PAGE: gpu_page.render(),
        variable_page.PAGE: variables,
    }
    texts = {**pages, **slurm_files.render(context.root)}
    outdated = [name for name, text in texts.items() if _read(context.root / name) != text]
    if not arguments.check:
        for name in outdated:
            mode = 0o644 if name in pages else 0o755
            write_atomic(context.root / name, texts[name], mode)
    current = not outdated
    lines = [f"{name} was not current" for name in outdated] or ["the generated files are current"]
    data: dict[str, Any] = {"page": PAGE, "current": current}
    if arguments.site:
        site = site_build.build(context, Path(arguments.site), arguments.repository or "")
        data["site"] = {"folder": str(site.folder), "pages": site.pages, "bytes": site.size}
        lines.append(
            f"{site.folder / 'index.html'} is the home page of {site.pages} pages, "
            f"{site.size / 1e6:.1f} MB"
        )
    return Result(data, "\n".join(lines), ok=current or not arguments.check)


def _read(path: Path) -> str:
    """Return the text of a file, "" without one."""
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def render() -> str:
    """Return the whole page."""
    return "\n".join([_HEAD, *(_table(title, model) for title, model in _MODELS.items())])


def _table(title: str, model: type[BaseModel]) -> str:
    rows = [
        (
            f"| `{field.alias or name}` | {_type(field.annotation)} | "
            f"{'yes' if field.is_required() else 'no'} | {field.description} |"
        )
        for name, field in model.model_fields.items()
    ]
    return "\n".join(
        [
            f"## {title}",
            "",
            inspect.cleandoc(model.__doc__ or ""),
            "",
            "| key | type | required | meaning |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )


def _type(annotation: Any) -> str:
    """Describe a type in plain words."""
    origin, arguments = (
        get_origin(annotation),
        [each for each in get_args(annotation) if each is not types.NoneType],
    )
    if origin is types.UnionType or str(origin) == "typing.Union":
        return " or ".join(_type(each) for each in arguments)
    if origin is tuple:
        return f"list of {_type(arguments[0])}"
    if origin is dict:
        return f"mapping to {_type(arguments[1])}"
    if str(origin) == "typing.Literal":
        return ", ".join(f"`{each}`" for each in arguments)
    if hasattr(annotation, "__metadata__"):
        return _type(annotation.__origin__)
    name = str(annotation.__name__)
    return {"str": "text", "int": "number"}.get(name, name.lower())
