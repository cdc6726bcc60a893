"""An image as an engine gives it back: the archive of `docker save`, which every engine and every
store can write.
"""

from __future__ import annotations

import json
import tarfile
from dataclasses import dataclass, replace
from typing import IO, TYPE_CHECKING, Any

from rosetta.core.errors import DAMAGED, UserError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_STEP_PROGRAM = "install-packages"  # in the history of the image: the one step that may change it


@dataclass(frozen=True)
class ExportedImage:
    """The config of an image and its layers, bottom up, each as a function that opens its tar
    (plain, gzip or zstd; close it).

    The first `below` of them are those of the base that it was built on.
    """

    config: dict[str, Any]
    diff_ids: tuple[str, ...]
    layers: tuple[Callable[[], IO[bytes]], ...]
    base_count: int = 0
    archive: Path | None = None
    raw: bytes = b""  # the config as it is stored

    @property
    def env(self) -> tuple[str, ...]:
        """The ENV lines of the image."""
        return tuple((self.config.get("config") or {}).get("Env") or ())


def read_archive(file: Path) -> ExportedImage:
    """Return the image in an archive, whatever made it. Raises UserError where it is damaged."""
    try:
        with tarfile.open(file, mode="r:") as archive:
            of_config, layers = _find_parts(archive)
            raw = _open_member(archive, of_config).read()
            config = json.loads(raw)
            diff_ids = tuple(config["rootfs"]["diff_ids"])
            if len(diff_ids) != len(layers):
                raise ValueError("its config and its manifest do not name the same layers")
            return ExportedImage(
                config, diff_ids, tuple(_make_opener(file, name) for name in layers), 0, file, raw
            )
    except (tarfile.TarError, EOFError, ValueError, LookupError, TypeError) as error:
        raise _unreadable_image(error) from error


def read_built_archive(file: Path) -> ExportedImage:
    """Return the image in an archive, which Dockerfile.base has made.

    Raises UserError where it is damaged.
    """
    made = read_archive(file)
    try:
        last = made.config["history"][-1]
        if _STEP_PROGRAM not in last["created_by"]:
            raise ValueError(f"{_STEP_PROGRAM} is not the last of its steps")
        return replace(made, base_count=len(made.diff_ids) - (0 if last.get("empty_layer") else 1))
    except (ValueError, LookupError, TypeError) as error:
        raise _unreadable_image(error) from error


def _unreadable_image(error: Exception) -> UserError:
    return UserError(
        f"the engine gave back an image that cannot be read ({error})",
        "",
        "run again; if it happens again, check the engine's storage",
        kind=DAMAGED,
    )


def _find_parts(archive: tarfile.TarFile) -> tuple[str, list[str]]:
    """Return the names of the config and of the layers in the archive."""
    if "manifest.json" in archive.getnames():
        image = json.loads(_open_member(archive, "manifest.json").read())[0]
        return image["Config"], image["Layers"]
    top = json.loads(_open_member(archive, "index.json").read())["manifests"][0]
    manifest = json.loads(_open_member(archive, _blob_name(top)).read())
    return _blob_name(manifest["config"]), [_blob_name(each) for each in manifest["layers"]]


def _blob_name(described: dict[str, Any]) -> str:
    return "blobs/" + str(described["digest"]).replace(":", "/")


def _open_member(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    found = archive.extractfile(name)
    if found is None:
        raise ValueError(f"{name} is no file")
    return found


def _make_opener(file: Path, name: str) -> Callable[[], IO[bytes]]:
    """Each call reads for itself: layers may be read at the same time, or twice."""

    def open_() -> IO[bytes]:
        archive = tarfile.open(file, mode="r:")  # noqa: SIM115 - closed with the content
        try:
            content = _open_member(archive, name)
        except BaseException:
            archive.close()
            raise
        close = content.close

        def closed() -> None:
            close()
            archive.close()

        content.close = closed  # type: ignore[method-assign]
        return content

    return open_
