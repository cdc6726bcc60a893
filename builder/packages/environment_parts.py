"""The parts of an environment that come from rosetta.

They are its programs and what describes the build: patches, known issues, licences and lock.json.
builder.packages.package_parts has the package rosetta itself.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable  # noqa: TC003 - a field of a dataclass
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.core.cache import stage_key
from builder.packages import known_issues, licences, package_parts, program_wrappers
from builder.packages.environment_assembly import Part
from builder.upstream import source_tree
from rosetta.core.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from builder.core.manifest import Manifest
    from builder.packages.lock_file import Pin
    from builder.packages.python_interpreter import Interpreter
    from builder.upstream.source import Access
    from builder.upstream.source_tree import PatchedSource

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Tree:
    """A patched source.

    Attributes:
        name: The name of the source in the manifest.
        folder: Its path below opt/.
        key: The hash of its content.
        path: Exports the source if needed, and returns its folder in the cache.
    """

    name: str
    folder: str
    key: str
    path: Callable[[], Path]


def list_trees(
    manifest: Manifest, sources: Mapping[str, PatchedSource], access: Access, python: Interpreter
) -> list[Tree]:
    """Return the patched sources of a distribution in their order, without exporting them."""

    def make_tree(name: str, state: PatchedSource) -> Tree:
        return Tree(
            name,
            state.folder,
            state.exported_tree,
            lambda: source_tree.export_source(manifest.source(name), state, access, python),
        )

    return [make_tree(name, state) for name, state in sources.items()]


def refuse_shadowed_modules(site: Path, trees: Sequence[Tree], lock: str) -> None:
    """Refuse locked packages that have a module of a patched source or of rosetta.

    Raises:
        UserError: Python would import the module of the locked package.
    """
    modules = {"rosetta": "the package rosetta"}
    for tree in trees:
        for path in tree.path().glob("*/*.py"):
            modules.setdefault(path.parent.name, "the patched source")
    for module, hidden in sorted(modules.items()):
        if (site / module).exists() or (site / f"{module}.py").exists():
            raise UserError(
                f"a locked package has the module {module}, which would hide {hidden}",
                lock,
                "drop that package by an override",
            )


def path_file_text(folders: list[str]) -> str:
    """Return the text of the .pth file of an environment.

    The file adds the patched sources and rosetta to sys.path, relative to site-packages. The file
    also gives a name to a user who has none.
    """
    up = "../../../../.."  # opt/rosetta/env/lib/python3.X/site-packages -> opt
    return (
        "".join(f"{up}/{folder}\n" for folder in folders)
        + f"{up}/rosetta\n{up}/rosetta/rosetta/standins\nimport rosetta_accounts\n"
    )


def programs_part(trees: Sequence[Tree]) -> Part:
    """Return the part with the programs. The scripts of the patched sources get one each."""

    def write_programs(into: Path) -> None:
        into.mkdir()
        programs: dict[str, str] = {}
        for tree in trees:
            programs |= program_wrappers.wrappers_for_scripts(tree.path(), tree.folder)
        programs |= program_wrappers.PROGRAMS
        for name, text in sorted(programs.items()):
            (into / name).write_text(text, encoding="ascii")
            (into / name).chmod(0o755)

    tree_keys = {tree.folder: tree.key for tree in trees}
    key = stage_key("programs", {"doors": program_wrappers.TEXTS, "trees": tree_keys})
    return Part("opt/rosetta/bin", key, write_programs)


def constraints_text(
    pins: Sequence[Pin], transformer_engine: Mapping[str, Any] | None = None
) -> str:
    """Return the locked versions as constraints for pip.

    The third word of the first line is a hash that identifies this set of packages.
    """
    body = "".join(f"{pin.name}=={pin.version}\n" for pin in pins)
    if transformer_engine:
        # The builder compiles this wheel, so that no lock has it.
        body += f"transformer-engine-jax=={transformer_engine['version']}\n"
    return f"# packages {hashlib.sha256(body.encode()).hexdigest()[:16]}\n{body}"


def description_parts(
    record: Mapping[str, Any],
    manifest: Manifest,
    pins: Sequence[Pin],
) -> list[Part]:
    """Return the parts that describe a build, except lock.json.

    They are the patches, the known issues and the constraints.

    Args:
        record: The content of lock.json; its layers do not matter.
        manifest: Has the patches of the sources.
        pins: The locked packages.
    """
    versions = {pin.name: pin.version for pin in pins}
    return [
        _sources_part(record, manifest),
        package_parts.text_part(
            "known_issues.json", "known issues", known_issues.render_issues(record, versions)
        ),
        package_parts.text_part(
            "constraints.txt", "constraints", _record_constraints(record, pins)
        ),
    ]


def _record_constraints(record: Mapping[str, Any], pins: Sequence[Pin]) -> str:
    return constraints_text(pins, record.get("transformer_engine"))


def _sources_part(record: Mapping[str, Any], manifest: Manifest) -> Part:
    """Return the part with the patches of each source and their list."""
    folders = {name: manifest.source(name).patches for name in record["sources"]}
    files = {name: package_parts.describe_files(folder) for name, folder in folders.items()}

    def write_sources(into: Path) -> None:
        for name, folder in folders.items():
            package_parts.copy_files(folder, files[name], into / name)
            (into / name).mkdir(parents=True, exist_ok=True)
            (into / name / "PATCHES.json").write_text(
                json.dumps(record["sources"][name], indent=1) + "\n", encoding="utf-8"
            )

    key = stage_key("sources", {"sources": record["sources"], "patches": files})
    return Part("opt/rosetta/sources", key, write_sources)


def licences_part(
    record: Mapping[str, Any],
    pins: Sequence[Pin],
    site: Callable[[Path], Path],
    trees: Sequence[Tree],
) -> Part:
    """Return the part with the licence texts of rosetta, the sources and the packages.

    Args:
        record: The content of lock.json; its layers do not matter.
        pins: The locked packages.
        site: Returns the site-packages folder, given the path at which the part is made.
        trees: The patched sources.
    """

    def write_texts(into: Path) -> None:
        licences.write_licences(into, site(into), {tree.name: tree.path() for tree in trees})

    inputs = {
        "rosetta": hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest(),
        "pins": _record_constraints(record, pins),
        "requirements": record["requirements"],
        "for": [record["architecture"], record["python"]],
        "trees": [[tree.name, tree.key] for tree in trees],
        "layout": 2,
    }
    return Part("opt/rosetta/LICENSES", stage_key("licences", inputs), write_texts)
