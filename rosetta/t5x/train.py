"""The start of T5X's programs: `python -m rosetta.t5x.train`, with eval or infer as first argument.

T5X's programs run unchanged. An error that the user can correct is printed as one line, and ends
the process with status 2.
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
    "use more microbatches (NUM_MICROBATCHES), more rematerialisation (REMAT=full), or a smaller "
    "batch (BSIZE_PER_GPU)"
)


def main(module: str = "t5x.train") -> None:
    """Run one of T5X's programs as if it had been started directly.

    Args:
      module: the program; its arguments are those of this process.
    """
    secrets.redact_standard_streams()
    sys.argv[0] = module
    if module == "t5x.train":
        stop_signals.install_handlers()
    tensorflow_import.import_tensorflow()
    _install_checks()
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit:  # absl also ends a successful program in this way
        # T5X does not close its checkpoint manager if no step is left to do.
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
    """Have T5X's program parse its command line and its gin files with checks."""
    from absl import app, flags

    from rosetta.t5x import gin_configuration

    gin_configuration.install()
    app.parse_flags_with_usage = absl_verbosity.make_flag_parser(_parse_flags, flags.FLAGS)


def _parse_flags(words: list[str]) -> list[str]:
    """Parse absl's flags, and return the arguments that are not flags.

    Raises:
      UserError: a flag does not exist, or an argument is not a flag.
    """
    from absl import flags

    try:
        rest: list[str] = flags.FLAGS(words)
    except flags.Error as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            reason, "command line", "give --gin_file=FILE and --gin.NAME=VALUE", kind=INVALID
        ) from error
    if rest[1:]:
        raise UserError(
            f"{rest[1]!r} is not an option",
            "command line",
            "give --gin_file=FILE and --gin.NAME=VALUE",
            kind=INVALID,
        )
    return rest


def _exit_on_data_error() -> None:
    """End the process with one line if reading the data of evaluation raised a UserError.

    TensorFlow, which runs the reading, passes on only the text of the error.
    """
    data = sys.modules.get("rosetta.t5x.evaluation_data")
    if data is not None and data.raised_errors:
        trainer_exit.exit_with_error(data.raised_errors[0])


def _exit_on_system_error(error: Exception) -> None:
    """End the process with one line if the operating system raised the error before the first step.

    ROSETTA_DEBUG=1 prints the traceback as well.
    """
    line = system_errors.explain_system_error(error)
    if supervision.get_supervisor() is not None or line is None:
        return
    if exit_status.wants_traceback():
        traceback.print_exc()
    trainer_exit.exit_with_error(line)


def _exit_on_configuration_error(error: Exception) -> None:
    """End the process with one line if the error was raised while gin built the run.

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
    """Wait for the checkpoints that are being saved, and return their folder."""
    from rosetta.t5x import checkpoint_manager

    return checkpoint_manager.finish_saves()


if __name__ == "__main__":
    PROGRAMS = ("train", "eval", "infer")
    main(f"t5x.{sys.argv.pop(1)}" if sys.argv[1:2] and sys.argv[1] in PROGRAMS else "t5x.train")
