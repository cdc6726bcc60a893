"""The same pins give the same patched commits and the same exported files: whatever the home, time zone, umask, locale and git config."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from builder.core import cache_folder
from builder.upstream import source_lock
from tests.support.shipped_sources import ROOT, SHIPPED, need_pinned_source

pytestmark = pytest.mark.upstream

# Builds one source from a mirror into a cache of its own, and prints what it became and every exported file's mode and hash.
_PROGRAM = """
import hashlib, json, os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from builder.core import manifest
from builder.upstream import tree_export, source_lock, source_tree
from builder.upstream import patched_source
from builder.core.cache import Cache
from builder.upstream.git_objects import Reader, list_tree_files
from builder.upstream.source import Access, acquire_source
os.umask(int(sys.argv[5], 8))
shipped = manifest.load(Path(sys.argv[1]) / "manifest.yaml")
source = shipped.source(sys.argv[2])
access = Access(Cache(Path(sys.argv[3])), offline=True, mirrors=(Path(sys.argv[4]),))
state = source_tree.patch_source(source, access)
source_lock.check_record(shipped, state)
into = Path(sys.argv[3]) / "exported"
with Reader(acquire_source(source, access).git) as reader:
    tree_export.write_tree(reader, list_tree_files(reader, state.exported_tree), into)
files = {str(p.relative_to(into)): [oct(p.lstat().st_mode), hashlib.sha256(p.read_bytes()).hexdigest() if p.is_file() else ""] for p in sorted(into.rglob("*"))}
print(json.dumps({"state": state.as_json(), "files": files}))
"""
_GITCONFIG = """[core]
  autocrlf = true
  attributesFile = ~/attributes
  hooksPath = ~/hooks
  abbrev = 7
[commit]
  gpgsign = true
[user]
  name = somebody
  signingkey = none
[apply]
  whitespace = fix
[diff]
  noprefix = true
"""


def _made(
    name: str, folder: Path, mirror: Path, umask: str, **env: str
) -> dict[str, dict[str, object]]:
    home = folder / "home"
    (home / "hooks").mkdir(parents=True)
    (home / ".gitconfig").write_text(_GITCONFIG)
    (home / "attributes").write_text("* text eol=crlf ident\n")
    hook = home / "hooks/applypatch-msg"
    hook.write_text("#!/bin/sh\nexit 1\n")
    hook.chmod(0o755)
    argv = [
        sys.executable,
        "-I",
        "-c",
        _PROGRAM,
        str(ROOT),
        name,
        str(folder / "cache"),
        str(mirror),
        umask,
    ]
    full = {"PATH": os.environ["PATH"], "HOME": str(home), **env}
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=full)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("name", [name for name, source in SHIPPED.sources.items() if source.git])
def test_the_same_everywhere(name: str, tmp_path: Path) -> None:
    need_pinned_source(name)  # or say that it cannot be tested
    mirror = cache_folder.default_root() / "git"
    first = _made(name, tmp_path / "a", mirror, "022", TZ="Pacific/Kiritimati", LC_ALL="C")
    second = _made(
        name,
        tmp_path / "b/with a space",
        mirror,
        "077",
        TZ="America/Los_Angeles",
        LC_ALL="C.UTF-8",
        GIT_DIR="/nowhere",
        GIT_CONFIG_PARAMETERS="'core.abbrev'='9'",
    )
    assert first == second
    assert first["state"]["patched_commit"] != first["state"]["commit"]
    assert not set(SHIPPED.sources[name].absent) & set(first["files"])


@pytest.mark.parametrize("name", SHIPPED.sources)
def test_the_lock_knows_every_source(name: str) -> None:
    source, known = SHIPPED.sources[name], source_lock.read_records(SHIPPED)[name]
    assert known["commit"] == (source.commit or known["commit"])
    assert {patch["outcome"] for patch in known["patches"]} <= {"applied"}
