"""From a preset's name to the run description that everything else renders."""

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
# Precision -> the scripts' variables for it; one that is not there is the scripts' own choice, of
# what the environment has.
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
_PRECISION_SETTINGS = ("PREC", "ENABLE_FP8", "ENABLE_TE")


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
    """Return the run that a preset, the site, the environment and a command line make.

    Args:
      name: of a preset, or the path of a file of one.
      accelerator: short name of a GPU (rosetta.core.gpus); None: the site's, else nothing that is
        a GPU's own, as for a run on the CPU.
      settings: NAME -> VALUE of the command line: variables of the scripts, flags of XLA without
        dashes, fdl.NAME, fields of presets.
      nodes: None: the preset's.
      gpus_per_node: None: the preset's.
      environment: variables; those that the scripts and what is below them read are taken.
      site: see preset_files.load_site_layer, which it is where it is left out.

    Raises:
      UserError: one line for the first thing that is wrong.
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
    """Return the values in force, each with where it came from; see describe."""
    chain = preset_files.load_preset_chain(name)
    framework = chain[0].name
    site = preset_files.load_site_layer(environment) if site is None else site
    if (
        accelerator is None
        and "accelerator" in site.values
        and not user_settings.is_cpu_requested(settings, environment)
    ):
        accelerator = site.values["accelerator"].value
    sets = {
        path.partition(".")[2]
        for layer in [
            preset_files.load_common_layer(),
            *chain,
            *preset_files.load_named_layers("switches").values(),
        ]
        for path in layer.values
        if path.startswith("env.")
    }
    typed = user_settings.read_command_line(framework, settings, sets)
    typed.update(
        {
            field: Value(value, user_settings.COMMAND_LINE)
            for field, value in (("nodes", nodes), ("gpus_per_node", gpus_per_node))
            if value is not None
        }
    )
    around = user_settings.read_environment(framework, environment)
    found = resolution.resolve_preset(
        name,
        accelerator=accelerator,
        environment=around,
        command_line=typed,
        site=site,
        precision=None,
    )
    asked = {
        variable: found.values[f"settings.{variable}"]
        for variable in _PRECISION_SETTINGS
        if f"settings.{variable}" in found.values
    }
    if asked:
        typed = {**typed, "precision": _derive_precision(framework, found, asked)}
        found = resolution.resolve_preset(
            name, accelerator=accelerator, environment=around, command_line=typed, site=site
        )
    if settings.get(user_settings.BASE_FLAGS_VARIABLE) or environment.get(
        user_settings.BASE_FLAGS_VARIABLE
    ):
        found = replace(
            found,
            values={
                path: each
                for path, each in found.values.items()
                if not path.startswith("xla_flags.") or path in around or path in typed
            },
        )
    _check_model(framework, found, chain, name)
    for path, each in found.values.items():
        log.debug(f"{path}={each.value} is set by {each.origin}")
    return add_combine_thresholds(
        found,
        find_model(found),
        resolve_meshes(found),
        found.get("nodes") * found.get("gpus_per_node"),
    )


def find_model(found: ResolvedPreset) -> str:
    """Return T5_SIZE, or the experiment."""
    return str(found.get(f"settings.{MODEL_VARIABLES[found.framework]}") or found.configs[0])


def resolve_meshes(found: ResolvedPreset) -> dict[str, list[int]]:
    """Return "ici" and "dcn" of Pax in numbers.

    UserError where they are not of so many GPUs and nodes.
    """
    sizes = {"gpus": found.get("gpus_per_node"), "nodes": found.get("nodes")}
    made = {
        name: [sizes.get(each, each) for each in shape]
        for name in ("ici", "dcn")
        if (shape := found.get(f"mesh.{name}"))
    }
    for name, word, what in (("ici", "gpus", "GPUs of a node"), ("dcn", "nodes", "nodes")):
        if name in made and math.prod(made[name]) != sizes[word]:
            raise UserError(
                f"it has {math.prod(made[name])} parts, and there are {sizes[word]} {what}",
                f"mesh.{name}={made[name]}",
                f"make its product {sizes[word]}, or write `{word}` for a number",
                kind=CONFLICT,
                value=math.prod(made[name]),
            )
    return made


def add_combine_thresholds(
    found: ResolvedPreset, model: str, mesh: Mapping[str, list[int]], devices: int
) -> ResolvedPreset:
    """Return the values with the thresholds that `combine: layers` makes; one that is not of a
    preset that is shipped stands.

    Raises:
      UserError: the model's sizes are not known.
    """
    if found.get("combine") != "layers":
        return found
    origin = found.values["combine"].origin
    values = dict(found.values)
    for name, threshold in combine_thresholds.derive_thresholds(
        found, model, mesh, devices
    ).items():
        before = values.get(f"xla_flags.{name}")
        if before is None or before.origin.startswith("presets/"):
            overrode = ((before.origin, before.value), *before.overrode) if before else ()
            values[f"xla_flags.{name}"] = ResolvedValue(
                threshold, origin, f"{combine_thresholds.PLACE}: bytes of one layer", overrode
            )
    return replace(found, values=values)


def _derive_precision(
    framework: str, found: ResolvedPreset, asked: Mapping[str, ResolvedValue]
) -> Value:
    """Return what the scripts' variables make of the preset's precision."""
    base = SETTINGS_BY_PRECISION[framework][found.get("precision")]
    words = {**base, **{name: each.value for name, each in asked.items()}}
    origin = ", ".join(
        dict.fromkeys(name if each.origin == name else each.origin for name, each in asked.items())
    )
    if words.get("PREC") == "float32":
        return Value("fp32", origin)
    fp8, with_te = (
        read_truth_value(words, "ENABLE_FP8"),
        read_truth_value(words, "ENABLE_TE", default=framework == "pax" and "ENABLE_FP8" in asked),
    )
    return Value(("fp8-te" if with_te else "fp8-xla") if fp8 else "bf16", origin)


def _check_model(
    framework: str, found: ResolvedPreset, chain: list[preset_files.Layer], name: str
) -> None:
    """UserError where another model is asked for than the preset's."""
    variable = MODEL_VARIABLES[framework]
    size = next(
        (
            layer.values[f"settings.{variable}"].value
            for layer in reversed(chain)
            if f"settings.{variable}" in layer.values
        ),
        None,
    )
    known = (size,) if size else found.configs
    asked = found.values.get(f"settings.{variable}")
    if not known and asked is None:
        raise UserError(
            "it is of no model",
            name,
            (
                f"name one: {variable}=..., or take one of the presets for a model: "
                f"{', '.join(preset_files.load_presets())}"
            ),
            kind=MISSING,
        )
    if known and asked and asked.value not in known:
        others = [
            each.name
            for each in preset_files.load_presets().values()
            if asked.value in each.configs
            or each.values.get(f"settings.{variable}", Value("", "")).value == asked.value
        ]
        do = (
            f"name the preset {others[0]}, or unset it"
            if others
            else f"it is one of: {', '.join(known)}"
        )
        raise UserError(
            f"{name} is not its preset",
            f"{variable}={asked.value}",
            do,
            kind=CONFLICT,
            value=asked.value,
        )


def build_run(found: ResolvedPreset) -> Run:
    """Return the run that values in force describe.

    Raises:
      UserError: see mesh.
    """
    framework = found.framework
    nodes, per_node, what, shapes = (
        found.get("nodes"),
        found.get("gpus_per_node"),
        find_model(found),
        resolve_meshes(found),
    )
    batch = {
        name: value
        for name in ("per_gpu", "microbatches")
        if (value := found.get(f"batch.{name}")) is not None
    }
    script = _choose_script(framework, found, what)
    settings = {
        MODEL_VARIABLES[framework]: what,
        **_list_precision_settings(framework, found),
        **found.group("settings"),
    }
    if framework == "t5x":
        settings["NUM_GPUS"] = str(nodes * per_node)
    else:
        settings["NUM_GPUS"] = str(per_node)
        settings.update(
            {
                f"{name.upper()}_MESH_SHAPE": str(shape).replace(" ", "")
                for name, shape in shapes.items()
            }
        )
        if script == "boolq":
            settings.setdefault("USE_MULTIPROCESS", "1")
    settings.update(
        {
            name: str(found.get(path))
            for name, path in user_settings.map_variables_to_fields(framework).items()
            if path.startswith("batch.") and found.get(path) is not None
        }
    )
    fdl = found.group("fdl")
    if fdl:
        settings["ROSETTA_FDL"] = " ".join(
            [
                settings.get("ROSETTA_FDL", ""),
                *(f"--fdl.{name}={value!r}" for name, value in fdl.items()),
            ]
        ).strip()
    for name in ("XLA_FLAGS", user_settings.BASE_FLAGS_VARIABLE):
        settings.pop(name, None)
    _check_settings(found, settings, what)
    return Run(
        framework=framework,
        entry=(*ENTRY_COMMANDS[framework], script),
        model=what,
        precision=found.get("precision"),
        mesh=shapes,
        batch=batch,
        nodes=nodes,
        gpus_per_node=per_node,
        processes_per_node=found.get("processes_per_node"),
        xla_flags=found.group("xla_flags"),
        env={
            **found.group("env"),
            **settings,
            user_settings.PRESET_VARIABLE: user_settings.ALREADY_APPLIED,
        },
        mounts=tuple((outside, inside) for outside, inside in found.get("mounts", ())),
        fdl=fdl,
        origin={path: each.origin for path, each in found.values.items()},
    )


def _check_settings(found: ResolvedPreset, settings: Mapping[str, str], of: str) -> None:
    """Check the value of each setting as the run itself does: a job would fail hours later."""
    framework = found.framework
    for name, value in settings.items():
        if name not in user_settings.list_script_variables(framework):
            continue
        variable = lookup.find_variable(name, framework)
        text = value.strip() if variable.hyper_parameter else value
        if not text or (name == "LR_SCHEDULE" and is_user_experiment(of)):
            continue
        try:
            setting_values.parse_value(variable, text)
        except UserError as error:
            origin = found.values[f"settings.{name}"].origin
            if ".yaml:" not in origin:
                raise
            where = f"{origin}: {error.where}"
            raise UserError(
                error.what, where, error.do, kind=error.kind, value=error.value
            ) from None


def _choose_script(framework: str, found: ResolvedPreset, of: str) -> str:
    """Return what of its framework runs: finetuning where a task is named; data that are made up
    are trained on, not evaluated.
    """
    runs: str = found.get("runs")
    if framework == "t5x" and found.get("settings.FT_TASK"):
        return "finetune"
    if framework == "pax" and of.startswith("Lambada"):
        return "lambada"
    return "train" if of.startswith("Synthetic") else runs


def _list_precision_settings(framework: str, found: ResolvedPreset) -> dict[str, str]:
    """Return the scripts' variables for the precision; those that were set one by one stay as they
    are, and leave the others to the scripts.
    """
    asked = [name for name in _PRECISION_SETTINGS if f"settings.{name}" in found.values]
    return {
        name: value
        for name, value in SETTINGS_BY_PRECISION[framework][found.get("precision")].items()
        if not asked or name == "PREC"
    }
