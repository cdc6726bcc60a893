"""Bundles are whole, the same everywhere, and taken in by the site's own tools; a broken one is refused before anything is touched."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from builder.errors import FatalError
from builder.image import bundle, layer, layout
from tests.builder.image import registrykit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from builder.cache import Cache
    from builder.image.oci import Index

NAME = "kit/t5x:cuda13"


@pytest.fixture
def index(cache: Cache, tmp_path: Path) -> Index:
    """An image whose layers no engine has seen before."""
    return registrykit.image(cache, architectures=("amd64", "arm64"), seed=str(tmp_path))


@pytest.fixture
def site(cache: Cache, index: Index, tmp_path: Path) -> Path:
    """A bundle as it arrived, its files not linked to the cache's."""
    bundle.write(cache, index, tmp_path / "made", name=NAME, records={"amd64": {"distribution": "t5x"}})
    (tmp_path / "site").mkdir()
    shutil.copytree(tmp_path / "made", tmp_path / "site/bundle")
    return tmp_path / "site"


def run(where: Path, *arguments: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PATH": f"{path}{os.pathsep}{os.environ['PATH']}"} if path else None
    return subprocess.run([str(where / "bundle/import.sh"), *arguments], cwd=where, env=env, capture_output=True, text=True, timeout=120, check=False)


def listing(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def tool(folder: Path, name: str, script: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/bash\n{script}\n", encoding="utf-8")
    (folder / name).chmod(0o755)
    return folder


def files(folder: Path) -> dict[str, tuple[bytes, int]]:
    """What a folder holds: content and mode of each file, and of each folder the mode."""
    return {str(each.relative_to(folder)): (each.read_bytes() if each.is_file() else b"", each.stat().st_mode) for each in folder.rglob("*")}


# Writing


def test_a_bundle_is_whole_and_the_same_everywhere(cache: Cache, index: Index, tmp_path: Path) -> None:
    made = bundle.write(cache, index, tmp_path / "one", name=NAME, records={"amd64": {"line": "current"}})
    old = os.umask(0o077)
    try:
        bundle.write(cache, index, tmp_path / "two", name=NAME, records={"amd64": {"line": "current"}})
    finally:
        os.umask(old)
    assert files(tmp_path / "one") == files(tmp_path / "two")
    assert layout.read(tmp_path / "one/image").index.digest == index.digest
    assert layout.read(tmp_path / "one/image").name == NAME
    assert subprocess.run(["sha256sum", "--strict", "--quiet", "-c", "SHA256SUMS"], cwd=tmp_path / "one", check=False).returncode == 0
    covered = {line[66:] for line in (tmp_path / "one/SHA256SUMS").read_text(encoding="ascii").splitlines()}
    assert covered == {name for name, (_, mode) in files(tmp_path / "one").items() if not stat.S_ISDIR(mode)} - {"SHA256SUMS"}
    document = json.loads((tmp_path / "one/bundle.json").read_bytes())
    assert (document["index"], document["left_out"], document["images"][0]["lock"]) == (index.digest, [], {"line": "current"})
    assert index.digest in (tmp_path / "one/README.txt").read_text(encoding="utf-8")
    assert "@" not in (tmp_path / "one/README.txt").read_text(encoding="utf-8")
    assert made["path"] == f"{tmp_path}/one"
    assert f"{made['written'] / 1e6:,.1f} MB" in made["next"][0]


def test_a_bundle_that_is_there_stays_and_a_lost_blob_comes_back(cache: Cache, index: Index, tmp_path: Path) -> None:
    place = tmp_path / "one"
    bundle.write(cache, index, place, name=NAME)
    before = place.stat().st_ino
    bundle.write(cache, index, place, name=NAME)
    assert place.stat().st_ino == before
    _biggest(place).unlink()
    bundle.write(cache, index, place, name=NAME)
    assert layout.read(place / "image").index.digest == index.digest


def test_a_bundle_replaces_a_bundle_and_nothing_else(cache: Cache, index: Index, tmp_path: Path) -> None:
    place = tmp_path / "out"
    bundle.write(cache, registrykit.image(cache), place, name=NAME)
    bundle.write(cache, index, place, name=NAME)
    assert json.loads((place / "bundle.json").read_bytes())["index"] == index.digest
    (place / "notes").write_text("mine", encoding="ascii")
    with pytest.raises(FatalError, match="not a bundle"):
        bundle.write(cache, index, place, name=NAME)
    assert (place / "notes").read_text(encoding="ascii") == "mine"
    (tmp_path / "file").write_text("mine", encoding="ascii")
    with pytest.raises(FatalError, match="not a folder"):
        bundle.write(cache, index, tmp_path / "file", name=NAME)


def test_a_damaged_blob_of_the_cache_ends_it_and_leaves_nothing(cache: Cache, index: Index, tmp_path: Path) -> None:
    damaged = layer.blob(cache, index.images[0].layers[1].digest)
    data = bytearray(damaged.read_bytes())
    data[5000] ^= 1
    damaged.chmod(0o644)
    damaged.write_bytes(data)
    (tmp_path / "out").mkdir()
    with pytest.raises(FatalError, match="is damaged"):
        bundle.write(cache, index, tmp_path / "out/b", name=NAME)
    assert listing(tmp_path / "out") == []


_KILLED = """
import os, signal, sys
from pathlib import Path
from builder.cache import Cache
from builder.image import bundle
from tests.builder.image import registrykit
cache, place, last, seed = Cache(Path(sys.argv[1])), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
index = registrykit.image(cache, architectures=("amd64", "arm64"), seed=seed)
real, count = os.rename, 0
def rename(source, target):
    global count
    count += 1
    if count == last:
        os.kill(os.getpid(), signal.SIGKILL)
    real(source, target)
os.rename = rename
bundle.write(cache, index, place, name="kit/t5x:cuda13")
"""


@pytest.mark.parametrize("last", [1, 2], ids=["before the old one moves", "before the new one is in place"])
def test_a_killed_write_is_finished_by_the_next(cache: Cache, index: Index, tmp_path: Path, last: int) -> None:
    place = tmp_path / "out/b"
    place.parent.mkdir()
    bundle.write(cache, registrykit.image(cache), place, name=NAME)
    before = files(place)
    done = subprocess.run([sys.executable, "-c", _KILLED, str(cache.root), str(place), str(last), str(tmp_path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert not place.exists() or files(place) == before
    bundle.write(cache, index, place, name=NAME)
    assert json.loads((place / "bundle.json").read_bytes())["index"] == index.digest
    assert [name for name in listing(place.parent) if "rosetta" in name and "lock" not in name] == []


@contextmanager
def small(folder: Path, size: str) -> Iterator[Path]:
    """A file system of so many bytes; skips where only root may make one."""
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True, check=False).returncode:
        pytest.skip("NOT CHECKED: a full disk, for a small file system cannot be mounted here (root may)")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_noticed_before(cache: Cache, index: Index, site: Path, tmp_path: Path) -> None:
    with small(tmp_path / "full", "400k") as full:
        with pytest.raises(FatalError, match="MB are free"):
            bundle.write(cache, index, full / "b", name=NAME)
        assert [each for each in listing(full) if "lock" not in each] == []
        done = run(site, "oci", str(full / "layout"))
        assert (done.returncode, "MB are needed" in done.stderr) == (1, True)
        assert [each for each in listing(full) if "lock" not in each] == []


def test_a_disk_that_fills_meanwhile_leaves_nothing(site: Path, tmp_path: Path) -> None:
    with small(tmp_path / "full", "1m") as full:
        hog = tool(tmp_path / "tools", "cp", f'[ -e {full}/hog ] || head -c 2M /dev/zero > {full}/hog 2>/dev/null; exec /bin/cp "$@"')
        done = run(site, "oci", str(full / "layout"), path=hog)
        assert done.returncode == 1
        assert "No space left" in done.stderr
        assert listing(full) == ["hog"]


# What the site has


def older(cache: Cache, tmp_path: Path, kind: str) -> tuple[Path, Path]:
    """What the site has, as --since takes it, and the folder that --with takes."""
    old = registrykit.image(cache, top="old", architectures=("amd64", "arm64"), seed=str(tmp_path))
    place = tmp_path / "older"
    if kind in ("bundle", "bundle.json"):
        bundle.write(cache, old, place, name=NAME)
        return (place if kind == "bundle" else place / "bundle.json"), place
    layout.write(cache, old, place, name=NAME)
    if kind == "layout":
        return place, place
    lock = tmp_path / "lock.json"
    below = [{"name": each.name, "diff_id": each.diff_id, "digest": each.digest} for image in old.images for each in image.layers[:-1]]
    lock.write_text(json.dumps({"distribution": "t5x", "layers": below}), encoding="ascii")
    return lock, place


@pytest.mark.parametrize("kind", ["bundle", "bundle.json", "layout", "lock.json"])
def test_layers_that_the_site_has_stay_out_and_are_brought_back(cache: Cache, index: Index, tmp_path: Path, kind: str) -> None:
    since, having = older(cache, tmp_path, kind)
    site = tmp_path / "site"
    site.mkdir()
    made = bundle.write(cache, index, site / "bundle", name=NAME, since=bundle.known(str(since)))
    assert sorted(each["name"] for each in made["left_out"]) == ["base", "python", "python"]
    assert made["written"] < sum(each["size"] for each in made["left_out"])
    for each in made["left_out"]:
        assert not (site / "bundle/image/blobs/sha256" / each["digest"][7:]).exists()
        assert each["digest"] in (site / "bundle/README.txt").read_text(encoding="utf-8")

    done = run(site, "check")
    assert (done.returncode, done.stdout) == (0, f"{NAME} {index.digest}\n")
    assert done.stderr.count("not here: layer") == 4  # the base's of both architectures
    done = run(site, "oci", "out")
    assert done.returncode == 1
    assert all(each["digest"] in done.stderr for each in made["left_out"])
    assert listing(site) == ["bundle"]

    done = run(site, "--with", str(having), "oci", "out")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert layout.read(site / "out").index.document == index.document
    assert listing(site) == ["bundle", "out"]


def test_what_the_site_has_is_checked_too(cache: Cache, index: Index, tmp_path: Path) -> None:
    since, having = older(cache, tmp_path, "bundle")
    copied = tmp_path / "copied"
    shutil.copytree(having, copied)
    (tmp_path / "site").mkdir()
    made = bundle.write(cache, index, tmp_path / "site/bundle", name=NAME, since=bundle.known(str(since)))
    blob = copied / "image/blobs/sha256" / made["left_out"][0]["digest"][7:]
    blob.chmod(0o644)
    blob.write_bytes(blob.read_bytes()[:-1] + b"x")
    done = run(tmp_path / "site", "--with", str(copied), "oci", "out")
    assert done.returncode == 1
    assert "is damaged" in done.stderr
    assert listing(tmp_path / "site") == ["bundle"]


def test_nothing_in_common_is_said(cache: Cache, index: Index, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock = tmp_path / "lock.json"
    lock.write_text(json.dumps({"layers": [{"name": "base", "digest": f"sha256:{'0' * 64}"}]}), encoding="ascii")
    assert bundle.write(cache, index, tmp_path / "out", name=NAME, since=bundle.known(str(lock)))["left_out"] == []
    assert "the bundle is whole" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["{", "[]", '{"layers": []}', '{"layers": [{"digest": "x"}]}', '{"bundle": "rosetta", "images": 3}', None])
def test_what_says_nothing_of_layers_is_refused(cache: Cache, index: Index, tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "lock.json").write_text(text, encoding="ascii")
    with pytest.raises(FatalError) as problem:
        bundle.write(cache, index, tmp_path / "out", name=NAME, since=bundle.known(str(tmp_path / "lock.json")))
    assert problem.value.where == str(tmp_path / "lock.json")
    assert not (tmp_path / "out").exists()


# At the site


def _flip(where: Path, data: bytes) -> None:
    where.write_bytes(data[:100] + bytes([data[100] ^ 1]) + data[101:])


def _biggest(where: Path) -> Path:
    return max((where / "image/blobs/sha256").iterdir(), key=lambda each: each.stat().st_size)


def _renamed(where: Path) -> None:
    blob = _biggest(where)
    other = hashlib.sha256(b"another").hexdigest()
    sums = (where / "SHA256SUMS").read_text(encoding="ascii")
    (where / "SHA256SUMS").write_text(sums.replace(f"sha256/{blob.name}", f"sha256/{other}"), encoding="ascii")
    blob.rename(blob.with_name(other))


FAULTS: dict[str, Callable[[Path], object]] = {
    "a flipped byte": lambda where: _flip(_biggest(where), _biggest(where).read_bytes()),
    "a truncated blob": lambda where: _biggest(where).write_bytes(_biggest(where).read_bytes()[:-1]),
    "a missing blob": lambda where: _biggest(where).unlink(),
    "a missing bundle.json": lambda where: (where / "bundle.json").unlink(),
    "no SHA256SUMS": lambda where: (where / "SHA256SUMS").unlink(),
    "a cut SHA256SUMS": lambda where: (where / "SHA256SUMS").write_bytes((where / "SHA256SUMS").read_bytes()[:200]),
    "an empty SHA256SUMS": lambda where: (where / "SHA256SUMS").write_bytes(b""),
    "a second file": lambda where: (where / "image/.more").write_bytes(b"x"),
    "a second blob": lambda where: (where / "image/blobs/sha256" / ("0" * 64)).write_bytes(b"x"),
    "a link": lambda where: (where / "image/blobs/more").symlink_to("/etc"),
    "another contents.tsv": lambda where: (where / "contents.tsv").write_bytes((where / "contents.tsv").read_bytes().replace(b"t5x", b"pax")),
    "a blob renamed with its sum": _renamed,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_bundle_is_refused_before_anything_is_touched(site: Path, tmp_path: Path, fault: str) -> None:
    for each in (site / "bundle").rglob("*"):
        if each.is_file():
            each.chmod(0o755 if each.suffix == ".sh" else 0o644)
    FAULTS[fault](site / "bundle")
    tools = tmp_path / "tools"
    for name in ("docker", "podman", "apptainer", "enroot"):
        tool(tools, name, f"echo called >> {tmp_path}/called")
    for arguments in (("check",), ("docker",), ("podman",), ("oci", "out"), ("apptainer", "out.sif"), ("enroot", "out.sqsh")):
        done = run(site, *arguments, path=tools)
        assert done.returncode == 1, done.stderr
        assert "copy" in done.stderr
    assert listing(site) == ["bundle"]
    assert not (tmp_path / "called").exists()


def test_a_layout_of_all_and_of_one(site: Path, index: Index) -> None:
    assert run(site, "oci", "all").returncode == 0
    assert layout.read(site / "all").index.document == index.document
    assert run(site, "--arch", "arm64", "oci", "one").returncode == 0
    one = layout.read(site / "one")
    assert [image.architecture for image in one.index.images] == ["arm64"]
    assert one.index.images[0].digest == index.images[1].digest
    before = files(site / "one")
    done = run(site, "oci", "one")
    assert (done.returncode, "is there already" in done.stderr) == (1, True)
    assert files(site / "one") == before
    assert run(site, "oci", "bundle/inside").returncode == 1
    assert run(site, "check").returncode == 0
    assert listing(site) == ["all", "bundle", "one"]


@pytest.mark.parametrize(
    "arguments", [(), ("frobnicate",), ("oci",), ("--arch",), ("--with", "nowhere", "check"), ("check", "a", "b"), ("docker", "A B"), ("--nothing", "check"), ("docker", "$(touch x):1")]
)
def test_wrong_usage_is_status_2(site: Path, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = run(site, *arguments, path=tool(tmp_path / "tools", "docker", "exit 9"))
    assert done.returncode == 2
    assert "usage:" in done.stderr
    assert listing(site) == ["bundle"]


def test_an_architecture_that_is_not_there(cache: Cache, tmp_path: Path) -> None:
    bundle.write(cache, registrykit.image(cache), tmp_path / "bundle", name=NAME)
    done = run(tmp_path, "--arch", "arm64", "oci", "out")
    assert done.returncode == 1
    assert "no image for arm64, only for amd64" in done.stderr


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_an_import_killed_midway_is_finished_by_the_next(site: Path, index: Index, tmp_path: Path, how: signal.Signals) -> None:
    tools = tool(tmp_path / "tools", "cp", f'echo x >> {tmp_path}/copies; [ $(wc -l < {tmp_path}/copies) -lt 3 ] || {{ touch {tmp_path}/now; sleep 2; }}; exec /bin/cp "$@"')
    env = {**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
    with subprocess.Popen([str(site / "bundle/import.sh"), "oci", "out"], cwd=site, env=env, stderr=subprocess.DEVNULL, start_new_session=True) as started:
        while not (tmp_path / "now").exists():
            assert started.poll() is None
            time.sleep(0.01)
        os.killpg(started.pid, how)
        assert started.wait() != 0
    assert "out" not in listing(site)
    if how != signal.SIGKILL:
        assert listing(site) == ["bundle"]
    assert run(site, "oci", "out").returncode == 0
    assert layout.read(site / "out").index.document == index.document
    assert listing(site) == ["bundle", "out"]


def test_apptainer_is_given_a_layout_of_one_architecture(site: Path, index: Index, tmp_path: Path) -> None:
    tools = tool(tmp_path / "tools", "apptainer", f'printf "%s\\n" "$@" > {tmp_path}/said; [ -d "$APPTAINER_TMPDIR" ] || exit 9; cp -rL layout {tmp_path}/given; echo made > "$2"')
    done = run(site, "--arch", "amd64", "apptainer", "my image.sif", path=tools)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "said").read_text(encoding="utf-8").split() == ["build", "image.sif", "oci:layout:image"]
    given = layout.read(tmp_path / "given")
    assert (given.name, given.index.images[0].digest) == ("image", index.images[0].digest)
    assert listing(site) == ["bundle", "my image.sif"]

    tool(tools, "apptainer", "echo half > image.sif; exit 1")
    done = run(site, "--arch", "amd64", "apptainer", "other.sif", path=tools)
    assert done.returncode == 1
    assert "nothing is left" in done.stderr
    assert listing(site) == ["bundle", "my image.sif"]


def _recorder(tmp_path: Path, index: Index, kind: str) -> Path:
    """A docker or podman that keeps what it was given and says that it made the right image of it."""
    config = index.images[0].config_digest
    return tool(
        tmp_path / "tools", kind,
        f'echo "{kind} $*" >> {tmp_path}/said; case "$1 $2" in "load "*) cat > {tmp_path}/given.tar ;; "image ls") ;; "image inspect") echo {config} ;; esac',
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["docker", "podman"])
def test_enroot_takes_it_out_of_an_engine(site: Path, index: Index, tmp_path: Path, kind: str) -> None:
    tools = _recorder(tmp_path, index, kind)
    if kind == "podman":
        tool(tools, "docker", "exit 1")  # one that does not answer
    tool(tools, "enroot", f'echo "enroot $*" >> {tmp_path}/said; echo made > "$3"')
    done = run(site, "--arch", "amd64", "enroot", "t5x.sqsh", path=tools)
    assert done.returncode == 0, done.stderr
    tag = f"rosetta-import:{index.images[0].digest[7:19]}"
    said = (tmp_path / "said").read_text(encoding="utf-8").splitlines()
    assert said[-2:] == [f"enroot import --output image.sqsh {'dockerd' if kind == 'docker' else 'podman'}://{tag}", f"{kind} image rm {tag}"]
    assert listing(site) == ["bundle", "t5x.sqsh"]

    tool(tools, "enroot", "echo half > image.sqsh; exit 1")
    assert run(site, "--arch", "amd64", "enroot", "other.sqsh", path=tools).returncode == 1
    assert (tmp_path / "said").read_text(encoding="utf-8").splitlines()[-1] == f"{kind} image rm {tag}"
    assert listing(site) == ["bundle", "t5x.sqsh"]


# The real engines


@pytest.fixture(params=["docker", "podman"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A real engine; what the test put into it is taken out again."""
    name = str(request.param)
    config = os.environ.get("DOCKER_CONFIG", "")
    if name == "podman" and config and not os.path.exists(os.path.join(config, "config.json")):
        monkeypatch.delenv("DOCKER_CONFIG")  # podman wants the file where this is set
    if not shutil.which(name) or subprocess.run([name, "info"], capture_output=True, check=False, timeout=60).returncode:
        pytest.skip(f"NOT CHECKED: {name} is not here, or does not answer")
    yield name
    for each in (NAME, "kit/older:1", "kit/other:1"):
        subprocess.run([name, "image", "rm", "--force", each], capture_output=True, check=False)


def inspect(engine: str, tag: str, what: str) -> str:
    done = subprocess.run([engine, "image", "inspect", "--format", what, tag], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def test_an_engine_takes_it_in(site: Path, index: Index, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (site / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(site / "tmp"))
    done = run(site, "--arch", "amd64", engine)
    assert done.returncode == 0, done.stderr
    assert listing(site / "tmp") == []
    assert inspect(engine, NAME, "{{.Id}}").removeprefix("sha256:") in {index.images[0].config_digest[7:], index.images[0].digest[7:]}
    assert inspect(engine, NAME, "{{json .Config.Cmd}}") == '["true"]'
    assert json.loads(inspect(engine, NAME, "{{json .RootFS.Layers}}")) == [each.diff_id for each in index.images[0].layers]
    assert run(site, "--arch", "amd64", engine, "kit/other:1").returncode == 0
    assert inspect(engine, "kit/other:1", "{{.Id}}") == inspect(engine, NAME, "{{.Id}}")


def test_an_engine_completes_it_from_the_older_bundle(cache: Cache, index: Index, tmp_path: Path, engine: str) -> None:
    since, having = older(cache, tmp_path, "bundle")
    (tmp_path / "site").mkdir()
    made = bundle.write(cache, index, tmp_path / "site/bundle", name=NAME, since=bundle.known(str(since)))
    done = run(tmp_path / "site", "--arch", "amd64", engine)
    assert done.returncode == 1
    assert made["left_out"][0]["digest"] in done.stderr
    assert inspect(engine, NAME, "{{.Id}}") == ""
    done = run(tmp_path / "site", "--with", str(having), "--arch", "amd64", engine)
    assert done.returncode == 0, done.stderr
    assert json.loads(inspect(engine, NAME, "{{json .RootFS.Layers}}")) == [each.diff_id for each in index.images[0].layers]


def test_an_engine_completes_it_from_its_own(cache: Cache, index: Index, tmp_path: Path, engine: str) -> None:
    since, having = older(cache, tmp_path, "bundle")
    done = subprocess.run([str(having / "import.sh"), "--arch", "amd64", engine, "kit/older:1"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (tmp_path / "site").mkdir()
    bundle.write(cache, index, tmp_path / "site/bundle", name=NAME, since=bundle.known(str(since)))
    done = run(tmp_path / "site", "--arch", "amd64", engine)
    assert done.returncode == 0, done.stderr
    assert json.loads(inspect(engine, NAME, "{{json .RootFS.Layers}}")) == [each.diff_id for each in index.images[0].layers]
    assert inspect(engine, "localhost/rosetta-import:latest", "{{.Id}}") == ""
    made = subprocess.run([engine, "create", "--name", "rosetta-kit", NAME, "x"], capture_output=True, text=True, check=True)
    try:
        assert made.stdout.strip()
        exported = subprocess.run(f"{engine} export rosetta-kit | tar -xO top-amd64", shell=True, capture_output=True, text=True, check=True)  # noqa: S602 - nothing of it comes from elsewhere
        assert exported.stdout == "one"
    finally:
        subprocess.run([engine, "rm", "rosetta-kit"], capture_output=True, check=False)


def test_skopeo_reads_what_the_readme_says(site: Path, index: Index) -> None:
    if not shutil.which("skopeo"):
        pytest.skip("NOT CHECKED: skopeo is not here")
    with registrykit.memory() as served:
        done = subprocess.run(
            ["skopeo", "--insecure-policy", "copy", "--all", "--dest-tls-verify=false", "oci:image", f"docker://{served.host}/{NAME}"],
            cwd=site / "bundle", capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert served.tag("kit/t5x", "cuda13") == index.digest


def test_the_script_has_no_warnings() -> None:
    if not shutil.which("shellcheck"):
        pytest.skip("NOT CHECKED: shellcheck is not here")
    done = subprocess.run(["shellcheck", str(Path(bundle.__file__).with_name("import.sh"))], capture_output=True, text=True, check=False)
    assert done.stdout == ""
