"""What a run of the Pax scripts is asked to do, from positionals or from variables, checked before
anything starts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from rosetta.core.errors import CONFLICT, INVALID, MISSING, UNSUPPORTED, UserError
from rosetta.core.run_folders import absolute
from rosetta.core.value_parsing import (
    parse_choice,
    parse_decimal,
    parse_whole_number,
    read_truth_value,
)
from rosetta.health import settings as health
from rosetta.pax.run import experiment_checks, fiddle_arguments

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MODULE = "rosetta.pax.configs"
_PILE = ("TFDS_DATA_DIR", "VOCAB_PATH", "PREC", "NUM_GPUS", "PERCORE_BATCH_SIZE", "LOG_DIR")
# Each script's positionals, in their documented order. All of them may be left out: variables of
# the same names stand in.
POSITIONALS = {
    "run_pile_singlenode": _PILE,
    "run_pile_multinode": _PILE,
    "run_lambada_singlenode": _PILE,
    "run_base_config_multinode": (
        "CONFIG",
        "PREC",
        "NUM_GPUS",
        "LOG_DIR",
        "TFDS_DATA_DIR",
        "VOCAB_PATH",
        "ADDITIONAL_ARGS",
    ),
    "run_llama_boolq": (),
}
CONFIGS = {
    "run_pile_singlenode": "Pile126M",
    "run_pile_multinode": "Pile126M",
    "run_lambada_singlenode": "Lambada126M",
    "run_llama_boolq": "LLaMA7B",
}
# Variables that are hyper-parameters by the same name, for every script.
HYPER = (
    "PERCORE_BATCH_SIZE",
    "ICI_MESH_SHAPE",
    "DCN_MESH_SHAPE",
    "MAX_STEPS",
    "MAX_SEQ_LEN",
    "LEARNING_RATE",
    "LR_SCHEDULE",
    "LR_COS_WARMUP",
    "USE_REPEATED_LAYER",
    "NUM_MICROBATCHES",
)
OTHERS = (
    "TFDS_DATA_DIR",
    "VOCAB_PATH",
    "VOCAB",
    "DATA",
    "EVAL_DATA",
    "PREC",
    "NUM_GPUS",
    "LOG_DIR",
    "CONFIG",
    "ADDITIONAL_ARGS",
    "ROSETTA_FDL",
    "EVAL_ONLY",
    "USE_MULTIPROCESS",
    "USE_LORA",
    "LORA_RANK",
    "LORA_TARGET_LAYERS",
    "CHECKPOINT_RESTORE_PATH",
    "ENABLE_TE",
    "ENABLE_FP8",
    "NVTE_FUSED_ATTN",
    "ATTENTION",
    "BASE_XLA_FLAGS",
    "XLA_FLAGS",
    "XLA_PYTHON_CLIENT_MEM_FRACTION",
    "JAX_PLATFORMS",
    "CUDA_VISIBLE_DEVICES",
    "PYTHON",
    "NSYS",
    "JAX_COMPILATION_CACHE_DIR",
    "WITH_NSYS",
    "ROSETTA_BATCH_LOG",
    "ROSETTA_PRESET",
    "ROSETTA_WITH",
    "ROSETTA_SITE",
    "ROSETTA_DOCTOR",
)
_LORA = ("LORA_RANK", "LORA_TARGET_LAYERS")  # what USE_LORA=1 reads besides
VARIABLES = (*HYPER, *OTHERS, *health.VARIABLES)
SCRIPTS = {
    "pile": "run_pile_multinode",
    "lambada": "run_lambada_singlenode",
    "train": "run_base_config_multinode",
    "boolq": "run_llama_boolq",
}


@dataclass(frozen=True)
class Settings:
    """A run.

    Attributes:
      script: the name of the script it is asked of.
      config: the experiment, a name of rosetta.pax.configs or a dotted one.
      nodes, processes: of the run; without Slurm both are 1.
      gpus: of the run.
      gpus_per_process: that each process drives.
      precision: FPROP_DTYPE, None for what the experiment says.
      log_dir: absolute, or the address of an object store.
      hyper: hyper-parameters as --fdl has them, name -> Python literal.
      words: further words for Paxml's program.
      variables: everything as given.
    """

    script: str
    config: str
    nodes: int
    processes: int
    gpus: int
    gpus_per_process: int
    precision: str | None
    log_dir: str
    hyper: Mapping[str, str]
    words: tuple[str, ...]
    variables: Mapping[str, str]

    @property
    def llama(self) -> bool:
        """Is this run_llama_boolq?"""
        return self.script == "run_llama_boolq"

    @property
    def lora(self) -> bool:
        """Does LoRA train instead of all weights?"""
        return self.reads_on("USE_LORA")

    def hyper_switch(self, name: str) -> bool | None:
        """Return whether a hyper-parameter is on, None where it is not given.

        Raises:
          UserError: it is neither on nor off.
        """
        value = fiddle_arguments.value(self.hyper.get(name, "None"))
        return None if value is None else experiment_checks.read_switch(f"--fdl.{name}", value)

    def reads_on(self, name: str) -> bool:
        """Return whether a switch is on by its hyper-parameter, or else by its variable."""
        typed = self.hyper_switch(name)
        return read_truth_value(self.variables, name) if typed is None else typed

    @property
    def of_user(self) -> bool:
        """Is the experiment a class of the user's own? Only that class knows what it reads."""
        return "." in self.config and not self.config.startswith(f"{MODULE}.")

    @property
    def evaluates_only(self) -> bool:
        """Does the run train nothing?"""
        return self.script == "run_lambada_singlenode" or (
            self.llama and read_truth_value(self.variables, "EVAL_ONLY")
        )

    @property
    def synthetic(self) -> bool:
        """Does the experiment make up its data, and need neither text nor vocabulary?"""
        return self.config.rpartition(".")[2].startswith("Synthetic")


def given(script: str, words: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with a script's positionals over them; one that is empty, or None as
    upstream writes it, is not given.

    Raises:
      UserError: there are too many.
    """
    names = POSITIONALS[script]
    if len(words) > len(names):
        hint = (
            f"give {' '.join(names)}"
            if names
            else "settings come from the environment: CONFIG, LOG_DIR, USE_LORA, ..."
        )
        raise UserError(
            f"got {len(words)} arguments", f"{script}.sh", hint, kind=INVALID, value=len(words)
        )
    return {
        **environment,
        **{name: word for name, word in zip(names, words) if word not in ("", "None")},  # noqa: B905 (Python 3.9)
    }


def read(
    script: str, words: Sequence[str], environment: Mapping[str, str], devices: int
) -> Settings:
    """Read a script's settings.

    Args:
      script: its name without suffix.
      words: its positionals; an empty one is not given.
      environment: its variables; positionals win.
      devices: how many a process sees, for NUM_GPUS where it is not given.

    Raises:
      UserError: one line for the first thing that is wrong.
    """
    variables = given(script, words, environment)
    health.read(variables)
    health.check_process_variables(variables)
    _check_digits(variables)
    single = script.endswith("singlenode") or (
        script == "run_llama_boolq" and not read_truth_value(variables, "USE_MULTIPROCESS")
    )
    nodes, processes, each = _devices(variables, devices, single=single)
    hyper, more = fiddle_arguments.split(
        variables.get("ADDITIONAL_ARGS", "") + " " + variables.get("ROSETTA_FDL", "")
    )
    precision = (
        parse_choice("PREC", variables["PREC"], experiment_checks.PRECISIONS)
        if variables.get("PREC")
        else None
        if script == "run_llama_boolq"
        else experiment_checks.PRECISIONS[0]
    )
    found = Settings(
        script=script,
        config=variables.get("CONFIG") or CONFIGS.get(script, ""),
        nodes=nodes,
        processes=processes,
        gpus=each * processes,
        gpus_per_process=each,
        precision=precision,
        log_dir=absolute(
            variables.get("LOG_DIR")
            or ("/tmp/llama" if script == "run_llama_boolq" else "test_logdir")  # noqa: S108 (documented)
        ),
        hyper={},
        words=tuple(more),
        variables=variables,
    )
    if not found.config:
        raise UserError(
            "it is not given",
            "CONFIG",
            (
                "name an experiment, as in CONFIG=Synthetic126M; it is "
                "run_base_config_multinode.sh's first word"
            ),
            kind=MISSING,
        )
    if found.llama:
        _refuse_unread_lora(variables)
    else:
        _of_llama_alone(variables)
    whole = {**_hyper(found), **hyper}
    _arithmetic(whole, found.gpus)
    return replace(found, hyper=whole)


def _check_digits(variables: Mapping[str, str]) -> None:
    """Refuse numbers that only Python reads as such, as 1_0 and 0x10; other values are checked by
    what they are.
    """
    for name in HYPER:
        text = variables.get(name, "").strip()
        is_number = type(fiddle_arguments.value(text)) in (int, float, complex)
        if is_number and parse_decimal(text.lstrip("-")) is None:
            raise UserError(
                f"it is {text!r}",
                name,
                "give a number in decimal digits, as in 10 or 1e-4",
                kind=INVALID,
                value=text,
            )


def _devices(variables: Mapping[str, str], devices: int, *, single: bool) -> tuple[int, int, int]:
    """Nodes, processes, and the GPUs of each process: all of its node's, or one."""
    per_node = (
        parse_whole_number("NUM_GPUS", variables["NUM_GPUS"]) if variables.get("NUM_GPUS") else None
    )
    processes = (
        1 if single else parse_whole_number("SLURM_NTASKS", variables.get("SLURM_NTASKS") or "1")
    )
    nodes = (
        1
        if single
        else parse_whole_number(
            "SLURM_JOB_NUM_NODES",
            variables.get("SLURM_JOB_NUM_NODES") or variables.get("SLURM_NNODES") or "1",
        )
    )
    if processes == 1:
        return 1, 1, per_node or devices
    if processes % nodes:
        raise UserError(
            f"Slurm started {processes} processes on {nodes} nodes",
            f"SLURM_NTASKS={processes}",
            "start as many on each: srun --ntasks-per-node",
            kind=CONFLICT,
            value=processes,
        )
    on_each = processes // nodes
    per_node = per_node or (devices if on_each == 1 else on_each)
    if on_each not in (1, per_node):
        raise UserError(
            f"Slurm started {on_each} processes on each node",
            f"NUM_GPUS={per_node}",
            (
                "start one process a GPU (srun --ntasks-per-node), or one a node; NUM_GPUS counts "
                "a node's"
            ),
            kind=CONFLICT,
            value=on_each,
        )
    return nodes, processes, per_node // on_each


def _hyper(found: Settings) -> dict[str, str]:
    """Return the hyper-parameters of a script and its variables, except ADDITIONAL_ARGS."""
    hyper = {"FPROP_DTYPE": fiddle_arguments.literal(found.precision)} if found.precision else {}
    here = found.gpus // found.nodes
    if found.script.startswith(("run_pile", "run_lambada")):
        hyper |= {
            "ICI_MESH_SHAPE": f"[{here},1,1]",
            "DCN_MESH_SHAPE": f"[{found.nodes},1,1]",
            "PERCORE_BATCH_SIZE": "4",
        }
    if found.llama:
        hyper |= _llama(found.variables, found.lora, here, found.nodes)
    typed = {
        name: fiddle_arguments.literal(found.variables[name])
        for name in HYPER
        if found.variables.get(name)
    }
    return {**hyper, **typed}


def _llama(variables: Mapping[str, str], lora: bool, here: int, nodes: int) -> dict[str, str]:
    """Return what the LLaMA script sets; its mesh is for 1 node with LoRA and 2 without."""
    common = {"PERCORE_BATCH_SIZE": "2", "MAX_SEQ_LEN": "4096", "USE_REPEATED_LAYER": "False"}
    if not lora:
        mesh = {"ICI_MESH_SHAPE": f"[1,{here},1]", "DCN_MESH_SHAPE": f"[1,{nodes},1]"}
        return {
            **common,
            **mesh,
            "LEARNING_RATE": "1e-6",
            "LR_SCHEDULE": '"linear_rampup_cosine_decay"',
            "MAX_STEPS": "1000",
            "LR_COS_WARMUP": "500",
        }
    layers = parse_choice(
        "LORA_TARGET_LAYERS",
        variables.get("LORA_TARGET_LAYERS") or "all",
        experiment_checks.ADAPTED,
    )
    rank = parse_whole_number("LORA_RANK", variables.get("LORA_RANK") or "32")
    mesh = {"ICI_MESH_SHAPE": f"[{here},1,1]", "DCN_MESH_SHAPE": f"[{nodes},1,1]"}
    switch = {
        "USE_LORA": "True",
        "LORA_RANK": str(rank),
        "LORA_TARGET_LAYERS": fiddle_arguments.literal(layers),
    }
    return {
        **common,
        **mesh,
        **switch,
        "LEARNING_RATE": "1e-4",
        "LR_SCHEDULE": '"constant"',
        "MAX_STEPS": "600",
    }


def _refuse_unread_lora(variables: Mapping[str, str]) -> None:
    """Refuse LoRA's variables without USE_LORA=1: all weights would train, as if they were not
    set.
    """
    name = next((name for name in _LORA if variables.get(name)), None)
    if name and not read_truth_value(variables, "USE_LORA"):
        raise UserError(
            "only a run with USE_LORA=1 reads it",
            f"{name}={variables[name]}",
            "set USE_LORA=1, or unset it",
            kind=CONFLICT,
        )


def _of_llama_alone(variables: Mapping[str, str]) -> None:
    """UserError for a variable that only run_llama_boolq reads: left unread, it would train
    something else than was asked for.
    """
    switches = [name for name in ("USE_LORA", "EVAL_ONLY") if read_truth_value(variables, name)]
    values = [name for name in (*_LORA, "CHECKPOINT_RESTORE_PATH") if variables.get(name)]
    asked = next(iter([*switches, *values]), None)
    if asked:
        do = (
            "unset it"
            if asked == "EVAL_ONLY"
            else f"unset it, or give the hyper-parameter: --fdl.{asked}=VALUE in ROSETTA_FDL"
        )
        raise UserError(
            "only run_llama_boolq reads it", f"{asked}={variables[asked]}", do, kind=UNSUPPORTED
        )


def _arithmetic(hyper: Mapping[str, str], gpus: int) -> None:
    """Check mesh and batch, as far as they are given here; the experiment's own are checked when it
    is there.
    """
    values: dict[str, Any] = {
        name: fiddle_arguments.value(hyper[name])
        for name in ("ICI_MESH_SHAPE", "DCN_MESH_SHAPE", "PERCORE_BATCH_SIZE")
        if name in hyper
    }
    split = 1
    if "ICI_MESH_SHAPE" in values and "DCN_MESH_SHAPE" in values:
        split = math.prod(experiment_checks.mesh(SimpleNamespace(**values), gpus)[:2])
    if "PERCORE_BATCH_SIZE" in values:
        experiment_checks.batch(values["PERCORE_BATCH_SIZE"], gpus, split=split)
