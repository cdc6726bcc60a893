from __future__ import annotations

from pathlib import Path

from rosetta.presets import preset_files
from rosetta.tune import preset_output
from rosetta.tune.search import Choice, SearchResult

KEPT = (("batch 16", 0.2), ("batch 32", 0.1), ("pgle", 0.05), ("combine", 0.03))
FOUND = SearchResult(Choice(32, ("pgle",), (("combine", "layers"),)), 142.0, 100.0, 0.01, KEPT)


def whys(folder: Path, found: SearchResult) -> dict[str, str]:
    """Field -> its reason, as the preset's reader reads what is written."""
    path = folder / "tuned.yaml"
    document = preset_output.make_preset(
        found, extends="t5x-small", accelerator="h100", about="tuned", why="on it"
    )
    path.write_text(preset_output.format_preset_file(document, "tuned.jsonl"))
    return {
        name: value.why
        for name, value in preset_files.load_preset_chain(str(path))[-1].by_gpu["h100"].items()
    }


def test_each_value_has_its_gain(tmp_path: Path) -> None:
    assert whys(tmp_path, FOUND) == {
        "batch.per_gpu": "+32.0%, on it",
        "switches": "pgle +5.0%, on it",
        "combine": "+3.0%, on it",
    }


def test_a_halved_batch_has_its_reason(tmp_path: Path) -> None:
    assert whys(tmp_path, SearchResult(Choice(4), 1.0, 1.0, 0.0, ())) == {
        "batch.per_gpu": "the preset's batch, halved until it fits, on it"
    }


def test_a_search_without_gain_sets_nothing() -> None:
    assert preset_output.make_preset(
        SearchResult(Choice(), 1.0, 1.0, 0.0, ()),
        extends="t5x-small",
        accelerator="h100",
        about="tuned",
        why="on it",
    ) == {"about": "tuned", "extends": "t5x-small"}
