"""The parts of a distribution that are ours: the package rosetta, its programs, and the record of what was built."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.cache import stage_key
from builder.env import bytecode
from builder.env.bake import Part

if TYPE_CHECKING:
    from builder.locks.lockfile import Pin
    from builder.manifest import Manifest
    from builder.python import Interpreter

ROOT = Path(__file__).resolve().parents[2]
# A script finds its own environment, so the folder may be moved; a link to it works too.
_PROGRAM = """#!/bin/sh
unset PYTHONHOME PYTHONPLATLIBDIR
here=$(dirname -- "$(readlink -f -- "$0")")
exec "$here/../env/bin/python" {arguments}"$@"
"""
PROGRAMS = {"python": _PROGRAM.format(arguments=""), "rosetta": _PROGRAM.format(arguments="-I -m rosetta ")}


def pth(folders: list[str]) -> str:
    """The .pth that puts the patched trees and rosetta on sys.path, relative to site-packages."""
    up = "../../../../.."  # opt/rosetta/env/lib/python3.X/site-packages -> opt
    return "".join(f"{up}/{folder}\n" for folder in folders) + f"{up}/rosetta\n{up}/rosetta/rosetta/standins\n"


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)


def _digest(folder: Path) -> str:
    names = {str(path.relative_to(folder)): [hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mode & 0o100] for path in _files(folder)}
    return stage_key("files", names)


def _copy(folder: Path, into: Path) -> None:
    for path in _files(folder):
        target = into / path.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
        target.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)


def of_rosetta(python: Interpreter) -> list[Part]:
    """The package and its programs."""

    def package(into: Path) -> None:
        _copy(ROOT / "rosetta", into)
        bytecode.compile_tree(python, into)

    def programs(into: Path) -> None:
        into.mkdir()
        for name, text in PROGRAMS.items():
            (into / name).write_text(text, encoding="ascii")
            (into / name).chmod(0o755)

    def link(into: Path) -> None:
        into.symlink_to("opt/rosetta/bin")

    return [
        Part("opt/rosetta/rosetta", stage_key("rosetta", {"files": _digest(ROOT / "rosetta"), "python": python.full}), package),
        Part("opt/rosetta/bin", stage_key("programs", PROGRAMS), programs),
        Part("bin", "link", link),
    ]


def of_record(record: dict[str, Any], manifest: Manifest, pins: list[Pin]) -> list[Part]:
    """lock.json, the patches with their outcomes, constraints for `pip install` on top, and the licences."""
    lock = json.dumps(record, indent=1) + "\n"
    constraints = "".join(f"{pin.name}=={pin.version}\n" for pin in pins)
    folders = {name: manifest.source(name).patches for name in record["sources"]}

    def sources(into: Path) -> None:
        for name, folder in folders.items():
            _copy(folder, into / name)
            (into / name).mkdir(parents=True, exist_ok=True)
            (into / name / "PATCHES.json").write_text(json.dumps(record["sources"][name], indent=1) + "\n", encoding="utf-8")

    def licences(into: Path) -> None:
        into.mkdir()
        shutil.copyfile(ROOT / "LICENSE", into / "rosetta")

    def text(content: str) -> Any:
        return lambda into: into.write_text(content, encoding="utf-8")

    return [
        Part("opt/rosetta/sources", stage_key("sources", {"lock": lock, "patches": {name: _digest(folder) for name, folder in folders.items()}}), sources),
        Part("opt/rosetta/LICENSES", stage_key("licences", {"rosetta": hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest()}), licences),
        Part("opt/rosetta/constraints.txt", stage_key("constraints", {"text": constraints}), text(constraints)),
        Part("opt/rosetta/lock.json", stage_key("lock", {"text": lock}), text(lock)),
    ]
