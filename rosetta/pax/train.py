"""The trainer of Pax: Paxml's program with rosetta's checks, reports and supervision.

`python -m rosetta.pax.train` takes the options of paxml.main and one more: --evaluate_from, the
folder of checkpoints that --mode=eval reads. A mistake that the user can correct ends the process
with one line and status 2.
"""

from __future__ import annotations

import functools
import os
import sys
import traceback
from dataclasses import dataclass
from typing import Any

from rosetta.core import exit_status, log, run_folders, secrets, tensorflow_import
from rosetta.core.errors import INVALID, UserError
from rosetta.health import (
    absl_verbosity,
    checkpoint_files,
    phases,
    shared_run_lock,
    stop_signals,
    supervision,
    terminal_output,
    trainer_exit,
)
from rosetta.pax.run import model_record, preflight, stored_checkpoint

# The errors of Fiddle and Python about a wrong --fdl_config or --fdl.NAME=VALUE.
_EXPERIMENT_ERRORS = (
    ValueError,
    TypeError,
    AttributeError,
    ImportError,
    NameError,
    SyntaxError,
    KeyError,
)

_MEMORY_ADVICE = (
    "use more microbatches (--fdl.NUM_MICROBATCHES=N), rematerialise more activations "
    "(--fdl.CHECKPOINT_POLICY), or use a smaller batch (PERCORE_BATCH_SIZE)"
)


def main() -> None:
    """Run paxml.main with the command line of this process."""
    secrets.redact_standard_streams()
    terminal_output.connect_terminal()
    phases.begin_phase("loading JAX, TensorFlow and Paxml")
    # The flags are not parsed yet, and a signal may come while the modules are imported. Only a
    # run that trains obeys the signals to stop.
    if "--mode=eval" not in sys.argv:
        stop_signals.install_handlers()
    tensorflow_import.import_tensorflow()
    import jax
    from absl import app, flags
    from etils import epath  # type: ignore[import-not-found]
    from fiddle import absl_flags
    from paxml import main as paxml_main

    # paxml_main.main calls `run` after it has parsed the flags and built the experiment.
    checked_run = _CheckedRun(paxml_main, flags.FLAGS)
    paxml_main.run = checked_run.run
    epath.DEFINE_path(
        "evaluate_from",
        None,
        "with --mode=eval: the folder of checkpoints to evaluate, if it is another run's",
    )
    flags.mark_flag_as_required("job_log_dir")
    jax.config.config_with_absl()
    try:
        parse = absl_verbosity.make_flag_parser(absl_flags.flags_parser, flags.FLAGS)
        app.run(paxml_main.main, flags_parser=parse)
    except UserError as error:
        trainer_exit.exit_with_error(error)
    except SystemExit as request:
        if isinstance(request.__cause__, UserError):
            # The experiment's own checks have printed the error.
            trainer_exit.exit_with_error(request.__cause__, printed=True)
        if request.code in (None, 0):
            supervision.end_if_stopped(_finish_saves)
        raise
    except Exception as error:
        _end_if_understood(error, checked_run.initial_checkpoints)
        raise


@dataclass(frozen=True)
class _InitialCheckpoints:
    """The checkpoints whose newest one a run restores when it starts.

    Attributes:
      folder: The folder of the checkpoints.
      trains: Whether the run trains, and not evaluates.
    """

    folder: str
    trains: bool


class _CheckedRun:
    """A replacement of Paxml's `run` that checks the run first, and uses rosetta's programs.

    A program, in Pax, is the code of one task of a run, such as training or evaluation.

    Attributes:
      initial_checkpoints: The checkpoints that the run restores from; None before the run starts.
    """

    def __init__(self, paxml_main: Any, options: Any) -> None:
        # Like Paxml's own modules, these are imported before the flags are parsed.
        from rosetta.pax import experiment, restore

        self._experiment_class = experiment.Experiment
        self._check_first_checkpoint = restore.check_first_checkpoint
        self._paxml_main, self._options = paxml_main, options
        self._run = paxml_main.run
        self.initial_checkpoints: _InitialCheckpoints | None = None

    def run(self, experiment_config: Any, **arguments: Any) -> Any:
        """Check the run and its checkpoints, then run Paxml.

        Args:
          experiment_config: The experiment.
          **arguments: The other arguments of Paxml's `run`.

        Raises:
          UserError: Another run uses the folder, or the checkpoint to restore is damaged or
            belongs to another model.
        """
        import jax

        options = self._options
        trains = options.mode == "train"
        run_folder = str(options.job_log_dir)
        if trains:
            shared_run_lock.acquire_shared_lock(
                run_folder, "LOG_DIR", os.environ, jax.process_index(), jax.process_count()
            )
        folder = str(options.evaluate_from or f"{run_folder}/{preflight.CHECKPOINTS}")
        self.initial_checkpoints = _InitialCheckpoints(folder, trains)
        _refuse_damaged(self.initial_checkpoints)
        newest = stored_checkpoint.find_newest(folder)
        if newest and trains and jax.process_index() == 0:
            steps = run_folders.parse_checkpoint_step(newest)
            log.info(f"goes on from {newest}: {steps:,} steps are done")
        if isinstance(experiment_config, self._experiment_class):
            experiment_config.check_resume(run_folder)
            self._check_first_checkpoint(experiment_config, folder, trains=trains)
            if trains and jax.process_index() == 0 and options.enable_checkpoint_saving:
                model_record.write_record(run_folder, experiment_config.describe_model())
        _install_programs(experiment_config, self._paxml_main, options)
        return self._run(experiment_config=experiment_config, **arguments)


def _end_if_understood(error: Exception, initial_checkpoints: _InitialCheckpoints | None) -> None:
    """End the process with one line if the error has a cause that the user can act on; else return.

    Args:
      error: The error that ended Paxml.
      initial_checkpoints: The checkpoints that the run restores from; None if Paxml failed before
        the run started.
    """
    supervision.end_if_stopped(_finish_saves)
    supervision.end_if_process_lost(error)
    supervision.end_if_step_failed(error, _MEMORY_ADVICE, _finish_saves)
    if initial_checkpoints:
        # Until a step is done, the cause may be a damaged array, which only a full read finds.
        if not supervision.has_trained():
            _end_if_damaged(initial_checkpoints)
        return
    # Paxml failed while it built the experiment from the flags.
    if not isinstance(error, _EXPERIMENT_ERRORS):
        return
    if exit_status.wants_traceback():
        traceback.print_exception(error)
    message_lines = [line for line in str(error).splitlines() if line]
    fiddle_flags = [flag for flag in sys.argv[1:] if flag.startswith("--fdl")]
    trainer_exit.exit_with_error(
        UserError(
            message_lines[0] if message_lines else type(error).__name__,
            " ".join(fiddle_flags),
            "correct the experiment's name or the hyper-parameter",
            kind=INVALID,
        )
    )


def _finish_saves() -> str | None:
    """Wait for the save in progress; return what checkpoint_saving.finish_saves returns."""
    from rosetta.pax import checkpoint_saving

    return checkpoint_saving.finish_saves()


def _refuse_damaged(checkpoints: _InitialCheckpoints, *, read_values: bool = False) -> None:
    """Raise UserError if a file of the newest checkpoint is damaged.

    Args:
      checkpoints: The folder of the checkpoints.
      read_values: Whether to decode the arrays too, which takes as long as restoring them.
    """
    newest = stored_checkpoint.find_newest(checkpoints.folder)
    damage = checkpoint_files.find_damage(newest, read_values=read_values) if newest else None
    if newest and damage:
        raise checkpoint_files.explain_damage(newest, damage, resumes=checkpoints.trains)


def _end_if_damaged(checkpoints: _InitialCheckpoints) -> None:
    """End the process with one line if the newest checkpoint is damaged; else return."""
    try:
        _refuse_damaged(checkpoints, read_values=True)
    except UserError as error:
        trainer_exit.exit_with_error(error)


def _install_programs(experiment: Any, paxml_main: Any, options: Any) -> None:
    """Replace Paxml's programs in an experiment by rosetta's, and apply --evaluate_from.

    Programs that the experiment defines itself are kept. Only rosetta's program for training obeys
    the signals to stop, so a run without it gets the default handlers back.

    Args:
      experiment: The experiment; its methods are replaced in place.
      paxml_main: The module paxml.main.
      options: The parsed options of Paxml.
    """
    from paxml import base_experiment

    from rosetta.pax import checkpoint_saving, programs

    base = base_experiment.BaseExperiment
    stop_signals.restore_default_handlers()
    if type(experiment).train_programs is base.train_programs:
        experiment.train_programs = lambda: [programs.TrainProgram()]
        if options.mode == "train":
            stop_signals.install_handlers()
    if type(experiment).executor is base.executor and options.enable_checkpoint_saving:
        experiment.executor = checkpoint_saving.Executor
    if type(experiment).eval_programs is base.eval_programs:
        experiment.eval_programs = lambda: [
            programs.EvalProgram(dataset) for dataset in experiment.eval_datasets()
        ]
    if options.evaluate_from:
        paxml_main.eval_lib.evaluate = functools.partial(
            paxml_main.eval_lib.evaluate, restore_checkpoint_dir=options.evaluate_from
        )


if __name__ == "__main__":
    main()
