"""The parts of a distribution that are ours: the package rosetta, its programs, and the record of
what was built.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable  # noqa: TC003 - a field of a dataclass
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder import __version__
from builder.core import bytecode
from builder.core.baked_package import find_baked_package
from builder.core.cache import stage_key
from builder.packages import completion, known_issues, licences, program_wrappers
from builder.packages.environment_assembly import Part
from builder.upstream import source_tree
from rosetta.core.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from builder.core.manifest import Manifest
    from builder.packages.lock_file import Pin
    from builder.packages.package_installation import Packages
    from builder.packages.python_interpreter import Interpreter
    from builder.upstream.source import Access
    from builder.upstream.source_tree import PatchedSource

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Tree:
    """A patched source: its name, its place below opt/, what its content hangs on, and how to come
    by it.
    """

    name: str
    folder: str
    key: str
    path: Callable[[], Path]


def list_trees(
    manifest: Manifest, sources: Mapping[str, PatchedSource], access: Access, python: Interpreter
) -> list[Tree]:
    """Return the patched sources of a distribution, in their order, each exported when its path is
    asked for.
    """

    def one(name: str, state: PatchedSource) -> Tree:
        return Tree(
            name,
            state.folder,
            state.exported_tree,
            lambda: source_tree.export_source(manifest.source(name), state, access, python),
        )

    return [one(name, state) for name, state in sources.items()]


def refuse_shadowed_modules(site: Path, trees: Sequence[Tree], lock: str) -> None:
    """UserError where a locked package ships a module that would be imported instead of a patched
    source or of rosetta.
    """
    modules = {
        path.parent.name: "the patched source"
        for each in trees
        for path in each.path().glob("*/*.py")
    } | {"rosetta": "ours"}
    for module, what in sorted(modules.items()):
        if (site / module).exists() or (site / f"{module}.py").exists():
            raise UserError(
                f"a locked package ships the module {module}, which would hide {what}",
                lock,
                "drop that package by an override",
            )


def path_file_text(folders: list[str]) -> str:
    """Return the .pth that puts the patched trees and rosetta on sys.path, relative to
    site-packages, and gives users without a name one.
    """
    up = "../../../../.."  # opt/rosetta/env/lib/python3.X/site-packages -> opt
    return (
        "".join(f"{up}/{folder}\n" for folder in folders)
        + f"{up}/rosetta\n{up}/rosetta/rosetta/standins\nimport rosetta_accounts\n"
    )


def _list_files(folder: Path) -> list[Path]:
    return sorted(
        path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    )


def _hash_files(folder: Path) -> str:
    names = {
        str(path.relative_to(folder)): [
            hashlib.sha256(path.read_bytes()).hexdigest(),
            path.stat().st_mode & 0o100,
        ]
        for path in _list_files(folder)
    }
    return stage_key("files", names)


def _copy_files(folder: Path, into: Path) -> None:
    for path in _list_files(folder):
        target = into / path.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
        target.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)


def rosetta_parts(python: Interpreter, trees: Sequence[Tree]) -> list[Part]:
    """Return the package, its programs, doors to the scripts of the patched trees, and what shells
    complete after `rosetta`.
    """

    def package(into: Path) -> None:
        _copy_files(find_baked_package(), into)
        bytecode.compile_tree(python, into)

    def programs(into: Path) -> None:
        into.mkdir()
        found = {
            name: text
            for tree in trees
            for name, text in program_wrappers.wrappers_for_scripts(
                tree.path(), tree.folder
            ).items()
        }
        for name, text in sorted({**found, **program_wrappers.PROGRAMS}.items()):
            (into / name).write_text(text, encoding="ascii")
            (into / name).chmod(0o755)

    def link(into: Path) -> None:
        into.symlink_to("opt/rosetta/bin")

    rosetta = find_baked_package()
    digest = _hash_files(rosetta)
    share = Part(
        "opt/rosetta/share",
        stage_key("completion", {"files": digest, "shtab": completion.VERSION}),
        lambda into: completion.write_files(rosetta, digest, into),
    )
    return [
        Part(
            "opt/rosetta/rosetta",
            stage_key("rosetta", {"files": digest, "python": python.full}),
            package,
        ),
        Part(
            "opt/rosetta/bin",
            stage_key(
                "programs",
                {
                    "doors": program_wrappers.TEXTS,
                    "trees": {tree.folder: tree.key for tree in trees},
                },
            ),
            programs,
        ),
        *([share] if completion.has_completion(rosetta) else []),
        Part("bin", "link", link),
    ]


def make_record(wanted: Packages, sources: Mapping[str, PatchedSource]) -> dict[str, Any]:
    """lock.json: what an environment is made of."""
    return {
        "schema": 1,
        "distribution": wanted.distribution,
        "line": wanted.line,
        "accelerator": wanted.accelerator,
        "architecture": wanted.architecture,
        "python": wanted.python.version,
        "builder": __version__,
        "sources": {name: state.as_json() for name, state in sources.items()},
        "requirements": {"file": wanted.lock.name, "sha256": wanted.digest},
    }


def lock_text(record: dict[str, Any]) -> str:
    """Return the text of lock.json."""
    return json.dumps(record, indent=1) + "\n"


def constraints_text(
    pins: Sequence[Pin], transformer_engine: Mapping[str, Any] | None = None
) -> str:
    """Return the locked versions as pip's constraints; the first line's third word names this set
    of packages.
    """
    body = "".join(f"{pin.name}=={pin.version}\n" for pin in pins)
    if transformer_engine:
        # The one wheel of ours that no lock has.
        body += f"transformer-engine-jax=={transformer_engine['version']}\n"
    return f"# packages {hashlib.sha256(body.encode()).hexdigest()[:16]}\n{body}"


def record_parts(
    record: dict[str, Any],
    manifest: Manifest,
    pins: list[Pin],
    site: Callable[[Path], Path],
    trees: Sequence[Tree],
) -> list[Part]:
    """lock.json, the patches with their outcomes, constraints for `pip install` on top, the known
    issues, and the licences.

    `site` gives the site-packages folder that was made of `pins`, by the place where the part is
    made.
    """
    lock, constraints, issues = (
        lock_text(record),
        constraints_text(pins, record.get("transformer_engine")),
        known_issues.render_issues(record, {pin.name: pin.version for pin in pins}),
    )
    folders = {name: manifest.source(name).patches for name in record["sources"]}

    def sources(into: Path) -> None:
        for name, folder in folders.items():
            _copy_files(folder, into / name)
            (into / name).mkdir(parents=True, exist_ok=True)
            (into / name / "PATCHES.json").write_text(
                json.dumps(record["sources"][name], indent=1) + "\n", encoding="utf-8"
            )

    licensed = {
        "rosetta": hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest(),
        "pins": constraints,
        "requirements": record["requirements"],
        "for": [record["architecture"], record["python"]],
        "trees": [[tree.name, tree.key] for tree in trees],
        "layout": 2,
    }

    def texts(into: Path) -> None:
        licences.write_licences(into, site(into), {tree.name: tree.path() for tree in trees})

    def text(content: str) -> Any:
        return lambda into: into.write_text(content, encoding="utf-8")

    return [
        Part(
            "opt/rosetta/sources",
            stage_key(
                "sources",
                {
                    "lock": lock,
                    "patches": {name: _hash_files(folder) for name, folder in folders.items()},
                },
            ),
            sources,
        ),
        Part("opt/rosetta/LICENSES", stage_key("licences", licensed), texts),
        Part(
            "opt/rosetta/known_issues.json",
            stage_key("known issues", {"text": issues}),
            text(issues),
        ),
        Part(
            "opt/rosetta/constraints.txt",
            stage_key("constraints", {"text": constraints}),
            text(constraints),
        ),
        Part("opt/rosetta/lock.json", stage_key("lock", {"text": lock}), text(lock)),
    ]
