"""Print what the presets and the Pax experiments set, as one JSON document.

`build.py docs` runs `python -m rosetta.presets.reference_data` and makes docs/reference/presets.md
and docs/reference/pax-experiments.md from the document.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from rosetta.pax.run import hyper_parameter_help, hyper_parameters, parameter_count
from rosetta.presets import preset_files, preset_run, resolution, schema
from rosetta.t5x.run import gin_files, gin_reader

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rosetta.presets.preset_files import Layer
    from rosetta.presets.schema import Value

NO_SITE = preset_files.Layer("site", {})
_T5X_RUN = f"{gin_files.GIN_FOLDER}/runs/pretrain_pile.gin"


def collect_reference() -> dict[str, Any]:
    """Return the presets, the layers that they share, and the Pax experiments."""
    return {
        "common": _describe_values(preset_files.load_common_layer().values),
        "accelerators": {
            gpu: _describe_values(values)
            for gpu, values in preset_files.load_accelerator_values().items()
            if values
        },
        "switches": _describe_layers(preset_files.load_named_layers("switches")),
        "precisions": _describe_layers(preset_files.load_named_layers("precisions")),
        "presets": [
            _describe_preset(name, layer) for name, layer in preset_files.load_presets().items()
        ],
        "fields": schema.FIELD_HELP,
        "experiments": [_describe_experiment(name) for name in hyper_parameters.list_experiments()],
        "hyper_parameters": hyper_parameter_help.HELP,
        "unread": hyper_parameter_help.UNREAD,
    }


def _describe_layers(named: Mapping[str, Layer]) -> dict[str, Any]:
    """Return name -> description and values of switches or precisions."""
    return {
        name: {"about": layer.about, "values": _describe_values(layer.values)}
        for name, layer in named.items()
    }


def _describe_values(values: Mapping[str, Value]) -> dict[str, Any]:
    """Return field -> value, reason, and the versions that end or begin it."""
    return {
        path: {
            "value": value.value,
            "why": value.why,
            "until": dict(value.until),
            "since": dict(value.since),
        }
        for path, value in values.items()
    }


def _describe_preset(name: str, layer: Layer) -> dict[str, Any]:
    """Return what a preset sets itself, and its run without the values of a GPU.

    `run` is None for the two presets that only serve to be extended: they have no model.
    """
    return {
        "name": name,
        "framework": preset_files.load_preset_chain(name)[0].name,
        "about": layer.about,
        "extends": layer.extends,
        "experiments": list(layer.configs),
        "values": _describe_values(layer.values),
        "by_gpu": {gpu: _describe_values(values) for gpu, values in layer.by_gpu.items()},
        "run": None if name in schema.FRAMEWORKS else _describe_run(name),
    }


def _describe_run(name: str) -> dict[str, Any]:
    """Return the model, the cluster, the batch and the sequence lengths of a preset's run."""
    settings = resolution.resolve_preset(
        name, accelerator=None, environment={}, command_line={}, site=NO_SITE
    )
    run = preset_run.build_run(settings)
    if settings.framework == "t5x":
        configuration = gin_reader.read_configuration([gin_files.ROOT / _T5X_RUN], [gin_files.ROOT])
        sizes = configuration.value("TASK_FEATURE_LENGTHS")
        lengths = list(sizes.values()) if isinstance(sizes, dict) else []
    else:
        lengths = [hyper_parameters.resolve_values(run.model, {})["MAX_SEQ_LEN"]]
    return {
        "model": run.model,
        "command": run.entry[-1],
        "nodes": run.nodes,
        "gpus_per_node": run.gpus_per_node,
        "per_gpu": run.batch["per_gpu"],
        "tensor": int(settings.get("settings.TP_SIZE") or 1),
        "mesh": run.mesh,
        "precision": run.precision,
        "lengths": lengths,
    }


def _describe_experiment(name: str) -> dict[str, Any]:
    """Return the hyper-parameters of an experiment as text, and the size of its model."""
    stated = {key: value.text for key, value in hyper_parameters.read_stated_values(name).items()}
    return {
        "name": name,
        "model": hyper_parameters.find_model_class(name),
        "values": {**hyper_parameters.list_paxml_defaults(), **stated},
        "parameters": parameter_count.count_parameters(hyper_parameters.resolve_values(name, {})),
    }


def main() -> int:
    """Print the document."""
    print(json.dumps(collect_reference()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
