from __future__ import annotations

import contextlib
import http.server
import socket
import threading
from functools import partial
from typing import TYPE_CHECKING

import pytest

from builder.upstream.git_server import check_ref, check_url
from builder.upstream.source import acquire_source
from builder.upstream.tracked_branch import check_on_branch, resolve_ref
from rosetta.core.errors import UserError
from tests.support import errors, git_repository

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from builder.upstream.source import Access

GOOD = [
    "https://github.com/google-research/t5x.git",
    "https://h:8443/x",
    "ssh://git@h/x.git",
    "ssh://h:22/x",
]
BAD = {
    "-": [
        "--upload-pack=touch x",
        "-x",
        "https://-oProxyCommand=x/y",
        "ssh://-oProxyCommand=x/y",
        "ssh://-x@h/y",
        "https://h/-x",
    ],
    "program": ["ext::sh -c x", "ext::x", "fd::17", "https::https://h/x"],
    "not allowed": ["http://h/x", "git://h/x", "file:///srv/x.git", "ftp://h/x", "file://h/x"],
    "no URL": [
        "/srv/x.git",
        "../x",
        "x",
        "git@h:x",
        "h:x",
        "",
        "https://",
        "https://h",
        "HTTPS://h/x",
        "https:/h/x",
    ],
    "host": ["https:///x"],
    "credentials": ["https://u:s3cret@h/x", "https://s3cret@h/x", "ssh://u:s3cret@h/x"],
    "control": ["https://h/x\n-x", "https://h/x y", "https://h/\x00"],
}


@pytest.mark.parametrize("url", GOOD)
def test_a_plain_url_passes(url: str) -> None:
    assert check_url(url, ("https", "ssh"), "source t5x") == url


@pytest.mark.parametrize("url", [url for urls in BAD.values() for url in urls])
def test_a_hostile_url_is_refused(url: str) -> None:
    with pytest.raises(UserError) as caught:
        check_url(url, ("https", "ssh"), "source t5x")
    assert caught.value.where == "source t5x"
    assert "s3cret" not in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("case", "kind", "value"),
    [
        ("program", errors.DENIED, "ext"),
        ("not allowed", errors.UNSUPPORTED, "http"),
        ("no URL", errors.INVALID, "/srv/x.git"),
        ("credentials", errors.DENIED, None),
        ("control", errors.INVALID, None),
    ],
)
def test_the_error_says_what_is_wrong_with_a_url(case: str, kind: str, value: str | None) -> None:
    with errors.expect_user_error(kind, where="here", value=value):
        check_url(BAD[case][0], ("https", "ssh"), "here")


def test_file_only_where_asked_for() -> None:
    assert check_url("file:///srv/x.git", ("file",), "here")
    with errors.expect_user_error(errors.INVALID, where="here", value="h"):
        check_url("file://h/x", ("file",), "here")


@pytest.mark.parametrize("name", ["main", "v1.0", "feature/x", "refs/heads/main", "a+b"])
def test_a_ref_passes(name: str) -> None:
    assert check_ref(name, "here") == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "-x",
        "--upload-pack=x",
        "a..b",
        "a b",
        "a:b",
        "+a",
        "a^",
        "a~1",
        "x.lock",
        "x/",
        "/x",
        "a//b",
        "a/.b",
        "@{-1}",
        "main\n",
        "*",
    ],
)
def test_a_hostile_ref_is_refused(name: str) -> None:
    with errors.expect_user_error(errors.INVALID, where="here", value=name):
        check_ref(name, "here")


# servers: git's own transport on a local path, and a web server that knows nothing of git (it has no way to serve a commit by its name)


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name it overrides
        pass


@contextlib.contextmanager
def web(folder: Path) -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(_Quiet, directory=str(folder))
    )
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, str]:
    for name in (
        "http_proxy",
        "https_proxy",
        "all_proxy",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
    ):
        monkeypatch.delenv(name, raising=False)
    return git_repository.make_upstream(tmp_path / "server" / "t5x.git")


def online(tmp_path: Path, protocol: str = "file") -> Access:
    return git_repository.make_access(tmp_path / "cache", offline=False, protocols=(protocol,))


def empty(tmp_path: Path) -> bool:
    return not [
        *(tmp_path / "cache").glob("git/*/objects/??/*"),
        *(tmp_path / "cache").glob("git/.tmp*"),
    ]


def test_a_server_serves_the_pin_and_only_the_pin(server: tuple[Path, str], tmp_path: Path) -> None:
    repo, pin = server
    source = git_repository.make_source(pin, url=f"file://{repo}")
    pinned = acquire_source(source, online(tmp_path))
    assert (pinned.transport, pinned.history) == ("git", False)
    assert git_repository.list_loose_objects(pinned.git.git_dir) == {
        pin,
        *git_repository.run_git(
            repo, "rev-list", "--objects", "--no-object-names", "--no-walk", pin
        ).split(),
    }
    assert pinned.git.text("rev-list", pin) == pin
    repo.rename(tmp_path / "gone")
    assert acquire_source(source, online(tmp_path)).transport == "cache"


def test_mirror_and_server_make_the_same_cache(server: tuple[Path, str], tmp_path: Path) -> None:
    repo, pin = server
    fetched = acquire_source(
        git_repository.make_source(pin, url=f"file://{repo}"), online(tmp_path)
    )
    mirrored = acquire_source(
        git_repository.make_source(pin),
        git_repository.make_access(tmp_path / "other", tmp_path / "server"),
    )
    assert (fetched.tree, fetched.date) == (mirrored.tree, mirrored.date)
    assert git_repository.list_loose_objects(
        fetched.git.git_dir
    ) == git_repository.list_loose_objects(mirrored.git.git_dir)


def test_an_older_commit_of_the_branch_is_served_too(
    server: tuple[Path, str], tmp_path: Path
) -> None:
    first = git_repository.run_git(server[0], "rev-parse", "main^")
    pinned = acquire_source(
        git_repository.make_source(first, url=f"file://{server[0]}"), online(tmp_path)
    )
    assert pinned.commit == first
    assert not (pinned.git.git_dir / "shallow").exists(), "it has no parents"


@pytest.mark.parametrize("which", ["main", "main^"])
def test_a_server_that_cannot_serve_a_commit_by_name_is_asked_for_the_branch(
    server: tuple[Path, str], tmp_path: Path, which: str
) -> None:
    repo, _ = server
    git_repository.run_git(repo, "repack", "-adq")
    git_repository.run_git(repo, "update-server-info")
    pin = git_repository.run_git(repo, "rev-parse", which)
    with web(tmp_path / "server") as address:
        source = git_repository.make_source(pin, url=f"{address}/t5x.git")
        pinned = acquire_source(source, online(tmp_path, "http"))
        assert (pinned.commit, pinned.transport) == (pin, "git")
        assert resolve_ref(source, online(tmp_path, "http")) == git_repository.run_git(
            repo, "rev-parse", "main"
        )


def test_a_commit_that_was_forced_away_is_named_as_such(
    server: tuple[Path, str], tmp_path: Path
) -> None:
    repo, _ = server
    gone = git_repository.write_commit(
        git_repository.init_repository(tmp_path / "elsewhere.git"),
        git_repository.make_tree(tmp_path / "elsewhere.git", {"a": b"gone"}),
    )
    with errors.expect_user_error(
        errors.MISSING, where="source t5x", value=gone, names="main", remedy="--mirror"
    ):
        acquire_source(git_repository.make_source(gone, url=f"file://{repo}"), online(tmp_path))
    assert empty(tmp_path)


def test_a_lost_branch_is_named_as_such(server: tuple[Path, str], tmp_path: Path) -> None:
    repo, pin = server
    with errors.expect_user_error(
        errors.MISSING, where="source t5x", value="gone", names="ab" * 20
    ) as caught:
        acquire_source(
            git_repository.make_source("ab" * 20, url=f"file://{repo}", track="gone"),
            online(tmp_path),
        )
    assert caught.value.where == "source t5x"
    assert empty(tmp_path)
    with errors.expect_user_error(errors.MISSING, where="source t5x", value="gone", remedy="track"):
        resolve_ref(
            git_repository.make_source(pin, url=f"file://{repo}", track="gone"), online(tmp_path)
        )
    assert (
        acquire_source(
            git_repository.make_source(pin, url=f"file://{repo}", track="gone"), online(tmp_path)
        ).commit
        == pin
    ), "the pin itself can still be had"


def test_an_unreachable_server_is_one_error_with_the_ways_out(
    server: tuple[Path, str], tmp_path: Path
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/t5x.git"
        with errors.expect_user_error(
            errors.MISSING, where="source t5x", value=server[1], remedy="--mirror DIR"
        ) as caught:
            acquire_source(git_repository.make_source(server[1], url=url), online(tmp_path, "http"))
    assert caught.value.where == "source t5x"
    assert "--mirror DIR" in caught.value.do
    assert empty(tmp_path)


def test_a_web_page_is_no_git_server(tmp_path: Path, server: tuple[Path, str]) -> None:
    (tmp_path / "www" / "t5x.git" / "info").mkdir(parents=True)
    (tmp_path / "www" / "t5x.git" / "info" / "refs").write_text("<html>log in</html>")
    with (
        web(tmp_path / "www") as address,
        errors.expect_user_error(errors.MISSING, value=server[1], names="login page"),
    ):
        acquire_source(
            git_repository.make_source(server[1], url=f"{address}/t5x.git"),
            online(tmp_path, "http"),
        )
    assert empty(tmp_path)


def test_a_hostile_tree_from_a_server_is_refused_and_nothing_kept(
    tmp_path: Path, server: tuple[Path, str]
) -> None:
    repo, _ = server
    blob = git_repository.write_raw_object(repo, "blob", b"x")
    pin = git_repository.write_commit(
        repo,
        git_repository.raw_tree(
            repo, [("40000", b"..", git_repository.raw_tree(repo, [("100644", b"x", blob)]))]
        ),
    )
    git_repository.set_branch(repo, pin)
    with pytest.raises(UserError):
        acquire_source(git_repository.make_source(pin, url=f"file://{repo}"), online(tmp_path))
    assert empty(tmp_path)


def test_the_tracked_ref_by_mirror_and_by_server(server: tuple[Path, str], tmp_path: Path) -> None:
    repo, pin = server
    git_repository.run_git(repo, "tag", "-a", "v1", "-m", "v1", "main^")
    first = git_repository.run_git(repo, "rev-parse", "main^")
    for access, url in (
        (git_repository.make_access(tmp_path / "cache", tmp_path / "server"), ""),
        (online(tmp_path), f"file://{repo}"),
    ):
        assert resolve_ref(git_repository.make_source(pin, url=url), access) == pin
        assert resolve_ref(git_repository.make_source(pin, url=url, track="v1"), access) == first
        assert (
            resolve_ref(git_repository.make_source(pin, url=url, track="refs/heads/main"), access)
            == pin
        )
    with errors.expect_user_error(
        errors.UNREACHABLE, where="source t5x", value="gone", names="mirrors", remedy="--mirror DIR"
    ):
        resolve_ref(
            git_repository.make_source(pin, track="gone"),
            git_repository.make_access(tmp_path / "cache", tmp_path / "server"),
        )
    with errors.expect_user_error(
        errors.UNREACHABLE, where="source t5x", value="main", remedy="--mirror DIR"
    ):
        resolve_ref(git_repository.make_source(pin), git_repository.make_access(tmp_path / "cache"))


@pytest.mark.parametrize("by", ["mirror", "server"])
def test_whether_a_pin_lies_on_its_branch(
    server: tuple[Path, str], tmp_path: Path, by: str
) -> None:
    repo, pin = server
    access = (
        online(tmp_path)
        if by == "server"
        else git_repository.make_access(tmp_path / "cache", tmp_path / "server")
    )
    url = f"file://{repo}" if by == "server" else ""
    check_on_branch(git_repository.make_source(pin, url=url), access)
    check_on_branch(
        git_repository.make_source(git_repository.run_git(repo, "rev-parse", "main^"), url=url),
        access,
    )
    stray = git_repository.write_commit(repo, git_repository.make_tree(repo, {"a": b"stray"}), pin)
    with errors.expect_user_error(errors.CONFLICT, where="source t5x", value=stray, names="main"):
        check_on_branch(git_repository.make_source(stray, url=url), access)
    git_repository.set_branch(repo, stray)
    check_on_branch(git_repository.make_source(pin, url=url), access)
    git_repository.set_branch(
        repo, git_repository.write_commit(repo, git_repository.make_tree(repo, {"a": b"rewritten"}))
    )
    with errors.expect_user_error(errors.CONFLICT, where="source t5x", value=pin, names="main"):
        check_on_branch(git_repository.make_source(pin, url=url), access)
