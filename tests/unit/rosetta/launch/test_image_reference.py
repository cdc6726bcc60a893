"""One name of an image in each place that runs one."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from rosetta.core.errors import UserError
from rosetta.launch.image_reference import describe_dropped_tag, read_image, write_image
from tests.support.image_names import HEX, NAMES, list_enroot_names

SLURM_FILES = sorted((Path(__file__).parents[4] / "overlay").rglob("*.sub"))
PLACES = ("docker", "jobset", "pyxis", "apptainer")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", NAMES)
def test_each_name_in_each_place(name: str, place: str) -> None:
    docker, pyxis, apptainer = NAMES[name]
    expected = {"docker": docker, "jobset": docker, "pyxis": pyxis, "apptainer": apptainer}[place]
    image = read_image(name, "--image=")
    if expected is None:
        with pytest.raises(UserError) as refusal:
            write_image(image, place, "--image=")
        assert "\n" not in str(refusal.value)
        return
    written = write_image(image, place, "--image=")
    assert written == expected
    assert image.digest in written
    assert write_image(read_image(written, ""), place, "") == expected, (
        "what a place reads may be given again"
    )
    assert (describe_dropped_tag(image, place) is not None) == bool(
        image.digest and image.tag and image.tag not in written
    )


# src/docker.sh of enroot 3.5.0: what a URI is taken apart into.
_ENROOT = re.compile(
    r"docker://((?P<user>[\w.!~*'()%;:&=+$,\-./<>?@]+)@)?((?P<registry>[^#]+)#)?(?P<image>[a-z0-9/._-]+)(:(?P<tag>[A-Za-z0-9._:-]+))?"
)


@pytest.mark.parametrize("name", list_enroot_names())
def test_enroot_reads_the_same_image(name: str) -> None:
    image = read_image(name, "")
    parts = _ENROOT.fullmatch("docker://" + write_image(image, "pyxis", ""))
    assert parts
    assert (parts["user"] or "", parts["registry"] or "", parts["image"]) == (
        image.user,
        image.registry,
        image.repository,
    )
    assert (parts["tag"] or "") == (image.digest or image.tag)


@pytest.mark.parametrize("path", SLURM_FILES, ids=lambda path: path.name)
def test_the_slurm_files_write_the_same_name(path: Path) -> None:
    """They hand on what is not Docker's HOST/PATH:TAG as it is: enroot's own names, names with a scheme, and paths."""
    function = re.search(
        r"^pyxis_image\(\) \{\n.*?^\}\n", path.read_text(), re.DOTALL | re.MULTILINE
    )
    assert function
    names = [name for name, (_, pyxis, _) in NAMES.items() if pyxis]
    script = f'set -euo pipefail\n{function[0]}for name in "$@"; do pyxis_image "$name"; echo; done'
    printed = subprocess.run(
        ["bash", "-c", script, "bash", *names], capture_output=True, text=True, check=True
    ).stdout
    handed_on = {
        name
        for name in names
        if "#" in name or "://" in name or name.startswith((".", "/")) or name.endswith(".sqsh")
    }
    assert len(handed_on) < len(names) - 10
    assert dict(zip(names, printed.splitlines(), strict=True)) == {
        name: name if name in handed_on else NAMES[name][1] for name in names
    }
    assert '"--container-image=$(pyxis_image "$CONTAINER")"' in path.read_text()


@pytest.mark.parametrize(
    "name",
    [
        "-x",
        "",
        " t5x",
        "t5x\n",
        "T5X",
        "ghcr.io/Me/t5x",
        "me//t5x",
        "t5x:",
        "t5x:a b",
        "t5x:" + "a" * 129,
        "t5x@",
        "t5x@sha256:12",
        f"t5x@{HEX.upper()}",
        f"t5x@{HEX}0",
        "t5x@sha512:" + "0" * 128,
        "ghcr.io#",
        "#me/t5x",
        "a#b#c",
        "ghcr.io/",
        "ftp://ghcr.io/me/t5x",
        "docker://",
        "docker://-x",
        "ghcr.io/me/t5x;rm",
        "$(id)",
    ],
)
def test_not_a_reference(name: str) -> None:
    with pytest.raises(UserError) as refusal:
        read_image(name, "--image=")
    assert len(str(refusal.value).splitlines()) <= 2


@pytest.mark.parametrize(
    "name",
    [
        "me:hunter2@ghcr.io#me/t5x",
        "docker://me:hunter2@ghcr.io/me/t5x",
        "docker://me:hunter2@ghcr.io#me/t5x",
    ],
)
def test_a_password_is_refused_and_not_shown(name: str) -> None:
    with pytest.raises(UserError) as refusal:
        read_image(name, "--image=")
    assert "hunter2" not in str(refusal.value)
