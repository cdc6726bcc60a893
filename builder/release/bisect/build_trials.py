"""Try one build: make it, run the user's command in it, and take the exit status as the answer.

If the request has a metric, the figure of a plan in the build is the answer instead.
"""

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
from builder.core.manifest import source_folder_name
from builder.core.subprocesses import output_end
from builder.pipeline.step_plans import figures, plan_runs
from builder.release.bisect import build_manifest
from builder.release.bisect.journal import Trial
from builder.upstream import patched_source, tree_export
from builder.upstream.git_objects import Reader, list_tree_files
from builder.upstream.source import acquire_source
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

_RUN_BUILDER = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); from builder.cli import main; "
    "sys.exit(main(sys.argv[1:]))"
)
_MARKER = ".rosetta-bisect"  # the file that marks a folder as one of a bisect
_SKIP_STATUS = 125
_FIRST_ABORT_STATUS = 126
_COMMAND = "COMMAND"  # the place that errors of the user's command name


@dataclass(frozen=True)
class TrialRunner:
    """Makes builds in one folder and runs the user's command in them.

    Attributes:
        context: The context of the builder's command.
        journal: The request, and the answers so far.
        work: The folder of the builds. It keeps the last build.
        access: Where each source can be fetched from, by its name.
        checkout: The repository that the manifest is in, if it is in one.
    """

    context: Context
    journal: Journal
    work: Path
    access: Mapping[str, Access]
    checkout: Repository | None

    @property
    def environment(self) -> Path:
        """The folder of the finished build, which the command sees as ROSETTA_ENV."""
        return self.work / self.journal.request.stage

    def try_build(self, build: Build, description: str, *, is_end: bool = False) -> Answer:
        """Return the answer of a build, from the journal or by making the build.

        Args:
            build: The inputs of the build.
            description: The build in words.
            is_end: Whether the build is one of the two ends. An end that cannot be built is an
                error; any other build that cannot be built is skipped.

        Raises:
            UserError: the command gives up (by an exit status of 126 or more, or by a signal), or
                gives different answers for the same build.
        """
        if self.journal.request.stage == "tree":
            build = build.sources_only()
        if known := self.journal.find_trial(build.key):
            return known.answer
        log.info(f"bisect: {description}")
        start = time.monotonic()
        figure: float | None = None
        try:
            self._make_build(build)
            if self.journal.request.metric:
                figure = self._measure_figure()
                answer, reason = self._judge_figure(figure)
            else:
                answer, reason = self._ask_command()
        except UserError as error:
            if error.where == _COMMAND or is_end:
                raise
            answer, reason = "skip", f"cannot be built: {error}"
        seconds = round(time.monotonic() - start, 1)
        self.journal.add_trial(
            Trial(build.key, description, answer, reason, seconds, is_end, figure)
        )
        log.info(f"bisect: {answer} ({reason})" if reason else f"bisect: {answer}")
        return answer

    def _make_build(self, build: Build) -> None:
        check_work_folder(self.work)
        write_atomic(self.work / _MARKER, "")
        manifest = build_manifest.write_manifest(build, self.work / "mix", self.access)
        if self.journal.request.stage == "tree":
            self._export_trees(manifest, build)
        else:
            self._bake_environment(manifest, build)

    def _export_trees(self, manifest: Manifest, build: Build) -> None:
        """Write the patched tree of each source."""
        remove_path(self.environment)
        for contents in build.sources:
            source = manifest.source(contents.name)
            pinned = acquire_source(source, self.access[contents.name])
            patched = patched_source.build_patched_source(pinned, source)
            with Reader(pinned.git) as reader:
                folder = self.environment / "opt" / source_folder_name(pinned.url)
                folder.mkdir(parents=True)
                tree_export.write_tree(
                    reader, list_tree_files(reader, patched.exported_tree), folder
                )

    def _bake_environment(self, manifest: Manifest, build: Build) -> None:
        """Run `build.py build`, with `rosetta/` from the build's commit of this repository."""
        environment = dict(os.environ)
        if build.rosetta_commit and self.checkout:
            package = self._export_package(build.rosetta_commit, self.checkout)
            environment[baked_package.VARIABLE] = str(package)
        argv = self._builder_command(manifest, build)
        log_file = self.work / "build.log"
        with open(log_file, "wb") as output:
            done = subprocess.run(
                argv, env=environment, stdout=subprocess.PIPE, stderr=output, check=False
            )
        if done.returncode == 130:
            raise KeyboardInterrupt
        if done.returncode == 2:
            raise UserError(**json.loads(done.stdout)["error"])
        if done.returncode != 0:
            end = output_end(log_file.read_bytes())
            raise UserError(
                f"the builder ended with status {done.returncode}: {end}",
                _COMMAND,
                f"correct that, then run again ({log_file} has the whole output)",
            )

    def _builder_command(self, manifest: Manifest, build: Build) -> list[str]:
        request = self.journal.request
        argv = [sys.executable, "-I", "-c", _RUN_BUILDER, str(self.context.root), "build"]
        argv += ["--distribution", build.distribution, "--accelerator", build.accelerator]
        argv += ["--output", f"env:{self.environment}"]
        argv += ["--manifest", str(manifest.root / "manifest.yaml"), "--json"]
        if self.context.offline:
            argv.append("--offline")
        if request.python:
            argv += ["--python", request.python]
        for protocol in self.context.protocols:
            if protocol not in ("https", "ssh"):
                argv += ["--allow-protocol", protocol]
        return argv

    def _export_package(self, commit: str, checkout: Repository) -> Path:
        """Return the folder of the package `rosetta` as it was at a commit."""
        folder = self.work / "rosetta-of-commit"
        commit_file = folder / "commit"
        if commit_file.is_file() and commit_file.read_text(encoding="ascii") == commit:
            return folder / "rosetta"
        remove_path(folder)
        folder.mkdir()
        checkout.export_files(commit, ["rosetta"], folder)
        write_atomic(commit_file, commit)
        return folder / "rosetta"

    def _measure_figure(self) -> float:
        """Return the figure of the plan that the build's own `rosetta` makes.

        Raises:
            UserError: the step does not compile in this build.
        """
        request = self.journal.request
        plan = plan_runs.compile_plan(self.environment, request.plan)
        return plan.figures.get(request.metric, 0)

    def _judge_figure(self, figure: float) -> tuple[Answer, str]:
        """Return the answer and the reason: bad if the figure is not that of the good end.

        The good end is tried first.
        """
        metric = self.journal.request.metric
        reference = next(
            (trial.figure for trial in self.journal.trials if trial.figure is not None), figure
        )
        move = figures.Move(metric, reference, figure)
        change = f", {move.change:+.2%}" if reference and figure != reference else ""
        reason = f"{metric} {figures.format_figure(metric, figure)}{change}"
        return ("bad" if move.exceeds_tolerance else "good"), reason

    def _ask_command(self) -> tuple[Answer, str]:
        """Run the command as often as requested, and return its answer and the reason."""
        answers_with_reasons = [self._run_command() for _ in range(self.journal.request.repeat)]
        answers = [answer for answer, _ in answers_with_reasons]
        if len(set(answers)) > 1:
            raise UserError(
                f"gives different answers for the same build: {', '.join(answers)}",
                _COMMAND,
                "give a command whose result depends on the build alone",
                kind=DIFFERS,
                value=", ".join(answers),
            )
        return answers_with_reasons[-1]

    def _run_command(self) -> tuple[Answer, str]:
        path = f"{self.environment / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        command = self.journal.request.command
        try:
            done = subprocess.run(
                command,
                env={**os.environ, "PATH": path, "ROSETTA_ENV": str(self.environment)},
                stdin=subprocess.DEVNULL,
                stdout=2,  # stderr: only the result of the bisect goes to stdout
                check=False,
            )
        except OSError as error:
            raise UserError(
                f"{command[0]!r} cannot be started ({error.strerror})",
                _COMMAND,
                "give a program and its arguments after --",
            ) from error
        return self._interpret_status(done.returncode)

    def _interpret_status(self, status: int) -> tuple[Answer, str]:
        """Return the answer of an exit status, and the reason."""
        if status < 0 or status >= _FIRST_ABORT_STATUS:
            end = f"was ended by signal {-status}" if status < 0 else f"gave up: status {status}"
            raise UserError(
                f"{end}, in {self.environment}",
                _COMMAND,
                "correct the command and run again: no answer is lost. Only the statuses 0 "
                "(good), 1 to 124 (bad) and 125 (skip) are answers",
            )
        if status == 0:
            return "good", ""
        if status == _SKIP_STATUS:
            return "skip", f"the command ended with status {status}"
        return "bad", f"the command ended with status {status}"


def check_work_folder(work: Path) -> None:
    """Refuse a folder with files that are not from a bisect.

    A temporary file of an interrupted write does not count.

    Raises:
        UserError: the folder is not empty, and is not one of a bisect; or it is not a folder.
    """
    is_other_file = work.is_symlink() or (work.exists() and not work.is_dir())
    is_other_folder = (
        work.is_dir()
        and not (work / _MARKER).is_file()
        and any(not is_temporary(entry.name) for entry in work.iterdir())
    )
    if is_other_file or is_other_folder:
        raise UserError(
            "is not a folder of a bisect",
            str(work),
            "give another --work DIR; nothing was changed",
            kind=EXISTS,
        )
