"""Run a shell script of NVIDIA's images, such as singlenode_pretrain_pile.sh, or show its help.

The .sh files in overlay/ start rosetta.t5x.launch and rosetta.pax.launch, which call run_script. A
script takes words: arguments without names, in a fixed order. Each word sets a variable.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rosetta.core import exit_status, log, secrets
from rosetta.core.errors import UNKNOWN, UserError
from rosetta.core.variables import help_text, lookup, misspellings, readers, setting_values
from rosetta.launch import execution

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

DRY_RUN = "--dry-run"
HELP_OPTIONS = ("-h", "--help")
_OPTIONS_WORD = "ADDITIONAL_ARGS"  # the word that holds options for the trainer
_REMEDIES = exit_status.Remedies(
    module="put a baked environment's bin first on PATH, or name its Python: PYTHON=FILE"
)


@dataclass(frozen=True)
class Script:
    """The texts of a script's help.

    Attributes:
      summary: What the script does, in one or two sentences.
      example: A command line that works, without the folder of the script.
    """

    summary: str
    example: str


_BY_SRUN = "srun starts it once for each process; without Slurm, it is the only process."
SCRIPTS = {
    "singlenode_pretrain_pile": Script(
        "Pretrain T5 1.1 on the Pile, or on what DATA names, in one process on one machine.",
        "singlenode_pretrain_pile.sh small bfloat16 8 256 logs /workspace/small",
    ),
    "singlenode_ft_frompile": Script(
        "Finetune T5 1.1 on MNLI, SQuAD or pairs of your own, in one process on one machine.",
        "singlenode_ft_frompile.sh squad1 small bfloat16 8 32 logs /workspace/small",
    ),
    "multiprocess_pretrain_pile": Script(
        f"Pretrain T5 1.1 on the Pile, or on what DATA names, in several processes. {_BY_SRUN}",
        "T5_SIZE=large BSIZE_PER_GPU=32 srun --ntasks-per-node=8 multiprocess_pretrain_pile.sh",
    ),
    "multiprocess_ft_frompile": Script(
        f"Finetune T5 1.1 on MNLI, SQuAD or pairs of your own, in several processes. {_BY_SRUN}",
        "FT_TASK=mnli2 T5_SIZE=large MODEL_DIR=/workspace/large "
        "srun --ntasks-per-node=8 multiprocess_ft_frompile.sh",
    ),
    "run_pile_singlenode": Script(
        "Pretrain GPT 126M on the Pile, or on what DATA names, in one process on one machine.",
        "run_pile_singlenode.sh /data/tfds /data/sp.model bfloat16 8 4 /workspace/126m",
    ),
    "run_pile_multinode": Script(
        f"Pretrain GPT 126M on the Pile, or on what DATA names, in several processes. {_BY_SRUN}",
        "srun --ntasks-per-node=8 run_pile_multinode.sh /data/tfds /data/sp.model bfloat16 8 4 "
        "/workspace/126m",
    ),
    "run_lambada_singlenode": Script(
        "Evaluate a pretrained GPT 126M on LAMBADA, in one process on one machine. LOG_DIR is the "
        "folder of the pretraining.",
        "run_lambada_singlenode.sh /data /data/sp.model bfloat16 8 4 /workspace/126m",
    ),
    "run_base_config_multinode": Script(
        f"Train the experiment that CONFIG names, in several processes. {_BY_SRUN}",
        "srun --ntasks-per-node=8 run_base_config_multinode.sh Synthetic5B bfloat16 8 logs",
    ),
    "run_llama_boolq": Script(
        "Finetune LLaMA-2 on BoolQ, and then evaluate it. EVAL_ONLY=1: only evaluate it.",
        "CONFIG=LLaMA7B CHECKPOINT_RESTORE_PATH=/weights/7b VOCAB_PATH=tokenizer.model "
        "TFDS_DATA_DIR=/data LOG_DIR=/runs USE_LORA=1 run_llama_boolq.sh",
    ),
}


def run_script(
    name: str,
    words: Sequence[str],
    positionals: Sequence[str],
    make_commands: Callable[[list[str]], list[execution.Command]],
) -> int:
    """Run a script; with --help or --dry-run, only show its help or what it would run.

    Args:
      name: The script, without its suffix.
      words: The words of its command line.
      positionals: The variables that the words set, in order.
      make_commands: Returns the commands to run in order, for the words that are not options.

    Returns:
      An exit status, if no command took the place of this process.
    """
    with secrets.redacted_output(words):
        try:
            return _run_or_show(name, words, positionals, make_commands)
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 (every error becomes one line and an exit status)
            code, failure = exit_status.explain_failure(error, "settings", _REMEDIES)
            prefix = "" if failure.where == f"{name}.sh" else f"{name}.sh: "
            print(f"{prefix}{failure}", file=sys.stderr)
            return code


def _run_or_show(
    name: str,
    words: Sequence[str],
    positionals: Sequence[str],
    make_commands: Callable[[list[str]], list[execution.Command]],
) -> int:
    """Show the help, print the commands as JSON for a dry run, or run the commands."""
    if not set(HELP_OPTIONS).isdisjoint(words):
        exit_status.print_result(format_help(name, positionals))
        return exit_status.SUCCESS
    values = [word for word in words if word != DRY_RUN]
    _refuse_unknown_options(name, values, positionals)
    with log.use_level(None):
        misspellings.warn_of_unknown_variables(os.environ, f"{name}.sh", name)
        setting_values.check_settings(os.environ, readers.ROSETTA)
        commands = make_commands(values)
        if DRY_RUN not in words:
            execution.run_in_order(commands)
    documents = [execution.convert_to_json(command) for command in commands]
    result = documents[0] if len(documents) == 1 else documents
    exit_status.print_result(json.dumps(result, indent=2))
    return exit_status.SUCCESS


def _refuse_unknown_options(name: str, words: Sequence[str], positionals: Sequence[str]) -> None:
    """Refuse a word that looks like an option, unless its place is that of ADDITIONAL_ARGS."""
    for index, word in enumerate(words):
        is_for_trainer = index < len(positionals) and positionals[index] == _OPTIONS_WORD
        if word.startswith("--") and not is_for_trainer:
            raise UserError(
                f"{word!r} is not an option of this script",
                f"{name}.sh",
                f"its options are {DRY_RUN} and {HELP_OPTIONS[-1]}",
                kind=UNKNOWN,
                value=word,
            )


def format_help(name: str, positionals: Sequence[str]) -> str:
    """Return the help of a script.

    Args:
      name: The script, without its suffix.
      positionals: The variables that its words set, in order.
    """
    width = help_text.get_terminal_width()
    usage = f"usage: {name}.sh [{DRY_RUN}]"
    if positionals:
        word_names = [_find_word_name(name, variable) for variable in positionals]
        usage += f" [{' '.join(word_names)}]"
    options = [
        f"{DRY_RUN}   check everything and print what would run, but run nothing",
        f"{', '.join(HELP_OPTIONS)}  show this help",
    ]
    about_variables = "The script reads these variables from the environment."
    paragraphs = [
        help_text.wrap_text(usage, width, later="  "),
        help_text.wrap_text(SCRIPTS[name].summary, width),
        _format_section("words, in this order", _describe_words(name, positionals, width)),
        _format_section("options", options),
        help_text.wrap_text(about_variables, width),
    ]
    sections = help_text.format_sections(lookup.list_variables(name), name, width)
    paragraphs += [_format_section(heading, lines) for heading, lines in sections.items()]
    paragraphs.append(_format_section("example", [SCRIPTS[name].example]))
    return "\n\n".join("\n".join(lines) for lines in paragraphs)


def _format_section(heading: str, lines: Sequence[str]) -> list[str]:
    """Return the lines of a section: its heading, then its content with an indent."""
    return [f"{heading}:", *(f"  {line}" for line in lines)]


def _find_word_name(name: str, variable: str) -> str:
    """Return the name that the help uses for the word that sets a variable."""
    return lookup.find_variable(variable, name).argument_name or variable


def _describe_words(name: str, positionals: Sequence[str], width: int) -> list[str]:
    """Return the lines about the words, with the variable and the default of each."""
    if not positionals:
        return ["none: every setting is an environment variable"]
    lines = []
    for number, variable in enumerate(positionals, 1):
        word_name = _find_word_name(name, variable)
        details = [f"sets the variable {variable}"] if word_name != variable else []
        details += help_text.describe_default(lookup.find_variable(variable, name), name)
        detail = f"  ({'; '.join(details)})" if details else ""
        lines += help_text.wrap_text(f"{number:>2} {word_name}{detail}", width - 2, later=" " * 6)
    rules = (
        "Words may be left out from the end, and an empty word counts as left out. In place of a "
        "word that is left out, the script reads the variable that the list names, or else the "
        "variable of the same name. A word wins over its variable."
    )
    return [*lines, *help_text.wrap_text(rules, width - 2)]
