"""Collect what `rosetta explain` shows: every value of a run, where it was set, which values it
replaces and why, and the configuration of the framework that follows from the values.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rosetta.core import gpus, run_description
from rosetta.core.errors import UserError
from rosetta.core.value_parsing import asks_for_cpu
from rosetta.core.variables import lookup, readers
from rosetta.presets import preset_files, preset_run, resolution, schema, user_settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rosetta.core.run_description import Run
    from rosetta.presets.resolution import ResolvedPreset


_BATCH_FIELDS = ("nodes", "gpus_per_node", "batch.per_gpu", "settings.TP_SIZE")
# Gin binding -> the fields from which it is computed.
_BINDING_FIELDS = {
    "BATCH_SIZE": _BATCH_FIELDS,
    "EVAL_BATCH_SIZE": _BATCH_FIELDS,
    "trainer.Trainer.num_microbatches": ("batch.microbatches",),
    "NUM_PARTITIONS": ("settings.TP_SIZE",),
    "TASK_FEATURE_LENGTHS": ("settings.ENC_SL", "settings.DEC_SL"),
}


def collect_explanation(
    name: str,
    *,
    accelerator: str | None,
    settings: Mapping[str, str],
    nodes: int | None,
    gpus_per_node: int | None,
    environment: Mapping[str, str],
) -> dict[str, Any]:
    """Return what is known of the run of a preset, without secrets.

    The arguments are those of preset_run.describe_run.

    Returns:
        A JSON document with these keys:
        - preset, about, framework, accelerator;
        - values: field -> {value, origin, why, overrode};
        - left_out: lines about values that do not fit an installed version;
        - config: name -> {value, origin}, the gin bindings or the hyper-parameters;
        - notes: lines about what is not known here;
        - run: the run description.

    Raises:
        UserError: A name or value is not valid.
    """
    from rosetta.core.secrets import Mask

    resolved = preset_run.resolve_values(
        name,
        accelerator=accelerator,
        settings=settings,
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        environment=environment,
    )
    run = preset_run.build_run(resolved)
    if not accelerator and not run_description.runs_on_cpu(run):
        accelerator = resolved.get("accelerator")
    if resolved.framework == "t5x":
        config, notes = _collect_gin_bindings(resolved, run, accelerator)
    else:
        config, notes = _collect_hyper_parameters(resolved, run)
    document = {
        "preset": name,
        "about": preset_files.load_preset_chain(name)[-1].about,
        "framework": resolved.framework,
        "accelerator": accelerator or None,
        "values": {
            path: _value_as_json(resolved.values[path])
            for path in sorted(resolved.values, key=_sort_key)
        },
        "left_out": list(resolved.left_out),
        "config": config,
        "notes": notes,
        "run": run.as_json(),
    }
    masked: dict[str, Any] = Mask({**run.env, **resolved.group("settings")}).mask_document(document)
    for part in (masked["values"], masked["run"]["env"]):
        for path in part:
            part[path] = _hide_secret(path, part[path])
    return masked


def _hide_secret(path: str, shown: Any) -> Any:
    """Return a value of the document, hidden if the name of its variable is that of a secret."""
    from rosetta.core.secrets import HIDDEN, is_secret

    if not is_secret(path.rpartition(".")[2]):
        return shown
    if not isinstance(shown, dict):
        return HIDDEN
    replaced = [{**entry, "value": HIDDEN} for entry in shown["overrode"]]
    return {**shown, "value": HIDDEN, "overrode": replaced}


def _value_as_json(resolved: resolution.ResolvedValue) -> dict[str, Any]:
    """Return a value as the document has it."""
    return {
        "value": resolved.value,
        "origin": resolved.origin,
        "why": resolved.why,
        "overrode": [{"origin": origin, "value": value} for origin, value in resolved.overrode],
    }


def _sort_key(path: str) -> tuple[int, str]:
    """Return the key by which fields are sorted: the order of their groups, then their names."""
    order = (
        "runs",
        "nodes",
        "gpus_per_node",
        "processes_per_node",
        "mesh",
        "batch",
        "precision",
        "settings",
        "fdl",
        "switches",
        "combine",
        "xla_flags",
        "env",
    )
    group = path.partition(".")[0]
    return order.index(group) if group in order else len(order), path


def _make_process_environment(run: Run) -> dict[str, str]:
    """Return the variables that a process of the run has under Slurm."""
    return {**run.env, "SLURM_NTASKS": str(run.processes), "SLURM_JOB_NUM_NODES": str(run.nodes)}


def _collect_gin_bindings(
    resolved: ResolvedPreset, run: Run, accelerator: str | None
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Return the gin bindings of a T5X run, and notes about those that are not known here.

    The bindings of the gin files come first. The settings of the run override them.
    """
    from rosetta.core.gpu_query import DetectedGpu
    from rosetta.presets import t5x_model_options
    from rosetta.t5x.run import gin_bindings, gin_files, gin_reader, gin_text, settings

    environment = _make_process_environment(run)
    task = environment.get("FT_TASK", "")
    files, root, notes = _find_gin_files(run, task)
    configuration = gin_reader.read_configuration(
        [*files, *gin_files.find_user_files(environment)], (Path.cwd(), gin_files.ROOT, root)
    )
    shown = {
        name: {"value": binding.text, "origin": _shorten_place(binding.place)}
        for name, binding in configuration.listing().items()
    }
    notes += [f"{file} is not here: its bindings are not listed" for file in configuration.missing]

    script = "multiprocess_ft_frompile" if task else "multiprocess_pretrain_pile"
    script_settings = settings.read_script_settings(script, [], environment, run.gpus_per_node)
    sizes = gin_bindings.make_size_bindings(script_settings, configuration)
    for name, value in sizes.items():
        origin = _name_origins(resolved, *_BINDING_FIELDS[name])
        shown[name] = {"value": gin_text.format_literal(value), "origin": origin}

    gpu = gpus.GPUS.get(accelerator or "")
    try:
        options = t5x_model_options.choose_model_options(
            environment,
            [DetectedGpu(gpu.name, gpu.capability)] if gpu else [],
            on_cpu=gpu is None and run_description.runs_on_cpu(run),
            finetune=bool(task),
        )
    except UserError as error:
        notes.append(f"the bindings of the precision and the attention are not known here: {error}")
        return shown, notes
    origin = f"precision ({resolved.values['precision'].origin}) and settings"
    for name, value in options.training_bindings().items():
        shown[name] = {"value": gin_text.format_literal(value), "origin": origin}
    return shown, notes


def _find_gin_files(run: Run, task: str) -> tuple[list[Path], Path, list[str]]:
    """Return the gin files of a T5X run, the folder of their includes, and notes.

    If T5X is not installed, the files are those that rosetta has itself.
    """
    from rosetta.t5x.run import gin_files

    spec = find_spec("t5x")
    if spec is not None and spec.submodule_search_locations:
        root = Path(next(iter(spec.submodule_search_locations))).parent
        return list(gin_files.select_script_files(root, run.model, task)), root, []
    files = [
        gin_files.ROOT / gin_files.find_model_file("t5_1_1", run.model),
        gin_files.ROOT / f"{gin_files.GIN_FOLDER}/runs/pretrain_pile.gin",
    ]
    note = "t5x is not installed here: the bindings are those of rosetta's own gin files"
    if task:
        note += ", without those of the task"
    return files, gin_files.ROOT, [note]


def _collect_hyper_parameters(
    resolved: ResolvedPreset, run: Run
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Return the hyper-parameters of a Pax run, and notes about those that are not known here.

    The hyper-parameters of the experiment's classes come first. The settings override them.
    """
    from rosetta.pax.run import hyper_parameters, settings

    stated = hyper_parameters.read_stated_values(run.model)
    shown = {name: {"value": value.text, "origin": value.place} for name, value in stated.items()}
    command = f"pax {run.entry[-1]}"
    script_settings = settings.read_settings(
        readers.COMMAND_SCRIPTS[command], [], _make_process_environment(run), run.gpus_per_node
    )
    fields = {**user_settings.map_variables_to_fields("pax"), "FPROP_DTYPE": "precision"}
    for name, text in script_settings.hyper.items():
        paths = (fields.get(name, ""), f"fdl.{name}", f"settings.{name}")
        path = next((path for path in paths if path in resolved.values), None)
        origin = f"{path} ({resolved.values[path].origin})" if path else f"rosetta {command}"
        shown[name] = {"value": text, "origin": origin}
    if stated:
        return shown, ["the hyper-parameters of Paxml's own base classes are not listed"]
    return shown, [
        f"{run.model} is not an experiment of rosetta: its hyper-parameters are not listed"
    ]


def _name_origins(resolved: ResolvedPreset, *paths: str) -> str:
    """Return the fields that are set, each with its origin, as one text."""
    origins = [
        f"{path} ({resolved.values[path].origin})" for path in paths if path in resolved.values
    ]
    return ", ".join(origins) or "rosetta t5x"


def _shorten_place(place: str) -> str:
    """Return a `FILE:LINE`, relative to the folder that contains rosetta if it is below it."""
    home = str(Path(__file__).parents[2]) + os.sep
    return place.removeprefix(home)


def format_explanation(document: dict[str, Any]) -> str:
    """Return the document of `collect_explanation` as text."""
    about = f": {document['about']}" if document["about"] else ""
    platform = document["accelerator"] or "no GPU given"
    if not document["accelerator"] and asks_for_cpu(
        document["run"]["env"].get("JAX_PLATFORMS", "")
    ):
        platform = "the CPU"
    framework = document["framework"]
    lines = [
        f"{document['preset']}{about}",
        f"{framework}, {platform}; starts {' '.join(document['run']['entry'])}",
        "",
    ]
    for path, entry in document["values"].items():
        why = entry["why"] or _find_help(path, framework)
        lines.append(
            f"{path} = {_format_value(entry['value'])}    [{entry['origin']}] {why}".rstrip()
        )
        lines += [
            f"    over {_format_value(replaced['value'])} of {replaced['origin']}"
            for replaced in entry["overrode"]
        ]
    config_title = "gin bindings" if framework == "t5x" else "hyper-parameters"
    lines += ["", *document["left_out"], *document["notes"], f"{config_title}:"]
    lines += [
        f"  {name} = {entry['value']}    [{entry['origin']}]"
        for name, entry in document["config"].items()
    ]
    return "\n".join(lines)


def _find_help(path: str, framework: str) -> str:
    """Return the help of the variable that a field of `settings` is, "" for other fields."""
    group, _, name = path.partition(".")
    if group != "settings" or not lookup.is_known_variable(name):
        return ""
    return lookup.find_variable(name, framework).help


def _format_value(value: Any) -> str:
    """Return a value as the text of `rosetta explain` shows it."""
    if value == "":
        return '""'
    return str(value).lower() if isinstance(value, bool) else str(value)


def list_choices() -> dict[str, Any]:
    """Return the presets and switches with their descriptions, and the GPUs."""
    switches = preset_files.load_named_layers("switches")
    return {
        "presets": {
            name: preset.about
            for name, preset in preset_files.load_presets().items()
            if name not in schema.FRAMEWORKS
        },
        "switches": {name: switch.about for name, switch in switches.items()},
        "accelerators": list(gpus.GPUS),
    }


def format_choices(choices: dict[str, Any]) -> str:
    """Return the document of `list_choices` as text."""
    lines = list[str]()
    for part in ("presets", "switches"):
        width = max(map(len, choices[part]))
        lines.append(f"{part}:")
        lines += [f"  {name:<{width}}  {about}" for name, about in choices[part].items()]
        lines.append("")
    lines.append(f"accelerators: {', '.join(choices['accelerators'])}")
    return "\n".join(lines)
