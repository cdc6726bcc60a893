"""Run one of T5X's programs: `python -m rosetta.t5x.train [train|eval|infer] ARGUMENTS`.

The source of T5X's program runs as it is. Around it, this module handles stop signals, parses the
command line and the gin files with one-line errors, and hides secrets in the output. An error that
the user can correct is printed as one line, and ends the process with status 2. A run that was
stopped or lost a process ends with the status that `rosetta.health.supervision` chooses.
"""

from __future__ import annotations

import runpy
import sys
import traceback

from rosetta.core import exit_status, secrets, tensorflow_import
from rosetta.core.errors import INVALID, UserError
from rosetta.health import (
    absl_verbosity,
    phases,
    run_results,
    stop_signals,
    supervision,
    system_errors,
    terminal_output,
    trainer_exit,
)

_PROGRAMS = ("train", "eval", "infer")
_TRAINING_MEMORY_REMEDY = (
    "use more microbatches (NUM_MICROBATCHES), more rematerialisation (REMAT=full), or a smaller "
    "batch (BSIZE_PER_GPU)"
)
_READING_MEMORY_REMEDY = "use a smaller batch (BSIZE)"  # of evaluation and inference


def main(module: str = "t5x.train") -> None:
    """Run one of T5X's programs as `python -m MODULE` would, with this process's arguments.

    Args:
      module: the module of the program.
    """
    secrets.redact_standard_streams()
    terminal_output.connect_terminal()
    phases.begin_phase("loading JAX, TensorFlow and T5X")
    sys.argv[0] = module
    memory_remedy = _READING_MEMORY_REMEDY
    if module == "t5x.train":
        memory_remedy = _TRAINING_MEMORY_REMEDY
        stop_signals.install_handlers()
    tensorflow_import.import_tensorflow()
    _install_parsers()
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        run_results.write_results()
    except SystemExit:  # absl also ends a successful program in this way
        # T5X does not close its checkpoint manager if no step is left to do. A program that has not
        # imported the manager has no saves to finish.
        if "rosetta.t5x.checkpoint_manager" in sys.modules:
            _finish_saves()
        run_results.write_results()
        raise
    except UserError as error:
        trainer_exit.exit_with_error(error)
    except Exception as error:
        # Each function ends the process if the error is of its kind, and returns otherwise.
        supervision.end_if_stopped(_finish_saves)
        _end_if_data_failed()
        supervision.end_if_process_lost(error)
        supervision.end_if_step_failed(error, memory_remedy, _finish_saves)
        _end_if_system_failed(error)
        _end_if_configuration_wrong(error)
        raise


def _install_parsers() -> None:
    """Have T5X's program parse its command line and its gin files with rosetta's parsers.

    They raise a UserError with one line where absl and gin would print a traceback.
    """
    from absl import app, flags

    from rosetta.t5x import gin_configuration

    gin_configuration.install()
    app.parse_flags_with_usage = absl_verbosity.make_flag_parser(_parse_flags, flags.FLAGS)


def _parse_flags(argv: list[str]) -> list[str]:
    """Parse the command line into absl's flags.

    Args:
      argv: the name of the program and its arguments.

    Returns:
      The name of the program, as the only argument that is not a flag.

    Raises:
      UserError: a flag does not exist, or an argument is not a flag.
    """
    from absl import flags

    try:
        remaining: list[str] = flags.FLAGS(argv)
    except flags.Error as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            reason, "command line", "give --gin_file=FILE and --gin.NAME=VALUE", kind=INVALID
        ) from error
    if len(remaining) > 1:
        raise UserError(
            f"{remaining[1]!r} is not an option",
            "command line",
            "give --gin_file=FILE and --gin.NAME=VALUE",
            kind=INVALID,
        )
    return remaining


def _end_if_data_failed() -> None:
    """End the process with one line if a UserError was raised while evaluation read its data.

    TensorFlow calls the code that reads the data, and passes on only the text of an error. So
    evaluation_data keeps the errors.
    """
    evaluation_data = sys.modules.get("rosetta.t5x.evaluation_data")
    if evaluation_data is not None and evaluation_data.raised_errors:
        trainer_exit.exit_with_error(evaluation_data.raised_errors[0])


def _end_if_system_failed(error: Exception) -> None:
    """End the process with one line if the operating system raised the error before the first step.

    ROSETTA_DEBUG=1 prints the traceback as well.
    """
    user_error = system_errors.explain_system_error(error)
    if supervision.get_supervisor() is not None or user_error is None:
        return
    if exit_status.wants_traceback():
        traceback.print_exc()
    trainer_exit.exit_with_error(user_error)


def _end_if_configuration_wrong(error: Exception) -> None:
    """End the process with one line if the error comes from the gin configuration.

    ROSETTA_DEBUG=1 prints the traceback as well.
    """
    from rosetta.t5x import gin_configuration

    if supervision.get_supervisor() is not None:
        return
    if not gin_configuration.is_configuration_error(error):
        return
    if exit_status.wants_traceback():
        traceback.print_exc()
    trainer_exit.exit_with_error(gin_configuration.explain_error(error))


def _finish_saves() -> str | None:
    """Wait for the checkpoints that are being saved, and return their folder."""
    from rosetta.t5x import checkpoint_manager

    return checkpoint_manager.finish_saves()


def _take_program_argument() -> str:
    """Remove the name of the program from the command line, and return it; "train" by default."""
    if len(sys.argv) > 1 and sys.argv[1] in _PROGRAMS:
        return sys.argv.pop(1)
    return "train"


if __name__ == "__main__":
    main(f"t5x.{_take_program_argument()}")
