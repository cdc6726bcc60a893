"""One attempt: make a build, run the command in it, and take its exit status for an answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.core import baked_package, log
from builder.core.cache import remove_path
from builder.core.manifest import folder_of
from builder.core.subprocesses import output_end
from builder.release.bisect import build_manifest
from builder.release.bisect.journal import Trial
from builder.upstream import patched_source, tree_export
from builder.upstream.git_objects import Reader, walk
from builder.upstream.source import acquire
from rosetta.core.atomic_files import is_temporary, write_atomic
from rosetta.core.errors import DIFFERS, EXISTS, UserError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from builder.core.command_context import Context
    from builder.core.manifest import Manifest
    from builder.release.bisect.build_contents import Build
    from builder.release.bisect.journal import Journal
    from builder.release.bisect.repository import Repository
    from builder.release.bisect.search import Answer
    from builder.upstream.source import Access

_BUILDER = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); from builder.cli import main; "
    "sys.exit(main(sys.argv[1:]))"
)
_MARK = ".rosetta-bisect"
_SKIP, _ABORT = 125, 126
_COMMAND = "COMMAND"


@dataclass(frozen=True)
class Bench:
    """Where attempts are made: `work` holds the environment and what it is made from.

    `access` by source; `ours` is this repository, if it is one.
    """

    context: Context
    journal: Journal
    work: Path
    access: Mapping[str, Access]
    ours: Repository | None

    @property
    def environment(self) -> Path:
        """What a build ends in: ROSETTA_ENV."""
        return self.work / self.journal.request.stage

    def answer(self, build: Build, what: str, *, end: bool = False) -> Answer:
        """Return what a build comes to: from the journal, or by making it.

        Raises UserError where the command gives up (status 126 and more, or a signal), or answers
        twice in two ways.
        """
        wanted = build.sources_only() if self.journal.request.stage == "tree" else build
        if known := self.journal.known(wanted.key):
            return known.answer
        log.info(f"bisect: {what}")
        start = time.monotonic()
        try:
            self._make(wanted)
            answer, why = self._run()
        except UserError as error:
            if error.where == _COMMAND or end:
                raise
            answer, why = "skip", f"it cannot be built: {error}"
        self.journal.add(
            Trial(wanted.key, what, answer, why, round(time.monotonic() - start, 1), end)
        )
        log.info(f"bisect: {answer}{f' ({why})' if why else ''}")
        return answer

    def _make(self, build: Build) -> None:
        refuse(self.work)
        write_atomic(self.work / _MARK, "")
        shipped = build_manifest.written(build, self.work / "mix", self.access)
        if self.journal.request.stage == "tree":
            self._trees(shipped, build)
        else:
            self._environment(shipped, build)

    def _trees(self, shipped: Manifest, build: Build) -> None:
        remove_path(self.environment)
        for part in build.parts:
            source = shipped.source(part.name)
            pinned = acquire(source, self.access[part.name])
            done = patched_source.apply(pinned, source)
            with Reader(pinned.git) as reader:
                into = self.environment / "opt" / folder_of(pinned.url)
                into.mkdir(parents=True)
                tree_export.write_tree(reader, walk(reader, done.exported_tree), into)

    def _environment(self, shipped: Manifest, build: Build) -> None:
        """Bake by the builder as a person starts it, with rosetta/ of the commit that is tried."""
        env = dict(os.environ)
        if build.ours and self.ours:
            env[baked_package.VARIABLE] = str(self._package_of(build.ours, self.ours))
        request = self.journal.request
        argv = [
            sys.executable,
            "-I",
            "-c",
            _BUILDER,
            str(self.context.root),
            "build",
            "--distribution",
            build.distribution,
            "--accelerator",
            build.accelerator,
        ]
        argv += [
            "--output",
            f"env:{self.environment}",
            "--manifest",
            str(shipped.root / "manifest.yaml"),
            "--json",
            *(["--offline"] if self.context.offline else []),
        ]
        argv += ["--python", request.python] if request.python else []
        argv += [
            part
            for name in self.context.protocols
            if name not in ("https", "ssh")
            for part in ("--allow-protocol", name)
        ]
        with open(self.work / "build.log", "wb") as said:
            done = subprocess.run(argv, env=env, stdout=subprocess.PIPE, stderr=said, check=False)
        if done.returncode == 130:
            raise KeyboardInterrupt
        if done.returncode == 0:
            return
        if done.returncode != 2:
            end = output_end((self.work / "build.log").read_bytes())
            raise UserError(
                f"the builder ended with status {done.returncode}: {end}",
                _COMMAND,
                f"mend what it names, then run again ({said.name} has all of its message)",
            )
        raise UserError(**json.loads(done.stdout)["error"])

    def _package_of(self, commit: str, ours: Repository) -> Path:
        """Return the folder of the package `rosetta` as it was at a commit of this repository."""
        own = self.work / "rosetta-of-commit"
        if (own / "commit").is_file() and (own / "commit").read_text(encoding="ascii") == commit:
            return own / "rosetta"
        remove_path(own)
        own.mkdir()
        ours.write(commit, ["rosetta"], own)
        write_atomic(own / "commit", commit)
        return own / "rosetta"

    def _run(self) -> tuple[Answer, str]:
        answers = [self._once() for _ in range(self.journal.request.repeat)]
        if len({answer for answer, _ in answers}) > 1:
            said = ", ".join(answer for answer, _ in answers)
            raise UserError(
                f"answers in two ways for one build: {said}",
                _COMMAND,
                "give a command that depends on the build alone",
                kind=DIFFERS,
                value=said,
            )
        return answers[-1]

    def _once(self) -> tuple[Answer, str]:
        path = f"{self.environment / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        command = self.journal.request.command
        try:  # what it prints goes to stderr: stdout is for the document
            done = subprocess.run(
                command,
                env={**os.environ, "PATH": path, "ROSETTA_ENV": str(self.environment)},
                stdin=subprocess.DEVNULL,
                stdout=2,
                check=False,
            )
        except OSError as error:
            raise UserError(
                f"{command[0]!r} cannot be started ({error.strerror})",
                _COMMAND,
                "give a program and its arguments after --",
            ) from error
        status = done.returncode
        if status < 0 or status >= _ABORT:
            ended = (
                f"was ended by signal {-status}" if status < 0 else f"gave up with status {status}"
            )
            raise UserError(
                f"{ended} in {self.environment}",
                _COMMAND,
                (
                    "mend it and run again: no answer is lost; only 0 (good), 1 to 124 (bad) and "
                    "125 (skip) are answers"
                ),
            )
        return (
            ("good", "")
            if status == 0
            else ("skip", "the command said so")
            if status == _SKIP
            else ("bad", f"status {status}")
        )


def refuse(work: Path) -> None:
    """UserError where the folder of the builds holds something else.

    What a kill left of the mark is no such thing.
    """
    foreign = (
        work.is_dir()
        and not (work / _MARK).is_file()
        and any(not is_temporary(entry.name) for entry in work.iterdir())
    )
    if foreign or work.is_symlink() or (work.exists() and not work.is_dir()):
        raise UserError(
            "holds what no bisect made",
            str(work),
            "give another --work DIR; nothing was touched",
            kind=EXISTS,
        )
