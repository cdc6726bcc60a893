"""Make the completion files for bash and zsh from the parsers, with shtab."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from builder.core.cache import stage_key
from builder.core.cache_records import read_stamp, write_stamp
from rosetta.core.errors import FAILED, UserError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from builder.core.cache import Cache

SHELLS = ("bash", "zsh")
# The paths below share/ where the shells search.
PLACES = {
    "bash": "bash-completion/completions/rosetta",
    "zsh": "zsh/site-functions/_rosetta",
}
# The lock of shtab and of all that shtab imports. An import of shtab, for its version, takes a
# tenth of a second.
_TOOLS = Path(__file__).resolve().parents[2] / "locks" / "builder.txt"
# A separate process imports the package, because it may be of another commit than this checkout.
_PROGRAM = """
import json, sys
sys.path.insert(0, sys.argv[1])
import shtab
from rosetta import cli
from rosetta.commands import completion
parser = cli.build_parser()
texts = {shell: completion.make(shell, parser, shtab.complete) for shell in sys.argv[2:]}
modules = [module.__file__ for module in list(sys.modules.values()) if hasattr(module, "__file__")]
json.dump({"texts": texts, "modules": [file for file in modules if file]}, sys.stdout)
"""


def hash_tools() -> str:
    """Return a hash of the tools that make the files."""
    return hashlib.sha256(_TOOLS.read_bytes()).hexdigest()


def has_completion(package: Path) -> bool:
    """Return whether a package rosetta can describe its completion; older commits cannot.

    Args:
      package: The folder `rosetta`.
    """
    return (package / "commands" / "completion.py").is_file()


def make_files(cache: Cache, package: Path, hashes: Mapping[str, str]) -> dict[str, str]:
    """Return the completion file of each shell for the commands of rosetta.

    The parsers import only a part of the package. The cache notes which modules that were. While
    these modules, the names of all files, and the files that are not modules stay the same, the
    completion files stay the same too.

    Args:
        cache: The builder's cache.
        package: The folder `rosetta`.
        hashes: The sha256 of each of its files, by path.
    """
    question = {"package": str(package), "python": sys.version, "tools": hash_tools()}
    key = stage_key("completion", {**question, "program": _PROGRAM})
    stamp = cache.path("stamps", f"completion-{key}.json")
    known = read_stamp(stamp)
    if known and known["inputs"] == _select_inputs(hashes, known["modules"]):
        texts: dict[str, str] = known["texts"]
        return texts
    texts, modules = _run_program(package)
    write_stamp(
        stamp, {"inputs": _select_inputs(hashes, modules), "modules": modules, "texts": texts}
    )
    return texts


def _select_inputs(hashes: Mapping[str, str], modules: Collection[str]) -> dict[str, str]:
    """Return the name of each file, with the hash of each one that the completion depends on."""
    return {
        name: "" if name.endswith(".py") and name not in modules else digest
        for name, digest in hashes.items()
    }


def _run_program(package: Path) -> tuple[dict[str, str], list[str]]:
    """Return the completion files, and the modules of the package that the parsers import."""
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
    document = json.loads(done.stdout)
    texts: dict[str, str] = document["texts"]
    modules = [
        Path(file).relative_to(package).as_posix()
        for file in document["modules"]
        if Path(file).is_relative_to(package)
    ]
    return texts, sorted(modules)


def write_files(cache: Cache, package: Path, hashes: Mapping[str, str], into: Path) -> None:
    """Write the completion files below a folder `share`.

    Args:
        cache: The builder's cache.
        package: The folder `rosetta`.
        hashes: The sha256 of each of its files, by path.
        into: The folder.
    """
    for shell, text in make_files(cache, package, hashes).items():
        path = into / PLACES[shell]
        path.parent.mkdir(parents=True)
        path.write_text(text, encoding="utf-8")
