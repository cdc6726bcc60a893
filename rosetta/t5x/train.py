"""T5X's programs as they are (train, or eval or infer as the first word), started by us: what a user can mend is one line and status 2 there as well."""

from __future__ import annotations

import runpy
import sys

from rosetta.errors import UserError
from rosetta.health import run, stop
from rosetta.launch import end, startup


def main(module: str = "t5x.train") -> None:
    """Run one of T5X's programs with our command line, as if it had been started itself."""
    sys.argv[0] = module
    if module == "t5x.train":
        stop.take()
    startup.install()
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except UserError as error:
        end.now(error)
    except Exception as error:
        run.over(_finish)
        run.blame(error)
        raise


def _finish() -> bool:
    from rosetta.t5x import manager  # noqa: PLC0415 (T5X)

    return manager.finish()


if __name__ == "__main__":
    PROGRAMS = ("train", "eval", "infer")
    main(f"t5x.{sys.argv.pop(1)}" if sys.argv[1:2] and sys.argv[1] in PROGRAMS else "t5x.train")
