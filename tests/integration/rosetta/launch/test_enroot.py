"""The references of images, as enroot's own parser reads them.

`ROSETTA_ENROOT_LIBRARY` names the folder that has enroot's docker.sh and common.sh, such as `src`
of a clone of github.com/NVIDIA/enroot. An installed enroot is found without the variable.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from rosetta.launch.image_reference import ImageReference, read_image, write_image
from tests.support.image_names import HEX, list_enroot_names

ROOT = Path(__file__).parents[4]
INSTALLED = "/usr/lib/enroot"
_PAGES = sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"])
_COMMAND = re.compile(r"enroot import [^\n`]*?(docker://[^\s'\"`]+)")
# What a reader puts in the place of these words.
_FILLED_IN = {"OWNER": "me", "REPOSITORY": "r", "$digest": HEX}


def find_references() -> dict[str, str]:
    """Return each reference that a page gives to `enroot import`, with its page."""
    references = {}
    for page in _PAGES:
        text = page.read_text(encoding="utf-8")
        for word, value in _FILLED_IN.items():
            text = text.replace(word, value)
        for match in _COMMAND.finditer(text):
            references[match[1]] = str(page.relative_to(ROOT))
    return references


@pytest.fixture(scope="module")
def library() -> Path:
    folder = Path(os.environ.get("ROSETTA_ENROOT_LIBRARY", INSTALLED))
    if not (folder / "docker.sh").is_file():
        pytest.skip(f"NOT CHECKED: {folder} has no docker.sh of enroot; see ROSETTA_ENROOT_LIBRARY")
    return folder


# `enroot import`, up to where it would download the layers.
_SCRIPT = """
source "$ENROOT_LIBRARY_PATH/docker.sh"
common::checkcmd() { :; }
docker::_download() { printf '%s\\n' "$1" "$2" "$3" "$4" > "$PARTS"; exit 1; }
docker::import "$1" "" ""
"""


def parse_with_enroot(library: Path, uri: str, folder: Path) -> list[str]:
    """Return user, registry, image and tag of a reference; empty lines for what it lacks."""
    parts = folder / "parts"
    parts.unlink(missing_ok=True)
    settings = {
        "PARTS": str(parts),
        "ENROOT_LIBRARY_PATH": str(library),
        "ENROOT_CACHE_PATH": str(folder),
        "ENROOT_CONFIG_PATH": str(folder),
        "ENROOT_TEMP_PATH": str(folder),
        "ENROOT_GZIP_PROGRAM": "gzip",
        "ENROOT_TRANSFER_RETRIES": "0",
        "ENROOT_CONNECT_TIMEOUT": "1",
        "ENROOT_TRANSFER_TIMEOUT": "1",
    }
    done = subprocess.run(
        ["bash", "-c", f"set -euo pipefail; shopt -s lastpipe; {_SCRIPT}", "bash", uri],
        cwd=folder,
        env={"PATH": os.environ["PATH"], **settings},
        capture_output=True,
        text=True,
        check=False,
    )
    assert parts.exists(), done.stderr
    return parts.read_text(encoding="utf-8").splitlines()


def check_parts(parts: list[str], image: ImageReference) -> None:
    """Compare what enroot read with what rosetta reads."""
    # Versions before 4 print an empty registry for Docker Hub, and an empty tag for `latest`.
    hub = ("", "registry-1.docker.io")
    user, registry, repository, tag = parts
    assert user == image.user
    assert registry in ((image.registry,) if image.registry else hub)
    in_library = not image.registry and "/" not in image.repository
    expected = {image.repository, f"library/{image.repository}" if in_library else image.repository}
    assert repository in expected
    assert tag == (image.digest or image.tag) or (tag in ("", "latest") and not image.tag)


@pytest.mark.shell
def test_enroot_reads_the_references_of_the_pages(library: Path, tmp_path: Path) -> None:
    references = find_references()
    assert len(references) >= 8, "one for each tag at least"
    for uri, page in references.items():
        image = read_image(uri, "")
        assert image.registry == "ghcr.io", page
        check_parts(parse_with_enroot(library, uri, tmp_path), image)


@pytest.mark.shell
@pytest.mark.parametrize("name", list_enroot_names())
def test_enroot_reads_what_rosetta_writes_for_pyxis(
    library: Path, tmp_path: Path, name: str
) -> None:
    image = read_image(name, "")
    uri = f"docker://{write_image(image, 'pyxis', '')}"
    check_parts(parse_with_enroot(library, uri, tmp_path), image)
