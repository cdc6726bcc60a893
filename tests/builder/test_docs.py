"""Pages and workflows that must follow the code."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from builder import cli, docs, manifest

ROOT = Path(__file__).parents[2]


def test_the_manifest_page_is_current() -> None:
    assert (ROOT / "docs/manifest.md").read_text(encoding="utf-8") == docs.render(), "run: python build.py docs"


def test_every_key_is_documented() -> None:
    page = docs.render()
    for model in docs._MODELS.values():
        assert all(field.description for field in model.model_fields.values()), model
        assert all(f"`{field.alias or name}`" in page for name, field in model.model_fields.items())


def test_the_readme_names_what_exists() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!http)([^)#]+)", readme):
        assert (ROOT / target).exists(), target
    verbs = set(re.findall(r"build\.py ([a-z]+)", readme))
    assert verbs <= set(cli.VERBS), verbs - set(cli.VERBS)
    listed = set(re.findall(r"^\| `([a-z0-9.-]+)` \|", readme, re.MULTILINE))
    assert listed == set(manifest.load(ROOT / "manifest.yaml").distributions)


def test_the_workflow_runs_what_ci_runs_and_pins_its_actions() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    assert any(step.get("run") == "bash .ci/run" for step in steps)
    assert all(re.fullmatch(r"[^@]+@[0-9a-f]{40}", step["uses"]) for step in steps if "uses" in step)
    assert workflow["permissions"] == {"contents": "read"}
