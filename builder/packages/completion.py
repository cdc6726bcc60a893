"""Make the completion files for bash and zsh from the parsers, with shtab."""

from __future__ import annotations

import functools
import importlib.metadata
import json
import subprocess
import sys
from typing import TYPE_CHECKING

from rosetta.core.errors import FAILED, UserError

if TYPE_CHECKING:
    from pathlib import Path

SHELLS = ("bash", "zsh")
# The paths below share/ where the shells search.
PLACES = {
    "bash": "bash-completion/completions/rosetta",
    "zsh": "zsh/site-functions/_rosetta",
}
VERSION = importlib.metadata.version("shtab")
# A separate process imports the package, because it may be of another commit than this checkout.
_PROGRAM = """
import json, sys
sys.path.insert(0, sys.argv[1])
import shtab
from rosetta import cli
from rosetta.commands import completion
parser = cli.build_parser()
texts = {shell: completion.make(shell, parser, shtab.complete) for shell in sys.argv[2:]}
json.dump(texts, sys.stdout)
"""


def has_completion(package: Path) -> bool:
    """Return whether a package rosetta can describe its completion; older commits cannot.

    Args:
      package: The folder `rosetta`.
    """
    return (package / "commands" / "completion.py").is_file()


@functools.cache
def make_files(package: Path, digest: str) -> dict[str, str]:
    """Return the completion file of each shell for the commands of rosetta.

    Args:
      package: The folder `rosetta`.
      digest: The hash of its content.
    """
    del digest  # functools.cache needs it as a part of the key
    done = subprocess.run(
        [sys.executable, "-I", "-c", _PROGRAM, str(package.parent), *SHELLS],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise UserError(
            f"its completion files cannot be made: {done.stderr.strip().splitlines()[-1:]}",
            str(package),
            "check rosetta/commands/completion.py and the parsers that it reads",
            kind=FAILED,
        )
    files: dict[str, str] = json.loads(done.stdout)
    return files


def write_files(package: Path, digest: str, into: Path) -> None:
    """Write the completion files below a folder `share`.

    Args:
      package: The folder `rosetta`.
      digest: The hash of its content.
      into: The folder.
    """
    for shell, text in make_files(package, digest).items():
        path = into / PLACES[shell]
        path.parent.mkdir(parents=True)
        path.write_text(text, encoding="utf-8")
