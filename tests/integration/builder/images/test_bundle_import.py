"""At the site a bundle is taken in by the tools that are there; a broken one is refused before anything is touched."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from builder.images import offline_bundle
from builder.images.oci import layout
from tests.support import image_registry
from tests.support.image_bundle import (
    NAME,
    find_biggest_blob,
    index_,
    list_names,
    make_older_image,
    read_files,
    run_importer,
    site_,
    write_tool,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from builder.core.cache import Cache
    from builder.images.oci.oci_documents import Index

pytestmark = pytest.mark.engine

__all__ = ["index_", "site_"]  # fixtures


def _flip(where: Path, data: bytes) -> None:
    where.write_bytes(data[:100] + bytes([data[100] ^ 1]) + data[101:])


def _renamed(where: Path) -> None:
    blob = find_biggest_blob(where)
    other = hashlib.sha256(b"another").hexdigest()
    sums = (where / "SHA256SUMS").read_text(encoding="ascii")
    (where / "SHA256SUMS").write_text(
        sums.replace(f"sha256/{blob.name}", f"sha256/{other}"), encoding="ascii"
    )
    blob.rename(blob.with_name(other))


FAULTS: dict[str, Callable[[Path], object]] = {
    "a flipped byte": lambda where: _flip(
        find_biggest_blob(where), find_biggest_blob(where).read_bytes()
    ),
    "a truncated blob": lambda where: find_biggest_blob(where).write_bytes(
        find_biggest_blob(where).read_bytes()[:-1]
    ),
    "a missing blob": lambda where: find_biggest_blob(where).unlink(),
    "a missing bundle.json": lambda where: (where / "bundle.json").unlink(),
    "no SHA256SUMS": lambda where: (where / "SHA256SUMS").unlink(),
    "a cut SHA256SUMS": lambda where: (where / "SHA256SUMS").write_bytes(
        (where / "SHA256SUMS").read_bytes()[:200]
    ),
    "an empty SHA256SUMS": lambda where: (where / "SHA256SUMS").write_bytes(b""),
    "a second file": lambda where: (where / "image/.more").write_bytes(b"x"),
    "a second blob": lambda where: (where / "image/blobs/sha256" / ("0" * 64)).write_bytes(b"x"),
    "a link": lambda where: (where / "image/blobs/more").symlink_to("/etc"),
    "another contents.tsv": lambda where: (where / "contents.tsv").write_bytes(
        (where / "contents.tsv").read_bytes().replace(b"t5x", b"pax")
    ),
    "a blob renamed with its sum": _renamed,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_bundle_is_refused_before_anything_is_touched(
    site: Path, tmp_path: Path, fault: str
) -> None:
    for each in (site / "bundle").rglob("*"):
        if each.is_file():
            each.chmod(0o755 if each.suffix == ".sh" else 0o644)
    FAULTS[fault](site / "bundle")
    tools = tmp_path / "tools"
    for name in ("docker", "podman", "apptainer", "enroot"):
        write_tool(tools, name, f"echo called >> {tmp_path}/called")
    for arguments in (
        ("check",),
        ("docker",),
        ("podman",),
        ("oci", "out"),
        ("apptainer", "out.sif"),
        ("enroot", "out.sqsh"),
    ):
        done = run_importer(site, *arguments, path=tools)
        assert done.returncode == 1, done.stderr
        assert "copy" in done.stderr
    assert list_names(site) == ["bundle"]
    assert not (tmp_path / "called").exists()


@pytest.mark.parametrize("missing", ["sha256sum", "tar", "df"])
def test_a_tool_that_is_missing_is_named(site: Path, tmp_path: Path, missing: str) -> None:
    tools = tmp_path / "some-tools"
    tools.mkdir()
    for name in (
        "bash",
        "dirname",
        "basename",
        "sha256sum",
        "tar",
        "df",
        "tail",
        "tr",
        "uname",
        "cp",
        "mv",
        "ln",
        "rm",
        "mkdir",
        "mktemp",
    ):
        if name != missing:
            (tools / name).symlink_to(shutil.which(name) or "/bin/false")
    done = subprocess.run(
        [str(site / "bundle/import.sh"), "check"],
        env={"PATH": str(tools)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert f"{missing} " in done.stderr
    assert "damaged" not in done.stderr


def test_a_layout_of_all_and_of_one(site: Path, index: Index) -> None:
    assert run_importer(site, "oci", "all").returncode == 0
    assert layout.read_layout(site / "all").index.document == index.document
    assert run_importer(site, "--arch", "arm64", "oci", "one").returncode == 0
    one = layout.read_layout(site / "one")
    assert [image.architecture for image in one.index.images] == ["arm64"]
    assert one.index.images[0].digest == index.images[1].digest
    before = read_files(site / "one")
    done = run_importer(site, "oci", "one")
    assert (done.returncode, "one " in done.stderr) == (1, True)
    assert read_files(site / "one") == before
    assert run_importer(site, "oci", "bundle/inside").returncode == 1
    assert run_importer(site, "check").returncode == 0
    assert list_names(site) == ["all", "bundle", "one"]


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("frobnicate",),
        ("oci",),
        ("--arch",),
        ("--with", "nowhere", "check"),
        ("check", "a", "b"),
        ("docker", "A B"),
        ("--nothing", "check"),
        ("docker", "$(touch x):1"),
    ],
)
def test_wrong_usage_is_status_2(site: Path, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = run_importer(site, *arguments, path=write_tool(tmp_path / "tools", "docker", "exit 9"))
    assert done.returncode == 2
    assert "usage:" in done.stderr
    assert list_names(site) == ["bundle"]


def test_an_architecture_that_is_not_there(cache: Cache, tmp_path: Path) -> None:
    offline_bundle.write_bundle(
        cache, image_registry.make_image(cache), tmp_path / "bundle", name=NAME
    )
    done = run_importer(tmp_path, "--arch", "arm64", "oci", "out")
    assert done.returncode == 1
    assert re.search(r"arm64.*amd64", done.stderr)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_an_import_killed_midway_is_finished_by_the_next(
    site: Path, index: Index, tmp_path: Path, how: signal.Signals
) -> None:
    tools = write_tool(
        tmp_path / "tools",
        "cp",
        f'echo x >> {tmp_path}/copies; [ $(wc -l < {tmp_path}/copies) -lt 3 ] || {{ touch {tmp_path}/now; sleep 2; }}; exec /bin/cp "$@"',
    )
    env = {**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
    with subprocess.Popen(
        [str(site / "bundle/import.sh"), "oci", "out"],
        cwd=site,
        env=env,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as started:
        while not (tmp_path / "now").exists():
            assert started.poll() is None
            time.sleep(0.01)
        os.killpg(started.pid, how)
        assert started.wait() != 0
    assert "out" not in list_names(site)
    if how != signal.SIGKILL:
        assert list_names(site) == ["bundle"]
    assert run_importer(site, "oci", "out").returncode == 0
    assert layout.read_layout(site / "out").index.document == index.document
    assert list_names(site) == ["bundle", "out"]


def test_apptainer_is_given_a_layout_of_one_architecture(
    site: Path, index: Index, tmp_path: Path
) -> None:
    tools = write_tool(
        tmp_path / "tools",
        "apptainer",
        f'printf "%s\\n" "$@" > {tmp_path}/said; [ -d "$APPTAINER_TMPDIR" ] || exit 9; cp -rL layout {tmp_path}/given; echo made > "$2"',
    )
    done = run_importer(site, "--arch", "amd64", "apptainer", "my image.sif", path=tools)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "said").read_text(encoding="utf-8").split() == [
        "build",
        "image.sif",
        "oci:layout:image",
    ]
    given = layout.read_layout(tmp_path / "given")
    assert (given.name, given.index.images[0].digest) == ("image", index.images[0].digest)
    assert list_names(site) == ["bundle", "my image.sif"]

    write_tool(tools, "apptainer", "echo half > image.sif; exit 1")
    done = run_importer(site, "--arch", "amd64", "apptainer", "other.sif", path=tools)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("import.sh: apptainer ")
    assert list_names(site) == ["bundle", "my image.sif"]


def _recorder(tmp_path: Path, index: Index, kind: str) -> Path:
    """A docker or podman that keeps what it was given and says that it made the right image of it."""
    config = index.images[0].config_digest
    return write_tool(
        tmp_path / "tools",
        kind,
        f'echo "{kind} $*" >> {tmp_path}/said; case "$1 $2" in "load "*) cat > {tmp_path}/given.tar ;; "image ls") ;; "image inspect") echo {config} ;; esac',
    )


@pytest.mark.parametrize("kind", ["docker", "podman"])
def test_enroot_takes_it_out_of_an_engine(
    site: Path, index: Index, tmp_path: Path, kind: str
) -> None:
    tools = _recorder(tmp_path, index, kind)
    if kind == "podman":
        write_tool(tools, "docker", "exit 1")  # one that does not answer
    write_tool(tools, "enroot", f'echo "enroot $*" >> {tmp_path}/said; echo made > "$3"')
    done = run_importer(site, "--arch", "amd64", "enroot", "t5x.sqsh", path=tools)
    assert done.returncode == 0, done.stderr
    tag = f"rosetta-import:{index.images[0].digest[7:19]}"
    said = (tmp_path / "said").read_text(encoding="utf-8").splitlines()
    assert said[-2:] == [
        f"enroot import --output image.sqsh {'dockerd' if kind == 'docker' else 'podman'}://{tag}",
        f"{kind} image rm {tag}",
    ]
    assert list_names(site) == ["bundle", "t5x.sqsh"]

    write_tool(tools, "enroot", "echo half > image.sqsh; exit 1")
    assert run_importer(site, "--arch", "amd64", "enroot", "other.sqsh", path=tools).returncode == 1
    assert (tmp_path / "said").read_text(encoding="utf-8").splitlines()[
        -1
    ] == f"{kind} image rm {tag}"
    assert list_names(site) == ["bundle", "t5x.sqsh"]


# The real engines


@pytest.fixture(params=["docker", "podman"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A real engine; what the test put into it is taken out again."""
    name = str(request.param)
    config = os.environ.get("DOCKER_CONFIG", "")
    if name == "podman" and config and not os.path.exists(os.path.join(config, "config.json")):
        monkeypatch.delenv("DOCKER_CONFIG")  # podman wants the file where this is set
    if (
        not shutil.which(name)
        or subprocess.run([name, "info"], capture_output=True, check=False, timeout=60).returncode
    ):
        pytest.skip(f"NOT CHECKED: {name} is not here, or does not answer")
    yield name
    for each in (NAME, "kit/older:1", "kit/other:1"):
        subprocess.run([name, "image", "rm", "--force", each], capture_output=True, check=False)


def inspect(engine: str, tag: str, what: str) -> str:
    done = subprocess.run(
        [engine, "image", "inspect", "--format", what, tag],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() if done.returncode == 0 else ""


def test_an_engine_takes_it_in(
    site: Path, index: Index, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (site / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(site / "tmp"))
    done = run_importer(site, "--arch", "amd64", engine)
    assert done.returncode == 0, done.stderr
    assert list_names(site / "tmp") == []
    assert inspect(engine, NAME, "{{.Id}}").removeprefix("sha256:") in {
        index.images[0].config_digest[7:],
        index.images[0].digest[7:],
    }
    assert inspect(engine, NAME, "{{json .Config.Cmd}}") == '["true"]'
    assert json.loads(inspect(engine, NAME, "{{json .RootFS.Layers}}")) == [
        each.diff_id for each in index.images[0].layers
    ]
    assert run_importer(site, "--arch", "amd64", engine, "kit/other:1").returncode == 0
    assert inspect(engine, "kit/other:1", "{{.Id}}") == inspect(engine, NAME, "{{.Id}}")


def test_an_engine_completes_it_from_the_older_bundle(
    cache: Cache, index: Index, tmp_path: Path, engine: str
) -> None:
    since, having = make_older_image(cache, tmp_path, "bundle")
    (tmp_path / "site").mkdir()
    made = offline_bundle.write_bundle(
        cache,
        index,
        tmp_path / "site/bundle",
        name=NAME,
        since=offline_bundle.read_known_layers(str(since)),
    )
    done = run_importer(tmp_path / "site", "--arch", "amd64", engine)
    assert done.returncode == 1
    assert made["left_out"][0]["digest"] in done.stderr
    assert inspect(engine, NAME, "{{.Id}}") == ""
    done = run_importer(tmp_path / "site", "--with", str(having), "--arch", "amd64", engine)
    assert done.returncode == 0, done.stderr
    assert json.loads(inspect(engine, NAME, "{{json .RootFS.Layers}}")) == [
        each.diff_id for each in index.images[0].layers
    ]


def test_an_engine_completes_it_from_its_own(
    cache: Cache, index: Index, tmp_path: Path, engine: str
) -> None:
    since, having = make_older_image(cache, tmp_path, "bundle")
    done = subprocess.run(
        [str(having / "import.sh"), "--arch", "amd64", engine, "kit/older:1"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (tmp_path / "site").mkdir()
    offline_bundle.write_bundle(
        cache,
        index,
        tmp_path / "site/bundle",
        name=NAME,
        since=offline_bundle.read_known_layers(str(since)),
    )
    done = run_importer(tmp_path / "site", "--arch", "amd64", engine)
    assert done.returncode == 0, done.stderr
    assert json.loads(inspect(engine, NAME, "{{json .RootFS.Layers}}")) == [
        each.diff_id for each in index.images[0].layers
    ]
    assert inspect(engine, "localhost/rosetta-import:latest", "{{.Id}}") == ""
    made = subprocess.run(
        [engine, "create", "--name", "rosetta-kit", NAME, "x"],
        capture_output=True,
        text=True,
        check=True,
    )
    try:
        assert made.stdout.strip()
        exported = subprocess.run(  # noqa: S602 - nothing of it comes from elsewhere
            f"{engine} export rosetta-kit | tar -xO top-amd64",
            shell=True,
            capture_output=True,
            text=True,
            check=True,
        )
        assert exported.stdout == "one"
    finally:
        subprocess.run([engine, "rm", "rosetta-kit"], capture_output=True, check=False)


def test_skopeo_reads_what_the_readme_says(site: Path, index: Index) -> None:
    if not shutil.which("skopeo"):
        pytest.skip("NOT CHECKED: skopeo is not here")
    with image_registry.serve_memory_registry() as served:
        done = subprocess.run(
            [
                "skopeo",
                "--insecure-policy",
                "copy",
                "--all",
                "--dest-tls-verify=false",
                "oci:image",
                f"docker://{served.host}/{NAME}",
            ],
            cwd=site / "bundle",
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert served.tag("kit/t5x", "cuda13") == index.digest


def test_the_script_has_no_warnings() -> None:
    if not shutil.which("shellcheck"):
        pytest.skip("NOT CHECKED: shellcheck is not here")
    done = subprocess.run(
        ["shellcheck", str(Path(offline_bundle.__file__).with_name("import.sh"))],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == ""
