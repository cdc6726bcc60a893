"""Write the answer of a search as a preset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rosetta.core import atomic_files, yaml_output
from rosetta.core.errors import FAILED, UserError
from rosetta.pax.run import fiddle_arguments
from rosetta.plan import preset_arguments, searched_run
from rosetta.presets import preset_files, preset_run

if TYPE_CHECKING:
    from pathlib import Path

    from rosetta.plan.layout_search import Trial
    from rosetta.plan.searched_run import SearchedRun

_MODEL_VARIABLE = "CONFIG"


def make_preset(searched: SearchedRun, best: Trial, reason: str, about: str) -> dict[str, Any]:
    """Return the document of the preset.

    Args:
        searched: What was searched.
        best: The answer.
        reason: The reason that each value gets.
        about: One line about the preset.
    """
    document: dict[str, Any] = {
        "about": about,
        "extends": searched.preset,
        "nodes": {"value": searched.nodes, "why": reason},
        "gpus_per_node": {"value": searched.per_node, "why": reason},
    }
    settings = {
        **searched.settings,
        **searched_run.list_settings(
            best.candidate, searched.model, searched.nodes, searched.per_node
        ),
    }
    if settings.get(_MODEL_VARIABLE) in _list_configs(searched.preset):
        # Another experiment of the preset has the same model, with other data.
        del settings[_MODEL_VARIABLE]
    for name, text in settings.items():
        group, _, field = name.rpartition(".")
        document.setdefault(group or "settings", {})[field] = {
            "value": _parse_setting(group, text),
            "why": reason,
        }
    return document


def _parse_setting(group: str, text: str) -> object:
    """Return the value of a setting as the file has it: variables and batches below 1 are texts."""
    if not group or (group == "batch" and text.startswith("0.")):
        return text
    return fiddle_arguments.parse_literal(text)


def _list_configs(preset: str) -> tuple[str, ...]:
    """Return the experiments of a preset."""
    layers = reversed(preset_files.load_preset_chain(preset))
    return next((layer.configs for layer in layers if layer.configs), ())


def write_preset(
    document: dict[str, Any], searched: SearchedRun, best: Trial, path: Path, evidence: str
) -> None:
    """Write the preset if its run is the one that was compiled.

    Args:
        document: The document of make_preset.
        searched: What was searched.
        best: The answer.
        path: The file.
        evidence: The name of the file with the figures of the steps.

    Raises:
        UserError: The run of the preset differs. A file of this name stays as it was then.
    """
    text = (
        f"# Made by rosetta plan --search; each compiled step is in {evidence}\n"
        f"{yaml_output.format_yaml(document)}"
    )
    with atomic_files.replace_file(path, None) as temporary:
        temporary.write_text(text, encoding="utf-8")
        _check_preset(temporary, searched, best, path)


def _check_preset(file: Path, searched: SearchedRun, best: Trial, path: Path) -> None:
    """Check that the run of a preset is the one that was compiled.

    Args:
        file: The file with the preset.
        searched: What was searched.
        best: The answer.
        path: The name that the preset will have.

    Raises:
        UserError: The run differs.
    """
    model = {name: text for name, text in searched.settings.items() if name == _MODEL_VARIABLE}
    run = preset_run.describe_run(
        str(file.absolute()), accelerator=searched.card, settings=model, environment={}
    )
    compiled = searched.describe_run(best.candidate)
    arguments = preset_arguments.make_plan_arguments(run, searched.card)
    compiled_arguments = preset_arguments.make_plan_arguments(compiled, searched.card)
    if arguments != compiled_arguments or run.xla_flags != compiled.xla_flags:
        raise UserError(
            "the run of the new preset would not be the one that was compiled",
            str(path),
            "report this as an error of rosetta, with the evidence file",
            kind=FAILED,
        )
