"""The parts of an environment that come from rosetta.

They are the package rosetta, its programs, its shell completion and the record of the build.
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
from builder.core import bytecode, hash_buckets
from builder.core.baked_package import find_baked_package
from builder.core.cache import stage_key
from builder.packages import (
    completion,
    known_issues,
    licences,
    package_revision,
    program_wrappers,
)
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


def _list_files(folder: Path) -> list[Path]:
    return sorted(
        path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    )


def _hash_files(folder: Path, files: Sequence[Path]) -> str:
    names = {
        str(path.relative_to(folder)): [
            hashlib.sha256(path.read_bytes()).hexdigest(),
            path.stat().st_mode & 0o100,
        ]
        for path in files
    }
    return stage_key("files", names)


def _copy_files(folder: Path, files: Sequence[Path], into: Path) -> None:
    for path in files:
        target = into / path.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
        target.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)


def package_part(python: Interpreter) -> Part:
    """Return the part with the package rosetta and its bytecode, which `python` compiles."""
    rosetta = find_baked_package()
    return _package_part(rosetta, _list_files(rosetta), python)


def divide_package(python: Interpreter) -> dict[int, Part]:
    """Return the files of the package rosetta as several parts with one path, by bucket.

    The hash of its path decides the bucket of a file, so an edit of one file changes one part. The
    bytecode of a file is in the part of the file.
    """
    rosetta = find_baked_package()
    buckets: dict[int, list[Path]] = {}
    for path in _list_files(rosetta):
        bucket = hash_buckets.choose_bucket(path.relative_to(rosetta).as_posix())
        buckets.setdefault(bucket, []).append(path)
    return {
        bucket: _package_part(rosetta, files, python) for bucket, files in sorted(buckets.items())
    }


def _package_part(rosetta: Path, files: Sequence[Path], python: Interpreter) -> Part:
    def write_package(into: Path) -> None:
        _copy_files(rosetta, files, into)
        bytecode.compile_tree(python, into)

    key = stage_key("rosetta", {"files": _hash_files(rosetta, files), "python": python.full})
    return Part("opt/rosetta/rosetta", key, write_package)


def program_parts(trees: Sequence[Tree]) -> list[Part]:
    """Return the parts with the programs and their shell completion.

    Args:
        trees: The patched sources, whose scripts get a program each.
    """
    rosetta = find_baked_package()
    parts = [_programs_part(trees)]
    if completion.has_completion(rosetta):
        parts.append(_completion_part(rosetta))
    return parts


def _programs_part(trees: Sequence[Tree]) -> Part:
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


def _completion_part(rosetta: Path) -> Part:
    digest = _hash_files(rosetta, _list_files(rosetta))
    key = stage_key("completion", {"files": digest, "shtab": completion.VERSION})
    return Part(
        "opt/rosetta/share", key, lambda into: completion.write_files(rosetta, digest, into)
    )


def make_record(wanted: Packages, sources: Mapping[str, PatchedSource]) -> dict[str, Any]:
    """Return the content of lock.json, the record of what an environment consists of."""
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
    """Return the locked versions as constraints for pip.

    The third word of the first line is a hash that identifies this set of packages.
    """
    body = "".join(f"{pin.name}=={pin.version}\n" for pin in pins)
    if transformer_engine:
        # The builder compiles this wheel, so that no lock has it.
        body += f"transformer-engine-jax=={transformer_engine['version']}\n"
    return f"# packages {hashlib.sha256(body.encode()).hexdigest()[:16]}\n{body}"


def record_parts(
    record: dict[str, Any],
    manifest: Manifest,
    pins: Sequence[Pin],
) -> list[Part]:
    """Return the parts that describe a build: patches, known issues, constraints and lock.json.

    revision.json is among them if the commit of rosetta is known.

    Args:
        record: The content of lock.json.
        manifest: Has the patches of the sources.
        pins: The locked packages.
    """
    versions = {pin.name: pin.version for pin in pins}
    revision = package_revision.render_revision()
    return [
        _sources_part(record, manifest),
        *([_text_part("revision.json", "revision", revision)] if revision else []),
        _text_part(
            "known_issues.json", "known issues", known_issues.render_issues(record, versions)
        ),
        _text_part("constraints.txt", "constraints", _record_constraints(record, pins)),
        _text_part("lock.json", "lock", lock_text(record)),
    ]


def _record_constraints(record: Mapping[str, Any], pins: Sequence[Pin]) -> str:
    return constraints_text(pins, record.get("transformer_engine"))


def _text_part(name: str, stage: str, content: str) -> Part:
    def write_text(into: Path) -> None:
        into.write_text(content, encoding="utf-8")

    return Part(f"opt/rosetta/{name}", stage_key(stage, {"text": content}), write_text)


def _sources_part(record: dict[str, Any], manifest: Manifest) -> Part:
    """Return the part with the patches of each source and their list."""
    folders = {name: manifest.source(name).patches for name in record["sources"]}

    def write_sources(into: Path) -> None:
        for name, folder in folders.items():
            _copy_files(folder, _list_files(folder), into / name)
            (into / name).mkdir(parents=True, exist_ok=True)
            (into / name / "PATCHES.json").write_text(
                json.dumps(record["sources"][name], indent=1) + "\n", encoding="utf-8"
            )

    patches = {name: _hash_files(folder, _list_files(folder)) for name, folder in folders.items()}
    key = stage_key("sources", {"lock": lock_text(record), "patches": patches})
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
