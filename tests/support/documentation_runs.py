"""Run the bash blocks of a page as a reader would: each in a shell of its own, in one folder."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.documentation_blocks import DRY_RUN, RUN, Block, InvalidPageError, read_page

ROOT = Path(__file__).resolve().parents[2]
HANGS_S = 3600  # a block that runs longer never ends
# What a reader's environment has too: settings of the package index and of the network.
_KEPT = re.compile(r"PIP_.*|UV_.*|SSL_.*|REQUESTS_CA_BUNDLE|.*_proxy|.*_PROXY|LANG|LC_ALL|TERM")
_CACHES = ("ROSETTA_CACHE", "XDG_CACHE_HOME")
_SETS_PLATFORM = re.compile(r"^ *export .*\bJAX_PLATFORMS=cpu\b", re.MULTILINE)
_PUTS_ON_PATH = re.compile(r"^ *export PATH=.*bin:\$PATH", re.MULTILINE)
_LOSS_IN_LOG = re.compile(r"\bloss ([0-9]+\.[0-9]+)")
# Adds --dry-run to every command that has the option; commands that only show something run.
_DRY_WRAPPER = """#!{python}
import os, sys
words, program, only_show = sys.argv[1:], {program!r}, {only_show!r}
own = words[: words.index("--")] if "--" in words else words
if "--dry-run" not in own and own[:1] not in [[name] for name in only_show]:
    words = [*own, "--dry-run", *words[len(own):]]
os.execv(program[0], [*program, *words])
"""
_ONLY_SHOW = ("info", "te", "explain", "vocab", "--help", "--version")


@dataclass(frozen=True)
class Environment:
    """A baked environment.

    Attributes:
      place: What the comments call it: t5x, pax or pax-1.4.
      folder: Where it is.
    """

    place: str
    folder: Path


def blocks_in(place: str, page: str) -> list[Block]:
    """Return the blocks of a page that run in a place. A unit test refuses wrong comments."""
    found = []
    for block in read_page(page):
        with contextlib.suppress(InvalidPageError):
            if block.language == "bash" and place in block.check.places:
                found.append(block)
    return found


@dataclass
class Page:
    """The folder in which the blocks of one page run, and what they see.

    Attributes:
      page: The page's path in the repository.
      folder: An empty folder.
      environment: The baked environment whose `bin` is first on PATH; None in a checkout.
    """

    page: str
    folder: Path
    environment: Environment | None = None
    losses: dict[str, tuple[float, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.text = (ROOT / self.page).read_text(encoding="utf-8")
        self.work = self.folder / "rosetta"
        self.temporary = self.folder / "tmp"
        for name in ("tmp", "home", "bin", "dry"):
            (self.folder / name).mkdir()
        copy_checkout(self.work)
        if self.environment:
            self._link_environment(self.environment)

    def _link_environment(self, environment: Environment) -> None:
        assert _PUTS_ON_PATH.search(self.text), (
            f"{self.page}: say how to put the environment's bin on PATH: "
            "export PATH=$PWD/build/t5x-cpu/bin:$PATH"
        )
        (self.work / "build").mkdir(exist_ok=True)
        (self.work / "build" / f"{environment.place}-cpu").symlink_to(environment.folder)
        program = [sys.executable, "-P", "-m", "rosetta"]
        _write_program(
            self.folder / "bin" / "rosetta", f'#!/bin/sh\nexec {" ".join(program)} "$@"\n'
        )
        scripts = [path for path in (environment.folder / "bin").iterdir() if path.suffix == ".sh"]
        self._write_dry("rosetta", program)
        for script in scripts:
            self._write_dry(script.name, ["/bin/bash", str(script)])

    def _write_dry(self, name: str, program: list[str]) -> None:
        text = _DRY_WRAPPER.format(python=sys.executable, program=program, only_show=_ONLY_SHOW)
        _write_program(self.folder / "dry" / name, text)

    def variables(self, block: Block) -> dict[str, str]:
        """Return the environment of a block: clean, but for caches and the network."""
        variables = {name: value for name, value in os.environ.items() if _KEPT.fullmatch(name)}
        path = os.environ["PATH"].split(os.pathsep)
        builder = str(ROOT / ".venv" / "bin")
        path = [folder for folder in path if folder != builder]
        if self.environment:
            path = [str(self.folder / "bin"), str(self.environment.folder / "bin"), *path]
            variables |= {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
            if _SETS_PLATFORM.search(self.text):
                variables["JAX_PLATFORMS"] = "cpu"
        else:
            variables |= _make_cache_variables()
        if block.check.how == DRY_RUN:
            path.insert(0, str(self.folder / "dry"))
        return {
            **variables,
            **_clone_from(self.work),
            "HOME": str(self.folder / "home"),
            "TMPDIR": str(self.temporary),
            "PATH": os.pathsep.join(path),
        }

    def run(self, block: Block) -> None:
        """Run a block, and assert that it does what its comment says."""
        check = block.check
        before = {path: path.stat().st_size for path in self._progress_files()}
        text = block.text.replace("/tmp/", f"{self.temporary}/")
        if not self.environment and check.how == DRY_RUN:
            text = text.replace("\\\n", " ")  # one line for each command
            text = re.sub(r"\bbuild\.py\b(?! *--dry-run)(.*)", r"build.py\1 --dry-run", text)
        clones = f"git clone {repository_url()}" in text
        log = self.folder / f"{block.line}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                ["bash", "-eu", "-c", text],
                cwd=self.temporary if clones else self.work,
                env=self.variables(block),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                if check.interrupted is not None:
                    self._interrupt(process, check.interrupted, before)
                status = process.wait(HANGS_S)
            finally:
                _end_group(process)
        said = log.read_text(encoding="utf-8", errors="replace")
        end = f"{block.where} ended with status {status}, not {check.status}:\n{said[-6000:]}"
        assert status == check.status, end
        if check.loss is not None:
            losses = self._losses(before) or [float(loss) for loss in _LOSS_IN_LOG.findall(said)]
            self._check_losses(block, losses, check.loss)

    def _check_losses(self, block: Block, losses: list[float], below: float) -> None:
        assert len(losses) > 1, f"{block.where} reports {len(losses)} losses"
        first, last = losses[0], losses[-1]
        assert last < first, f"{block.where}: the loss rose from {first} to {last}"
        assert last < below, f"{block.where}: the last loss is {last}, not below {below}"
        self.losses[block.where] = (first, last)

    def _interrupt(
        self, process: subprocess.Popen[bytes], step: int, before: dict[Path, int]
    ) -> None:
        """Send Ctrl-C to the block, as a terminal does, once it reported a step."""
        end = time.monotonic() + HANGS_S
        while process.poll() is None and time.monotonic() < end:
            steps = [int(str(report.get("step", 0))) for report in self._reports(before)]
            if steps and max(steps) >= step:
                os.killpg(process.pid, signal.SIGINT)
                return
            time.sleep(0.2)

    def _progress_files(self) -> list[Path]:
        folders = (self.temporary, self.work)
        return [path for folder in folders for path in folder.rglob("progress.jsonl")]

    def _reports(self, before: dict[Path, int]) -> Iterator[dict[str, object]]:
        """Yield what the run that wrote last has reported since `before`."""
        written = [
            path for path in self._progress_files() if path.stat().st_size > before.get(path, 0)
        ]
        newest = max(written, key=lambda path: path.stat().st_mtime, default=None)
        if newest is None:
            return
        with newest.open("rb") as file:
            file.seek(before.get(newest, 0))
            for line in file:
                if line.endswith(b"\n"):
                    yield json.loads(line)

    def _losses(self, before: dict[Path, int]) -> list[float]:
        return [float(str(report["loss"])) for report in self._reports(before) if "loss" in report]


def run_page(page: str, folder: Path, place: str, environment: Path | None = None) -> Page:
    """Run the blocks of a page that run in a place, in their order."""
    own = Environment(place, environment) if environment else None
    made = Page(page, folder, own)
    for block in blocks_in(place, page):
        assert block.check.how in (RUN, DRY_RUN)
        made.run(block)
    return made


def pages_with(place: str, pages: list[str], *, slow: bool | None = None) -> list[str]:
    """Return the pages that have a block which runs in a place.

    Args:
      place: An environment, or CHECKOUT.
      pages: Those to look at.
      slow: Only pages with a slow block, or only those without; None for all.
    """
    found = []
    for page in pages:
        blocks = blocks_in(place, page)
        if blocks and slow in (None, any(block.check.slow for block in blocks)):
            found.append(page)
    return found


def copy_checkout(target: Path) -> None:
    """Make a clone of the checkout as it is now, with what is not committed yet.

    The clone uses the environment of the builder that the checkout has.
    """
    listed = _run_git(ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    for name in filter(None, listed.split("\0")):
        source, place = ROOT / name, target / name
        if source.is_symlink() or source.is_file():
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, place, follow_symlinks=False)
    (target / ".venv").symlink_to((ROOT / ".venv").resolve())
    _run_git(target, "init", "--quiet", "--initial-branch=main", "--template=")
    (target / ".git" / "info").mkdir()
    (target / ".git" / "info" / "exclude").write_text("/.venv\n/build\n", encoding="utf-8")
    _run_git(target, "add", "--all")
    _run_git(
        target, "-c", "core.hooksPath=/dev/null", "commit", "--quiet", "--message=the checkout"
    )


def _run_git(folder: Path, *words: str) -> str:
    settings = ("-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(
        ["git", *settings, *words], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout


def _clone_from(checkout: Path) -> dict[str, str]:
    """Return variables by which `git clone` of the repository takes the checkout."""
    return {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.{checkout.as_uri()}.insteadOf",
        "GIT_CONFIG_VALUE_0": repository_url(),
    }


def repository_url() -> str:
    """Return where readers clone the repository from."""
    settings = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))
    return str(settings["project"]["extra"]["social"][0]["link"])


def _make_cache_variables() -> dict[str, str]:
    """Return variables by which a fresh HOME has the caches of this machine.

    A reader downloads once what the caches hold.
    """
    from builder.core import cache_folder

    cache = Path(cache_folder.default_root())
    return {
        "ROSETTA_CACHE": str(cache),
        "UV_CACHE_DIR": os.environ.get("UV_CACHE_DIR", str(cache.parent / "uv")),
    }


def _write_program(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End what a block left running: TensorBoard, say."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
