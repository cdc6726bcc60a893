"""Paxml's program as it is, started by us: with progress said, and what a user can mend in one line
with status 2.
"""

from __future__ import annotations

import functools
import os
import sys
import traceback
from typing import Any

from rosetta.core import exit_status, log, run_folders, secrets, tensorflow_import
from rosetta.core.errors import INVALID, UserError
from rosetta.health import (
    absl_verbosity,
    checkpoint_files,
    shared_run_lock,
    stop_signals,
    supervision,
    trainer_exit,
)
from rosetta.pax.run import stored_checkpoint

# What Fiddle and Python raise over a --fdl_config or --fdl.NAME=VALUE that is wrong.
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
    "take more microbatches (--fdl.NUM_MICROBATCHES=N), compute more of it again "
    "(--fdl.CHECKPOINT_POLICY), or take a smaller batch (PERCORE_BATCH_SIZE)"
)


def main() -> None:
    """Run paxml.main with our command line, and one option more: --evaluate_from, the folder of
    checkpoints that --mode=eval reads.
    """
    secrets.redact_standard_streams()
    if "--mode=eval" not in sys.argv:
        stop_signals.install_handlers()
    tensorflow_import.import_tensorflow()
    import jax
    from absl import app, flags
    from etils import epath  # type: ignore[import-not-found]
    from fiddle import absl_flags
    from paxml import main as program

    from rosetta.pax import experiment, restore
    from rosetta.pax.run import preflight

    epath.DEFINE_path(
        "evaluate_from",
        None,
        "with --mode=eval: the folder of checkpoints to evaluate, when it is another run's",
    )
    flags.mark_flag_as_required("job_log_dir")
    jax.config.config_with_absl()
    begun = list[
        tuple[str, bool]
    ]()  # the folder of checkpoints that it reads first, and whether it trains
    run = program.run

    def prepared(experiment_config: Any, **more: Any) -> Any:
        read_from = str(
            flags.FLAGS.evaluate_from or f"{flags.FLAGS.job_log_dir}/{preflight.CHECKPOINTS}"
        )
        if flags.FLAGS.mode == "train":
            shared_run_lock.acquire_for_run(
                str(flags.FLAGS.job_log_dir),
                "LOG_DIR",
                os.environ,
                jax.process_index(),
                jax.process_count(),
            )
        begun.append((read_from, flags.FLAGS.mode == "train"))
        _refuse_damaged(*begun[0])
        own = stored_checkpoint.find_newest(read_from)
        if own and flags.FLAGS.mode == "train" and jax.process_index() == 0:
            line = f"goes on from {own}: {run_folders.parse_checkpoint_step(own):,} steps are done"
            log.info(line, terminal=True)
        if isinstance(experiment_config, experiment.Experiment):
            folder = str(flags.FLAGS.job_log_dir)
            experiment_config.check_resume(folder)
            restore.check_first_checkpoint(
                experiment_config, read_from, trains=flags.FLAGS.mode == "train"
            )
        _install_programs(experiment_config, program, flags.FLAGS)
        return run(experiment_config=experiment_config, **more)

    program.run = prepared
    try:
        parse = absl_verbosity.make_flag_parser(absl_flags.flags_parser, flags.FLAGS)
        app.run(program.main, flags_parser=parse)
    except UserError as error:
        trainer_exit.exit_with_error(error)
    except SystemExit as ended:
        if isinstance(ended.__cause__, UserError):  # an experiment's own checks have printed it
            trainer_exit.exit_with_error(ended.__cause__, printed=True)
        if ended.code in (None, 0):
            supervision.end_if_stopped(_finish_saves)
        raise
    except Exception as error:
        supervision.end_if_stopped(_finish_saves)
        supervision.end_if_process_lost(error)
        supervision.end_if_step_failed(error, _MEMORY_ADVICE, _finish_saves)
        if begun and not supervision.has_trained():
            _end_if_damaged(*begun[0])
        if begun or not isinstance(error, _EXPERIMENT_ERRORS):
            raise
        if exit_status.wants_traceback():
            traceback.print_exc()
        words = [word for word in sys.argv[1:] if word.startswith("--fdl")]
        trainer_exit.exit_with_error(
            UserError(
                next(filter(None, str(error).splitlines()), type(error).__name__),
                " ".join(words),
                "mend the experiment's name or the hyper-parameter",
                kind=INVALID,
            )
        )


def _finish_saves() -> str | None:
    from rosetta.pax import checkpoint_saving

    return checkpoint_saving.finish_saves()


def _refuse_damaged(folder: str, resumes: bool, *, read_values: bool = False) -> None:
    """Raise UserError where a file of the newest checkpoint in a folder is damaged.

    Args:
      folder: of checkpoints.
      resumes: whether a run was to go on from it.
      read_values: decode its arrays as well, which takes as long as restoring it.
    """
    newest = stored_checkpoint.find_newest(folder)
    damage = checkpoint_files.find_damage(newest, read_values=read_values) if newest else None
    if newest and damage:
        raise checkpoint_files.explain_damage(newest, damage, resumes=resumes)


def _end_if_damaged(folder: str, resumes: bool) -> None:
    """End the process in one line where the checkpoint that it reads first is damaged; return where
    it is whole.
    """
    try:
        _refuse_damaged(folder, resumes, read_values=True)
    except UserError as error:
        trainer_exit.exit_with_error(error)


def _install_programs(experiment: Any, program: Any, options: Any) -> None:
    """Put our programs where the experiment has Paxml's own, and say from where an evaluation
    reads. Ours alone heed signals.
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
            programs.EvalProgram(each) for each in experiment.eval_datasets()
        ]
    if options.evaluate_from:
        program.eval_lib.evaluate = functools.partial(
            program.eval_lib.evaluate, restore_checkpoint_dir=options.evaluate_from
        )


if __name__ == "__main__":
    main()
