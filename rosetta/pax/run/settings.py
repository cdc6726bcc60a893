"""Read and check the settings of the scripts of Pax, from positional arguments and variables.

The launcher (rosetta.launch.pax_trainer), `rosetta explain` and `rosetta tune` read them with
`read_settings`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

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
# The positional arguments of each script, in their documented order. Each one may be left out: the
# variable of the same name is read instead.
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
_LORA_VARIABLES = ("LORA_RANK", "LORA_TARGET_LAYERS")  # read only with USE_LORA=1


@dataclass(frozen=True)
class Settings:
    """The settings of one run.

    Attributes:
      script: The name of the script, without suffix.
      config: The experiment, a name of rosetta.pax.configs or MODULE.CLASS.
      nodes: The nodes of the run, 1 without Slurm.
      processes: The processes of the run, 1 without Slurm.
      gpus: The GPUs of the run.
      gpus_per_process: The GPUs of each process.
      precision: FPROP_DTYPE; None for the precision of the experiment.
      log_dir: The folder of the run, an absolute path or the address of an object store.
      hyper: The literals of the hyper-parameters by name, as --fdl takes them.
      words: Other arguments of Paxml.
      variables: All variables as texts, with the positional arguments.
      values: Every variable that the script reads, as its type. None if the variable is not set
        and its default is not a fixed value.
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
        """Whether the script is run_llama_boolq."""
        return self.script == "run_llama_boolq"

    @property
    def lora(self) -> bool:
        """Whether the run trains low-rank adapters instead of all weights."""
        return self.reads_on("USE_LORA")

    def hyper_switch(self, name: str) -> bool | None:
        """Return whether a hyper-parameter is on, None if it is not set.

        Raises:
          UserError: The value is neither on nor off.
        """
        value = fiddle_arguments.parse_literal(self.hyper.get(name, "None"))
        return None if value is None else experiment_checks.read_switch(f"--fdl.{name}", value)

    def reads_on(self, name: str) -> bool:
        """Return whether a switch is on: by its hyper-parameter, or else by its variable."""
        value = self.hyper_switch(name)
        return bool(self.values.get(name)) if value is None else value

    @property
    def is_of_user(self) -> bool:
        """Whether the experiment is a class of the user. Only that class knows what it reads."""
        return is_user_experiment(self.config)

    @property
    def evaluates_only(self) -> bool:
        """Whether the run trains nothing."""
        return self.script == "run_lambada_singlenode" or (
            self.llama and bool(self.values["EVAL_ONLY"])
        )

    @property
    def is_synthetic(self) -> bool:
        """Whether the experiment makes up its data, and needs neither text nor vocabulary."""
        return self.config.rpartition(".")[2].startswith("Synthetic")


def is_user_experiment(config: str) -> bool:
    """Return whether an experiment is a class of the user, and not one of rosetta's."""
    return "." in config and not config.startswith(f"{CONFIGS_MODULE}.")


def add_positionals(
    script: str, words: Sequence[str], environment: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables of a script, with its positional arguments in their place.

    A positional argument that is empty, or that is None as upstream writes it, changes nothing.

    Args:
      script: The name of the script, without suffix.
      words: The positional arguments.
      environment: The variables.

    Raises:
      UserError: There are more arguments than the script takes.
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
    given = {name: word for name, word in zip(names, words) if word not in ("", "None")}  # noqa: B905 (Python 3.9)
    return {**environment, **given}


def read_settings(
    script: str, words: Sequence[str], environment: Mapping[str, str], devices: int
) -> Settings:
    """Return the settings of a script.

    Args:
      script: The name of the script, without suffix.
      words: The positional arguments, which win over the variables. An empty one is not set.
      environment: The variables.
      devices: The devices that a process sees, used if NUM_GPUS is not set.

    Raises:
      UserError: A setting is wrong. The error is about the first one.
    """
    variables = add_positionals(script, words, environment)
    values = _read_values(script, variables)
    single_process = script.endswith("singlenode") or (
        script == "run_llama_boolq" and not values["USE_MULTIPROCESS"]
    )
    counts = _count_devices(values, devices, single_process=single_process)
    given_hyper, paxml_words = fiddle_arguments.split_arguments(
        variables.get("ADDITIONAL_ARGS", "") + " " + variables.get("ROSETTA_FDL", "")
    )
    settings = Settings(
        script=script,
        config=values["CONFIG"] or "",
        nodes=counts.nodes,
        processes=counts.processes,
        gpus=counts.gpus_per_process * counts.processes,
        gpus_per_process=counts.gpus_per_process,
        precision=values["PREC"],
        log_dir=parse_path("LOG_DIR", values["LOG_DIR"]),
        hyper={},
        words=tuple(paxml_words),
        variables=variables,
        values=values,
    )
    if not settings.config:
        raise UserError(
            "no experiment is set",
            "CONFIG",
            "name an experiment, as in CONFIG=Synthetic126M, or as the first argument of "
            "run_base_config_multinode.sh",
            kind=MISSING,
        )
    if settings.llama:
        _refuse_unread_lora(settings)
    else:
        _refuse_llama_variables(variables)
    hyper = {**_list_hyper_parameters(settings), **given_hyper}
    _check_mesh_and_batch(hyper, settings.gpus)
    return replace(settings, hyper=hyper)


def _read_values(script: str, variables: Mapping[str, str]) -> dict[str, Any]:
    """Return every variable that a script reads, as its type; see Settings.values.

    Spaces around a hyper-parameter are ignored. LR_SCHEDULE is not checked for an experiment of
    the user, which may have other schedules.
    """
    config = setting_values.read_setting(variables, "CONFIG", script)
    unchecked = ("LR_SCHEDULE",) if config and is_user_experiment(config) else ()
    hyper = {}
    for variable in lookup.list_settings(script):
        if variable.hyper_parameter and variable.name in variables:
            text = variables[variable.name].strip()
            hyper[variable.name] = "" if variable.name in unchecked else text
    return setting_values.read_settings({**variables, **hyper}, script)


class _DeviceCounts(NamedTuple):
    """The nodes and processes of a run, and the GPUs of each process."""

    nodes: int
    processes: int
    gpus_per_process: int


def _count_devices(
    values: Mapping[str, Any], devices: int, *, single_process: bool
) -> _DeviceCounts:
    """Return the nodes, processes and GPUs of a run.

    A process drives all GPUs of its node, or one.

    Args:
      values: The variables as their types.
      devices: The devices that a process sees, used if NUM_GPUS is not set.
      single_process: Whether the run has one process, whatever Slurm says.

    Raises:
      UserError: Slurm started processes that do not fit NUM_GPUS.
    """
    gpus_per_node = values["NUM_GPUS"]
    processes = 1 if single_process else values["SLURM_NTASKS"]
    if processes == 1:
        return _DeviceCounts(1, 1, gpus_per_node or devices)
    nodes = values["SLURM_JOB_NUM_NODES"] or values["SLURM_NNODES"] or 1
    if processes % nodes:
        raise UserError(
            f"Slurm started {processes} processes on {nodes} nodes",
            f"SLURM_NTASKS={processes}",
            "start the same number on each node: srun --ntasks-per-node",
            kind=CONFLICT,
            value=processes,
        )
    processes_per_node = processes // nodes
    if not gpus_per_node:
        gpus_per_node = devices if processes_per_node == 1 else processes_per_node
    if processes_per_node not in (1, gpus_per_node):
        raise UserError(
            f"Slurm started {processes_per_node} processes on each node",
            f"NUM_GPUS={gpus_per_node}",
            "start one process for each GPU (srun --ntasks-per-node), or one for each node; "
            "NUM_GPUS counts the GPUs of a node",
            kind=CONFLICT,
            value=processes_per_node,
        )
    return _DeviceCounts(nodes, processes, gpus_per_node // processes_per_node)


def _list_hyper_parameters(settings: Settings) -> dict[str, str]:
    """Return the hyper-parameters that a script and its variables set, without ADDITIONAL_ARGS."""
    precision: dict[str, str] = {}
    if settings.precision:
        precision["FPROP_DTYPE"] = fiddle_arguments.to_literal(settings.precision)
    defaults: dict[str, str] = {}
    given: dict[str, str] = {}
    for variable in lookup.list_settings(settings.script):
        if not variable.hyper_parameter:
            continue
        default = variable.get_default_value(settings.script)
        if default:
            defaults[variable.name] = _to_literal(variable, default)
        text = settings.variables.get(variable.name)
        if text:
            given[variable.name] = _to_literal(variable, text)
    return {
        **precision,
        **_list_mesh_shapes(settings),
        **defaults,
        **_list_llama_values(settings),
        **given,
    }


def _to_literal(variable: Variable, text: str) -> str:
    """Return a value as the Python literal that --fdl takes."""
    if isinstance(variable.type, (TruthValue, MeshShape)):
        text = str(setting_values.parse_value(variable, text))
    return fiddle_arguments.to_literal(text)


def _list_mesh_shapes(settings: Settings) -> dict[str, str]:
    """Return the mesh that a script sets.

    LLaMA shards its weights without LoRA. All other runs are data parallel.
    """
    if settings.script == "run_base_config_multinode":
        return {}
    gpus_per_node = settings.gpus // settings.nodes
    if settings.llama and not settings.lora:
        return {
            "ICI_MESH_SHAPE": f"[1,{gpus_per_node},1]",
            "DCN_MESH_SHAPE": f"[1,{settings.nodes},1]",
        }
    return {
        "ICI_MESH_SHAPE": f"[{gpus_per_node},1,1]",
        "DCN_MESH_SHAPE": f"[{settings.nodes},1,1]",
    }


def _list_llama_values(settings: Settings) -> dict[str, str]:
    """Return what run_llama_boolq sets, besides the defaults that do not depend on USE_LORA."""
    if not settings.llama:
        return {}
    if not settings.lora:
        return {
            "LEARNING_RATE": "1e-6",
            "LR_SCHEDULE": '"linear_rampup_cosine_decay"',
            "MAX_STEPS": "1000",
            "LR_COS_WARMUP": "500",
        }
    return {
        "USE_LORA": "True",
        "LORA_RANK": str(settings.values["LORA_RANK"]),
        "LORA_TARGET_LAYERS": fiddle_arguments.to_literal(settings.values["LORA_TARGET_LAYERS"]),
        "LEARNING_RATE": "1e-4",
        "LR_SCHEDULE": '"constant"',
        "MAX_STEPS": "600",
    }


def _refuse_unread_lora(settings: Settings) -> None:
    """Refuse the variables of LoRA without USE_LORA=1: all weights would train regardless."""
    name = next((name for name in _LORA_VARIABLES if settings.variables.get(name)), None)
    if name and not settings.values["USE_LORA"]:
        raise UserError(
            f"only a run with USE_LORA=1 reads {name}",
            f"{name}={settings.variables[name]}",
            f"set USE_LORA=1, or unset {name}",
            kind=CONFLICT,
        )


def _refuse_llama_variables(variables: Mapping[str, str]) -> None:
    """Refuse a variable that only run_llama_boolq reads.

    Another script would ignore the variable and train something else than the user asked for.
    """
    switches = [
        name for name in ("USE_LORA", "EVAL_ONLY") if setting_values.read_setting(variables, name)
    ]
    texts = [name for name in (*_LORA_VARIABLES, "CHECKPOINT_RESTORE_PATH") if variables.get(name)]
    name = next(iter([*switches, *texts]), None)
    if name:
        remedy = f"unset {name}"
        if name != "EVAL_ONLY":
            remedy += f", or give the hyper-parameter: --fdl.{name}=VALUE in ROSETTA_FDL"
        raise UserError(
            f"only run_llama_boolq reads {name}",
            f"{name}={variables[name]}",
            remedy,
            kind=UNSUPPORTED,
        )


def _check_mesh_and_batch(hyper: Mapping[str, str], gpus: int) -> None:
    """Check the mesh and the batch if they are set here.

    The values of the experiment are checked when its class is read or imported.

    Args:
      hyper: The literals of the hyper-parameters by name.
      gpus: The GPUs of the run.

    Raises:
      UserError: The mesh or the batch does not fit the GPUs.
    """
    parsed = fiddle_arguments.parse_values(hyper)
    values: dict[str, Any] = {
        name: value for name, value in parsed.items() if value is not NOT_KNOWN
    }
    parts = 1
    if "ICI_MESH_SHAPE" in values and "DCN_MESH_SHAPE" in values:
        meshes = SimpleNamespace(
            ICI_MESH_SHAPE=values["ICI_MESH_SHAPE"], DCN_MESH_SHAPE=values["DCN_MESH_SHAPE"]
        )
        parts = math.prod(experiment_checks.compute_mesh(meshes, gpus)[:2])
    if "PERCORE_BATCH_SIZE" in values:
        experiment_checks.compute_batch(values["PERCORE_BATCH_SIZE"], gpus, split=parts)
