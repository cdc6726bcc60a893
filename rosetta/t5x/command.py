"""`rosetta t5x`: training, evaluation and inference by the settings of the scripts."""

from __future__ import annotations

import os
import re
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rosetta.errors import UserError

if TYPE_CHECKING:
    import argparse

SCRIPTS = {"pretrain": "multiprocess_pretrain_pile", "finetune": "multiprocess_ft_frompile"}


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command to a parser's subcommands."""
    about = "T5_SIZE=small, DATA=text:FILES, ...: the variables of the scripts (docs/t5x.md), which the environment gives otherwise"
    entry = commands.add_parser("t5x", parents=[common], help="pretrain, finetune, evaluate a T5 or infer from one")
    entry.add_argument("what", choices=(*SCRIPTS, "eval", "infer"))
    entry.add_argument("settings", nargs="*", metavar="NAME=VALUE", help=about)
    entry.add_argument("--dry-run", action="store_true", help="check everything, print what would run, run nothing")
    entry.set_defaults(flags_first=True)


def _t5x(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Become the trainer; with --dry-run, say what it would be."""
    from rosetta import lock  # noqa: PLC0415 (each command loads what it needs)
    from rosetta.t5x import launch  # noqa: PLC0415

    environment = dict(os.environ)
    for word in args.settings:
        name, equals, value = word.partition("=")
        if not equals or not re.fullmatch(r"[A-Z][A-Z0-9_]*", name):
            raise UserError(f"{word!r} is no setting", "rosetta t5x", "write NAME=VALUE, as in T5_SIZE=small")
        environment[name] = value
    door = lock.path().parent / "bin" / "python"
    if door.is_file():
        environment.setdefault("PYTHON", str(door))  # it also finds what pip put beside a read-only environment
    wanted = launch.command(SCRIPTS[args.what], [], environment, _tree()) if args.what in SCRIPTS else launch.reading(args.what, environment)
    if not args.dry_run:
        launch.execute(wanted)
    shown = launch.shown(wanted)
    return shown, "\n".join([*wanted.lines, *wanted.argv])


def _tree() -> str:
    """The folder that the package t5x lies in."""
    found = find_spec("t5x")
    if found is None or not found.submodule_search_locations:
        raise UserError("this environment has no t5x", "rosetta t5x", "use an image or environment of the distribution t5x")
    return str(Path(next(iter(found.submodule_search_locations))).parent)


RUN = {"t5x": _t5x}
