"""The run of T5X that a command line of t5-experiments stands for: variables, gin, and a table."""

from __future__ import annotations

import glob
import hashlib
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rosetta.core import home_folder, run_folders
from rosetta.core.errors import CONFLICT, INVALID, MISSING, UNKNOWN, UNSUPPORTED, UserError
from rosetta.core.value_parsing import parse_path
from rosetta.core.variables import choices
from rosetta.launch import hub_inputs
from rosetta.launch.t5_experiments import bert, model, options, schedule
from rosetta.t5x.run import checkpoint_record, gin_files

if TYPE_CHECKING:
    from collections.abc import Mapping

_DEFAULT_VOCAB = "./vocabs/sentencepiece.model"
_EXTRA_IDS = 100  # sentinels that data_utils.py of t5-experiments adds to every vocabulary
# Options that decide something if they are not given, although they have no default.
_DECIDING_OPTIONS = ("fp16", "lr_scheduler", "vocab", "save_interval", "clip_grad_norm")
_OBJECTIVES = ("span_corruption", "prefix_lm")
_APEX_LEVELS = {"O0": "float32", "O1": "bfloat16", "O2": "bfloat16"}
_NO_EFFECT = "off"  # of an option whose value is false or 0
_SAVED_MODEL = re.compile(r"model_(\d+)\.pth")
_GIN_HEAD = """\
from __gin__ import dynamic_registration
from rosetta.t5x import dataset
from rosetta.t5x import optimizer
from t5x import adafactor
from t5x import utils
"""
# Hugging Face's T5: attention that is not scaled, and no z-loss.
_NETWORK_BINDINGS = {"SCALE_ATTN_LOGITS": False, "Z_LOSS": 0.0}
_MODEL_GIN = "model.gin"  # rosetta convert t5 writes it


@dataclass
class Translation:
    """A run of T5X.

    Attributes:
        variables: The variables that the options set.
        gin: The text of the gin file for what has no variable.
        rows: Each option, as it was typed or as its default is, and what became of it.
        sources: Variable -> the option that sets it.
    """

    variables: dict[str, str] = field(default_factory=dict)
    gin: str = ""
    rows: list[tuple[str, str]] = field(default_factory=list)
    sources: dict[str, str] = field(default_factory=dict)


class _Translator:
    """Translate the options of one command line.

    Attributes:
        script: One of options.SCRIPTS.
        given: The options of the command line.
        values: The values of all options.
        environment: The variables, which count where no option is given.
        variables: The variables of T5X to set.
        sources: Variable -> the option that sets it.
        network: The lines of gin that describe the network.
        bindings: The bindings of gin after them.
        rows: Option -> what became of it.
    """

    def __init__(self, script: str, given: dict[str, Any], environment: Mapping[str, str]) -> None:
        self.script, self.given, self.environment = script, given, environment
        self.values = options.fill_defaults(script, given)
        self.variables: dict[str, str] = {}
        self.sources: dict[str, str] = {}
        self.network: tuple[str, ...] = ()
        self.bindings: dict[str, Any] = {}
        self.rows: dict[str, str] = {}

    def set_variable(self, option: str, name: str, value: object) -> None:
        """Set a variable for an option, unless only the environment sets it."""
        if option not in self.given and self.environment.get(name):
            self.rows[option] = f"{name}={self.environment[name]}, the variable"
            return
        self.variables[name] = str(value)
        self.sources[name] = option
        self.rows[option] = f"{name}={value}"

    def translate_data(self) -> None:
        """Set the data, the vocabulary and the lengths."""
        for option, name in (("data_path", "DATA"), ("valid_data_path", "EVAL_DATA")):
            if self.values[option]:
                describe = bert.describe_data if self.script == options.BERT else _describe_data
                spec = describe(f"--{option}", self.values[option])
                self.set_variable(option, name, spec)
        if "DATA" not in self.variables:
            raise UserError(
                "is not set", "--data_path", "name the folder of the .jsonl files", kind=MISSING
            )
        self.set_variable("input_seq_len", "ENC_SL", self.values["input_seq_len"])
        if self.script == options.BERT:
            self._choose_masking()
            return
        self.set_variable("target_seq_len", "DEC_SL", self.values["target_seq_len"])
        if self.script == options.PRETRAINING:
            task = self.values["task"]
            if task not in _OBJECTIVES:
                raise UserError(
                    f"{task!r} is not an objective for text",
                    "--task",
                    f"choose one of: {', '.join(_OBJECTIVES)}; pairs: run_t5_finetuning.py",
                    kind=UNKNOWN,
                    value=task,
                )
            self.set_variable("task", "OBJECTIVE", task)
        else:
            self.variables["FT_TASK"] = choices.PAIRS
            if self.values["input_prefix"]:
                self.set_variable("input_prefix", "INPUT_PREFIX", self.values["input_prefix"])

    def _choose_masking(self) -> None:
        """Set the objective of a BERT, and the share of hidden tokens."""
        has_pairs = self.values["use_nsp"] > 0
        self.set_variable("use_nsp", "OBJECTIVE", bert.choose_objective(pairs=has_pairs))
        if has_pairs and "OBJECTIVE" in self.variables:
            self.rows["use_nsp"] += " (the two texts are swapped or not, as Megatron's BERT has it)"
        self.bindings["dataset.task.noise_density"] = self.values["mlm_prob"]
        share = self.values["mlm_prob"]
        self.rows["mlm_prob"] = f"dataset.task.noise_density = {share}, of whole words"
        self.rows["short_seq_prob"] = "no row is short: each is filled with text"
        self.rows["data_impl"] = "the files are mapped"
        for option in ("data_name", "data_n_epochs", "data_n_samples", "data_skip_warmup"):
            self.rows[option] = "not needed: no samples are made before the run"

    def translate_vocabulary(self) -> None:
        """Set the vocabulary, with the sentinels that t5-experiments adds."""
        if self.script == options.BERT:
            if self.values["tokenizer"]:
                name = bert.name_tokenizer(self.values["tokenizer"])
                self.set_variable("tokenizer", "VOCAB", name)
            elif not self.environment.get("VOCAB"):
                raise UserError(
                    "is not set",
                    "--tokenizer",
                    "name a tokenizer.json, or a model of Hugging Face",
                    kind=MISSING,
                )
            return
        file = self.values["vocab"]
        self.rows["tokenizer"] = "not needed: --vocab has the vocabulary"
        if not file and self.environment.get("VOCAB") and "tokenizer" not in self.given:
            self.set_variable("vocab", "VOCAB", "")
        elif not file and self.values.get("tokenizer"):
            self.set_variable("tokenizer", "VOCAB", _name_hub_model(self.values["tokenizer"]))
        elif not file and self.values.get("from_pretrained"):
            self.set_variable("vocab", "VOCAB", _name_hub_model(self.values["from_pretrained"]))
        elif file == "byte":
            self.set_variable("vocab", "VOCAB", file)
        else:
            path = parse_path("--vocab", file or _DEFAULT_VOCAB)
            if not os.path.isfile(path):
                raise UserError(
                    "the file does not exist",
                    f"--vocab {file or _DEFAULT_VOCAB}",
                    "name a SentencePiece model, or byte",
                    kind=MISSING,
                )
            self.set_variable("vocab", "EXTRA_IDS", _EXTRA_IDS)
            self.set_variable("vocab", "VOCAB", path)
            self.rows["vocab"] += f", with {_EXTRA_IDS} sentinels: EXTRA_IDS"

    def translate_model(self) -> None:
        """Set the network, or the weights that finetuning starts from."""
        if self.script == options.BERT:
            bert.check_model_class(self.values["model_cls"])
            self.rows["model_cls"] = "the network of rosetta.t5x"
            if not self.values["model_cfg"]:
                raise UserError("is not set", "--model_cfg", "give --model_cfg FILE", kind=MISSING)
            network = bert.read_network(
                Path(os.path.expanduser(self.values["model_cfg"])), "--model_cfg"
            )
            self.rows["model_cfg"] = network.description
            self._take_network(network)
            self.variables["T5_FAMILY"] = bert.FAMILY
            self.bindings |= {"SCALE_ATTN_LOGITS": True, "Z_LOSS": 0.0}
            return
        model.check_model_class(self.values["model_cls"])
        self.rows["model_cls"] = "the network of rosetta.t5x"
        if self.script == options.PRETRAINING:
            network = model.choose_network(self.values)
            option = "model_cfg" if self.values["model_cfg"] else "base_model"
            # As in t5-experiments, whose --base_model then names the tokenizer alone.
            self.rows["base_model"] = "not needed: --vocab has the vocabulary"
            self.rows[option] = network.description
            self._take_network(network)
            self.bindings |= _NETWORK_BINDINGS
            return
        start = self.values["init_checkpoint"]
        if self.values["from_pretrained"] and start:
            raise UserError(
                "--from_pretrained names other weights",
                f"--init_checkpoint {start}",
                "leave one of the two out",
                kind=CONFLICT,
            )
        if self.values["model_cfg"] and not str(start).endswith(".pth"):
            raise UserError(
                "the weights say which model they are of",
                "--model_cfg",
                "leave it out; only --init_checkpoint FILE.pth needs it",
                kind=CONFLICT,
            )
        self.rows["model_cfg"] = "the model of --init_checkpoint"
        if self.values["model_type"] != "encoder-decoder":
            raise UserError(
                f"{self.values['model_type']!r} is not a type of T5",
                "--model_type",
                "give encoder-decoder",
                kind=UNSUPPORTED,
            )
        self.rows["model_type"] = "a T5 is one"
        if self.values["from_pretrained"]:
            self._start_from_pretrained()
        else:
            self._start_from_checkpoint()

    def _take_network(self, network: model.Network) -> None:
        """Set a network and its dropout."""
        self.network = network.gin
        self.variables["T5_SIZE"] = network.size
        self.bindings["DROPOUT_RATE"] = network.dropout_rate

    def _start_from_pretrained(self) -> None:
        """Finetune weights of Hugging Face, in a folder or on the hub."""
        name = _name_hub_model(self.values["from_pretrained"])
        folder = hub_inputs.resolve_weights(
            "INITIAL_CHECKPOINT_PATH", name, where=f"--from_pretrained {name}"
        )
        gin_file = Path(folder, _MODEL_GIN)
        if not gin_file.is_file():
            raise UserError(
                "is not a model of Hugging Face",
                f"--from_pretrained {name}",
                "name a folder with a config.json, or OWNER/NAME; a checkpoint of T5X is "
                "--init_checkpoint",
                kind=INVALID,
                value=name,
            )
        self.set_variable("from_pretrained", "INITIAL_CHECKPOINT_PATH", folder)
        self.network = (f"include {str(gin_file)!r}",)
        self.bindings["Z_LOSS"] = 0.0

    def _start_from_checkpoint(self) -> None:
        """Finetune a checkpoint: take the network that its record describes.

        Raises:
            UserError: No checkpoint is named, or it has no record.
        """
        checkpoint = self.variables.get("INITIAL_CHECKPOINT_PATH")
        if not checkpoint:
            raise UserError(
                "no weights to finetune are named",
                "--from_pretrained",
                "name a model of Hugging Face, or a checkpoint_N: --init_checkpoint FOLDER",
                kind=MISSING,
            )
        steps = run_folders.list_checkpoint_steps(checkpoint)
        newest = f"{checkpoint}/checkpoint_{steps[-1]}" if steps else checkpoint
        record = checkpoint_record.read_record(newest)
        if record is None or not record.config:
            raise UserError(
                "nothing says which network the checkpoint has",
                f"--init_checkpoint {self.values['init_checkpoint']}",
                "finetune it with rosetta t5x finetune, which takes T5_SIZE and ROSETTA_GIN",
                kind=UNSUPPORTED,
                value=newest,
            )
        self._take_network(model.read_recorded_network(record.config))

    def translate_start(self) -> None:
        """Set the checkpoint to start from."""
        self.rows["skip_used_data"] = "always: a run continues with its next batch"
        text = self.values["init_checkpoint"]
        if self.values["reset_iteration"] and not str(text).endswith(".pth"):
            raise UserError(
                "works only with --init_checkpoint FILE.pth",
                "--reset_iteration",
                "leave it out; T5X counts on from the step of its own checkpoints",
                kind=CONFLICT,
            )
        if self.values["reset_optimizer"]:
            self.bindings["RESTORE_OPTIMIZER"] = False
            self.rows["reset_optimizer"] = "RESTORE_OPTIMIZER = False"
        if not text:
            return
        path = Path(os.path.expanduser(text))
        saved = _SAVED_MODEL.fullmatch(path.name)
        if saved and not path.exists():
            self._continue_run(text, path.parent, int(saved[1]))
        elif path.is_file():
            self._start_from_torch(path.absolute(), int(saved[1]) + 1 if saved else None)
        elif not path.is_dir():
            raise UserError(
                "does not exist", f"--init_checkpoint {text}", "check the path", kind=MISSING
            )
        elif self.script == options.FINETUNING and (path / "config.json").is_file():
            raise UserError(
                "the folder is a model of Hugging Face",
                f"--init_checkpoint {text}",
                f"give --from_pretrained {text}",
                kind=CONFLICT,
                value=text,
            )
        elif (path / "config.json").is_file() and not self.values["reset_optimizer"]:
            raise UserError(
                "a model of Hugging Face has no state of the optimizer",
                f"--init_checkpoint {text}",
                "add --reset_optimizer",
                kind=CONFLICT,
                value=text,
            )
        else:
            self.set_variable("init_checkpoint", "INITIAL_CHECKPOINT_PATH", path.absolute())

    def _start_from_torch(self, path: Path, step: int | None) -> None:
        """Start from the weights in a checkpoint of PyTorch's trainer.

        Args:
            path: The file.
            step: The step of the checkpoint, or None if its name does not say it.

        Raises:
            UserError: The state of the optimizer is asked for, or the step or the model is not
                known.
        """
        where = f"--init_checkpoint {path}"
        config = self.values.get("model_cfg")
        if not self.values["reset_optimizer"]:
            what = "T5X does not read the state of PyTorch's optimizer"
            remedy = "add --reset_optimizer to start from the weights alone"
            raise UserError(what, where, remedy, kind=UNSUPPORTED, value=str(path))
        if not config:
            what, remedy = "nothing says which model the weights are of", "give --model_cfg FILE"
            raise UserError(what, where, remedy, kind=MISSING)
        if self.values["reset_iteration"]:
            step = 0
        if step is None:
            what = "the name of the file does not say the step, as model_1000.pth does"
            remedy = "add --reset_iteration to start at step 0"
            raise UserError(what, where, remedy, kind=MISSING, value=path.name)
        folder = _stage_weights(path, Path(config).expanduser().absolute())
        converted = hub_inputs.resolve_weights(
            "INITIAL_CHECKPOINT_PATH", str(folder), where=where, step=step
        )
        self.network = (f"include {str(Path(converted, _MODEL_GIN))!r}",)
        self.set_variable("init_checkpoint", "INITIAL_CHECKPOINT_PATH", converted)
        self.rows["reset_iteration"] = f"the run starts at step {step}"

    def _continue_run(self, text: str, folder: Path, step: int) -> None:
        """Continue a run of this distribution whose checkpoint is named as PyTorch would name it.

        Raises:
            UserError: The checkpoint is not the newest of the run.
        """
        steps = run_folders.list_checkpoint_steps(str(folder.absolute()))
        own_folder = self.values["model_path"]
        is_own = bool(own_folder) and folder.resolve() == Path(own_folder).expanduser().resolve()
        if step in steps and not is_own:
            checkpoint = folder.absolute() / f"checkpoint_{step}"
            self.set_variable("init_checkpoint", "INITIAL_CHECKPOINT_PATH", checkpoint)
            return
        if step in steps and step == steps[-1]:
            self.rows["init_checkpoint"] = f"checkpoint_{step}, where the run continues by itself"
            return
        what = "the file does not exist, and there is no checkpoint_N beside it"
        remedy = "leave the option out to start a new run"
        if steps:
            what = f"the newest checkpoint in the folder is checkpoint_{steps[-1]}"
            remedy = (
                f"leave the option out to continue from it; or name another --model_path, and "
                f"--init_checkpoint {folder}/checkpoint_{step}"
            )
        raise UserError(
            what,
            f"--init_checkpoint {text}",
            remedy,
            kind=CONFLICT if steps else MISSING,
            value=text,
        )

    def translate_batch(self) -> None:
        """Set the batch and the precision."""
        size, parts = self.values["batch_size"], self.values["gradient_accumulation_steps"]
        self.set_variable("batch_size", "BSIZE_PER_GPU", size * parts)
        self.set_variable("gradient_accumulation_steps", "NUM_MICROBATCHES", parts)
        if parts > 1 and "BSIZE_PER_GPU" in self.variables:
            self.rows["batch_size"] += " (--batch_size x --gradient_accumulation_steps)"
        level = self.values["apex_opt_lvl"]
        if level and not self.values["fp16"]:
            raise UserError(
                "works only with --fp16",
                "--apex_opt_lvl",
                "add --fp16, or leave the option out",
                kind=CONFLICT,
            )
        if level and level not in _APEX_LEVELS:
            raise UserError(
                f"{level!r} keeps the parameters in 16 bits, which T5X does not",
                "--apex_opt_lvl",
                f"give one of: {', '.join(_APEX_LEVELS)}",
                kind=UNSUPPORTED,
                value=level,
            )
        half = _APEX_LEVELS.get(level, "bfloat16")
        self.set_variable("fp16", "PREC", half if self.values["fp16"] else "float32")
        if self.values["fp16"] and half == "bfloat16":
            self.rows["fp16"] += " (no scaling of the loss is needed)"
        self.rows["apex_opt_lvl"] = self.rows["fp16"]

    def translate_length(self) -> None:
        """Set the length of the run, and how often it logs, evaluates and saves."""
        values = self.values
        steps_name = "FT_STEPS" if self.script == options.FINETUNING else "TRAIN_STEPS"
        self.set_variable("iters", steps_name, values["iters"])
        valid_interval = values["valid_interval"]
        if valid_interval is None and values["valid_data_path"]:
            valid_interval = values["log_interval"]
        for option, name, value in (
            ("log_interval", "STATS_PERIOD", values["log_interval"]),
            ("valid_interval", "EVAL_PERIOD", valid_interval),
            ("save_interval", "SAVE_PERIOD", values["save_interval"]),
        ):
            if value:
                self.set_variable(option, name, value)
        self.bindings["KEEP"] = None
        self.rows["save_interval"] = (
            f"{self.rows.get('save_interval', 'the default of SAVE_PERIOD')}, KEEP = None (all)"
        )
        if not values["model_path"]:
            raise UserError(
                "is not set", "--model_path", "name the folder of the checkpoints", kind=MISSING
            )
        folder = parse_path("--model_path", values["model_path"])
        self.set_variable("model_path", "MODEL_DIR", folder)
        if self.script == options.FINETUNING:
            self.variables["FT_DIR"] = folder
        self.rows["working_dir"] = f"relative paths count from {os.getcwd()}"

    def translate_rest(self) -> None:
        """Set what only finetuning has."""
        if self.values.get("seed") is not None:
            self.bindings["RANDOM_SEED"] = self.values["seed"]
            self.rows["seed"] = f"RANDOM_SEED = {self.values['seed']}"
        if self.values.get("data_n_workers") is not None:
            workers = self.values["data_n_workers"]
            self.set_variable("data_n_workers", "ROSETTA_DATA_WORKERS", workers)
        self.rows["use_generate_on_valid"] = "always: the evaluation of pairs generates answers"


def translate(script: str, given: dict[str, Any], environment: Mapping[str, str]) -> Translation:
    """Return the run that options stand for. Relative paths count from the current folder.

    Args:
        script: One of options.SCRIPTS.
        given: The options of the command line.
        environment: The variables, which count where no option is given.

    Raises:
        UserError: An option has no counterpart, or a file that it names does not exist.
    """
    translator = _Translator(script, given, environment)
    values = translator.values
    translator.translate_length()
    translator.translate_data()
    if script != options.FINETUNING:
        translator.translate_model()
        translator.translate_start()
    else:  # The checkpoint says which network it has.
        translator.translate_start()
        translator.translate_model()
    translator.translate_vocabulary()
    translator.translate_batch()
    translator.translate_rest()
    training = schedule.choose_training(values)
    variables = {**translator.variables, **training.variables}
    rows = {**translator.rows, **training.rows}
    gin = _format_gin(
        translator.network, {**translator.bindings, **training.gin}, training.variables["OPTIMIZER"]
    )
    sources = {**translator.sources, **schedule.SOURCES}
    return Translation(variables, gin, _make_rows(given, values, rows), sources)


def _make_rows(
    given: dict[str, Any], values: dict[str, Any], rows: dict[str, str]
) -> list[tuple[str, str]]:
    """Return the table: the options that were typed, then the defaults that decide something."""
    table = [
        (_format_option(name, value), rows.get(name, _NO_EFFECT)) for name, value in given.items()
    ]
    for name, default in values.items():
        if name not in given and default not in (None, False) and name in rows:
            table.append((f"({_format_option(name, default)})", rows[name]))
    missing = [name for name in _DECIDING_OPTIONS if name in rows and not values[name]]
    table += [(f"(no --{name})", rows[name]) for name in missing if name not in given]
    return table


def _format_option(name: str, value: Any) -> str:
    """Return an option as it is typed."""
    return f"--{name}" if value is True else f"--{name} {value}"


def _format_gin(network: tuple[str, ...], bindings: dict[str, Any], optimizer: str) -> str:
    """Return a gin file. The file of the optimizer is read again after that of the network."""
    optimizer_file = f"{gin_files.GIN_FOLDER}/optimizers/{optimizer}.gin"
    lines = [_GIN_HEAD, *network, f"\ninclude '{optimizer_file}'\n"]
    lines += [f"{name} = {value!r}" for name, value in bindings.items()]
    return "\n".join(lines) + "\n"


def _describe_data(option: str, text: str) -> str:
    """Return the data for a folder of .jsonl files, or for one file.

    Raises:
        UserError: There is no such file.
    """
    path = parse_path(option, text)
    if os.path.isfile(path):
        return f"jsonl:{path}"
    if not os.path.isdir(path):
        raise UserError(
            "the folder does not exist", f"{option} {text}", "check the path", kind=MISSING
        )
    if not any(Path(path).glob("*.jsonl")):
        raise UserError(
            "the folder has no .jsonl files",
            f"{option} {text}",
            "name a folder of JSON lines with a field `text`; run_t5_finetuning.py reads `inputs` "
            "and `targets`",
            kind=MISSING,
        )
    return f"jsonl:{glob.escape(path)}/*.jsonl"


def _stage_weights(weights: Path, config: Path) -> Path:
    """Return a folder that has a file of weights and its configuration as Hugging Face lays out."""
    digest = hashlib.sha256(f"{weights}\0{config}".encode()).hexdigest()[:16]
    folder = home_folder.make_home_folder() / "t5_experiments" / f"{weights.stem}-{digest}"
    folder.mkdir(parents=True, exist_ok=True)
    for name, target in (("config.json", config), ("pytorch_model.bin", weights)):
        link = folder / name
        if not link.is_symlink():
            link.symlink_to(target)
    return folder


def _name_hub_model(text: str) -> str:
    """Return a model of transformers as the variables here name it: a folder, or hf:OWNER/NAME."""
    if os.path.isdir(os.path.expanduser(text)):
        return parse_path("--from_pretrained", text)
    if text.startswith("hf:"):
        return text
    return f"hf:{text}" if "/" in text else f"hf:google-t5/{text}"
