from __future__ import annotations

import base64
import csv
import hashlib
from pathlib import Path

from builder.images import image_environment as image_site
from tests.support import errors

SCRIPT = "bin/shown"


def wheel(site: Path, name: str, *rows: list[str]) -> Path:
    """An installed package's metadata, with these rows of RECORD."""
    info = site / f"{name}-1.dist-info"
    info.mkdir(parents=True)
    with open(info / "RECORD", "w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([*rows, [f"{info.name}/RECORD", "", ""]])
    return info


def rows(info: Path) -> list[list[str]]:
    with open(info / "RECORD", encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def test_a_script_that_two_packages_bring_is_recorded_alike_whatever_the_cache_is_called(
    tmp_path: Path,
) -> None:
    """What an installer recorded of it has its own path in it: of the second package, too, nothing of that may stay."""
    found: list[bytes] = []
    for cache in ("/home/a/cache", "/somewhere/else"):
        folder = tmp_path / str(len(found))
        site = folder / "lib/python3.11/site-packages"
        data = f"#!{cache}/bin/python\nprint(1)\n".encode()
        was = [SCRIPT, f"sha256={hashlib.sha256(data).hexdigest()}", str(len(data))]
        infos = [wheel(site, name, was) for name in ("first", "second")]
        (site / "bin").mkdir()
        (site / SCRIPT).write_bytes(data)
        for info in infos:
            image_site._move_data_files(folder, site, info)
        script = (folder / SCRIPT).read_bytes()
        digest = base64.urlsafe_b64encode(hashlib.sha256(script).digest()).rstrip(b"=").decode()
        assert [rows(info)[0] for info in infos] == [
            [f"../../../{SCRIPT}", f"sha256={digest}", str(len(script))]
        ] * 2
        found.append(script)
    assert found[0] == found[1]


def test_what_is_recorded_and_not_there_stays_as_it_is(tmp_path: Path) -> None:
    site = tmp_path / "lib/python3.11/site-packages"
    info = wheel(site, "gone", [SCRIPT, "sha256=x", "1"])
    image_site._move_data_files(tmp_path, site, info)
    assert rows(info)[0] == [SCRIPT, "sha256=x", "1"]


def test_a_package_that_would_write_elsewhere_is_refused(tmp_path: Path) -> None:
    site = tmp_path / "lib/python3.11/site-packages"
    info = wheel(site, "bad", ["bin/../../x", "sha256=x", "1"])
    with errors.expect_user_error(errors.INVALID, where="RECORD", value="bin/../../x"):
        image_site._move_data_files(tmp_path, site, info)
