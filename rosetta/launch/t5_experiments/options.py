"""The options of the scripts of t5-experiments: their names, types, and how words are read.

The names and defaults are those of run_t5_pretraining.py, of run_bert_pretraining.py and of
TrainerArgs, in
https://github.com/yurakuratov/t5-experiments/tree/2bdcc0bc7e8002c346ad01089d92d87d7b704e21
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rosetta.core import value_parsing
from rosetta.core.errors import CONFLICT, INVALID, MISSING, UNKNOWN, UNSUPPORTED, UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

PRETRAINING = "run_t5_pretraining"
FINETUNING = "run_t5_finetuning"
BERT = "run_bert_pretraining"
T5_SCRIPTS = (PRETRAINING, FINETUNING)
SCRIPTS = (*T5_SCRIPTS, BERT)
_TEXT, _COUNT, _NUMBER, _SWITCH = "text", "count", "number", "switch"


@dataclass(frozen=True)
class Option:
    """An option of the scripts.

    Attributes:
        name: The name, without dashes.
        type: "text", "count" (a whole number from 0), "number" or "switch".
        default: The value if the option is not given.
        scripts: The scripts that have the option.
    """

    name: str
    type: str
    default: Any = None
    scripts: tuple[str, ...] = SCRIPTS


_ONLY_PRETRAINING, _ONLY_FINETUNING, _ONLY_BERT = (PRETRAINING,), (FINETUNING,), (BERT,)
OPTIONS = (
    Option("data_path", _TEXT),
    Option("valid_data_path", _TEXT),
    Option("working_dir", _TEXT, "."),
    Option("model_path", _TEXT),
    Option("base_model", _TEXT, "t5-base", _ONLY_PRETRAINING),
    Option("model_cfg", _TEXT),
    Option("from_pretrained", _TEXT, None, _ONLY_FINETUNING),
    Option("model_cls", _TEXT, "transformers:T5ForConditionalGeneration", T5_SCRIPTS),
    Option("model_cls", _TEXT, "transformers:BertForPreTraining", _ONLY_BERT),
    Option("model_type", _TEXT, "encoder-decoder", _ONLY_FINETUNING),
    Option("task", _TEXT, "span_corruption", _ONLY_PRETRAINING),
    Option("vocab", _TEXT, None, T5_SCRIPTS),
    Option("tokenizer", _TEXT, None, (FINETUNING, BERT)),
    Option("input_seq_len", _COUNT, 128),
    Option("target_seq_len", _COUNT, 128, T5_SCRIPTS),
    Option("mlm_prob", _NUMBER, 0.15, _ONLY_BERT),
    Option("use_nsp", _COUNT, 1, _ONLY_BERT),
    Option("short_seq_prob", _NUMBER, 0.1, _ONLY_BERT),
    Option("data_impl", _TEXT, "mmap", _ONLY_BERT),
    Option("data_name", _TEXT, None, _ONLY_BERT),
    Option("data_n_epochs", _COUNT, None, _ONLY_BERT),
    Option("data_n_samples", _COUNT, None, _ONLY_BERT),
    Option("data_skip_warmup", _SWITCH, False, _ONLY_BERT),
    Option("batch_size", _COUNT, 1),
    Option("gradient_accumulation_steps", _COUNT, 1),
    Option("iters", _COUNT, 1),
    Option("lr", _NUMBER),
    Option("lr_scheduler", _TEXT),
    Option("num_warmup_steps", _COUNT),
    Option("num_training_steps", _COUNT),
    Option("optimizer", _TEXT, "AdamW"),
    Option("weight_decay", _NUMBER, 0.0),
    Option("scale_parameter", _SWITCH, default=False),
    Option("relative_step", _SWITCH, default=False),
    Option("warmup_init", _SWITCH, default=False),
    Option("clip_grad_norm", _NUMBER),
    Option("fp16", _SWITCH, default=False),
    Option("apex_opt_lvl", _TEXT),
    Option("log_interval", _COUNT),
    Option("valid_interval", _COUNT),
    Option("save_interval", _COUNT),
    Option("init_checkpoint", _TEXT),
    Option("skip_used_data", _SWITCH, default=False),
    Option("reset_optimizer", _SWITCH, default=False),
    Option("reset_iteration", _SWITCH, default=False),
    Option("use_generate_on_valid", _SWITCH, False, _ONLY_FINETUNING),
    Option("input_prefix", _TEXT, "", _ONLY_FINETUNING),
    Option("seed", _COUNT, None, (FINETUNING, BERT)),
    Option("data_n_workers", _COUNT, None, (FINETUNING, BERT)),
)
_NO_PLATEAU = "choose a --lr_scheduler, such as linear or cosine"
_NO_LOSS_SCALE = "leave it out: bfloat16 needs no scaling of the loss"
_NO_METRIC_CHOICE = "set the variable KEEP_BEST=METRIC:min or KEEP_BEST=METRIC:max instead"
# Option -> what to do instead. Their meanings have no counterpart in T5X.
REFUSED_OPTIONS = {
    "save_best": _NO_METRIC_CHOICE,
    "optimize_metric": _NO_METRIC_CHOICE,
    "optimize_mode": _NO_METRIC_CHOICE,
    "early_stopping_patience": "set the variable EARLY_STOP_PATIENCE instead",
    "use_lr_drop": _NO_PLATEAU,
    "lr_drop_factor": _NO_PLATEAU,
    "lr_drop_patience": _NO_PLATEAU,
    "lr_drop_threshold": _NO_PLATEAU,
    "lr_drop_threshold_mode": _NO_PLATEAU,
    "lr_drop_cooldown": _NO_PLATEAU,
    "lr_drop_min_lr": _NO_PLATEAU,
    "lr_drop_eps": _NO_PLATEAU,
    "fp16_allreduce": "set the variable GRADIENT_DTYPE=bfloat16 instead",
    "min_loss_scale": _NO_LOSS_SCALE,
    "max_loss_scale": _NO_LOSS_SCALE,
    "clip_grad_value": "clip the norm of all gradients instead: --clip_grad_norm",
    "reset_lr": "name another --model_path, with --init_checkpoint and --reset_optimizer",
    "use_generate_on_valid": "finetune with run_t5_finetuning.py, whose evaluation generates",
    "task_name": "write the records as JSON lines with `inputs` and `targets`: --data_path",
    "validate_only": "type rosetta t5x eval FT_TASK=pairs",
    "show_valid_examples": "type rosetta t5x infer FT_TASK=pairs, which writes all answers",
}


def parse_options(script: str, words: Sequence[str]) -> dict[str, Any]:
    """Return the options that a command line gives, in its order.

    An option may be shortened, as argparse allows.

    Args:
        script: One of SCRIPTS.
        words: The words of the command line.

    Raises:
        UserError: A word is not an option, its value is not valid, or T5X has no counterpart.
    """
    options = {option.name: option for option in OPTIONS if script in option.scripts}
    given: dict[str, Any] = {}
    remaining = list(words)
    while remaining:
        word = remaining.pop(0)
        name, equals, text = word.removeprefix("--").partition("=")
        if not word.startswith("--"):
            raise UserError(
                "is not an option",
                repr(word),
                "write options as --NAME VALUE",
                kind=INVALID,
                value=word,
            )
        option = options[_find_option(script, name, sorted(options))]
        if option.name in given:
            raise UserError(
                "is given twice",
                f"--{option.name}",
                "give it once",
                kind=CONFLICT,
                value=option.name,
            )
        if not equals and remaining and not remaining[0].startswith("--"):
            text, equals = remaining.pop(0), "="
        while option.name == "data_path" and script == BERT and remaining:
            if remaining[0].startswith("--"):
                break
            text += f",{remaining.pop(0)}"  # several paths, which are read as one
        is_bare_switch = option.type == _SWITCH and not equals
        given[option.name] = True if is_bare_switch else _parse_value(option, text)
    return given


def _find_option(script: str, name: str, known: Sequence[str]) -> str:
    """Return the full name of an option.

    Raises:
        UserError: No option has this name, several begin with it, or T5X has no counterpart.
    """
    if name in known:
        return name
    names = sorted({*known, *REFUSED_OPTIONS})
    matches = [name] if name in names else [full for full in names if full.startswith(name)]
    if len(matches) == 1 and matches[0] in known:
        return matches[0]
    where = f"--{name}"
    if len(matches) == 1:
        raise UserError(
            "T5X has no counterpart",
            f"--{matches[0]}",
            REFUSED_OPTIONS[matches[0]],
            kind=UNSUPPORTED,
            value=matches[0],
        )
    if matches and name:
        raise UserError(
            f"may mean {' or '.join(f'--{match}' for match in matches)}",
            where,
            "write the whole name",
            kind=INVALID,
            value=name,
        )
    near = difflib.get_close_matches(name, names, 1)
    remedy = f"did you mean --{near[0]}?" if near else f"see {script}.py --help"
    raise UserError(f"not an option of {script}.py", where, remedy, kind=UNKNOWN, value=name)


def _parse_value(option: Option, text: str) -> Any:
    """Return the value of an option.

    Raises:
        UserError: The value is missing or not valid.
    """
    where = f"--{option.name}"
    if not text:
        raise UserError(
            "has no value", where, f"write {where} VALUE", kind=MISSING, value=option.name
        )
    if option.type == _SWITCH:
        return value_parsing.parse_truth_value(where, text)
    if option.type == _COUNT:
        return value_parsing.parse_whole_number(where, text, minimum=0)
    if option.type == _NUMBER:
        return value_parsing.parse_number(where, text)
    return text


def fill_defaults(script: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return the value of every option of a script."""
    defaults = {option.name: option.default for option in OPTIONS if script in option.scripts}
    return {**defaults, **given}
