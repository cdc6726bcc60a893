from __future__ import annotations

import json
from pathlib import Path

import pytest

from builder.packages import licences
from tests.support import errors


def package(site: Path, name: str, head: str, files: dict[str, str]) -> None:
    info = site / f"{name}-1.0.dist-info"
    contents = {
        f"{info.name}/METADATA": f"Metadata-Version: 2.4\nName: {name}\nVersion: 1.0\n{head}\n\nLicense: of the description\n",
        **files,
    }
    for inside, text in contents.items():
        (site / inside).parent.mkdir(parents=True, exist_ok=True)
        (site / inside).write_text(text)
    (info / "RECORD").write_text(
        "".join(f"{inside},sha256=x,1\n" for inside in contents) + f"{info.name}/RECORD,,\n"
    )


@pytest.fixture
def made(tmp_path: Path) -> Path:
    site, tree = tmp_path / "site", tmp_path / "tree"
    package(
        site,
        "modern",
        "License-Expression: MIT",
        {
            "modern-1.0.dist-info/licenses/LICENSE": "mit",
            "modern-1.0.dist-info/licenses/vendored/cpp/COPYING": "gpl",
        },
    )
    package(
        site,
        "Old.Name",
        "License: BSD",
        {
            "Old.Name-1.0.dist-info/LICENSE.txt": "bsd",
            "old/license.py": "no text",
            "old/NOTICE": "notice",
        },
    )
    package(
        site,
        "nvidia_cudnn",
        "License: Other/Proprietary License",
        {
            "nvidia_cudnn-1.0.dist-info/licenses/License.txt": "EULA",
            "nvidia/cudnn/EULA.txt": "more",
        },
    )
    package(
        site,
        "bare",
        "Classifier: License :: OSI Approved :: Apache Software License\nClassifier: Topic :: X",
        {},
    )
    package(site, "silent", "", {})
    package(site, "wordy", "License: Copyright somebody\n        and more of it", {})
    tree.mkdir()
    (tree / "LICENSE").write_text("\n  Apache License\n")
    (tree / "LICENSE_of_code.py").write_text("")
    (tmp_path / "wheel" / "thing-1.dist-info").mkdir(parents=True)
    (tmp_path / "wheel" / "thing-1.dist-info" / "METADATA").write_text(
        "Name: thing\nLicense: Apache-2.0\n"
    )
    (tmp_path / "wheel" / "thing-1.dist-info" / "LICENSE").write_text("apache")
    licences.write_licences(tmp_path / "out", site, {"up": tree, "wheel": tmp_path / "wheel"})
    return tmp_path / "out"


def test_every_text_is_there(made: Path) -> None:
    found = {
        str(path.relative_to(made)): path.read_text()
        for path in made.rglob("*")
        if path.is_file() and not path.name.startswith("index.")
    }
    assert found.pop("rosetta").lstrip().startswith("Apache License")
    assert found == {
        "sources/up/LICENSE": "\n  Apache License\n",
        "sources/wheel/thing-1.dist-info/LICENSE": "apache",
        "packages/modern/LICENSE": "mit",
        "packages/modern/vendored/cpp/COPYING": "gpl",
        "packages/old-name/LICENSE.txt": "bsd",
        "packages/old-name/old/NOTICE": "notice",
        "packages/nvidia-cudnn/License.txt": "EULA",
        "packages/nvidia-cudnn/nvidia/cudnn/EULA.txt": "more",
    }


def test_the_index_has_those_without_a_text_too(made: Path) -> None:
    rows = {row["name"]: row for row in json.loads((made / "index.json").read_text())["licences"]}
    assert {name: row["licence"] for name, row in rows.items()} == {
        "rosetta": "Apache-2.0",
        "up": "Apache-2.0",
        "wheel": "Apache-2.0",
        "modern": "MIT",
        "Old.Name": "BSD",
        "nvidia_cudnn": "Other/Proprietary License",
        "bare": "Apache Software License",
        "silent": "",
        "wordy": "Copyright somebody",
    }
    assert rows["bare"]["files"] == []
    assert all((made / file).is_file() for row in rows.values() for file in row["files"])
    text = (made / "index.txt").read_text()
    assert "bare 1.0: Apache Software License: it has no licence text\n" in text
    assert "silent 1.0: not declared: it has no licence text\n" in text


def test_the_same_twice(made: Path, tmp_path: Path) -> None:
    licences.write_licences(
        tmp_path / "again",
        tmp_path / "site",
        {"wheel": tmp_path / "wheel", "up": tmp_path / "tree"},
    )
    for path in made.rglob("*"):
        if path.is_file():
            assert (tmp_path / "again" / path.relative_to(made)).read_bytes() == path.read_bytes()


def test_a_record_cannot_reach_outside(tmp_path: Path) -> None:
    (tmp_path / "LICENSE").write_text("not theirs")
    package(tmp_path / "site", "bad", "", {})
    with open(tmp_path / "site/bad-1.0.dist-info/RECORD", "a", encoding="utf-8") as record:
        record.write("../LICENSE,,\n")
    licences.write_licences(tmp_path / "out", tmp_path / "site", {})
    assert not (tmp_path / "out/packages").exists()


def test_a_package_without_metadata_is_a_broken_one(tmp_path: Path) -> None:
    (tmp_path / "site/x-1.dist-info").mkdir(parents=True)
    with errors.expect_user_error(errors.DAMAGED, where="x-1.dist-info", names="METADATA"):
        licences.write_licences(tmp_path / "out", tmp_path / "site", {})
