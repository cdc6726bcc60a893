"""Run git so that its result depends only on its arguments and on the repository's objects.

The settings, hooks, attributes, replacements and protocols of the user, of the machine and of a
mirror have no effect.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from builder.core.secrets import redact
from builder.core.subprocesses import output_end
from rosetta.core.errors import FAILED, MISSING, UserError
from rosetta.core.printable_text import escape

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

# The variables of the caller that git gets: how to find programs, and how to reach a server. None
# of them changes the content that git reads.
_PASSED = (
    "PATH",
    "HOME",
    "SSH_AUTH_SOCK",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "TMPDIR",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "all_proxy",
    "HTTPS_PROXY",
    "NO_PROXY",
    "ALL_PROXY",
)
_FIXED = {
    "LC_ALL": "C",
    "TZ": "UTC",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_SYSTEM": "/dev/null",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_GRAFT_FILE": "/dev/null",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "/bin/false",
    "SSH_ASKPASS": "/bin/false",
    "GIT_SSH_COMMAND": "ssh -oBatchMode=yes -oConnectTimeout=30",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_PAGER": "cat",
    "GIT_ADVICE": "0",
    "GIT_PROTOCOL_FROM_USER": "0",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_AUTHOR_NAME": "rosetta",
    "GIT_AUTHOR_EMAIL": "rosetta@localhost",
    "GIT_COMMITTER_NAME": "rosetta",
    "GIT_COMMITTER_EMAIL": "rosetta@localhost",
}
_CONFIG = (
    "core.hooksPath=/dev/null",
    "core.attributesFile=/dev/null",
    "core.excludesFile=/dev/null",
    "core.autocrlf=false",
    "core.fsmonitor=false",
    "core.untrackedCache=false",
    "commit.gpgsign=false",
    "gc.auto=0",
    "maintenance.auto=false",
    "transfer.fsckObjects=true",
    "fetch.fsckObjects=true",
    "fetch.recurseSubmodules=false",
    "http.followRedirects=initial",
    "diff.noprefix=false",
    "diff.mnemonicPrefix=false",
    "core.quotePath=true",
    "i18n.logOutputEncoding=UTF-8",
    "credential.helper=",
    "http.lowSpeedLimit=1000",
    "http.lowSpeedTime=60",
    "protocol.version=2",
    "core.abbrev=40",
    "merge.conflictStyle=merge",
    "core.packedRefsTimeout=10000",
)
# Lines of git's stderr that begin with these words say what went wrong.
_SERIOUS = ("fatal:", "error:", "remote:")


@dataclass(frozen=True)
class Git:
    """A bare repository of the builder, and how to run git on it.

    Attributes:
        git_dir: The folder of the repository.
        alternates: Object directories of mirrors, which git can read, too. Their refs, settings
            and hooks have no effect.
        protocols: The protocols that git may fetch with, separated by colons. If it is empty, git
            may not fetch.
        extra: More environment variables for git.
    """

    git_dir: Path
    alternates: tuple[Path, ...] = ()
    protocols: str = ""
    extra: Mapping[str, str] = field(default_factory=dict)

    def environment(self) -> dict[str, str]:
        """Return the environment variables for git."""
        env = {name: os.environ[name] for name in _PASSED if name in os.environ}
        env |= _FIXED | {"GIT_DIR": str(self.git_dir), "GIT_ALLOW_PROTOCOL": self.protocols}
        if self.alternates:
            # The repository marks its pins as commits without parents. The mirror has the parents.
            env["GIT_SHALLOW_FILE"] = ""
            env["GIT_ALTERNATE_OBJECT_DIRECTORIES"] = os.pathsep.join(
                _quote_path(path) for path in self.alternates
            )
        return {**env, **self.extra}

    def init(self) -> None:
        """Make the bare repository, without git's template. An existing one stays as it is."""
        self.run("init", "--quiet", "--bare", "--template=", "--object-format=sha1")

    def run(
        self,
        *args: str,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        check: bool = True,
        timeout: float | None = None,
    ) -> subprocess.CompletedProcess[bytes]:
        """Run git and return the finished process.

        Args:
            *args: The command and its arguments.
            stdin: What git reads from its standard input.
            env: More environment variables.
            check: Turn a failure into a UserError.
            timeout: The most seconds that git may take.

        Raises:
            UserError: git is not installed, or it failed and `check` is set; the error has git's
                reason.
            subprocess.TimeoutExpired: git took longer than `timeout`.
        """
        argv = build_command(*args)
        try:
            done = subprocess.run(
                argv,
                input=stdin,
                capture_output=True,
                check=False,
                env={**self.environment(), **(env or {})},
                timeout=timeout,
            )
        except FileNotFoundError as error:
            raise UserError(
                "git is not installed",
                "git",
                "install git 2.34 or newer (apt-get install git)",
                kind=MISSING,
            ) from error
        if check and done.returncode:
            raise UserError(
                f"git {args[0]} failed: {output_end(done.stderr, prefer=_SERIOUS)}",
                str(self.git_dir),
                "mend what git names, then run again",
                kind=FAILED,
            )
        return done

    def text(self, *args: str, stdin: bytes = b"", env: Mapping[str, str] | None = None) -> str:
        """Run git and return its output as text, without surrounding space."""
        return (
            self.run(*args, stdin=stdin, env=env).stdout.decode("utf-8", "surrogateescape").strip()
        )


def build_command(*args: str) -> list[str]:
    """Return the argument list of a git call, with a fixed value for every setting that matters."""
    return ["git", *(part for setting in _CONFIG for part in ("-c", setting)), *args]


def extract_error(stderr: bytes) -> str:
    """Return the line of git's stderr that names the reason of a failure.

    It is the first line that begins with "fatal:", "error:" or "remote:". Without such a line it is
    the last one. Secrets in the line are masked.
    """
    lines = [
        line.strip() for line in stderr.decode("utf-8", "replace").splitlines() if line.strip()
    ]
    serious = [line for line in lines if line.startswith(_SERIOUS)]
    if serious:
        return escape(redact(serious[0]))
    return escape(redact(lines[-1] if lines else "no message"))


def _quote_path(path: Path) -> str:
    """Return a path as git expects it in GIT_ALTERNATE_OBJECT_DIRECTORIES."""
    text = str(path)
    if os.pathsep in text or text.startswith('"') or "\n" in text:
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
    return text
