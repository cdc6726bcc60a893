"""T5X's programs as they are (train, or eval or infer as the first word), started by us: what a
user can mend is one line and status 2 there as well.
"""

from __future__ import annotations

import runpy
import sys
import traceback

from rosetta.core import exit_status, secrets, tensorflow_import
from rosetta.core.errors import INVALID, UserError
from rosetta.health import (
    absl_verbosity,
    stop_signals,
    supervision,
    system_errors,
    trainer_exit,
)

_MEMORY_REMEDY = (
    "take more microbatches (NUM_MICROBATCHES), compute more of it again (REMAT=full), or take a "
    "smaller batch (BSIZE_PER_GPU)"
)


def main(module: str = "t5x.train") -> None:
    """Run one of T5X's programs with our command line, as if it had been started itself."""
    secrets.redact_standard_streams()
    sys.argv[0] = module
    if module == "t5x.train":
        stop_signals.install_handlers()
    tensorflow_import.import_tensorflow()
    _install_checks()
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit:  # absl's way to end a program, also a successful one
        # T5X leaves its checkpoint manager open where no step is left to do.
        if "rosetta.t5x.checkpoint_manager" in sys.modules:
            _finish_saves()
        raise
    except UserError as error:
        trainer_exit.exit_with_error(error)
    except Exception as error:
        supervision.end_if_stopped(_finish_saves)
        _exit_on_data_error()
        supervision.end_if_process_lost(error)
        supervision.end_if_step_failed(
            error,
            _MEMORY_REMEDY if module == "t5x.train" else "take a smaller batch: BSIZE",
            _finish_saves,
        )
        _exit_on_system_error(error)
        _exit_on_configuration_error(error)
        raise


def _install_checks() -> None:
    """Put our checks of the command line and of gin in front of the program's own."""
    from absl import app, flags

    from rosetta.t5x import gin_configuration

    gin_configuration.install()
    app.parse_flags_with_usage = absl_verbosity.make_flag_parser(_parse_flags, flags.FLAGS)


def _parse_flags(words: list[str]) -> list[str]:
    """Parse absl's flags.

    Raises:
      UserError: there is no such flag, or a word that is not a flag.
    """
    from absl import flags

    try:
        rest: list[str] = flags.FLAGS(words)
    except flags.Error as error:
        what = str(error).splitlines()[0]
        raise UserError(
            what, "command line", "give --gin_file=FILE and --gin.NAME=VALUE", kind=INVALID
        ) from error
    if rest[1:]:
        what = f"{rest[1]!r} is not an option"
        raise UserError(
            what, "command line", "give --gin_file=FILE and --gin.NAME=VALUE", kind=INVALID
        )
    return rest


def _exit_on_data_error() -> None:
    """End the process with one line if evaluation's data raised an error for the user; return
    otherwise.
    """
    data = sys.modules.get("rosetta.t5x.evaluation_data")
    if data is not None and data.errors:
        trainer_exit.exit_with_error(data.errors[0])


def _exit_on_system_error(error: Exception) -> None:
    """End the process with one line if the operating system raised the error before the first step;
    return otherwise.

    ROSETTA_DEBUG=1 prints the traceback as well.
    """
    line = system_errors.explain_system_error(error)
    if supervision.get_supervisor() is not None or line is None:
        return
    if exit_status.wants_traceback():
        traceback.print_exc()
    trainer_exit.exit_with_error(line)


def _exit_on_configuration_error(error: Exception) -> None:
    """End the process with one line if the error was raised while gin built the run; return
    otherwise.

    ROSETTA_DEBUG=1 prints the traceback as well.
    """
    from rosetta.t5x import gin_configuration

    if supervision.get_supervisor() is not None or not gin_configuration.is_configuration_error(
        error
    ):
        return
    if exit_status.wants_traceback():
        traceback.print_exc()
    trainer_exit.exit_with_error(gin_configuration.explain_error(error))


def _finish_saves() -> str | None:
    from rosetta.t5x import checkpoint_manager

    return checkpoint_manager.finish_saves()


if __name__ == "__main__":
    PROGRAMS = ("train", "eval", "infer")
    main(f"t5x.{sys.argv.pop(1)}" if sys.argv[1:2] and sys.argv[1] in PROGRAMS else "t5x.train")
