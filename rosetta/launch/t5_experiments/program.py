"""The programs run_t5_pretraining.py, run_t5_finetuning.py and run_bert_pretraining.py, and
horovodrun in front of them.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rosetta.core import atomic_files, exit_status, home_folder, log, secrets
from rosetta.core.errors import INVALID, MISSING, UNSUPPORTED, UserError
from rosetta.core.value_parsing import parse_path, parse_whole_number
from rosetta.core.variables import misspellings, readers, setting_values
from rosetta.launch import execution, scripts, t5x_trainer
from rosetta.launch.t5_experiments import options, translation

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rosetta.launch.t5_experiments.translation import Translation

HOROVODRUN = "horovodrun"
_WIDTH = 52  # of the table's first column, if no option is longer
# Script -> the script of NVIDIA's images whose variables it sets, and the command for both.
_TRAINING_SCRIPTS = {
    options.PRETRAINING: (readers.SINGLE_NODE_PRETRAIN, readers.T5X_PRETRAIN),
    options.FINETUNING: (readers.SINGLE_NODE_FINETUNE, readers.T5X_FINETUNE),
    options.BERT: (readers.SINGLE_NODE_PRETRAIN, readers.T5X_PRETRAIN),
}
_SUMMARIES = {
    options.PRETRAINING: "Pretrain a T5 with the options of t5-experiments.",
    options.FINETUNING: (
        "Finetune a T5 on JSON lines with `inputs` and `targets`, with the options of "
        "t5-experiments."
    ),
    options.BERT: "Pretrain a BERT with the options of t5-experiments.",
}
# Options of horovodrun that choose how PyTorch's processes talk to each other. One process drives
# all GPUs here.
_CONTROLLERS = ("--gloo", "--mpi", "--use-gloo", "--use-mpi", "--verbose", "--disable-cache")
_PYTHONS = ("python", "python3")


def main(argv: Sequence[str]) -> int:
    """Run a script.

    Args:
        argv: The script's name, the tree of T5X that it lies in, and its words.

    Returns:
        An exit status, if the trainer did not take the place of this process.
    """
    script, script_tree, *words = argv
    return _report_errors(script, words, lambda: _run_script(script, script_tree, words))


def _report_errors(name: str, words: Sequence[str], run: Callable[[], int]) -> int:
    """Run a program; report an error in one line."""
    with secrets.redacted_output(words), log.use_level(None):
        try:
            return run()
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 (every error becomes one line and an exit status)
            code, failure = exit_status.explain_failure(error, "settings")
            print(f"{_name_program(name)}: {failure}", file=sys.stderr)
            return code


def _name_program(name: str) -> str:
    """Return the file name of a program."""
    return name if name == HOROVODRUN else f"{name}.py"


def _run_script(script: str, script_tree: str, words: Sequence[str]) -> int:
    """Show the help, print what would run, or run it."""
    if not set(scripts.HELP_OPTIONS).isdisjoint(words):
        exit_status.print_result(format_help(script))
        return exit_status.SUCCESS
    setting_values.check_settings(os.environ, readers.ROSETTA)
    training_script, command_name = _TRAINING_SCRIPTS[script]
    misspellings.warn_of_unknown_variables(os.environ, f"{script}.py", command_name)
    given = options.parse_options(script, [word for word in words if word != scripts.DRY_RUN])
    if "working_dir" in given:
        _enter_folder(given["working_dir"])
    translated = translation.translate(script, given, os.environ)
    variables = {"ENABLE_FP8": "0", **translated.variables}
    if "ENABLE_FP8" in os.environ:
        del variables["ENABLE_FP8"]
    variables["ROSETTA_GIN"] = str(_write_gin_file(script, translated.gin))
    try:
        command = t5x_trainer.make_command(
            training_script, [], {**os.environ, **variables}, script_tree
        )
    except UserError as error:
        if option := translated.sources.get(error.where.partition("=")[0]):
            error.where = f"--{option}: {error.where}"
        raise
    _show_translation(script, translated, variables, command_name)
    if scripts.DRY_RUN not in words:
        execution.run_in_order([command])
    document = {
        "options": [{"option": option, "became": text} for option, text in translated.rows],
        "variables": variables,
        "gin": translated.gin.splitlines(),
        **execution.convert_to_json(command),
    }
    exit_status.print_result(json.dumps(document, indent=2))
    return exit_status.SUCCESS


def _enter_folder(folder: str) -> None:
    """Change to the folder of --working_dir, as t5-experiments does."""
    path = parse_path("--working_dir", folder)
    if not os.path.isdir(path):
        raise UserError(
            "the folder does not exist", f"--working_dir {folder}", "check the path", kind=MISSING
        )
    os.chdir(path)


def _write_gin_file(script: str, text: str) -> Path:
    """Write the gin file of a run into rosetta's folder; equal runs share a file."""
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    path = home_folder.make_home_folder() / "t5_experiments" / f"{script}-{digest}.gin"
    if not path.is_file():
        atomic_files.write_atomic(path, text, None)
    return path


def _show_translation(
    script: str, translated: Translation, variables: Mapping[str, str], command_name: str
) -> None:
    """Log what became of each option, and the command line of rosetta for the same run."""
    width = min(_WIDTH, max(len(option) for option, _ in translated.rows))
    log.info(f"{script}.py stands for this run of T5X:")
    for option, text in translated.rows:
        log.info(f"  {option:<{width}}  {text}", prefix=False)
    for name in sorted(variables.keys() & os.environ.keys()):
        if os.environ[name] != variables[name]:
            log.warn(f"the options set {name}={variables[name]}, so the variable does not count")
    shown = {name: os.environ[name] for name in ("NUM_GPUS",) if name in os.environ}
    words = [f"{name}={value}" for name, value in {**shown, **variables}.items()]
    command_line = shlex.join(["rosetta", *command_name.split(), *words])
    log.info(f"  the same run: {command_line}", prefix=False)


def format_help(script: str) -> str:
    """Return the help of a script."""
    own_names = {option.name for option in options.OPTIONS if script in option.scripts}
    lines = [
        f"usage: {script}.py [{scripts.DRY_RUN}] [--OPTION VALUE ...]",
        "",
        _SUMMARIES[script],
        "",
        "options, and their defaults:",
    ]
    for option in options.OPTIONS:
        if script in option.scripts:
            value = "" if option.type == "switch" else f" {option.type.upper()}"
            default = f"  ({option.default})" if option.default not in (None, False) else ""
            lines.append(f"  --{option.name}{value}{default}")
    lines += [
        f"  {scripts.DRY_RUN}  check everything and print what would run, but run nothing",
        "",
        "refused, because T5X has no counterpart:",
        *(
            f"  --{name}: {remedy}"
            for name, remedy in options.REFUSED_OPTIONS.items()
            if name not in own_names
        ),
        "",
        "docs/coming-from/t5-experiments.md says what each option becomes.",
    ]
    return "\n".join(lines)


def main_of_horovodrun(argv: Sequence[str]) -> int:
    """Run horovodrun: one process of a script drives the GPUs of this machine.

    Args:
        argv: The tree of T5X, and the words of the command line.

    Returns:
        An exit status, if the trainer did not take the place of this process.
    """
    script_tree, *words = argv
    return _report_errors(HOROVODRUN, words, lambda: _run_horovodrun(script_tree, words))


def _run_horovodrun(script_tree: str, words: Sequence[str]) -> int:
    """Run the script that a command line of horovodrun starts."""
    processes, command = parse_horovodrun(words)
    while command and os.path.basename(command[0]) in _PYTHONS:
        command = command[1:]
    script = Path(command[0]).stem if command else ""
    if script not in options.SCRIPTS:
        what = f"{command[0]!r} is not a script of t5-experiments" if command else "no command"
        names = " or ".join(f"{name}.py" for name in options.SCRIPTS)
        raise UserError(
            what,
            HOROVODRUN,
            f"start {names}; for another command, type rosetta spawn --per-node {processes} -- "
            "COMMAND",
            kind=UNSUPPORTED,
            value=script,
        )
    os.environ["NUM_GPUS"] = str(processes)
    log.info(f"one process drives all GPUs here: -np {processes} is NUM_GPUS={processes}")
    return main([script, script_tree, *command[1:]])


def parse_horovodrun(words: Sequence[str]) -> tuple[int, list[str]]:
    """Return the number of processes that a command line of horovodrun asks for, and the command.

    Raises:
        UserError: An option is not known, or asks for several machines.
    """
    remaining, processes = list(words), 0
    while remaining and remaining[0].startswith("-"):
        name, equals, text = remaining.pop(0).partition("=")
        if name in ("-np", "--num-proc"):
            value = text if equals else (remaining.pop(0) if remaining else "")
            processes = parse_whole_number(name, value)
        elif name in ("-H", "--hosts", "-hostfile", "--hostfile"):
            raise UserError(
                "horovodrun here starts a run on this machine alone",
                name,
                "on several machines, type rosetta submit --on slurm or --on jobset",
                kind=UNSUPPORTED,
                value=name,
            )
        elif name not in _CONTROLLERS:
            raise UserError(
                "is not an option of horovodrun here",
                name,
                f"give -np N, and {' or '.join(_CONTROLLERS[:2])}",
                kind=INVALID,
                value=name,
            )
    if not processes:
        raise UserError("the number of GPUs is missing", "-np", "write -np N", kind=MISSING)
    return processes, remaining
