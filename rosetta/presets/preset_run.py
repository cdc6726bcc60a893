"""Make the run description of a preset: what to start, where, and with which settings.

`rosetta run` and `submit` call `describe_run`. Its two steps can be called separately, as `explain`
and `tune` do: `resolve_values` merges all settings, and `build_run` makes the run of the values.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from rosetta.core import log
from rosetta.core.errors import CONFLICT, MISSING, UserError
from rosetta.core.run_description import Run
from rosetta.core.value_parsing import read_truth_value
from rosetta.core.variables import lookup, setting_values
from rosetta.pax.run.settings import is_user_experiment
from rosetta.presets import combine_thresholds, preset_files, resolution, user_settings
from rosetta.presets.resolution import ResolvedValue
from rosetta.presets.schema import Value

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rosetta.presets.resolution import ResolvedPreset

ENTRY_COMMANDS = {"t5x": ("rosetta", "t5x"), "pax": ("rosetta", "pax")}
MODEL_VARIABLES = {"t5x": "T5_SIZE", "pax": "CONFIG"}
# Precision -> the variables that make the training scripts use it. If a variable is missing here,
# the scripts choose its value from what the environment has installed.
SETTINGS_BY_PRECISION = {
    "t5x": {
        "bf16": {"PREC": "bfloat16", "ENABLE_FP8": "0"},
        "fp32": {"PREC": "float32", "ENABLE_FP8": "0", "ENABLE_TE": "0"},
        "fp8-xla": {"PREC": "bfloat16", "ENABLE_FP8": "1", "ENABLE_TE": "0"},
        "fp8-te": {"PREC": "bfloat16", "ENABLE_FP8": "1", "ENABLE_TE": "1"},
    },
    "pax": {
        "bf16": {"PREC": "bfloat16", "ENABLE_FP8": "0"},
        "fp32": {"PREC": "float32", "ENABLE_FP8": "0"},
        "fp8-xla": {"PREC": "bfloat16", "ENABLE_FP8": "1", "ENABLE_TE": "0"},
        "fp8-te": {"PREC": "bfloat16", "ENABLE_FP8": "1", "ENABLE_TE": "1"},
    },
}
# The variables by which a user may choose a precision.
_PRECISION_VARIABLES = ("PREC", "ENABLE_FP8", "ENABLE_TE")


def describe_run(
    name: str,
    *,
    accelerator: str | None,
    settings: Mapping[str, str],
    nodes: int | None = None,
    gpus_per_node: int | None = None,
    environment: Mapping[str, str],
    site: preset_files.Layer | None = None,
) -> Run:
    """Return the run that a preset, the site, the environment and the command line describe.

    Args:
        name: The name or the file of a preset.
        accelerator: The short name of a GPU (see rosetta.core.gpus). None: the GPU that the site
            sets. If the site sets none either, or the run is on the CPU, no values of a GPU apply.
        settings: NAME -> VALUE of the command line: variables of the training scripts, XLA flags
            without dashes, fdl.NAME, and fields of presets.
        nodes: The number of nodes. None: the preset's.
        gpus_per_node: The number of GPUs of each node. None: the preset's.
        environment: The environment variables.
        site: The settings of the site. None: see preset_files.load_site_layer.

    Raises:
        UserError: A name or value is not valid, or two settings conflict.
    """
    return build_run(
        resolve_values(
            name,
            accelerator=accelerator,
            settings=settings,
            nodes=nodes,
            gpus_per_node=gpus_per_node,
            environment=environment,
            site=site,
        )
    )


def resolve_values(
    name: str,
    *,
    accelerator: str | None,
    settings: Mapping[str, str],
    nodes: int | None = None,
    gpus_per_node: int | None = None,
    environment: Mapping[str, str],
    site: preset_files.Layer | None = None,
) -> ResolvedPreset:
    """Return the values of the run, each with its origin. The arguments are those of
    `describe_run`.
    """
    chain = preset_files.load_preset_chain(name)
    # Each chain begins with the preset "t5x" or "pax", which has the name of the framework.
    framework = chain[0].name
    site = preset_files.load_site_layer(environment) if site is None else site
    if (
        accelerator is None
        and "accelerator" in site.values
        and not user_settings.is_cpu_requested(settings, environment)
    ):
        accelerator = site.values["accelerator"].value
    command_line = user_settings.read_command_line(
        framework, settings, _list_preset_variables(chain)
    )
    for field, value in (("nodes", nodes), ("gpus_per_node", gpus_per_node)):
        if value is not None:
            command_line[field] = Value(value, user_settings.COMMAND_LINE)
    from_environment = user_settings.read_environment(framework, environment)

    resolved = resolution.resolve_preset(
        name,
        accelerator=accelerator,
        environment=from_environment,
        command_line=command_line,
        site=site,
    )
    user_variables = {
        variable: resolved.values[f"settings.{variable}"]
        for variable in _PRECISION_VARIABLES
        if f"settings.{variable}" in resolved.values
    }
    if user_variables:
        # The variables select a precision. Each precision has a layer of values, so the values have
        # to be resolved again.
        precision = _derive_precision(framework, resolved, user_variables)
        command_line = {**command_line, "precision": precision}
        resolved = resolution.resolve_preset(
            name,
            accelerator=accelerator,
            environment=from_environment,
            command_line=command_line,
            site=site,
        )
    base_flags = user_settings.BASE_FLAGS_VARIABLE
    if settings.get(base_flags) or environment.get(base_flags):
        user_fields = {*from_environment, *command_line}
        resolved = _remove_preset_flags(resolved, user_fields)
    _check_model(resolved, chain, name)
    for path, resolved_value in resolved.values.items():
        log.debug(f"{path}={resolved_value.value} is set by {resolved_value.origin}")
    return add_combine_thresholds(
        resolved,
        find_model(resolved),
        resolve_meshes(resolved),
        resolved.get("nodes") * resolved.get("gpus_per_node"),
    )


def _list_preset_variables(chain: list[preset_files.Layer]) -> set[str]:
    """Return the environment variables that the layers of a preset, or any switch, set."""
    layers = [
        preset_files.load_common_layer(),
        *chain,
        *preset_files.load_named_layers("switches").values(),
    ]
    names = set()
    for layer in layers:
        for path in layer.values:
            if path.startswith("env."):
                names.add(path.removeprefix("env."))
    return names


def _remove_preset_flags(resolved: ResolvedPreset, user_fields: set[str]) -> ResolvedPreset:
    """Return the values without the XLA flags that the user did not set."""
    values = {
        path: value
        for path, value in resolved.values.items()
        if not path.startswith("xla_flags.") or path in user_fields
    }
    return replace(resolved, values=values)


def find_model(resolved: ResolvedPreset) -> str:
    """Return the model of the run: T5_SIZE, or the Pax experiment."""
    variable = MODEL_VARIABLES[resolved.framework]
    return str(resolved.get(f"settings.{variable}") or resolved.configs[0])


def resolve_meshes(resolved: ResolvedPreset) -> dict[str, list[int]]:
    """Return the meshes of Pax: "ici" within a node, and "dcn" across nodes.

    A preset may write `gpus` or `nodes` for a dimension of a mesh. The result has the number of
    GPUs of a node, or of nodes, in its place.

    Raises:
        UserError: The product of "ici" is not the number of GPUs of a node, or that of "dcn" is not
            the number of nodes.
    """
    counts = {"gpus": resolved.get("gpus_per_node"), "nodes": resolved.get("nodes")}
    meshes = {}
    for name, word, unit in (("ici", "gpus", "GPUs in a node"), ("dcn", "nodes", "nodes")):
        dimensions = resolved.get(f"mesh.{name}")
        if not dimensions:
            continue
        mesh = [counts.get(dimension, dimension) for dimension in dimensions]
        product, count = math.prod(mesh), counts[word]
        if product != count:
            raise UserError(
                f"the product of the mesh is {product}, but there are {count} {unit}",
                f"mesh.{name}={mesh}",
                f"make the product {count}, or write `{word}` in place of a number",
                kind=CONFLICT,
                value=product,
            )
        meshes[name] = mesh
    return meshes


def add_combine_thresholds(
    resolved: ResolvedPreset, model: str, meshes: Mapping[str, list[int]], gpu_count: int
) -> ResolvedPreset:
    """Return the values with the thresholds that `combine: layers` derives from the model.

    A threshold that the user or the site sets stays as it is. Without `combine: layers`, all values
    stay as they are.

    Args:
        resolved: The values of the run.
        model: T5_SIZE, or the Pax experiment.
        meshes: The meshes "ici" and "dcn" of Pax; {} for T5X.
        gpu_count: The number of GPUs of the run.

    Raises:
        UserError: The sizes of the model are not known.
    """
    if resolved.get("combine") != "layers":
        return resolved
    origin = resolved.values["combine"].origin
    values = dict(resolved.values)
    thresholds = combine_thresholds.derive_thresholds(resolved, model, meshes, gpu_count)
    for name, threshold in thresholds.items():
        previous = values.get(f"xla_flags.{name}")
        # The origins of rosetta's own presets begin with presets/. Everything else is set by the
        # user or the site.
        if previous is not None and not previous.origin.startswith("presets/"):
            continue
        overrode = ((previous.origin, previous.value), *previous.overrode) if previous else ()
        values[f"xla_flags.{name}"] = ResolvedValue(
            threshold, origin, f"{combine_thresholds.COMBINE_LAYERS}: bytes of one layer", overrode
        )
    return replace(resolved, values=values)


def _derive_precision(
    framework: str, resolved: ResolvedPreset, user_variables: Mapping[str, ResolvedValue]
) -> Value:
    """Return the precision that PREC, ENABLE_FP8 and ENABLE_TE of the user select.

    A variable that the user does not set has the value of the preset's precision.
    """
    variables = dict(SETTINGS_BY_PRECISION[framework][resolved.get("precision")])
    variables |= {name: setting.value for name, setting in user_variables.items()}
    distinct_origins = dict.fromkeys(setting.origin for setting in user_variables.values())
    origin = ", ".join(distinct_origins)
    if variables.get("PREC") == "float32":
        return Value("fp32", origin)
    # The scripts of Pax use Transformer Engine for FP8 unless ENABLE_TE is off.
    te_default = framework == "pax" and "ENABLE_FP8" in user_variables
    fp8 = read_truth_value(variables, "ENABLE_FP8")
    with_te = read_truth_value(variables, "ENABLE_TE", default=te_default)
    if not fp8:
        return Value("bf16", origin)
    return Value("fp8-te" if with_te else "fp8-xla", origin)


def _check_model(resolved: ResolvedPreset, chain: list[preset_files.Layer], name: str) -> None:
    """Check that the run has a model, and that the model is one for which the preset is made.

    Args:
        resolved: The values of the run.
        chain: The preset and those that it extends, the most general one first.
        name: The name of the preset, for the error.

    Raises:
        UserError: No model is set, or a variable sets another model than the preset.
    """
    variable = MODEL_VARIABLES[resolved.framework]
    field = f"settings.{variable}"
    models = resolved.configs
    preset_models = [layer.values[field].value for layer in chain if field in layer.values]
    if preset_models and preset_models[-1]:
        models = (preset_models[-1],)
    chosen = resolved.values.get(field)
    if not models and chosen is None:
        preset_names = ", ".join(preset_files.load_presets())
        raise UserError(
            "this preset does not set a model",
            name,
            f"set {variable}=..., or choose a preset with a model: {preset_names}",
            kind=MISSING,
        )
    if models and chosen and chosen.value not in models:
        other_presets = _find_presets_for_model(field, chosen.value)
        remedy = f"choose one of: {', '.join(models)}"
        if other_presets:
            remedy = f"use the preset {other_presets[0]}, or unset {variable}"
        raise UserError(
            f"the preset {name} is not for this model",
            f"{variable}={chosen.value}",
            remedy,
            kind=CONFLICT,
            value=chosen.value,
        )


def _find_presets_for_model(field: str, model: str) -> list[str]:
    """Return the names of the shipped presets for a model.

    Args:
        field: The field that sets the model: "settings.T5_SIZE" or "settings.CONFIG".
        model: The model.
    """
    names = []
    for preset in preset_files.load_presets().values():
        preset_model = preset.values.get(field)
        if model in preset.configs or (preset_model and preset_model.value == model):
            names.append(preset.name)
    return names


def build_run(resolved: ResolvedPreset) -> Run:
    """Return the run that the values describe.

    Raises:
        UserError: See `resolve_meshes`; or a value is not valid for its variable.
    """
    framework = resolved.framework
    nodes, gpus_per_node = resolved.get("nodes"), resolved.get("gpus_per_node")
    model = find_model(resolved)
    meshes = resolve_meshes(resolved)
    script = _choose_script(resolved, model)
    fdl = resolved.group("fdl")
    settings = _collect_settings(resolved, script, model, meshes)
    _check_settings(resolved, settings, model)
    batch = {
        name: resolved.get(f"batch.{name}")
        for name in ("per_gpu", "microbatches")
        if resolved.get(f"batch.{name}") is not None
    }
    return Run(
        framework=framework,
        entry=(*ENTRY_COMMANDS[framework], script),
        model=model,
        precision=resolved.get("precision"),
        mesh=meshes,
        batch=batch,
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        processes_per_node=resolved.get("processes_per_node"),
        xla_flags=resolved.group("xla_flags"),
        env={
            **resolved.group("env"),
            **settings,
            user_settings.PRESET_VARIABLE: user_settings.ALREADY_APPLIED,
        },
        mounts=tuple((outside, inside) for outside, inside in resolved.get("mounts", ())),
        fdl=fdl,
        origin={path: value.origin for path, value in resolved.values.items()},
    )


def _collect_settings(
    resolved: ResolvedPreset, script: str, model: str, meshes: Mapping[str, list[int]]
) -> dict[str, str]:
    """Return the variables of the training script, name -> value."""
    framework = resolved.framework
    nodes, gpus_per_node = resolved.get("nodes"), resolved.get("gpus_per_node")
    settings = {
        MODEL_VARIABLES[framework]: model,
        **_list_precision_settings(resolved),
        **resolved.group("settings"),
    }
    # NUM_GPUS is the number of all GPUs for the scripts of T5X, and of those of a node for Pax.
    if framework == "t5x":
        settings["NUM_GPUS"] = str(nodes * gpus_per_node)
    else:
        settings["NUM_GPUS"] = str(gpus_per_node)
        for name, shape in meshes.items():
            settings[f"{name.upper()}_MESH_SHAPE"] = str(shape).replace(" ", "")
        # Without this variable, the boolq script ignores Slurm and starts one process.
        if script == "boolq":
            settings.setdefault("USE_MULTIPROCESS", "1")
    for name, path in user_settings.map_variables_to_fields(framework).items():
        if path.startswith("batch.") and resolved.get(path) is not None:
            settings[name] = str(resolved.get(path))
    fdl = resolved.group("fdl")
    if fdl:
        arguments = [f"--fdl.{name}={value!r}" for name, value in fdl.items()]
        settings["ROSETTA_FDL"] = " ".join([settings.get("ROSETTA_FDL", ""), *arguments]).strip()
    # The run description has the XLA flags in a field of their own.
    for name in ("XLA_FLAGS", user_settings.BASE_FLAGS_VARIABLE):
        settings.pop(name, None)
    return settings


def _check_settings(resolved: ResolvedPreset, settings: Mapping[str, str], model: str) -> None:
    """Check the value of each variable as the script itself does.

    The script would report the error only when the job starts, perhaps after hours in a queue.

    Raises:
        UserError: A value is not valid.
    """
    framework = resolved.framework
    for name, value in settings.items():
        if name not in user_settings.list_script_variables(framework):
            continue
        variable = lookup.find_variable(name, framework)
        # Spaces around a hyper-parameter are ignored.
        text = value.strip() if variable.hyper_parameter else value
        # An experiment of the user may define schedules of its own.
        has_own_schedules = name == "LR_SCHEDULE" and is_user_experiment(model)
        if not text or has_own_schedules:
            continue
        try:
            setting_values.parse_value(variable, text)
        except UserError as error:
            origin = resolved.values[f"settings.{name}"].origin
            if ".yaml:" not in origin:
                raise
            # The value is in a preset file: name the file and the line, too.
            where = f"{origin}: {error.where}"
            raise UserError(
                error.what, where, error.do, kind=error.kind, value=error.value
            ) from None


def _choose_script(resolved: ResolvedPreset, model: str) -> str:
    """Return the script of the framework that the run starts.

    The preset sets the script in its field "runs", with these exceptions: T5X finetunes if a task
    is set, Lambada experiments are evaluated, and experiments on synthetic data are trained.
    """
    if resolved.framework == "t5x" and resolved.get("settings.FT_TASK"):
        return "finetune"
    if resolved.framework == "pax" and model.startswith("Lambada"):
        return "lambada"
    if model.startswith("Synthetic"):
        return "train"
    script: str = resolved.get("runs")
    return script


def _list_precision_settings(resolved: ResolvedPreset) -> dict[str, str]:
    """Return the variables that make the training script use the precision.

    If the user set one of these variables, only PREC is returned: the script decides the rest from
    what the user set.
    """
    variables = SETTINGS_BY_PRECISION[resolved.framework][resolved.get("precision")]
    if any(f"settings.{name}" in resolved.values for name in _PRECISION_VARIABLES):
        return {name: value for name, value in variables.items() if name == "PREC"}
    return dict(variables)
