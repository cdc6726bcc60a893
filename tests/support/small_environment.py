"""The doors of a small environment laid out as ours are, with a recorder where Python would be; run as an ordinary user even by root."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.packages import program_wrappers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

USER = 65534 if os.geteuid() == 0 else os.geteuid()
# Prints its arguments, then its environment.
_RECORDER = """#!/bin/sh
[ "$1" != -I ] || [ "$4" != te ] || { echo "rosetta: no TE here" >&2; exit 2; }
printf 'argument %s\\n' "$@"
env
exit "${RC:-0}"
"""


@dataclass(frozen=True)
class Ran:
    rc: int
    arguments: list[str]
    env: dict[str, str]
    err: str
    out: str


@dataclass(frozen=True)
class Place:
    root: Path

    @property
    def bin(self) -> Path:
        return self.root / "opt/rosetta/bin"

    @property
    def site(self) -> Path:
        return self.root / "opt/rosetta/env/lib/python3.13/site-packages"

    @property
    def tmp(self) -> Path:
        return self.root / "tmp"

    def run(
        self, *argv: str, cwd: Path | None = None, more: Mapping[str, str] | None = None, **env: str
    ) -> Ran:
        # No HOME: what a container has that runs as a user nobody planned for.
        whole = {
            "PATH": f"{self.bin}:/usr/local/bin:/usr/bin:/bin",
            "TMPDIR": str(self.tmp),
            **(more or {}),
            **env,
        }
        ids: dict[str, Any] = (
            {"user": USER, "group": USER, "extra_groups": []} if os.geteuid() == 0 else {}
        )
        done = subprocess.run(
            argv,
            env=whole,
            cwd=cwd or self.root,
            capture_output=True,
            text=True,
            check=False,
            **ids,
        )
        lines = done.stdout.splitlines()
        arguments = [
            line.removeprefix("argument ") for line in lines if line.startswith("argument ")
        ]
        seen = dict(
            line.split("=", 1) for line in lines if "=" in line and not line.startswith("argument ")
        )
        return Ran(done.returncode, arguments, seen, done.stderr, done.stdout)

    def owned(self, folder: Path) -> Path:
        """`folder`, made as the user that the doors run as."""
        folder.mkdir(parents=True)
        os.chown(folder, USER, USER if os.geteuid() == 0 else -1)
        return folder


def make_place() -> Iterator[Place]:
    """A place outside pytest's own folders, which nobody but their owner may enter."""
    # The machine's own folder for temporary files: it has to be one that any user can reach.
    root = Path(tempfile.mkdtemp(prefix="rosetta doors ", dir="/tmp"))
    root.chmod(0o755)
    place = Place(root)
    place.bin.mkdir(parents=True)
    place.site.mkdir(parents=True)
    place.tmp.mkdir()
    place.tmp.chmod(0o1777)
    program = root / "opt/rosetta/env/bin/python"
    program.parent.mkdir()
    program.write_text(_RECORDER)
    program.chmod(0o755)
    (root / "opt/rosetta/constraints.txt").write_text("# packages 0123456789abcdef\njax==0.10.2\n")
    scripts = root / "opt/thing/thing" / program_wrappers.SCRIPTS
    scripts.mkdir(parents=True)
    (scripts / "train.sh").write_text(
        '#!/bin/bash\nprintf "argument %s\\n" "$0" "$@" "$$"\nenv\nexit "${RC:-0}"\n'
    )
    (scripts / "download_it.py").write_text(
        "import sys\nprint('loading', __name__, *sys.argv[1:])\nsys.exit(7)\n"
    )
    (scripts / "run_it.py").write_text("import sys\nprint('running', *sys.argv[1:])\n")
    (scripts / "runner").write_text("#!/usr/bin/env python3\nprint('runner')\n")
    (scripts / "README").write_text("Nothing to run.\n")
    (scripts / "tasks.py").write_text("")
    for name, text in {
        **program_wrappers.PROGRAMS,
        **program_wrappers.wrappers_for_scripts(root / "opt/thing", "thing"),
    }.items():
        (place.bin / name).write_text(text)
        (place.bin / name).chmod(0o755)
    try:
        yield place
    finally:
        shutil.rmtree(root)
