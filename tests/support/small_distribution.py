"""A whole small distribution: an upstream repository, a patch, an index with wheels and an sdist, locks. Everything real but small."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.package_archives import pack_sdist
from tests.support.package_index import Index

ROOT = Path(__file__).parents[2]
HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
_MAIN = "import sys; sys.path.insert(0, sys.argv.pop(1)); from builder.cli import main; sys.exit(main(sys.argv[1:]))"

# Counts what can be interrupted (renames, replaces, programs started) and kills the builder, and all it started, before the Nth.
KILLED = """
import os, signal, subprocess, sys
count, stop = 0, int(os.environ["KILL_AT"])
def counted(function):
    def call(*args, **kwargs):
        global count
        count += 1
        if count == stop: os.killpg(0, signal.SIGKILL)
        return function(*args, **kwargs)
    return call
os.rename, os.replace = counted(os.rename), counted(os.replace)
subprocess.run = counted(subprocess.run)
root = sys.argv.pop(1); sys.path.insert(0, root)
from builder.cli import main
status = main(sys.argv[1:])
print(count, file=sys.stderr)
sys.exit(status)
"""

_BACKEND = """
import os, zipfile
def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    name = "fromsource-1.0-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(wheel_directory, name), "w") as z:
        z.writestr("fromsource.py", "BUILT = True\\n")
        z.writestr("fromsource-1.0.dist-info/METADATA", "Metadata-Version: 2.1\\nName: fromsource\\nVersion: 1.0\\n")
        z.writestr("fromsource-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\\nGenerator: x\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        z.writestr("fromsource-1.0.dist-info/RECORD", "fromsource.py,,\\nfromsource-1.0.dist-info/RECORD,,\\n")
    return name
"""
PATCH = """From: rosetta <rosetta@localhost>
Subject: [PATCH] thing: greet politely

Why: the test needs a change that can be seen
Upstream-Status: Pending
Drop-When: never

---
diff --git a/thing/__init__.py b/thing/__init__.py
index {old}..{new} 100644
--- a/thing/__init__.py
+++ b/thing/__init__.py
@@ -1,2 +1,2 @@
 # a thing
-GREETING = "hi"
+GREETING = "{greeting}"
"""


@dataclass
class Chain:
    """Where everything is, and how to run the builder on it."""

    folder: Path
    index: Index
    mirror: Path
    extra: dict[str, str] = field(default_factory=dict)

    @property
    def cache(self) -> Path:
        return self.folder / "cache"

    @property
    def output(self) -> Path:
        return self.folder / "out"

    def environment(self) -> dict[str, str]:
        scratch = self.folder / "tmp"  # what a killed builder leaves behind goes with the test
        scratch.mkdir(exist_ok=True)
        kept = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], "TMPDIR": str(scratch)}
        own = {
            "ROSETTA_CACHE": str(self.cache),
            "UV_CACHE_DIR": str(self.folder / "uv"),
            "UV_DEFAULT_INDEX": self.index.url,
            "UV_HTTP_TIMEOUT": "10",
            "UV_HTTP_RETRIES": "0",
        }
        return kept | own | self.extra

    def argv(self, *more: str) -> list[str]:
        output = () if "--output" in more else ("--output", f"env:{self.output}")
        common = ("--manifest", str(self.folder / "manifest.yaml"), "--json")
        mirror = () if "--no-mirror" in more else ("--mirror", str(self.mirror))
        return [
            "--distribution",
            "thing",
            *output,
            *common,
            *mirror,
            *(part for part in more if part != "--no-mirror"),
        ]

    def run(
        self, *more: str, before: tuple[str, ...] = (), program: str = _MAIN
    ) -> tuple[int, dict[str, Any], str]:
        """Run the builder; its status, its JSON document and its stderr."""
        argv = [*before, sys.executable, "-I", "-c", program, str(ROOT), *self.argv(*more)]
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            check=False,
            env=self.environment(),
            cwd=self.folder,
        )
        return done.returncode, json.loads(done.stdout) if done.stdout.strip() else {}, done.stderr

    def greeting(self) -> str:
        done = subprocess.run(
            [
                str(self.output / "bin/python"),
                "-c",
                "import thing, helper, fromsource; print(thing.GREETING)",
            ],
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    def write_patch(self, greeting: str) -> None:
        old, new = hash_blob(SOURCE), hash_blob(SOURCE.replace("hi", greeting))
        (self.folder / "patches/thing/greet.patch").write_text(
            PATCH.format(old=old, new=new, greeting=greeting)
        )


SOURCE = '# a thing\nGREETING = "hi"\n'


def hash_blob(text: str) -> str:
    return hashlib.sha1(
        b"blob %d\0" % len(text.encode()) + text.encode(), usedforsecurity=False
    ).hexdigest()


def _run_git(folder: Path, *args: str) -> str:
    env = {
        "PATH": os.environ["PATH"],
        "HOME": "/nonexistent",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_NOSYSTEM": "1",
    }
    who = {
        f"GIT_{role}_{what}": value
        for role in ("AUTHOR", "COMMITTER")
        for what, value in (
            ("NAME", "u"),
            ("EMAIL", "u@example.com"),
            ("DATE", "2026-01-01T00:00:00Z"),
        )
    }
    return subprocess.run(
        ["git", *args], cwd=folder, env=env | who, check=True, capture_output=True, text=True
    ).stdout.strip()


def _make_upstream(folder: Path) -> str:
    folder.mkdir(parents=True)
    _run_git(folder, "init", "-q", "-b", "main")
    (folder / "thing").mkdir()
    (folder / "thing/__init__.py").write_text(SOURCE)
    (folder / "LICENSE").write_text("licence\n")
    _run_git(folder, "add", ".")
    _run_git(folder, "commit", "-q", "-m", "first")
    return _run_git(folder, "rev-parse", "HEAD")


def _write_wheel(path: Path, module: str, version: str) -> Path:
    info = f"{module}-{version}.dist-info"
    text = "def help():\n    return 'help'\n" + "# filler\n" * 2000
    digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{module}.py", text)
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {module}\nVersion: {version}\n"
        )
        archive.writestr(
            f"{info}/WHEEL",
            "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        archive.writestr(
            f"{info}/RECORD", f"{module}.py,sha256={digest},{len(text)}\n{info}/RECORD,,\n"
        )
    return path


def _write_sdist(path: Path) -> Path:
    files = {
        "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n[project]\nname = "fromsource"\nversion = "1.0"\n',
        "backend.py": _BACKEND,
        "PKG-INFO": "Metadata-Version: 2.1\nName: fromsource\nVersion: 1.0\n",
    }
    return pack_sdist(path, {f"fromsource-1.0/{name}": text for name, text in files.items()})


def make_distribution(folder: Path, index: Index, *, sdist: str = "fromsource-1.0.tar.gz") -> Chain:
    """A distribution `thing` of one git source (in a mirror), one wheel and one sdist, which has the file name `sdist`."""
    chain = Chain(folder, index, folder / "mirrors")
    commit = _make_upstream(folder / "mirrors/thing")
    made = {
        "helper": _write_wheel(folder / "helper-1.0-py3-none-any.whl", "helper", "1.0"),
        "fromsource": _write_sdist(folder / sdist),
    }
    hashes = {name: index.add(name, path) for name, path in made.items()}
    for name in ("patches/thing", "locks/line"):
        (folder / name).mkdir(parents=True)
    (folder / "patches/thing/series").write_text("greet\n")
    chain.write_patch("good morning")
    lock = "".join(
        f"{name}==1.0 \\\n    --hash=sha256:{digest}\n" for name, digest in sorted(hashes.items())
    )
    (folder / "locks/thing-cpu.txt").write_text(lock)
    (folder / "locks/build.txt").write_text("# nothing is needed\n")
    (folder / "locks/line/common.in").write_text("helper\n")
    (folder / "manifest.yaml").write_text(f"""version: 1
sources:
  thing: {{git: "https://example.invalid/thing.git", track: main, commit: {commit}, patches: patches/thing}}
lines:
  line: {{python: "{HERE}", pythons: ["{HERE}"], common: locks/line/common.in}}
distributions:
  thing: {{line: line, sources: [thing], accelerators: [cpu], architectures: [amd64, arm64]}}
sdists:
  - {{name: fromsource, why: "it has no wheel, for the test"}}
""")
    return chain


def add_project(chain: Chain, name: str, package: str) -> None:
    """Add a project to the distribution: a git source in the mirror, and a lock with one wheel."""
    upstream = chain.mirror / name
    (upstream / name).mkdir(parents=True)
    (upstream / name / "__init__.py").write_text(f'NAME = "{name}"\n')
    _run_git(upstream, "init", "-q", "-b", "main")
    _run_git(upstream, "add", ".")
    _run_git(upstream, "commit", "-q", "-m", "first")
    commit = _run_git(upstream, "rev-parse", "HEAD")
    wheel = _write_wheel(chain.folder / f"{package}-1.0-py3-none-any.whl", package, "1.0")
    digest = chain.index.add(package, wheel)
    (chain.folder / "locks/projects").mkdir()
    (chain.folder / f"locks/projects/{name}.txt").write_text(
        f"{package}==1.0 \\\n    --hash=sha256:{digest}\n"
    )
    (chain.folder / f"patches/{name}").mkdir()
    (chain.folder / f"patches/{name}/series").write_text("")
    manifest = chain.folder / "manifest.yaml"
    url = f"https://example.invalid/{name}.git"
    source = f'  {name}: {{git: "{url}", track: main, commit: {commit}, patches: patches/{name}}}'
    manifest.write_text(
        manifest.read_text().replace("lines:", f"{source}\nlines:")
        + f"projects:\n  {name}: {{distribution: thing}}\n"
    )


def read_output(folder: Path) -> dict[str, str]:
    """Every file of an output with its hash, links with their targets; not the state file's folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = os.readlink(path)
        elif path.is_file() and not name.startswith(".rosetta/"):
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found
