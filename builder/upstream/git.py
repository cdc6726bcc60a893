"""git as a pure function: no config, hook, attribute, replacement or protocol of the user, the
machine or a mirror.
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

# What of the caller's environment reaches git: how to find programs, how to reach a server. Nothing
# that decides content.
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
_SERIOUS = ("fatal:", "error:", "remote:")  # how the lines begin in which git says what went wrong


@dataclass(frozen=True)
class Git:
    """A bare repository of ours, and how git is run on it.

    `alternates` are object directories of mirrors, joined for this process only: their refs, config
    and hooks play no part. `protocols` is git's colon-separated list of transports allowed; empty
    means that nothing may be fetched at all.
    """

    git_dir: Path
    alternates: tuple[Path, ...] = ()
    protocols: str = ""
    extra: Mapping[str, str] = field(default_factory=dict)

    def environment(self) -> dict[str, str]:
        """Return the environment in which git runs."""
        env = {name: os.environ[name] for name in _PASSED if name in os.environ}
        env |= _FIXED | {"GIT_DIR": str(self.git_dir), "GIT_ALLOW_PROTOCOL": self.protocols}
        if self.alternates:
            env["GIT_SHALLOW_FILE"] = (
                ""  # our copies of pins are cut off from their parents; what is joined has those
            )
            env["GIT_ALTERNATE_OBJECT_DIRECTORIES"] = os.pathsep.join(
                _quote_path(path) for path in self.alternates
            )
        return {**env, **self.extra}

    def init(self) -> None:
        """Make the repository: bare, nothing of a template in it; an existing one stays as it
        is.
        """
        self.run("init", "--quiet", "--bare", "--template=", "--object-format=sha1")

    def run(
        self,
        *args: str,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        check: bool = True,
        timeout: float | None = None,
    ) -> subprocess.CompletedProcess[bytes]:
        """Run `git *args`; with `check`, a failure is a UserError that carries git's own last
        words.
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
    """Return the argv of a git call with every setting that matters fixed."""
    return ["git", *(part for setting in _CONFIG for part in ("-c", setting)), *args]


def extract_error(stderr: bytes) -> str:
    """Return the line of git's stderr that says most: the first fatal or error one, else the
    last.
    """
    lines = [
        line.strip() for line in stderr.decode("utf-8", "replace").splitlines() if line.strip()
    ]
    said = [line for line in lines if line.startswith(_SERIOUS)]
    return escape(redact((said or lines or ["no message"])[0 if said else -1]))


def _quote_path(path: Path) -> str:
    text = str(path)
    if os.pathsep in text or text.startswith('"') or "\n" in text:
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
    return text
