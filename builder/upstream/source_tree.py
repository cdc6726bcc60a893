"""Turn a pinned source into a folder with the patched files and their bytecode.

A source is patched once for each set of inputs (pin, patches, overlay). Its tree is exported once
for each version of Python. Both results stay in the cache.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from builder.core import bytecode, log
from builder.core.cache import stage_key
from builder.core.cache_records import read_stamp, write_stamp
from builder.core.manifest import GitSource, source_folder_name
from builder.upstream import patched_source, source, tree_export
from builder.upstream.git_objects import Reader, list_tree_files

if TYPE_CHECKING:
    from pathlib import Path

    from builder.core.manifest import WheelSource
    from builder.packages.python_interpreter import Interpreter
    from builder.upstream.source import Access


@dataclass(frozen=True)
class PatchedSource:
    """A source after patches and overlay, as locks and images record it.

    Attributes:
        name: The name of the source in the manifest.
        url: The URL of the repository, or the requirement of the wheel.
        commit: The pinned commit.
        tree: The root tree of the pinned commit.
        patched_commit: The commit after the patch series and the overlay.
        patched_tree: The root tree of that commit.
        exported_tree: The tree of the files that an environment gets.
        absent: The paths that the manifest lists as absent.
        patches: The name, hash, subject and outcome of each patch.
        overlay: The path and hash of each file that the overlay adds.
        date: The date of the pinned commit's committer, in seconds since 1970.
    """

    name: str
    url: str
    commit: str
    tree: str
    patched_commit: str
    patched_tree: str
    exported_tree: str
    absent: tuple[str, ...]
    patches: tuple[dict[str, Any], ...]
    overlay: tuple[tuple[str, str], ...]
    date: int

    @property
    def folder(self) -> str:
        """The name of the source's folder in an image, which is the upstream project's name."""
        return source_folder_name(self.url)

    def as_json(self) -> dict[str, Any]:
        """Return the record as a JSON object."""
        return asdict(self)


def stamp_path(entry: GitSource | WheelSource, access: Access) -> Path:
    """Return the path of the file that records how a source was patched, once it was patched."""
    address = entry.git if isinstance(entry, GitSource) else entry.wheel
    key = stage_key(
        "patched",
        {"source": patched_source.collect_inputs(entry), "name": entry.name, "address": address},
    )
    return access.cache.path("stamps", f"patched-{key}.json")


def patch_source(entry: GitSource | WheelSource, access: Access) -> PatchedSource:
    """Return the patched source. The same inputs are fetched and patched only once.

    Raises:
        UserError: The source is not available, or a patch does not apply.
    """
    stamp = stamp_path(entry, access)
    if (data := read_stamp(stamp)) is not None:
        try:
            lists = {
                "absent": tuple(data["absent"]),
                "patches": tuple(data["patches"]),
                "overlay": tuple(map(tuple, data["overlay"])),
            }
            return PatchedSource(**{**data, **lists})
        except (TypeError, KeyError):
            pass  # another version of the builder wrote the record
    with log.stage(f"patch {entry.name}"):
        pinned = source.acquire_source(entry, access)
        done = patched_source.build_patched_source(pinned, entry)
    patches = tuple(
        {
            "name": patch.name,
            "sha256": patch.sha256,
            "subject": patch.subject,
            "outcome": patch.outcome,
        }
        for patch in done.patches
    )
    result = PatchedSource(
        entry.name,
        pinned.url,
        pinned.commit,
        pinned.tree,
        done.commit,
        done.tree,
        done.exported_tree,
        tuple(entry.absent),
        patches,
        tuple(done.overlay),
        pinned.date,
    )
    write_stamp(stamp, result.as_json())
    return result


def export_source(
    entry: GitSource | WheelSource, state: PatchedSource, access: Access, python: Interpreter
) -> Path:
    """Return the folder in the cache with the exported files and their bytecode.

    Args:
        entry: The source.
        state: The patched source.
        access: Where sources can be fetched.
        python: The interpreter that compiles the bytecode.
    """

    def write_folder(into: Path) -> None:
        pinned = source.acquire_source(entry, access)
        # The objects of the tree may have been pruned. Patching again takes a second, and gives the
        # same tree.
        patched_source.build_patched_source(pinned, entry)
        with log.stage(f"export {entry.name}"):
            with Reader(pinned.git) as reader:
                tree_export.write_tree(reader, list_tree_files(reader, state.exported_tree), into)
            bytecode.compile_tree(python, into)

    return access.cache.ensure_folder("trees", f"{state.exported_tree}-{python.full}", write_folder)
