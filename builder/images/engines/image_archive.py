"""Images as engines save them: the archive of `docker save`, which every engine can write."""

from __future__ import annotations

import json
import tarfile
from dataclasses import dataclass, replace
from typing import IO, TYPE_CHECKING, Any

from rosetta.core.errors import DAMAGED, UserError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_STEP_PROGRAM = "install-packages"  # in the image's history: the one step that may change it


@dataclass(frozen=True)
class ExportedImage:
    """The config and the layers of an image in an archive."""

    config: dict[str, Any]
    diff_ids: tuple[str, ...]
    # From the bottom up: functions that open the tar, which is uncompressed, gzip or zstd.
    layers: tuple[Callable[[], IO[bytes]], ...]
    base_count: int = 0  # layers, from the bottom, of the base that the image was built on
    archive: Path | None = None
    raw: bytes = b""  # the config as it is stored

    @property
    def env(self) -> tuple[str, ...]:
        """The ENV lines of the image."""
        return tuple((self.config.get("config") or {}).get("Env") or ())


def read_archive(file: Path) -> ExportedImage:
    """Return the image in an archive, whichever program wrote it.

    Raises:
        UserError: The archive is damaged.
    """
    try:
        with tarfile.open(file, mode="r:") as archive:
            config_name, layer_names = _find_parts(archive)
            raw = _open_member(archive, config_name).read()
            config = json.loads(raw)
            diff_ids = tuple(config["rootfs"]["diff_ids"])
            if len(diff_ids) != len(layer_names):
                raise ValueError("its config and its manifest do not name the same layers")
            layers = tuple(_make_opener(file, name) for name in layer_names)
            return ExportedImage(config, diff_ids, layers, 0, file, raw)
    except (tarfile.TarError, EOFError, ValueError, LookupError, TypeError) as error:
        raise _unreadable_image(error) from error


def read_built_archive(file: Path) -> ExportedImage:
    """Return the image in an archive, with the number of layers of its base.

    Raises:
        UserError: The archive is damaged, or Dockerfile.base did not make the image.
    """
    image = read_archive(file)
    try:
        last_step = image.config["history"][-1]
        if _STEP_PROGRAM not in last_step["created_by"]:
            raise ValueError(f"{_STEP_PROGRAM} is not the last of its steps")
        added = 0 if last_step.get("empty_layer") else 1
        return replace(image, base_count=len(image.diff_ids) - added)
    except (ValueError, LookupError, TypeError) as error:
        raise _unreadable_image(error) from error


def _unreadable_image(error: Exception) -> UserError:
    return UserError(
        f"the engine wrote an image that cannot be read ({error})",
        "",
        "run again; if it happens again, check the engine's storage",
        kind=DAMAGED,
    )


def _find_parts(archive: tarfile.TarFile) -> tuple[str, list[str]]:
    """Return the names of the config and of the layers in the archive."""
    if "manifest.json" in archive.getnames():
        image = json.loads(_open_member(archive, "manifest.json").read())[0]
        return image["Config"], image["Layers"]
    described = json.loads(_open_member(archive, "index.json").read())["manifests"][0]
    manifest = json.loads(_open_member(archive, _blob_name(described)).read())
    layer_names = [_blob_name(described_layer) for described_layer in manifest["layers"]]
    return _blob_name(manifest["config"]), layer_names


def _blob_name(described: dict[str, Any]) -> str:
    return "blobs/" + str(described["digest"]).replace(":", "/")


def _open_member(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    member = archive.extractfile(name)
    if member is None:
        raise ValueError(f"{name} is not a file")
    return member


def _make_opener(file: Path, name: str) -> Callable[[], IO[bytes]]:
    """Return a function that opens a layer.

    Each call opens the archive again, so layers can be read twice, or at the same time.
    """

    def open_layer() -> IO[bytes]:
        archive = tarfile.open(file, mode="r:")  # noqa: SIM115 - closed with the content
        try:
            content = _open_member(archive, name)
        except BaseException:
            archive.close()
            raise
        close_content = content.close

        def close_both() -> None:
            close_content()
            archive.close()

        content.close = close_both  # type: ignore[method-assign]
        return content

    return open_layer
