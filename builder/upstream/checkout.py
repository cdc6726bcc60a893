"""The checkout of rosetta that a build is made from."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder.upstream.git import Git
from builder.upstream.public_urls import clean_remote

if TYPE_CHECKING:
    from pathlib import Path

_SSH = re.compile(r"ssh://([^/:]+)(?::\d+)?/(.+)")


@dataclass(frozen=True)
class Publisher:
    """Who built an image: the repository of rosetta that the builder belongs to, and its commit.

    Attributes:
        url: The public address of the repository in a browser, or "" if it has none.
        commit: The commit, or "" if the build is not of a commit.
    """

    url: str = ""
    commit: str = ""

    @property
    def owner(self) -> str:
        """The owner of the repository, which is the first part of its path; or ""."""
        return self.url.partition("://")[2].partition("/")[2].partition("/")[0]


UNKNOWN_PUBLISHER = Publisher()


def read_publisher(root: Path) -> Publisher:
    """Return the publisher of images that are built from a checkout.

    A checkout with changes that are not committed has no commit.
    """
    checkout = describe_checkout(root)
    if not checkout:
        return UNKNOWN_PUBLISHER
    url = _SSH.sub(r"https://\1/\2", str(checkout["url"])).removesuffix(".git")
    return Publisher(url, str(checkout["commit"]) if checkout["clean"] else "")


def describe_checkout(root: Path) -> dict[str, Any]:
    """Return the commit of a checkout, its public URL, and whether everything is committed.

    Returns:
        The keys `commit`, `url` and `clean`; nothing if the folder is not a git checkout.
    """
    if not (root / ".git").exists():
        return {}
    repository = Git(root / ".git", extra={"GIT_WORK_TREE": str(root)})

    def ask_git(*arguments: str) -> str | None:
        done = repository.run(*arguments, check=False)
        return done.stdout.decode("utf-8", "replace").strip() if done.returncode == 0 else None

    commit = ask_git("rev-parse", "--verify", "--quiet", "HEAD")
    if not commit:
        return {}
    return {
        "commit": commit,
        "url": clean_remote(ask_git("config", "--get", "remote.origin.url") or ""),
        "clean": ask_git("status", "--porcelain") == "",
    }
