"""Dockerfile.base by real engines: the same layer whoever builds it, and no trace of the host in it."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from builder.core.cache import Cache
from builder.images.engines import (
    container_engine,
    dockerfile_step,
    engine_program,
    layer_normalisation,
)
from builder.images.oci import layer, oci_documents
from builder.images.oci.tar_entry import make_file
from rosetta.core.errors import UserError
from tests.support import container_engines, errors

if TYPE_CHECKING:
    from builder.images.engines.container_engine import Engine
    from builder.images.oci.layer import Layer

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[5]
ENGINES = ("docker", "buildah")

# Stands in for apt and dpkg in a base of a few programs: it writes down what of the host it was shown, and leaves the litter that real ones leave.
APT = r"""#!/bin/sh
set -eu
case $* in *" update "*) exit 0 ;; esac
config=
while [ $# -gt 0 ]; do [ "$1" = -c ] && config=$2; shift; done
mkdir -p /usr/share/seen /var/log /var/cache/apt /var/lib/apt/lists /usr/lib/python3 /etc/keep
seen() { touch "/usr/share/seen/$1"; }
case ${https_proxy-} in *proxy-password-*) seen proxy ;; esac
case ${PIP_INDEX_URL-} in *index-password-*) seen index ;; esac
case $(cat /run/secrets/rosetta-ca 2>/dev/null) in *certificate-*) seen ca ;; esac
case $(cat "$config") in *sources.list*) seen sources ;; esac
while read -r line; do
    case $line in *"apt-proxy-password-"*) seen apt ;; Dir::Etc::netrc*) seen auth ;; esac
done < "$config"
case $(cat "${config%/*}/sources.list" 2>/dev/null) in *"mirror-password-"*" forky main"*) seen release ;; esac
date > /var/log/apt.log; date > /tmp/x; date > /run/x; date > /var/cache/apt/x.bin; date > /var/lib/apt/lists/x; date > /etc/machine-id; date > /etc/passwd-
date > /root/.history; date > /var/log/dpkg.log
echo installed > /usr/share/installed
printf '\313\015\015\012\000\000\000\000\001\002\003\004data' > /usr/lib/python3/timed.pyc
printf '\313\015\015\012\003\000\000\000\001\002\003\004data' > /usr/lib/python3/hashed.pyc
chmod 640 /usr/share/installed
cp /etc/keep/same /etc/keep/copy && cp /etc/keep/copy /etc/keep/same
rm /etc/keep/gone
"""
MARKERS = {
    "https_proxy": "http://user:proxy-password-7fe1@127.0.0.1:9",
    "PIP_INDEX_URL": "https://user:index-password-7fe1@127.0.0.1:9/simple",
    "UV_INDEX_MINE_PASSWORD": "token-7fe1",
}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    return Cache(tmp_path_factory.mktemp("cache"))


def _list_temporary_images(engine: Engine, cache: Cache) -> list[str]:
    """Return the names of the images of unfinished steps with a cache."""
    name_field = {"docker": "{{.Repository}}", "buildah": "{{.Name}}"}[engine.name]
    listed = engine_program.run_program(
        engine.name, "images", "--format", f"{name_field}:{{{{.Tag}}}}"
    )
    start = container_engine.name_temporary_image(cache, "").removesuffix(":latest")
    return [name for name in listed.stdout.splitlines() if name.startswith(start)]


def _small(cache: Cache) -> list[Layer]:
    programs = (
        make_file("usr/bin/apt-get", APT, 0o755),
        make_file("usr/bin/dpkg-query", "#!/bin/sh\nexit 1\n", 0o755),
    )
    return [
        container_engines.make_base_layer(
            cache,
            *programs,
            make_file("etc/keep/same", "same\n"),
            make_file("etc/keep/gone", "gone\n"),
            make_file("etc/keep/other", "other\n"),
        )
    ]


def _host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Settings of a host with something to hide in every place; returns the words to look for."""
    for name, value in MARKERS.items():
        monkeypatch.setenv(name, value)
    bundle = tmp_path / "ca.pem"
    bundle.write_text("-----BEGIN CERTIFICATE-----\ncertificate-7fe1\n-----END CERTIFICATE-----\n")
    for name in ("SSL_CERT_FILE", "CURL_CA_BUNDLE", "PIP_CERT", "REQUESTS_CA_BUNDLE"):
        monkeypatch.setenv(name, str(bundle))
    apt = tmp_path / "apt"
    (apt / "auth.conf.d").mkdir(parents=True)
    (apt / "auth.conf.d/site.conf").write_text(
        "machine 127.0.0.1 login me password netrc-password-7fe1\n"
    )
    codename = platform.freedesktop_os_release().get("VERSION_CODENAME", "none")
    (apt / "sources.list").write_text(
        f"deb http://user:mirror-password-7fe1@127.0.0.1:9/debian {codename} main\n"
    )
    (apt / "apt.conf").write_text(
        f'Acquire::http::Proxy "http://user:apt-proxy-password-7fe1@127.0.0.1:9";\nDir::Etc::netrc "{apt}/none";\nDir::Etc::netrcparts "{apt}/auth.conf.d";\n'
        f'Dir::Etc::sourcelist "{apt}/sources.list";\nDir::Etc::sourceparts "{apt}/none";\nDir::State::lists "{apt}/lists";\n'
    )
    monkeypatch.setenv("APT_CONFIG", str(apt / "apt.conf"))
    return ["-7fe1"]


@pytest.mark.parametrize("name", ENGINES)
def test_the_host_is_seen_by_the_step_and_leaves_no_trace(
    shared: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    engine = container_engines.need_engine(name, builds=True)
    markers = _host(monkeypatch, tmp_path)
    with dockerfile_step.build_base(
        engine, shared, ROOT, _small(shared), container_engines.HERE
    ) as exported:
        assert container_engines.find_markers(exported, markers) == []
        made = container_engines.read_layer_content(
            shared, layer_normalisation.make_os_layer(shared, f"seen-{name}", "gzip", exported)
        )
    seen = {
        path.removeprefix("usr/share/seen/") for path in made if path.startswith("usr/share/seen/")
    }
    apt = (
        {"apt", "auth", "sources", "release"}
        if Path("/usr/bin/apt-config").exists()
        and platform.freedesktop_os_release()["ID"] == "debian"
        else set()
    )
    assert seen == {"proxy", "index", "ca"} | apt
    # What differs from run to run is not in the layer; what the step has changed is, and nothing else.
    rest = {path: value for path, value in made.items() if not path.startswith("usr/share/seen/")}
    assert rest == {
        "usr/share/installed": (0o640, b"installed\n"),
        "usr/lib/python3/hashed.pyc": (0o644, b"\xcb\x0d\x0d\x0a\x03\0\0\0\x01\x02\x03\x04data"),
        "etc/keep/copy": (0o644, b"same\n"),
        "etc/keep/.wh.gone": (0o644, b""),
    }


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("way", ["file", "name", "config"])
def test_the_search_finds_a_recipe_that_leaks(
    shared: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, way: str
) -> None:
    engine = container_engines.need_engine(name, builds=True)
    markers = _host(monkeypatch, tmp_path)
    scripts = {
        "file": "set -eu\nmkdir -p /usr/share/leak\ncat /run/secrets/* > /usr/share/leak/all\n",
        "name": "set -eu\nmkdir -p /usr/share/leak\nread -r line < /run/secrets/rosetta-ca; while read -r line; do case $line in *7fe1*) touch /usr/share/leak/$line ;; esac; done < /run/secrets/rosetta-ca\n",
        "config": "",
    }
    root = container_engines.copy_dockerfile_context(
        ROOT,
        tmp_path / "leaky",
        scripts[way],
        before="ENV LEAK=token-7fe1" if way == "config" else "",
    )
    with dockerfile_step.build_base(
        engine, shared, root, _small(shared), container_engines.HERE
    ) as exported:
        assert container_engines.find_markers(exported, markers)


@pytest.mark.parametrize("name", ENGINES)
def test_a_base_whose_layers_are_zstd(shared: Cache, name: str) -> None:
    engine = container_engines.need_engine(name, builds=True)
    plain = _small(shared)[0]
    packed = layer.rewrite_layer(
        shared,
        f"zstd-{name}",
        "base",
        "zstd",
        lambda: open(layer.blob_path(shared, plain.digest), "rb"),  # noqa: SIM115 - from_tar closes it
    )
    with dockerfile_step.build_base(
        engine, shared, ROOT, [packed], container_engines.HERE
    ) as exported:
        assert exported.base_count == 1
        assert (
            layer_normalisation.make_os_layer(shared, f"of-zstd-{name}", "zstd", exported).name
            == "os"
        )


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize(
    "settings",
    [
        {"User": "1000"},
        {"User": "nobody", "Shell": ["/bin/false", "-x"]},
        {"User": "7:7", "Shell": ["/nosuch"]},
    ],
)
def test_a_base_with_a_user_or_a_shell_of_its_own(
    shared: Cache, name: str, settings: dict[str, object]
) -> None:
    engine = container_engines.need_engine(name, builds=True)
    reference = "localhost/rosetta-test-user:1"
    image = oci_documents.make_image(
        container_engines.HERE, _small(shared), "1980-01-01T00:00:00Z", settings, {}
    )
    engine.load(shared, oci_documents.make_index([image], {}), reference)
    try:
        with dockerfile_step.build_base(
            engine, shared, ROOT, reference, container_engines.HERE
        ) as exported:
            assert (exported.base_count, len(exported.layers)) == (1, 2)
            made = container_engines.read_layer_content(
                shared,
                layer_normalisation.make_os_layer(
                    shared, f"user-{name}-{settings['User']}", "gzip", exported
                ),
            )
    finally:
        engine.remove([reference])
    assert made["usr/share/installed"] == (0o640, b"installed\n")


@pytest.mark.parametrize("name", ENGINES)
def test_a_step_that_fails_shows_its_last_words(shared: Cache, tmp_path: Path, name: str) -> None:
    engine = container_engines.need_engine(name, builds=True)
    script = "echo unrelated\necho 'reason 17' >&2\nprintf '\\033[31mred' >&2\nexit 7\n"
    root = container_engines.copy_dockerfile_context(ROOT, tmp_path / "failing", script)
    with (
        pytest.raises(UserError) as caught,
        dockerfile_step.build_base(engine, shared, root, _small(shared), container_engines.HERE),
    ):
        pass
    assert "reason 17" in caught.value.what
    assert "\x1b" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_both_engines_make_one_layer_twice(shared: Cache) -> None:
    digests = set()
    for name in ENGINES:
        engine = container_engines.need_engine(name, builds=True)
        for count in range(2):
            with dockerfile_step.build_base(
                engine, shared, ROOT, _small(shared), container_engines.HERE
            ) as exported:
                digests.add(
                    layer_normalisation.make_os_layer(
                        shared, f"same-{name}-{count}", "gzip", exported
                    ).digest
                )
    assert len(digests) == 1


@pytest.mark.parametrize("name", ENGINES)
def test_a_base_that_lacks_much_is_told_all_of_it_and_nothing_stays(
    shared: Cache, name: str
) -> None:
    engine = container_engines.need_engine(name, builds=True)
    on = [container_engines.make_base_layer(shared)]
    lacks = r"no apt-get .*lacks: python3 git numactl ps libibverbs\.so\.1 librdmacm\.so\.1 libnuma\.so\.1"
    with (
        pytest.raises(UserError, match=lacks) as caught,
        dockerfile_step.build_base(engine, shared, ROOT, on, container_engines.HERE),
    ):
        pass
    assert "--base" in caught.value.do
    assert not _list_temporary_images(engine, shared)
    assert not list(shared.path("blobs").glob(".tmp-*"))


@pytest.mark.parametrize("name", ENGINES)
def test_an_image_that_is_nowhere(shared: Cache, name: str) -> None:
    engine = container_engines.need_engine(name, builds=True)
    on = "localhost:1/none/such:1"
    with (
        pytest.raises(UserError) as caught,
        dockerfile_step.build_base(engine, shared, ROOT, on, container_engines.HERE),
    ):
        pass
    assert caught.value.kind in {errors.UNREACHABLE, errors.MISSING}
    assert not _list_temporary_images(engine, shared)
    assert not list(shared.path("blobs").glob(".tmp-*"))


def test_the_recipe_counts_every_file_that_it_runs(tmp_path: Path) -> None:
    root = container_engines.copy_dockerfile_context(ROOT, tmp_path / "own")
    before = dockerfile_step.hash_recipe(root)
    assert before == dockerfile_step.hash_recipe(
        container_engines.copy_dockerfile_context(ROOT, tmp_path / "same")
    )
    for path in ("Dockerfile.base", "docker/packages", "docker/install-packages"):
        text = (root / path).read_text()
        (root / path).write_text(text + "# more\n")
        assert dockerfile_step.hash_recipe(root) != before, path
        (root / path).write_text(text)
    os.remove(root / "Dockerfile.base")
    with errors.expect_user_error(errors.MISSING, where="Dockerfile.base"):
        dockerfile_step.hash_recipe(root)
