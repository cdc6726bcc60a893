"""One invalid manifest per rule: each error names the line and the key."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from builder.core import manifest
from rosetta.core.errors import UserError
from tests.support import errors

REAL = Path(__file__).parents[4] / "manifest.yaml"


def _load(tmp_path: Path, old: str = "", new: str = "") -> manifest.Manifest:
    text = REAL.read_text(encoding="utf-8")
    changed = text.replace(old, new, 1) if old else text
    assert not old or changed != text, f"{old!r} is not in the real manifest"
    path = tmp_path / "manifest.yaml"
    path.write_text(changed, encoding="utf-8")
    return manifest.load(path)


def test_the_real_manifest_loads(tmp_path: Path) -> None:
    loaded = _load(tmp_path)
    assert set(loaded.distributions) == {"t5x", "pax", "t5x-next", "pax-next", "pax-1.4"}
    source = loaded.source("t5x")
    assert isinstance(source, manifest.GitSource)
    assert source.patches == tmp_path / "patches/t5x"
    assert isinstance(loaded.source("paxml-1.4"), manifest.WheelSource)


T5X = "    commit: cc342d419ec3e3e9c4bf1df33c82330cafdc1e16\n"


@pytest.mark.parametrize(
    ("old", "new", "key", "what"),
    [
        ("version: 1\n", "version: 2\n", "version", "Input should be 1"),
        ("version: 1\n", "version: 1\nversion: 1\n", "version", "duplicate key"),
        ("version: 1\n", "version: 1\nextra: 1\n", "extra", "unknown key"),
        ("version: 1\n", "version: '1'\n", "version", "Input should be 1"),
        (T5X, "    commit: cc342d4\n", "sources.t5x.commit", "full commit"),
        (
            T5X,
            "    commit: CC342D419EC3E3E9C4BF1DF33C82330CAFDC1E16\n",
            "sources.t5x.commit",
            "full commit",
        ),
        (
            T5X,
            "    commit: 'cc342d419ec3e3e9c4bf1df33c82330cafdc1e16\\n'\n",
            "sources.t5x.commit",
            "full commit",
        ),
        (
            T5X,
            '    commit: "cc342d419ec3e3e9c4bf1df33c82330cafdc1e16\\n"\n',
            "sources.t5x.commit",
            "full commit",
        ),
        (T5X, "", "sources.t5x", "lacks commit"),
        ("    architectures: [arm64]\n", "", "strip.0", "needs files"),
        ("[tensorflow/include/]", "[/usr/include/]", "strip.1.files.0", "site-packages"),
        ("[tensorflow/include/]", "[../include/]", "strip.1.files.0", "site-packages"),
        ("[tensorflow/include/]", "['**/']", "strip.1.files.0", "site-packages"),
        (
            'lines: [current, next], why: "its own tests',
            'lines: [old], why: "its own tests',
            "strip.23.lines",
            "no line",
        ),
        ('until: "2027-12-31"', 'until: "2027-02-30"', "lines.pax-1.4.until", "2027-06-30"),
        ('until: "2027-12-31"', "until: 2027-12-31", "lines.pax-1.4.until", "timestamp"),
        (T5X, T5X + "    sha256: " + "a" * 64 + "\n", "sources.t5x", "with sha256"),
        (T5X, T5X + "    wheel: t5x==1.0\n", "sources.t5x", "and wheel"),
        (T5X, T5X + "    comit: x\n", "sources.t5x.comit", "unknown key"),
        ("https://github.com/google-research/t5x.git", "ext::sh -c id", "sources.t5x.git", "URL"),
        (
            "https://github.com/google-research/t5x.git",
            "--upload-pack=id",
            "sources.t5x.git",
            "URL",
        ),
        (
            "https://github.com/google-research/t5x.git",
            "http://github.com/google-research/t5x.git",
            "sources.t5x.git",
            "URL",
        ),
        (
            "https://github.com/google-research/t5x.git",
            "git@github.com:google-research/t5x.git",
            "sources.t5x.git",
            "URL",
        ),
        (
            "https://github.com/google-research/t5x.git",
            "https://u:secret@github.com/t5x.git",
            "sources.t5x.git",
            "credentials",
        ),
        (
            "https://github.com/google-research/t5x.git",
            "https://-oProxyCommand=id/t5x.git",
            "sources.t5x.git",
            "host",
        ),
        ("track: main", "track: --upload-pack=id", "sources.t5x.track", "branch"),
        ("track: main", "track: a..b", "sources.t5x.track", "branch"),
        ("patches: patches/t5x", "patches: ../patches", "sources.t5x.patches", "stays inside"),
        ("patches: patches/t5x", "patches: /etc", "sources.t5x.patches", "stays inside"),
        ("patches: patches/t5x", "patches: -x", "sources.t5x.patches", "stays inside"),
        ("overlay: overlay/t5x", "overlay: .git/x", "sources.t5x.overlay", "stays inside"),
        (
            "      - t5x/testdata/mtf_tiny_t5/graph.pbtxt",
            "      - ../graph.pbtxt",
            "sources.t5x.absent.0",
            "stays inside",
        ),
        ("praxis==1.4.0", "praxis", "sources.praxis-1.4.wheel", "project==version"),
        (
            "praxis==1.4.0",
            "praxis==1.4.0 @ file:///x",
            "sources.praxis-1.4.wheel",
            "project==version",
        ),
        ("787bbc11", "787bbc1", "sources.praxis-1.4.sha256", "sha256"),
        ('python: "3.13"', "python: 3.13", "lines.current.python", "float"),
        ('python: "3.13"', 'python: "3.10"', "lines.current.python", "Python version"),
        ('python: "3.13"', 'python: "3.14"', "lines.current", "3.14"),
        ("line: pax-1.4", "line: pax-1.5", "distributions.pax-1.4.line", "no line"),
        ("sources: [t5x]", "sources: [t5y]", "distributions.t5x.sources.0", "no source"),
        ("sources: [t5x]", "sources: []", "distributions.t5x.sources", "at least 1"),
        ("base: bookworm", "base: bullseye", "lines.pax-1.4.base", "no base 'bullseye'"),
        ("base: bookworm", "base: [bookworm]", "lines.pax-1.4.base", "valid string"),
        ("debian:trixie-slim", "--privileged", "bases.trixie.image", "an image"),
        (
            "debian:trixie-slim",
            "https://example.invalid/x",
            "bases.trixie.image",
            "an image",
        ),
        ("bootstrap: trixie", "bootstrap: ../x", "bases.trixie.bootstrap", "valid name"),
        ("bootstrap: trixie}", "bootstrap: trixie, suite: x}", "bases.trixie.suite", "unknown key"),
        (
            "[cpu, cuda12, cuda13]",
            "[cpu, rocm]",
            "distributions.t5x.accelerators.1",
            "Input should be",
        ),
        ("[amd64, arm64]", "amd64", "distributions.t5x.architectures", "valid"),
    ],
)
def test_invalid(tmp_path: Path, old: str, new: str, key: str, what: str) -> None:
    with pytest.raises(UserError) as caught:
        _load(tmp_path, old, new)
    assert what in caught.value.what, str(caught.value)
    assert re.fullmatch(
        rf"manifest\.yaml:[0-9]+: {re.escape(key)}(\.[a-z0-9]+)?", caught.value.where
    ), caught.value.where
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("entry", "what"),
    [
        ("{drop: x, pin: 'y==1', why: 'a reason of some length'}", "and pin"),
        ("{why: 'a reason of some length'}", "and pin"),
        ("{drop: x, why: short}", "at least 10"),
        ("{drop: x}", "is missing"),
        ("{drop: X_Y, why: 'a reason of some length'}", "normalised"),
        ("{drop: x, unless: 'nonsense', why: 'a reason of some length'}", "environment marker"),
        (
            "{pin: 'x==1', unless: 'sys_platform == \"linux\"', why: 'a reason of some length'}",
            "drop only",
        ),
        ("{pin: 'x @ https://example.com/x.whl', why: 'a reason of some length'}", "by URL"),
        ("{pin: 'x==', why: 'a reason of some length'}", "x=="),
        ("{drop: x, lines: [nope], why: 'a reason of some length'}", "no line"),
    ],
)
def test_invalid_override(tmp_path: Path, entry: str, what: str) -> None:
    text = re.sub(
        r"(?ms)^overrides:.*?(?=^[a-z])",
        f"overrides:\n  - {entry}\n",
        REAL.read_text(encoding="utf-8"),
    )
    path = tmp_path / "manifest.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError) as caught:
        manifest.load(path)
    assert what in caught.value.what, str(caught.value)
    assert re.match(r"manifest\.yaml:[0-9]+: overrides\.0", caught.value.where)


def test_two_overrides_of_one_project(tmp_path: Path) -> None:
    entry = "  - {drop: x, why: 'a reason of some length'}\n"
    text = re.sub(
        r"(?ms)^overrides:.*?(?=^[a-z])",
        f"overrides:\n{entry}{entry}",
        REAL.read_text(encoding="utf-8"),
    )
    (tmp_path / "manifest.yaml").write_text(text, encoding="utf-8")
    with errors.expect_user_error(errors.CONFLICT, where="overrides.1", value="x"):
        manifest.load(tmp_path / "manifest.yaml")


def test_a_link_out_of_the_repository_is_refused(tmp_path: Path) -> None:
    (tmp_path / "patches").symlink_to("/etc")
    with errors.expect_user_error(errors.INVALID, where=tmp_path):
        _load(tmp_path).source("t5x")


def test_missing_file_and_wrong_encoding(tmp_path: Path) -> None:
    with errors.expect_user_error(errors.MISSING, where="none.yaml", remedy="--manifest"):
        manifest.load(tmp_path / "none.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"version: 1 # \xe9\n")
    with errors.expect_user_error(errors.MISSING, where="latin.yaml", names="UTF-8"):
        manifest.load(tmp_path / "latin.yaml")


def test_unknown_distribution_names_the_known_ones(tmp_path: Path) -> None:
    with errors.expect_user_error(
        errors.UNKNOWN, where="--distribution", value="t5", remedy="pax-1.4"
    ) as caught:
        _load(tmp_path).distribution("t5")
    assert "pax-1.4" in caught.value.do


def test_projects_come_after_those_that_they_need(tmp_path: Path) -> None:
    loaded = _load(tmp_path)
    assert loaded.choose_projects("t5x", ["longt5", "flaxformer"]) == ["flaxformer", "longt5"]
    assert loaded.projects_of("t5x") == list(loaded.projects)
    assert loaded.projects_of("pax") == []
    for distribution, name in (("t5x", "flax"), ("pax", "flaxformer")):
        with errors.expect_user_error(errors.UNKNOWN, where="projects", value=name):
            loaded.choose_projects(distribution, [name])


MT3 = "  mt3: {distribution: t5x}\n"


@pytest.mark.parametrize(
    ("new", "value"),
    [
        ("  mt4: {distribution: t5x}\n", "mt4"),
        ("  mt3: {distribution: t6x}\n", "t6x"),
        ("  mt3: {distribution: t5x, needs: [mt3]}\n", "mt3"),
        ("  mt3: {distribution: pax, needs: [flaxformer]}\n", "flaxformer"),
    ],
)
def test_a_project_has_a_source_a_distribution_and_earlier_needs(
    tmp_path: Path, new: str, value: str
) -> None:
    with errors.expect_user_error(errors.UNKNOWN, where="manifest.yaml", value=value):
        _load(tmp_path, MT3, new)


def test_a_project_has_a_folder_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="'t5x'"):
        _load(tmp_path, "https://github.com/magenta/mt3.git", "https://github.com/magenta/t5x.git")
