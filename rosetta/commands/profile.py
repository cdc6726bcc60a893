"""The command `rosetta profile`: run a command under Nsight Systems."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from typing import Any

from rosetta.core import log


def add_parsers(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command to a parser's subcommands."""
    profile = commands.add_parser("profile")
    log.add_level_option(profile)
    profile.add_argument("-o", dest="output", metavar="FILE", help="the file for the profile")
    profile.add_argument(
        "words", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="the command to run"
    )
    del common  # --json is missing, because the profiler writes to stdout


def run(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Replace this process by the profiler, which then gets signals and sets the exit status."""
    from rosetta.launch import nsight_systems

    argv = nsight_systems.make_profile_command(args.words[args.words[:1] == ["--"] :], args.output)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sys.stdout.flush()
    os.execv(argv[0], argv)  # noqa: S606


RUN = {"profile": run}
