"""`rosetta explain`: every value of a run, where it came from, what it took the place of, and why;
the framework's own configuration included.
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
# Binding -> the fields it is made of.
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
    """Return what is known of a preset's run, without secrets; for the arguments see
    preset_run.describe_run.

    Returns:
      preset, about, framework, accelerator; values: field -> {value, origin, why, overrode};
      left_out: lines; config: name -> {value, origin}, of gin or Fiddle; notes: lines; run: the run
        description.

    Raises:
      UserError: one line for the first thing that is wrong.
    """
    from rosetta.core.secrets import Mask

    found = preset_run.resolve_values(
        name,
        accelerator=accelerator,
        settings=settings,
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        environment=environment,
    )
    run = preset_run.build_run(found)
    accelerator = accelerator or (
        None if run_description.runs_on_cpu(run) else found.get("accelerator")
    )
    config, notes = (
        _collect_gin_bindings(found, run, accelerator)
        if found.framework == "t5x"
        else _collect_hyper_parameters(found, run)
    )
    made = {
        "preset": name,
        "about": preset_files.load_preset_chain(name)[-1].about,
        "framework": found.framework,
        "accelerator": accelerator,
        "values": {
            path: _value_as_json(each)
            for path, each in sorted(found.values.items(), key=lambda item: _sort_key(item[0]))
        },
        "left_out": list(found.left_out),
        "config": config,
        "notes": notes,
        "run": run.as_json(),
    }
    masked: dict[str, Any] = Mask({**run.env, **found.group("settings")}).mask_document(made)
    for part in (masked["values"], masked["run"]["env"]):
        for path in part:
            part[path] = _hide_secret(path, part[path])
    return masked


def _hide_secret(path: str, shown: Any) -> Any:
    """Return what is shown of a variable that is a secret by its name."""
    from rosetta.core.secrets import HIDDEN, is_secret

    if not is_secret(path.rpartition(".")[2]):
        return shown
    return (
        HIDDEN
        if not isinstance(shown, dict)
        else {
            **shown,
            "value": HIDDEN,
            "overrode": [{**each, "value": HIDDEN} for each in shown["overrode"]],
        }
    )


def _value_as_json(found: resolution.ResolvedValue) -> dict[str, Any]:
    return {
        "value": found.value,
        "origin": found.origin,
        "why": found.why,
        "overrode": [{"origin": origin, "value": value} for origin, value in found.overrode],
    }


def _sort_key(path: str) -> tuple[int, str]:
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
    """Return the variables of one of the run's processes, as Slurm sets them."""
    return {**run.env, "SLURM_NTASKS": str(run.processes), "SLURM_JOB_NUM_NODES": str(run.nodes)}


def _collect_gin_bindings(
    found: ResolvedPreset, run: Run, accelerator: str | None
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Return what the gin files bind, with file and line, and what the settings bind over them."""
    from rosetta.core.gpu_query import DetectedGpu
    from rosetta.presets import t5x_model_options
    from rosetta.t5x.run import gin_bindings, gin_files, gin_reader, gin_text, settings

    environment = _make_process_environment(run)
    task = environment.get("FT_TASK", "")
    spec = find_spec("t5x")
    notes: list[str] = []
    if spec is not None and spec.submodule_search_locations:
        root = Path(next(iter(spec.submodule_search_locations))).parent
        read = gin_files.select_script_files(root, run.model, task)
    else:
        root = gin_files.ROOT
        read = [
            gin_files.ROOT / gin_files.find_model_file("t5_1_1", run.model),
            gin_files.ROOT / f"{gin_files.GIN_FOLDER}/runs/pretrain_pile.gin",
        ]
        notes = [
            "t5x is not installed here: bindings are those of rosetta's own gin files"
            + (", without the task's" if task else "")
        ]
    configuration = gin_reader.read_configuration(
        [*read, *gin_files.find_user_files(environment)], (Path.cwd(), gin_files.ROOT, root)
    )
    shown = {
        name: {"value": bound.text, "origin": _shorten_place(bound.place)}
        for name, bound in configuration.listing().items()
    }
    notes += [f"not read here: {file}" for file in configuration.missing]
    given = settings.read_script_settings(
        "multiprocess_ft_frompile" if task else "multiprocess_pretrain_pile",
        [],
        environment,
        run.gpus_per_node,
    )
    bindings = {
        name: (value, _name_origins(found, *_BINDING_FIELDS[name]))
        for name, value in gin_bindings.make_size_bindings(given, configuration).items()
    }
    described = gpus.GPUS.get(accelerator or "")
    on_cpu = described is None and run_description.runs_on_cpu(run)
    try:
        chosen = t5x_model_options.choose_model_options(
            environment,
            [DetectedGpu(described.name, described.capability)] if described else [],
            on_cpu=on_cpu,
        )
        bindings.update(
            {
                name: (value, f"precision ({found.values['precision'].origin}) and switches")
                for name, value in chosen.training_bindings().items()
            }
        )
    except UserError as error:
        notes.append(f"bindings of precision and switches are known where it runs: {error}")
    shown.update(
        {
            name: {"value": gin_text.format_literal(value), "origin": origin}
            for name, (value, origin) in bindings.items()
        }
    )
    return shown, notes


def _collect_hyper_parameters(
    found: ResolvedPreset, run: Run
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Return what the experiment's classes state, with file and line, and what the settings set
    over them.
    """
    from rosetta.pax.run import hyper_parameters, settings

    stated = hyper_parameters.read_stated_values(run.model)
    shown = {name: {"value": each.text, "origin": each.place} for name, each in stated.items()}
    script = readers.COMMAND_SCRIPTS[f"pax {run.entry[-1]}"]
    given = settings.read_settings(script, [], _make_process_environment(run), run.gpus_per_node)
    fields = {**user_settings.map_variables_to_fields("pax"), "FPROP_DTYPE": "precision"}
    for name, text in given.hyper.items():
        path = next(
            (
                path
                for path in (fields.get(name, ""), f"fdl.{name}", f"settings.{name}")
                if path in found.values
            ),
            "",
        )
        shown[name] = {
            "value": text,
            "origin": f"{path} ({found.values[path].origin})"
            if path
            else f"rosetta pax {run.entry[-1]}",
        }
    notes = (
        ["hyper-parameters of Paxml's own base classes are not listed"]
        if stated
        else [f"{run.model} is not an experiment of rosetta: what it states is not listed"]
    )
    return shown, notes


def _name_origins(found: ResolvedPreset, *paths: str) -> str:
    return (
        ", ".join(f"{path} ({found.values[path].origin})" for path in paths if path in found.values)
        or "rosetta t5x"
    )


def _shorten_place(place: str) -> str:
    """Return a file:line, below the folder that rosetta lies in by its name there."""
    home = str(Path(__file__).parents[2]) + os.sep
    return place.removeprefix(home)


def format_explanation(found: dict[str, Any]) -> str:
    """Return a document as lines for people."""
    about = f": {found['about']}" if found["about"] else ""
    where = found["accelerator"] or (
        "the CPU" if asks_for_cpu(found["run"]["env"].get("JAX_PLATFORMS", "")) else "no GPU given"
    )
    lines = [
        f"{found['preset']}{about}",
        f"{found['framework']}, {where}; starts {' '.join(found['run']['entry'])}",
        "",
    ]
    for path, each in found["values"].items():
        lines.append(
            f"{path} = {_format_value(each['value'])}    [{each['origin']}] "
            f"{each['why'] or _find_help(path, found['framework'])}".rstrip()
        )
        lines += [
            f"    over {_format_value(before['value'])} of {before['origin']}"
            for before in each["overrode"]
        ]
    lines += [
        "",
        *found["left_out"],
        *found["notes"],
        f"{'gin bindings' if found['framework'] == 't5x' else 'hyper-parameters'}:",
    ]
    lines += [
        f"  {name} = {each['value']}    [{each['origin']}]"
        for name, each in found["config"].items()
    ]
    return "\n".join(lines)


def _find_help(path: str, framework: str) -> str:
    """Return what the table of variables says of a setting; "" for other fields."""
    group, _, name = path.partition(".")
    is_variable = group == "settings" and lookup.is_known_variable(name)
    return lookup.find_variable(name, framework).help if is_variable else ""


def _format_value(value: Any) -> str:
    return '""' if value == "" else str(value).lower() if isinstance(value, bool) else str(value)


def list_choices() -> dict[str, Any]:
    """Return the presets, switches and GPUs that there are."""
    return {
        "presets": {
            name: each.about
            for name, each in preset_files.load_presets().items()
            if name not in schema.FRAMEWORKS
        },
        "switches": {
            name: each.about for name, each in preset_files.load_named_layers("switches").items()
        },
        "accelerators": list(gpus.GPUS),
    }


def format_choices(found: dict[str, Any]) -> str:
    """Return a listing as lines for people."""
    lines = list[str]()
    for part in ("presets", "switches"):
        wide = max(map(len, found[part]))
        lines += [
            f"{part}:",
            *(f"  {name:<{wide}}  {about}" for name, about in found[part].items()),
            "",
        ]
    return "\n".join([*lines, f"accelerators: {', '.join(found['accelerators'])}"])
