"""Where Debian's packages are fetched from, on machines whose apt knows more or less."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from builder.packages import debian_mirrors
from tests.support import debian_packages, errors

_APT_GET = """#!/bin/sh
case " $* " in
*" indextargets "*) printf '%b' "$LISTS" ;;
*" --print-uris "*) cat "$PRINTED" ;;
*" update "*)
  for word in "$@"; do case $word in Dir::State::lists=*) lists=${word#*=} ;; esac; done
  cp "$RELEASES"/* "$lists" ;;
esac
"""
_SOURCES = {
    "http://other.example/debian/dists/trixie/InRelease": "Other",
    "http://mirror.example/debian/dists/trixie/InRelease": "Debian",
    "http://mirror.example/debian/dists/trixie-updates/InRelease": "Debian",
    "http://safe.example/debian-security/dists/trixie-security/InRelease": "Debian-Security",
}
_LISTS = {
    "Debian": "http://listed.example/debian/",
    "Debian-Security": "http://listed.example/safe/",
}


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        ((), ("http://mirror.example/debian", "http://safe.example/debian-security")),
        (("Debian",), ("http://listed.example/debian", "http://safe.example/debian-security")),
        (("Debian-Security",), ("http://mirror.example/debian", "http://listed.example/safe")),
        (
            ("Debian", "Debian-Security"),
            ("http://listed.example/debian", "http://listed.example/safe"),
        ),
    ],
)
def test_sources_without_lists_name_the_mirrors(
    listed: tuple[str, ...],
    expected: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    releases = tmp_path / "releases"
    releases.mkdir()
    printed = []
    for number, (url, label) in enumerate(_SOURCES.items()):
        name = f"{number}_InRelease"
        printed.append(f"'{url}' {name} 0 \n")
        (releases / name).write_text(f"Origin: x\nLabel: {label}\n")
    (tmp_path / "printed").write_text("".join(printed))
    for name, text in {"apt-get": _APT_GET, "apt-config": "#!/bin/sh\n"}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("LISTS", "".join(f"{label}\\t{_LISTS[label]}\\n" for label in listed))
    monkeypatch.setenv("PRINTED", str(tmp_path / "printed"))
    monkeypatch.setenv("RELEASES", str(releases))
    for variable in (debian_mirrors.MIRROR, debian_mirrors.SECURITY):
        monkeypatch.delenv(variable, raising=False)
    urls = debian_mirrors.find_mirrors()
    assert (urls["debian"], urls["security"]) == expected


def test_apt_itself_reads_sources_without_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real apt with a source that is a folder, and no lists at all."""
    debian_packages.need_programs("apt-get", "apt-config")
    archive = tmp_path / "archive"
    (archive / "dists/trixie").mkdir(parents=True)
    (archive / "dists/trixie/Release").write_text(
        "Origin: Debian\nLabel: Debian\nSuite: trixie\nCodename: trixie\nDate: Sat, 01 Jan 2022 00:00:00 UTC\nArchitectures: amd64\nComponents: main\n"
    )
    (tmp_path / "sources.list").write_text(f"deb [trusted=yes] file:{archive} trixie main\n")
    (tmp_path / "state/lists/partial").mkdir(parents=True)
    config = tmp_path / "apt.conf"
    config.write_text(
        f'Dir::Etc::sourcelist "{tmp_path}/sources.list";\nDir::Etc::sourceparts "/dev/null";\nDir::State::lists "{tmp_path}/state/lists";\n'
        'Acquire::AllowInsecureRepositories "true";\n'
    )
    monkeypatch.setenv("APT_CONFIG", str(config))
    monkeypatch.delenv(debian_mirrors.MIRROR, raising=False)
    monkeypatch.delenv(debian_mirrors.SECURITY, raising=False)
    shown = subprocess.run(
        ["apt-get", "indextargets"], capture_output=True, text=True, check=True
    ).stdout
    assert not shown, "apt has lists, so that this checks nothing"
    assert debian_mirrors.find_mirrors() == {"debian": f"file:{archive}"}


@pytest.mark.parametrize(
    ("urls", "filename", "expected"),
    [
        (
            {"debian": "https://a.example/debian"},
            "pool/main/x.deb",
            "https://a.example/debian/pool/main/x.deb",
        ),
        (
            {"debian": "https://a.example/debian", "security": "https://b.example/s"},
            "pool/main/x.deb",
            "https://a.example/debian/pool/main/x.deb",
        ),
        (
            {"debian": "https://a.example/debian", "security": "https://b.example/s"},
            "pool/updates/x.deb",
            "https://b.example/s/pool/updates/x.deb",
        ),
        (
            {"debian": "https://a.example/debian"},
            "pool/updates/x.deb",
            "https://a.example/debian-security/pool/updates/x.deb",
        ),
    ],
)
def test_security_files_come_from_the_security_mirror(
    urls: dict[str, str], filename: str, expected: str
) -> None:
    assert debian_mirrors.mirror_url(urls, filename) == expected


def test_an_unknown_security_mirror_is_named() -> None:
    with errors.expect_user_error(errors.MISSING, where=debian_mirrors.SECURITY) as caught:
        debian_mirrors.mirror_url({"debian": "https://a.example/mirror"}, "pool/updates/x.deb")
    assert caught.value.where == debian_mirrors.SECURITY


def test_the_snapshot_is_that_of_the_day(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(debian_mirrors.SNAPSHOT, "https://old.example/archive/")
    assert (
        debian_mirrors.snapshot_url("2026-01-31", "pool/main/x.deb")
        == "https://old.example/archive/debian/20260131T235959Z/pool/main/x.deb"
    )
    assert (
        debian_mirrors.snapshot_url("2026-01-31", "pool/updates/x.deb")
        == "https://old.example/archive/debian-security/20260131T235959Z/pool/updates/x.deb"
    )


@pytest.mark.parametrize(
    ("variable", "find"),
    [
        (debian_mirrors.MIRROR, debian_mirrors.find_mirrors),
        (debian_mirrors.SECURITY, debian_mirrors.find_mirrors),
        (
            debian_mirrors.SNAPSHOT,
            lambda: debian_mirrors.snapshot_url("2026-01-31", "pool/main/x.deb"),
        ),
    ],
)
def test_an_address_that_is_none_is_refused_without_its_secret(
    variable: str, find: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (debian_mirrors.MIRROR, debian_mirrors.SECURITY, debian_mirrors.SNAPSHOT):
        monkeypatch.setenv(name, "https://a.example/debian")
    monkeypatch.setenv(variable, "https://u:secretword@a.example/debian main\ndeb x")
    with errors.expect_user_error(errors.INVALID, where=variable) as caught:
        find()
    assert caught.value.where == variable
    assert "secretword" not in str(caught.value)
