"""What a run of the Pax scripts is asked to do, from positionals or from variables, checked before
anything starts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from rosetta.core.errors import CONFLICT, INVALID, MISSING, UNSUPPORTED, UserError
from rosetta.core.not_known import NOT_KNOWN
from rosetta.core.value_parsing import parse_path
from rosetta.core.variables import lookup, setting_values
from rosetta.core.variables.value_types import MeshShape, TruthValue
from rosetta.pax.run import experiment_checks, fiddle_arguments

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rosetta.core.variables.declaration import Variable

CONFIGS_MODULE = "rosetta.pax.configs"
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
_LORA_VARIABLES = ("LORA_RANK", "LORA_TARGET_LAYERS")  # what USE_LORA=1 reads besides


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
      values: every variable that the script reads, as its type; None where it is not set and its
        default is not a fixed value.
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
    values: Mapping[str, Any]

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
        value = fiddle_arguments.parse_literal(self.hyper.get(name, "None"))
        return None if value is None else experiment_checks.read_switch(f"--fdl.{name}", value)

    def reads_on(self, name: str) -> bool:
        """Return whether a switch is on by its hyper-parameter, or else by its variable."""
        typed = self.hyper_switch(name)
        return bool(self.values.get(name)) if typed is None else typed

    @property
    def of_user(self) -> bool:
        """Is the experiment a class of the user's own? Only that class knows what it reads."""
        return is_user_experiment(self.config)

    @property
    def evaluates_only(self) -> bool:
        """Does the run train nothing?"""
        return self.script == "run_lambada_singlenode" or (
            self.llama and bool(self.values["EVAL_ONLY"])
        )

    @property
    def synthetic(self) -> bool:
        """Does the experiment make up its data, and need neither text nor vocabulary?"""
        return self.config.rpartition(".")[2].startswith("Synthetic")


def is_user_experiment(config: str) -> bool:
    """Return whether an experiment is a class of the user's own, and not one of rosetta's."""
    return "." in config and not config.startswith(f"{CONFIGS_MODULE}.")


def add_positionals(
    script: str, words: Sequence[str], environment: Mapping[str, str]
) -> dict[str, str]:
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


def read_settings(
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
    variables = add_positionals(script, words, environment)
    values = _read_values(script, variables)
    single = script.endswith("singlenode") or (
        script == "run_llama_boolq" and not values["USE_MULTIPROCESS"]
    )
    nodes, processes, each = _count_devices(values, devices, single=single)
    hyper, more = fiddle_arguments.split_arguments(
        variables.get("ADDITIONAL_ARGS", "") + " " + variables.get("ROSETTA_FDL", "")
    )
    found = Settings(
        script=script,
        config=values["CONFIG"] or "",
        nodes=nodes,
        processes=processes,
        gpus=each * processes,
        gpus_per_process=each,
        precision=values["PREC"],
        log_dir=parse_path("LOG_DIR", values["LOG_DIR"]),
        hyper={},
        words=tuple(more),
        variables=variables,
        values=values,
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
        _refuse_unread_lora(found)
    else:
        _refuse_llama_variables(variables)
    whole = {**_list_hyper_parameters(found), **hyper}
    _check_mesh_and_batch(whole, found.gpus)
    return replace(found, hyper=whole)


def _read_values(script: str, variables: Mapping[str, str]) -> dict[str, Any]:
    """Return every variable that a script reads, as its type; see Settings.

    Spaces around a hyper-parameter are ignored. An experiment of the user's own may have other
    schedules than ours.
    """
    own = setting_values.read_setting(variables, "CONFIG", script)
    leave_out = ("LR_SCHEDULE",) if own and is_user_experiment(own) else ()
    hyper = {
        variable.name: "" if variable.name in leave_out else variables[variable.name].strip()
        for variable in lookup.list_settings(script)
        if variable.hyper_parameter and variable.name in variables
    }
    return setting_values.read_settings({**variables, **hyper}, script)


def _count_devices(
    values: Mapping[str, Any], devices: int, *, single: bool
) -> tuple[int, int, int]:
    """Nodes, processes, and the GPUs of each process: all of its node's, or one."""
    per_node = values["NUM_GPUS"]
    processes = 1 if single else values["SLURM_NTASKS"]
    nodes = 1 if single else values["SLURM_JOB_NUM_NODES"] or values["SLURM_NNODES"] or 1
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


def _list_hyper_parameters(found: Settings) -> dict[str, str]:
    """Return the hyper-parameters of a script and its variables, except ADDITIONAL_ARGS."""
    hyper = {"FPROP_DTYPE": fiddle_arguments.to_literal(found.precision)} if found.precision else {}
    here = found.gpus // found.nodes
    settings = [
        variable for variable in lookup.list_settings(found.script) if variable.hyper_parameter
    ]
    defaults = {
        variable.name: _to_literal(variable, default)
        for variable in settings
        if (default := variable.default_value(found.script))
    }
    typed = {
        variable.name: _to_literal(variable, found.variables[variable.name])
        for variable in settings
        if found.variables.get(variable.name)
    }
    return {
        **hyper,
        **_list_mesh_shapes(found, here),
        **defaults,
        **_list_llama_values(found),
        **typed,
    }


def _to_literal(variable: Variable, text: str) -> str:
    """Return a value as the literal of Python that --fdl takes."""
    if isinstance(variable.type, (TruthValue, MeshShape)):
        text = str(setting_values.parse_value(variable, text))
    return fiddle_arguments.to_literal(text)


def _list_mesh_shapes(found: Settings, here: int) -> dict[str, str]:
    """Return the mesh that a script sets, with so many GPUs on a node; LLaMA's is for 1 node with
    LoRA and 2 without.
    """
    if found.script == "run_base_config_multinode":
        return {}
    if found.llama and not found.lora:
        return {"ICI_MESH_SHAPE": f"[1,{here},1]", "DCN_MESH_SHAPE": f"[1,{found.nodes},1]"}
    return {"ICI_MESH_SHAPE": f"[{here},1,1]", "DCN_MESH_SHAPE": f"[{found.nodes},1,1]"}


def _list_llama_values(found: Settings) -> dict[str, str]:
    """Return what the LLaMA script sets, besides the defaults that do not depend on USE_LORA."""
    if not found.llama:
        return {}
    if not found.lora:
        return {
            "LEARNING_RATE": "1e-6",
            "LR_SCHEDULE": '"linear_rampup_cosine_decay"',
            "MAX_STEPS": "1000",
            "LR_COS_WARMUP": "500",
        }
    return {
        "USE_LORA": "True",
        "LORA_RANK": str(found.values["LORA_RANK"]),
        "LORA_TARGET_LAYERS": fiddle_arguments.to_literal(found.values["LORA_TARGET_LAYERS"]),
        "LEARNING_RATE": "1e-4",
        "LR_SCHEDULE": '"constant"',
        "MAX_STEPS": "600",
    }


def _refuse_unread_lora(found: Settings) -> None:
    """Refuse LoRA's variables without USE_LORA=1: all weights would train, as if they were not
    set.
    """
    name = next((name for name in _LORA_VARIABLES if found.variables.get(name)), None)
    if name and not found.values["USE_LORA"]:
        raise UserError(
            "only a run with USE_LORA=1 reads it",
            f"{name}={found.variables[name]}",
            "set USE_LORA=1, or unset it",
            kind=CONFLICT,
        )


def _refuse_llama_variables(variables: Mapping[str, str]) -> None:
    """UserError for a variable that only run_llama_boolq reads: left unread, it would train
    something else than was asked for.
    """
    switches = [
        name for name in ("USE_LORA", "EVAL_ONLY") if setting_values.read_setting(variables, name)
    ]
    values = [name for name in (*_LORA_VARIABLES, "CHECKPOINT_RESTORE_PATH") if variables.get(name)]
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


def _check_mesh_and_batch(hyper: Mapping[str, str], gpus: int) -> None:
    """Check mesh and batch, as far as they are given here; the experiment's own are checked when it
    is there.
    """
    typed = fiddle_arguments.parse_values(hyper)
    values: dict[str, Any] = {
        name: typed[name]
        for name in ("ICI_MESH_SHAPE", "DCN_MESH_SHAPE", "PERCORE_BATCH_SIZE")
        if typed.get(name, NOT_KNOWN) is not NOT_KNOWN
    }
    split = 1
    if "ICI_MESH_SHAPE" in values and "DCN_MESH_SHAPE" in values:
        split = math.prod(experiment_checks.compute_mesh(SimpleNamespace(**values), gpus)[:2])
    if "PERCORE_BATCH_SIZE" in values:
        experiment_checks.compute_batch(values["PERCORE_BATCH_SIZE"], gpus, split=split)
