"""Files that the manifest leaves out of packages: which, with which RECORD, and stale patterns."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest

from builder.core import manifest
from builder.core.manifest import Strip
from builder.packages import file_stripping, uv, wheel_record
from tests.support import errors
from tests.support.small_distribution import ROOT

WHY = "nothing opens these files"
FILES = {
    "thing/__init__.py": "X = 1\n",
    "thing/include/a.h": "// a\n",
    "thing/include/deep/b.h": "// b\n",
    "thing/include/deep/LICENSE": "licence\n",
    "thing/tests/test_a.py": "assert True\n",
    "thing/sub/tests/test_b.py": "assert True\n",
    "thing/lib/libthing_device.a": "archive\n",
    "thing/lib/libthing.so": "library\n",
}


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A site-packages folder with the package thing, each file a hard link into a cache."""
    site, cache = tmp_path / "site", tmp_path / "cache"
    info = "thing-1.0.dist-info"
    files = FILES | {
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: thing\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\n"
        "Tag: py3-none-any\n",
    }
    rows = []
    for path, text in files.items():
        for folder in (cache, site):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (cache / path).write_text(text)
        os.link(cache / path, site / path)
        rows.append(f"{path},sha256={wheel_record._hash_file(str(cache / path))},{len(text)}\n")
    (cache / info / "RECORD").write_text("".join([*rows, f"{info}/RECORD,,\n"]))
    os.link(cache / info / "RECORD", site / info / "RECORD")
    return site


def _strip(name: str, files: tuple[str, ...]) -> Strip:
    return Strip(name=name, files=files, architectures=None, lines=None, why=WHY)


def _list_files(folder: Path) -> set[str]:
    paths = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    return {path for path in paths if ".dist-info/" not in path}


@pytest.mark.parametrize(
    ("pattern", "removed"),
    [
        ("thing/include/", {"thing/include/a.h", "thing/include/deep/b.h"}),
        ("thing/include/*", {"thing/include/a.h"}),
        ("thing/**/tests/", {"thing/tests/test_a.py", "thing/sub/tests/test_b.py"}),
        ("thing/**/*_b.py", {"thing/sub/tests/test_b.py"}),
        ("thing/lib/libthing_device.*", {"thing/lib/libthing_device.a"}),
    ],
)
def test_files_and_their_rows_are_left_out(site: Path, pattern: str, removed: set[str]) -> None:
    """Licence texts stay, the cache behind the hard links keeps every file, and RECORD is whole."""
    record = site / "thing-1.0.dist-info/RECORD"
    before = (site.parent / "cache/thing-1.0.dist-info/RECORD").read_text()
    file_stripping.strip_files(site, [_strip("thing", (pattern,))])
    assert _list_files(site) == FILES.keys() - removed
    with open(record, newline="") as file:
        listed = {row[0] for row in csv.reader(file)}
    assert {path for path in listed if ".dist-info/" not in path} == FILES.keys() - removed
    assert wheel_record.find_edited_files(site) == {}
    assert _list_files(site.parent / "cache") == FILES.keys()
    assert (site.parent / "cache/thing-1.0.dist-info/RECORD").read_text() == before


def test_no_empty_folder_stays(site: Path) -> None:
    file_stripping.strip_files(site, [_strip("thing", ("thing/**/tests/",))])
    assert not (site / "thing/tests").exists()
    assert not (site / "thing/sub").exists()


def test_a_stripped_package_can_be_uninstalled(site: Path) -> None:
    file_stripping.strip_files(site, [_strip("thing", ("thing/include/",))])
    uv.run("pip", "uninstall", "--target", str(site), "thing")
    assert _list_files(site) <= {".lock"}  # uv's


@pytest.mark.parametrize("pattern", ["thing/includes/", "include/", "thing/*.h"])
def test_a_pattern_that_matches_nothing_is_an_error(site: Path, pattern: str) -> None:
    entries = [
        _strip("thing", ("thing/lib/",)),
        _strip("thing", (pattern,)),
    ]
    with errors.expect_user_error(errors.MISSING, where="manifest.yaml", value=pattern):
        file_stripping.strip_files(site, entries)
    assert _list_files(site) == FILES.keys()


def test_an_entry_for_another_project_does_nothing(site: Path) -> None:
    file_stripping.strip_files(site, [_strip("other", ("thing/",))])
    assert _list_files(site) == FILES.keys()


def test_the_shipped_patterns_keep_what_a_gpu_needs() -> None:
    """XLA runs ptxas and nvlink and reads libdevice; cuDNN, cuRAND and NVRTC's headers stay."""
    needed = (
        "nvidia/cu13/bin/ptxas",
        "nvidia/cu13/bin/nvlink",
        "nvidia/cu13/nvvm/libdevice/libdevice.10.bc",
        "nvidia/cu13/include/cuda_fp8.h",
        "nvidia/cu13/include/cccl/cuda/std/array",
        "nvidia/cu13/lib/libcusolver.so.12",
        "nvidia/cu13/lib/libcurand.so.10",
        "nvidia/cu13/lib/libnvrtc.so.13",
        "nvidia/cu13/lib/libnvJitLink.so.13",
        "nvidia/cudnn/lib/libcudnn_engines_tensor_ir.so.9",
        "nvidia/nccl/lib/libnccl.so.2",
        "nvidia/nvshmem/lib/libnvshmem_host.so.3",
        "cudnn/__init__.py",
    )
    entries = manifest.load(ROOT / "manifest.yaml").strip
    patterns = [
        file_stripping.compile_pattern(pattern) for entry in entries for pattern in entry.files
    ]
    assert patterns
    assert [path for path in needed if any(pattern.fullmatch(path) for pattern in patterns)] == []
