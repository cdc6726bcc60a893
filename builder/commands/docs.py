"""Write the generated pages and the Slurm files.

With --check, say only whether all of them are current. With --site, also build the site.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.commands import command_page
from builder.core import (
    acceptance_page,
    experiment_page,
    gpu_page,
    manifest,
    manifest_page,
    preset_page,
    variable_page,
)
from builder.core.command_context import Context, Result
from builder.images import contents_page
from builder.pipeline import project_checks, project_page
from builder.release.documentation_site import configuration, site_build
from builder.release.publish import image_table
from builder.upstream import slurm_files
from rosetta.core.atomic_files import write_atomic
from rosetta.core.errors import DAMAGED, UserError

if TYPE_CHECKING:
    import argparse

GPU_PAGE = "docs/reference/gpus.md"


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
    what.add_argument(
        "--images",
        metavar="HOST/NAMESPACE",
        default="",
        help=(
            "first read the sizes and digests of the newest nightly images there, for the "
            "README's table of images"
        ),
    )
    parser.add_argument(
        "--repository",
        metavar="URL",
        type=configuration.parse_repository,
        help="the repository on the web that the site links to (default: that of zensical.toml)",
    )


def run(context: Context, arguments: argparse.Namespace) -> Result:
    """Run the command."""
    if arguments.images:
        _write_image_record(context, arguments.images)
    variables = variable_page.render()
    variable_page.refuse_removals(_read(context.root / variable_page.PAGE), variables)
    loaded = manifest.load(context.root / "manifest.yaml")
    record = _read_record(context.root / image_table.RECORD)
    pages = {
        manifest_page.PAGE: manifest_page.render(),
        contents_page.PAGE: contents_page.render(context.root),
        command_page.PAGE: command_page.render_page(),
        GPU_PAGE: gpu_page.render(),
        acceptance_page.PAGE: acceptance_page.render(),
        variable_page.PAGE: variables,
        preset_page.PAGE: preset_page.render(),
        experiment_page.PAGE: experiment_page.render(),
        project_page.PAGE: project_page.render(
            loaded, _read_record(context.root / project_checks.RECORD)
        ),
        "README.md": image_table.render_readme(_read(context.root / "README.md"), loaded, record),
    }
    texts = {**pages, **slurm_files.render_files(context.root)}
    outdated = [name for name, text in texts.items() if _read(context.root / name) != text]
    if not arguments.check:
        for name in outdated:
            mode = 0o644 if name in pages else 0o755
            write_atomic(context.root / name, texts[name], mode)
    current = not outdated
    lines = [f"{name} was not current" for name in outdated] or ["the generated files are current"]
    data: dict[str, Any] = {"page": manifest_page.PAGE, "current": current}
    if arguments.site:
        site = site_build.build(context, Path(arguments.site), arguments.repository or "")
        data["site"] = {"folder": str(site.folder), "pages": site.pages, "bytes": site.size}
        lines.append(
            f"{site.folder / 'index.html'} is the home page of {site.pages} pages, "
            f"{site.size / 1e6:.1f} MB"
        )
    return Result(data, "\n".join(lines), ok=current or not arguments.check)


def _write_image_record(context: Context, namespace: str) -> None:
    """Record the newest images of a registry, for the README's table."""
    if context.offline:
        raise UserError(
            "a registry cannot be reached with --offline", "--images", "leave one of them out"
        )
    record = image_table.read_images(manifest.load(context.manifest_path), namespace.rstrip("/"))
    text = json.dumps(record, indent=1, sort_keys=True) + "\n"
    write_atomic(context.root / image_table.RECORD, text)


def _read_record(file: Path) -> dict[str, Any]:
    """Return a record that a page is made from, empty if there is no file."""
    try:
        record: dict[str, Any] = json.loads(_read(file) or "{}")
    except ValueError as error:
        raise UserError(
            f"is not valid JSON ({error})",
            str(file),
            "delete the file, or write it again: docs --images, test --projects --renew",
            kind=DAMAGED,
        ) from error
    return record


def _read(path: Path) -> str:
    """Return the text of a file, "" without one."""
    return path.read_text(encoding="utf-8") if path.is_file() else ""
