"""What an image has below the package rosetta, and the notes by which a later build finds it again.

To know the lower layers, a build reads the manifest, the locks, the patches and the overlays. That
takes longer than all that an edit of rosetta/ asks for. So a build notes what it read and what came
of it. A later build with the same request compares the files, by content, with the note. If one
differs, or a layer is not whole, the build starts from the manifest.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import platform
import stat
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder import __version__
from builder.core import folder_checksums
from builder.core.baked_package import find_baked_package
from builder.core.cache import stage_key
from builder.core.cache_records import read_stamp, write_stamp
from builder.images.oci import layer
from builder.packages.python_interpreter import Interpreter

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from builder.core.command_context import Context
    from builder.images.oci.layer import Layer

# Files of the checkout that decide the lower layers, beside the manifest and what it names.
_FILES = ("Dockerfile.base", "LICENSE", "builder", "docker")
_CORE = "rosetta/core"  # the builder imports modules of it


@dataclass(frozen=True)
class Foundation:
    """What an image of one architecture has below the package rosetta.

    Attributes:
        record: The content of lock.json, without the layers.
        layers: The layers from the bottom up.
        env: The ENV lines of the base.
        licences: The licences of all that is inside, as parts of an SPDX expression.
        python: The interpreter that compiles the package rosetta. It is in the cache.
    """

    record: dict[str, Any]
    layers: tuple[Layer, ...]
    env: tuple[str, ...]
    licences: tuple[str, ...]
    python: Interpreter


@dataclass(frozen=True)
class Foundations:
    """The foundations of an image.

    Attributes:
        by_architecture: The foundation of each architecture.
        compression: The compression of all layers.
        is_locked: Whether the lock has the sources as they are. If not, each build says so.
    """

    by_architecture: dict[str, Foundation]
    compression: str
    is_locked: bool


class Notes:
    """The notes of one checkout about one request."""

    def __init__(self, context: Context, request: Mapping[str, Any]) -> None:
        """Prepare notes.

        Args:
            context: The checkout, the manifest and the cache.
            request: Everything that the user asks for, as data for a stage key.
        """
        self._root = context.root
        self._manifest = context.manifest_path.absolute()
        self._cache = context.cache
        key = stage_key(
            "foundation",
            {
                "request": dict(request),
                "checkout": str(context.root),
                "manifest": str(self._manifest),
                "machine": platform.machine(),
                "python": sys.version,
                "builder": __version__,
                "layout": 2,
            },
        )
        self._stamp = self._cache.path("stamps", f"foundation-{key}.json")

    def find(self) -> Foundations | None:
        """Return the noted image; None if a file has changed, or something is not whole."""
        note = read_stamp(self._stamp)
        if note is None or _hash_paths(note["inputs"]) != note["inputs"]:
            return None
        folder = self._cache.path("base", note["python_folder"])
        is_unchanged = folder_checksums.hash_states(folder) == note["python_states"]
        if not is_unchanged and not self._cache.has_intact("base", folder.name):
            return None
        path = folder / note["python"]["path"]
        python = Interpreter(**{**note["python"], "path": path})
        foundations = {}
        for architecture, facts in note["foundations"].items():
            layers = self._find_layers(facts["layers"], note["compression"])
            if layers is None:
                return None
            foundations[architecture] = Foundation(
                facts["record"], layers, tuple(facts["env"]), tuple(facts["licences"]), python
            )
        for used in (self._stamp, folder):  # `cache prune` removes what was not used lately
            os.utime(used)
        return Foundations(foundations, note["compression"], is_locked=True)

    def _find_layers(
        self, recorded: Iterable[Mapping[str, Any]], compression: str
    ) -> tuple[Layer, ...] | None:
        """Return the layers of a note; None if the cache lacks one, or has another."""
        layers = []
        for facts in recorded:
            noted = layer.Layer(**facts)
            if layer.find_layer(self._cache, noted.key, noted.name, compression) != noted:
                return None
            layers.append(noted)
        return tuple(layers)

    def hash_inputs(self, named: Iterable[Path]) -> dict[str, str]:
        """Return the hash of everything that decides the lower layers, by path.

        Args:
            named: The files and folders that the manifest and the request name.
        """
        core = [path for path in (self._root / _CORE).rglob("*") if path.is_file()]
        return _hash_paths(
            [
                str(self._manifest),
                str(find_baked_package() / "known_issues.yaml"),
                *(str(self._root / name) for name in _FILES),
                *(str(path) for path in named),
                *(str(path) for path in core if path.suffix != ".pyc"),
            ]
        )

    def write(
        self, foundations: Foundations, before: Mapping[str, str], after: Mapping[str, str]
    ) -> None:
        """Note foundations, unless their inputs changed while they were made.

        Args:
            foundations: The foundations.
            before: What `hash_inputs` returned before they were made.
            after: What it returns now.
        """
        modules = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
        core = str(self._root / _CORE) + os.sep
        inputs = {
            path: digest
            for path, digest in before.items()
            if not (path.startswith(core) and path.endswith(".py")) or path in modules
        }
        if any(after.get(path) != digest for path, digest in inputs.items()):
            return
        python = next(iter(foundations.by_architecture.values())).python
        inside = python.path.relative_to(self._cache.path("base"))
        folder = inside.parts[0]
        write_stamp(
            self._stamp,
            {
                "inputs": inputs,
                "compression": foundations.compression,
                "python_folder": folder,
                "python_states": folder_checksums.hash_states(self._cache.path("base", folder)),
                "python": dataclasses.asdict(python) | {"path": str(inside.relative_to(folder))},
                "foundations": {
                    architecture: {
                        "record": foundation.record,
                        "layers": [dataclasses.asdict(entry) for entry in foundation.layers],
                        "env": list(foundation.env),
                        "licences": list(foundation.licences),
                    }
                    for architecture, foundation in foundations.by_architecture.items()
                },
            },
        )


def _hash_paths(paths: Iterable[str]) -> dict[str, str]:
    """Return the hash of each file or folder: of names, contents, and what may be executed.

    The hash of a missing path is "".
    """
    return {path: _hash_path(path) for path in paths}


def _hash_path(path: str) -> str:
    try:
        with open(path, "rb") as file:
            mode = "x" if os.fstat(file.fileno()).st_mode & stat.S_IXUSR else ""
            return hashlib.file_digest(file, "sha256").hexdigest() + mode
    except IsADirectoryError:
        with os.scandir(path) as entries:
            names = sorted(entry.name for entry in entries if entry.name != "__pycache__")
        return stage_key("folder", {name: _hash_path(f"{path}/{name}") for name in names})
    except OSError:
        return ""
