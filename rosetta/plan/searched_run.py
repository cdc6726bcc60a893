"""The run that a search is about: its preset, its model, and what the command line fixes.

A candidate is expressed as settings of the preset. So the step that is compiled is the step of the
run, and the answer of a search is a preset.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rosetta.core.errors import UNSUPPORTED, UserError
from rosetta.core.value_parsing import parse_number
from rosetta.core.variables import setting_values
from rosetta.pax.run import experiment_checks, hyper_parameters
from rosetta.pax.run import parameter_count as pax_parameter_count
from rosetta.pax.run.experiment_checks import SAVE_DOT_AND_ATTENTION
from rosetta.plan import preset_arguments, search_space
from rosetta.plan.search_space import PAX, PAX_REMAT, T5X, Candidate, Fixed, Model, Split
from rosetta.plan.t5x_step import VOCABULARY_ROWS
from rosetta.presets import launch_flags, preset_run
from rosetta.t5x.run import gin_files, gin_reader, network_fields, shard_count
from rosetta.t5x.run import parameter_count as t5x_parameter_count

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rosetta.core.run_description import Run

MEMORY_VARIABLE = "XLA_PYTHON_CLIENT_MEM_FRACTION"
# A batch without a published one has about so many tokens at most.
MOST_TOKENS = 2**20
# The field of T5Config -> the setting of a preset.
T5X_SETTINGS = {
    "dtype": "PREC",
    "fp8": "ENABLE_FP8",
    "attention": "ATTENTION",
    "fuse_qkv": "FUSE_QKV",
    "transpose_batch_sequence": "TRANSPOSE_BS",
    "logits_dtype": "LOGITS_DTYPE",
}
T5X_LAYER_FIELDS = ("remat", "scan_layers")
_GATED, _GROUPED_HEADS, _KV_HEADS = "USE_GATED_ACTIVATION", "USE_MQA", "NUM_KV_HEADS"
_CUDNN_SWITCH = "USE_CUDNN_FLASH_ATTENTION"
# The hyper-parameters that a search chooses.
_PAX_SEARCHED = (
    "PERCORE_BATCH_SIZE",
    "NUM_MICROBATCHES",
    "ICI_MESH_SHAPE",
    "DCN_MESH_SHAPE",
    "USE_REPEATED_LAYER",
    "CHECKPOINT_POLICY",
)


@dataclass(frozen=True)
class SearchedRun:
    """What is searched.

    Attributes:
        model: The model.
        preset: The preset that the answer extends.
        card: The short name of the GPU.
        nodes: The number of nodes.
        per_node: GPUs of each node.
        settings: Settings of the preset that all candidates share, name -> value.
        fixed: What the command line fixes.
    """

    model: Model
    preset: str
    card: str
    nodes: int
    per_node: int
    settings: Mapping[str, str]
    fixed: Fixed

    @property
    def gpus(self) -> int:
        """GPUs of all nodes."""
        return self.nodes * self.per_node

    def describe_run(self, candidate: Candidate) -> Run:
        """Return the run of a candidate.

        Raises:
            UserError: A setting is not valid.
        """
        return self._describe(list_settings(candidate, self.model, self.nodes, self.per_node))

    def describe_published_run(self) -> Run:
        """Return the run of the preset as it is, on these GPUs.

        Raises:
            UserError: A setting is not valid.
        """
        return self._describe({})

    def _describe(self, settings: Mapping[str, str]) -> Run:
        """Return the run with more settings. The environment of this process does not count."""
        return preset_run.describe_run(
            self.preset,
            accelerator=self.card,
            settings={**self.settings, **settings},
            nodes=self.nodes,
            gpus_per_node=self.per_node,
            environment={},
        )

    def list_candidates(self) -> list[Candidate]:
        """Return the candidates.

        Without cuDNN's attention, SAVE_DOT_AND_ATTENTION is the policy that follows in PAX_REMAT.

        Raises:
            UserError: See search_space.list_candidates; or a setting is not valid.
        """
        candidates = search_space.list_candidates(
            self.model, self.gpus, self.per_node, self.fixed, self._find_largest_batch()
        )
        if self.model.framework == T5X or self.fixed.remat or self._has_cudnn_attention(candidates):
            return candidates
        return [entry for entry in candidates if entry.remat != SAVE_DOT_AND_ATTENTION]

    def _has_cudnn_attention(self, candidates: Sequence[Candidate]) -> bool:
        """Return whether cuDNN computes the attention of the candidates, which all have the same.

        Raises:
            UserError: A setting is not valid, or cannot be planned.
        """
        run = self.describe_run(candidates[0])
        words = preset_arguments.make_plan_arguments(run, self.card)
        hyper = dict(word.split("=", 1) for word in words if "=" in word)
        return "cudnn" in hyper.get("ATTENTION", "") or experiment_checks.read_switch(
            _CUDNN_SWITCH, hyper.get(_CUDNN_SWITCH, False)
        )

    def _find_largest_batch(self) -> int:
        """Return the sequences of the published batch, on its own GPUs, or about MOST_TOKENS."""
        run = preset_run.describe_run(
            self.preset, accelerator=self.card, settings=self.settings, environment={}
        )
        per_gpu = run.batch.get("per_gpu")
        if per_gpu is None:
            return max(MOST_TOKENS // self.model.tokens, 1)
        gpus = run.nodes * run.gpus_per_node
        parts = gpus // int(run.env.get("TP_SIZE") or 1) if self.model.framework == T5X else gpus
        return max(round(float(per_gpu) * parts), 1)

    def find_published(self) -> Candidate | None:
        """Return the settings of the preset, which are those of a published run, as a candidate.

        They may be outside of what is listed, but not contradict what is fixed. None if they do, if
        they cannot be used on these GPUs, or if the preset has no batch.
        """
        try:
            run = self.describe_published_run()
        except UserError:
            return None
        if "per_gpu" not in run.batch:
            return None
        read = _read_t5x_candidate if self.model.framework == T5X else _read_pax_candidate
        candidate = read(run, self.model)
        if candidate is None or not self.fixed.allows(candidate, self.model):
            return None
        return candidate

    def find_usable_memory(self, memory: int) -> float:
        """Return the memory that JAX takes of a GPU with so much memory, in bytes."""
        text = self.describe_published_run().env.get(MEMORY_VARIABLE) or "0.75"
        return memory * parse_number(MEMORY_VARIABLE, text, above_zero=True, example="0.9")


def list_settings(candidate: Candidate, model: Model, nodes: int, per_node: int) -> dict[str, str]:
    """Return the settings of a preset that make a candidate.

    Args:
        candidate: The candidate.
        model: The model.
        nodes: The number of nodes.
        per_node: GPUs of each node.
    """
    split = candidate.split
    batch = {
        "batch.per_gpu": format_batch(search_space.compute_batch_per_gpu(candidate, model)),
        "batch.microbatches": str(candidate.microbatches),
    }
    if model.framework == T5X:
        return {
            **batch,
            "TP_SIZE": str(split.tensor),
            "FSDP": str(int(split.fsdp > 1)),
            "REMAT": candidate.remat,
            "SCAN_LAYERS": str(int(candidate.scanned)),
        }
    within, across = split_mesh(split, nodes, per_node)
    policy = {"fdl.CHECKPOINT_POLICY": repr(candidate.remat)} if candidate.scanned else {}
    return {
        **batch,
        "mesh.ici": str(within),
        "mesh.dcn": str(across),
        "fdl.USE_REPEATED_LAYER": str(candidate.scanned),
        **policy,
    }


def format_batch(batch: float) -> str:
    """Return a batch per GPU as presets write it: a whole number, or a fraction below 1."""
    return str(round(batch)) if batch == round(batch) else f"{batch:.10f}".rstrip("0")


def split_mesh(split: Split, nodes: int, per_node: int) -> tuple[list[int], list[int]]:
    """Return the meshes of Pax, within a node and across nodes.

    The tensor axis is within a node. So is as much of the fsdp axis as has room there.

    Args:
        split: The split.
        nodes: The number of nodes.
        per_node: GPUs of each node.
    """
    groups = per_node // split.tensor
    fsdp = math.gcd(split.fsdp, groups)
    outer = split.fsdp // fsdp
    return [groups // fsdp, fsdp, split.tensor], [nodes // outer, outer, 1]


def _read_t5x_candidate(run: Run, model: Model) -> Candidate | None:
    """Return the candidate that a run of T5X is."""
    gpus = run.nodes * run.gpus_per_node
    tensor = int(run.env.get("TP_SIZE") or 1)
    microbatches = int(run.batch.get("microbatches") or 1)
    per_group = int(run.batch["per_gpu"])
    if gpus % tensor or per_group % microbatches:
        return None
    if any(size % tensor for size in model.divided.values()):
        return None
    groups = gpus // tensor
    shards = 1
    if setting_values.read_setting(run.env, "FSDP"):
        shards = shard_count.choose_shard_count(groups, max(run.gpus_per_node // tensor, 1))
    return Candidate(
        Split(groups // shards, shards, tensor),
        setting_values.read_setting(run.env, "REMAT"),
        setting_values.read_setting(run.env, "SCAN_LAYERS"),
        per_group // microbatches,
        microbatches,
    )


def _read_pax_candidate(run: Run, model: Model) -> Candidate | None:
    """Return the candidate that a run of Pax is."""
    within, across = run.mesh["ici"], run.mesh["dcn"]
    data, fsdp, tensor = (inner * outer for inner, outer in zip(within, across, strict=True))
    microbatches = int(run.batch.get("microbatches") or 1)
    rows = float(run.batch["per_gpu"]) * tensor / microbatches
    if rows != round(rows) or rows < 1:
        return None
    repeated = run.fdl.get("USE_REPEATED_LAYER")
    if repeated is None:
        values = hyper_parameters.resolve_values(model.name, {})
        repeated = values.get("USE_REPEATED_LAYER") is not False
        if "USE_REPEATED_LAYER" in run.env:
            repeated = setting_values.read_setting(run.env, "USE_REPEATED_LAYER", "pax")
        elif run.entry[-1] == "boolq":
            repeated = False  # as its script does
    remat = _find_policy(model.name) if repeated else search_space.NO_REMAT
    return Candidate(Split(data, fsdp, tensor), remat, bool(repeated), round(rows), microbatches)


def _find_policy(experiment: str) -> str:
    """Return the policy of rematerialisation that an experiment states, one of PAX_REMAT."""
    stated = hyper_parameters.read_stated_values(experiment).get("CHECKPOINT_POLICY")
    name = stated.text.lower().rpartition(".")[2].strip("'\"") if stated else ""
    return next((policy for policy in PAX_REMAT if name and policy.startswith(name)), PAX_REMAT[-1])


def count_mesh_devices(config: str) -> int:
    """Return the number of GPUs in the meshes of an experiment.

    Raises:
        UserError: The meshes are not known, as those of the user's own experiments.
    """
    values = hyper_parameters.resolve_values(config, {})
    count = 1
    for name in ("ICI_MESH_SHAPE", "DCN_MESH_SHAPE"):
        shape = values.get(name)
        if isinstance(shape, (list, tuple)):
            count *= math.prod(shape)
        elif shape is not None or name == "ICI_MESH_SHAPE":
            raise _make_unknown_experiment_error(config)
    return count


def _make_unknown_experiment_error(config: str) -> UserError:
    """Return the error for an experiment of which nothing is known."""
    return UserError(
        "the sizes of this experiment are not known",
        config,
        "search one of rosetta's experiments (docs/reference/pax-experiments.md), or plan single "
        "settings without --search",
        kind=UNSUPPORTED,
        value=config,
    )


def read_t5x_model(
    size: str,
    inputs: int,
    targets: int,
    family: str = "t5_1_1",
    fields: Mapping[str, Any] | None = None,
) -> Model:
    """Return the sizes of a T5.

    Args:
        size: The size.
        inputs: Tokens of an input.
        targets: Tokens of a target.
        family: The family.
        fields: Fields of T5Config that differ from those of the size.

    Raises:
        UserError: There is no such model.
    """
    names = [
        gin_files.find_model_file(family, size, "--size"),
        f"{gin_files.GIN_FOLDER}/runs/pretrain.gin",
    ]
    paths = [gin_files.ROOT / name for name in names]
    bindings = {
        "VOCAB": f"ids:{VOCABULARY_ROWS}",
        "DATA": "synthetic",
        "MODEL_DIR": "",
        "TRAIN_STEPS": 1,
        **{f"network.T5Config.{name}": value for name, value in (fields or {}).items()},
    }
    configuration = gin_reader.read_configuration(paths, [gin_files.ROOT]).bind(bindings)

    def read(field: str) -> int:
        return network_fields.read_count(configuration, field) or 1

    return Model(
        T5X,
        size,
        t5x_parameter_count.count_kernel_parameters(configuration) or 0,
        True,
        read("num_encoder_layers"),
        read("emb_dim"),
        read("mlp_dim"),
        VOCABULARY_ROWS,
        inputs + targets,
        targets,
        {
            "heads": read("num_heads"),
            "MLP features": read("mlp_dim"),
            "vocabulary rows": VOCABULARY_ROWS,
        },
    )


def read_pax_model(config: str, hyper: Mapping[str, object]) -> Model:
    """Return the sizes of an experiment.

    Raises:
        UserError: A size is not valid, or the sizes are not known, as those of the user's own
            experiments.
    """
    experiment_checks.check_counts(hyper)
    experiment_checks.check_numbers(hyper)
    literals = {name: repr(value) for name, value in hyper.items()}
    values = hyper_parameters.resolve_values(config, literals)
    parameters = pax_parameter_count.count_parameters(values)
    if parameters is None:
        raise _make_unknown_experiment_error(config)
    counts = {
        name: int(str(values[name]))
        for name in ("NUM_LAYERS", "MODEL_DIMS", "HIDDEN_DIMS", "VOCAB_SIZE", "NUM_HEADS")
    }
    divided = {"heads": counts["NUM_HEADS"], "MLP features": counts["HIDDEN_DIMS"]}
    if values.get(_GROUPED_HEADS) and isinstance(values.get(_KV_HEADS), int):
        divided["heads of keys and values"] = int(str(values[_KV_HEADS]))
    tokens = int(str(values.get("MAX_SEQ_LEN") or 2048))
    return Model(
        PAX,
        config,
        parameters,
        not experiment_checks.read_switch("USE_LORA", values.get("USE_LORA", False)),
        counts["NUM_LAYERS"],
        counts["MODEL_DIMS"],
        counts["HIDDEN_DIMS"] * (2 if values.get(_GATED) else 1),
        counts["VOCAB_SIZE"],
        tokens,
        tokens,
        divided,
    )


def make_t5x_settings(
    switches: Mapping[str, Any], inputs: int, targets: int
) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the settings of a preset for fields of T5Config, and those that fix a search.

    Args:
        switches: The fields that --with sets.
        inputs: Tokens of an input.
        targets: Tokens of a target.

    Raises:
        UserError: A preset has no setting for a field.
    """
    settings = {"ENC_SL": str(inputs), "DEC_SL": str(targets)}
    fixed = dict[str, Any]()
    for name, value in switches.items():
        if name in T5X_LAYER_FIELDS:
            fixed["scanned" if name == "scan_layers" else name] = value
        elif name == "fp8" and value != "te":
            settings[T5X_SETTINGS[name]] = "1" if value == "xla" else "0"
            settings["ENABLE_TE"] = "0"
        elif name in T5X_SETTINGS and value != "te":
            settings[T5X_SETTINGS[name]] = (
                str(int(value)) if isinstance(value, bool) else str(value)
            )
        else:
            raise UserError(
                f"a search cannot set {name} to {value!r}, because its answer is a preset",
                f"--with {name}={value}",
                f"set only: {', '.join([*T5X_SETTINGS, *T5X_LAYER_FIELDS])}, without te",
                kind=UNSUPPORTED,
                value=name,
            )
    return settings, fixed


def make_pax_settings(
    config: str, hyper: Mapping[str, object]
) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the settings of a preset for hyper-parameters, and those that fix a search.

    Args:
        config: The experiment.
        hyper: The hyper-parameters that --with sets.

    Raises:
        UserError: A preset cannot have a value, or a value is not valid.
    """
    # Without Transformer Engine, because a plan cannot compile it.
    settings = {"CONFIG": config, "ENABLE_TE": "0"}
    fixed = dict[str, Any]()
    for name, value in hyper.items():
        if name == "USE_FP8":
            settings["ENABLE_FP8"] = str(int(experiment_checks.read_switch(name, value)))
        elif isinstance(value, float) and name not in _PAX_SEARCHED:
            raise UserError(
                "the answer of a search is a preset, and a preset cannot have this fraction",
                f"--with {name}={value}",
                "leave it out; give it to the run as fdl.NAME=VALUE",
                kind=UNSUPPORTED,
                value=name,
            )
        elif name not in _PAX_SEARCHED:
            settings[f"fdl.{name}"] = repr(value)
    if "PERCORE_BATCH_SIZE" in hyper:
        fixed["batch_per_gpu"] = experiment_checks.check_rows_per_device(
            hyper["PERCORE_BATCH_SIZE"]
        )
    if "NUM_MICROBATCHES" in hyper:
        fixed["microbatches"] = experiment_checks.check_count(
            "NUM_MICROBATCHES", hyper["NUM_MICROBATCHES"]
        )
    if "USE_REPEATED_LAYER" in hyper:
        fixed["scanned"] = experiment_checks.read_switch(
            "USE_REPEATED_LAYER", hyper["USE_REPEATED_LAYER"]
        )
    if "CHECKPOINT_POLICY" in hyper:
        fixed["remat"] = str(hyper["CHECKPOINT_POLICY"])
    return settings, fixed


def find_preset(framework: str, model: str) -> str:
    """Return the name of the preset that the answer of a search extends."""
    return launch_flags.find_preset_for_model(framework, model)
