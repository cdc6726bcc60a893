"""T5X's programs as they are (train, or eval or infer as the first word), started by us: what a user can mend is one line and status 2 there as well."""

from __future__ import annotations

import contextlib
import os
import runpy
import sys

from rosetta.errors import UserError
from rosetta.t5x import progress, startup


def main(module: str = "t5x.train") -> None:
    """Run one of T5X's programs with our command line, as if it had been started itself."""
    sys.argv[0] = module
    startup.install()
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except UserError as error:
        # What gin raises is a copy with the place in the gin file on further lines, hence the three fields rather than its text.
        # Threads of TensorStore and of data loading may still run: they must not turn this into a hang or a crash.
        line = f"rosetta: {error.where}: {error.what}; {error.do}"
        with contextlib.suppress(OSError, ValueError):  # whoever read it may have gone
            sys.stdout.flush()
        print(line, file=sys.stderr, flush=True)
        progress.tell(line)
        os._exit(2)


if __name__ == "__main__":
    PROGRAMS = ("train", "eval", "infer")
    main(f"t5x.{sys.argv.pop(1)}" if sys.argv[1:2] and sys.argv[1] in PROGRAMS else "t5x.train")
