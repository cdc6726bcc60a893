"""What of a machine's settings reaches the step of a build, and how."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from builder.images.engines import build_secrets
from tests.support import errors

if TYPE_CHECKING:
    from pathlib import Path

APT = shutil.which("apt-config") is not None


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without any settings, and an apt of its own."""
    for name in list(os.environ):
        if (
            name.lower().endswith("_proxy")
            or name.startswith(("PIP_", "UV_"))
            or name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
        ):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    _apt(monkeypatch, tmp_path, "")


def _apt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, settings: str) -> Path:
    folder = tmp_path / "apt"
    (folder / "parts").mkdir(parents=True, exist_ok=True)
    own = f'Dir::Etc::parts "{folder}/none"; Dir::Etc::main "{folder}/none"; Dir::Etc::sourcelist "{folder}/sources.list"; Dir::Etc::sourceparts "{folder}/parts";\n'
    own += f'Dir::Etc::netrc "{folder}/auth.conf"; Dir::Etc::netrcparts "{folder}/auth.conf.d";\n'
    (folder / "apt.conf").write_text(own + settings)
    monkeypatch.setenv("APT_CONFIG", str(folder / "apt.conf"))
    return folder


def test_a_machine_without_settings_has_none() -> None:
    assert build_secrets.collect_secrets() == {}


def test_proxies_in_both_cases_and_index_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "https_proxy", "NO_PROXY", "no_proxy", "all_proxy"):
        monkeypatch.setenv(name, f"value of {name}")
    for name in (
        "UV_INDEX_MINE_PASSWORD",
        "PIP_EXTRA_INDEX_URL",
        "UV_DEFAULT_INDEX",
        "PIP_TRUSTED_HOST",
    ):
        monkeypatch.setenv(name, "x=y")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not for a build")
    monkeypatch.setenv("FTP_PROXY", "two\nlines")
    lines = build_secrets.collect_secrets()["rosetta-environment"].decode().splitlines()
    assert [line for line in lines if "proxy" in line.lower()] == [
        f"{name}=value of {name}"
        for name in ("HTTP_PROXY", "NO_PROXY", "all_proxy", "https_proxy", "no_proxy")
    ]
    assert "UV_INDEX_MINE_PASSWORD=x=y" in lines
    assert not any("AWS" in line for line in lines)


def test_the_bundle_of_certificates(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bundle = tmp_path / "ca.pem"
    bundle.write_bytes(b"certificate\n")
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    assert build_secrets.collect_secrets()["rosetta-ca"] == b"certificate\n"
    bundle.write_bytes(bytes(600 * 1024))
    with errors.expect_user_error(errors.TOO_BIG, where="rosetta-ca", remedy="SSL_CERT_FILE"):
        build_secrets.collect_secrets()
    bundle.unlink()
    with errors.expect_user_error(errors.MISSING, where="ca.pem", remedy="SSL_CERT_FILE"):
        build_secrets.collect_secrets()


@pytest.mark.skipif(not APT, reason="NOT CHECKED: this machine has no apt-config")
def test_apts_settings_are_taken_where_they_say_how_to_fetch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("ca", "cert", "key"):
        (tmp_path / name).write_text(f"{name} of apt\n")
    folder = _apt(
        monkeypatch,
        tmp_path,
        f'Acquire::http::Proxy "http://user:pw@proxy:1"; Acquire::https::CaInfo "{tmp_path}/ca"; Acquire::https::mirror.site::SslCert "{tmp_path}/cert";\n'
        f'Acquire::https::SslKey "{tmp_path}/key"; Acquire::Retries "7"; APT::Install-Recommends "true"; DPkg::Post-Invoke {{"rm -rf /"; }}; Acquire::http::Proxy-Auto-Detect "/usr/bin/detect";\n',
    )
    (folder / "auth.conf").write_text("machine a login b password c")
    (folder / "auth.conf.d").mkdir()
    (folder / "auth.conf.d/x.conf").write_text("machine d login e password f\n")
    (folder / "auth.conf.d/x.conf.dpkg-old").write_text("machine old\n")
    found = build_secrets.collect_secrets()
    lines = set(found["rosetta-apt"].decode().splitlines())
    assert {
        'Acquire::http::Proxy "http://user:pw@proxy:1";',
        'Acquire::https::CaInfo "/run/secrets/rosetta-ca";',
        'Acquire::Retries "7";',
        'Acquire::https::mirror.site::SslCert "/run/secrets/rosetta-client-cert";',
        'Acquire::https::SslKey "/run/secrets/rosetta-client-key";',
    } <= lines
    assert not any(
        "Detect" in line or "Invoke" in line or "Recommends" in line or str(tmp_path) in line
        for line in lines
    )
    assert (found["rosetta-ca"], found["rosetta-client-cert"], found["rosetta-client-key"]) == (
        b"ca of apt\n",
        b"cert of apt\n",
        b"key of apt\n",
    )
    assert found["rosetta-auth"] == b"machine a login b password c\nmachine d login e password f\n"


@pytest.mark.skipif(not APT, reason="NOT CHECKED: this machine has no apt-config")
def test_archives_of_both_forms(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = _apt(monkeypatch, tmp_path, "")
    (folder / "sources.list").write_text(
        "# deb http://old/ x main\ndeb-src http://src/ s main\n deb [arch=amd64 signed-by=/k] http://u:p@one/d s-updates main contrib # why\n"
    )
    (folder / "parts/two.sources").write_text(
        "Types: deb deb-src\n# http://comment\nURIs: http://two/d\n http://three/d\nSuites: s s-security\nComponents: main\nSigned-By:\n -----BEGIN\n .\n"
    )
    (folder / "parts/off.sources").write_text(
        "Types: deb\nEnabled: no\nURIs: http://off/d\nSuites: s\nComponents: main\n"
    )
    assert list(build_secrets._read_archives()) == [
        ("http://u:p@one/d", "s-updates", "main contrib"),
        ("http://two/d", "s", "main"),
        ("http://two/d", "s-security", "main"),
        ("http://three/d", "s", "main"),
        ("http://three/d", "s-security", "main"),
    ]


def test_files_are_private_and_gone_afterwards() -> None:
    with build_secrets.write_files({"a": b"1", "b": b"2"}) as paths:
        kept = dict(paths)
        assert {name: path.read_bytes() for name, path in paths.items()} == {"a": b"1", "b": b"2"}
        assert {path.stat().st_mode & 0o777 for path in paths.values()} == {0o600}
        assert paths["a"].parent.stat().st_mode & 0o777 == 0o700
    assert not any(path.exists() or path.parent.exists() for path in kept.values())
    with build_secrets.write_files({}) as none:
        assert none == {}
