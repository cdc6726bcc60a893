"""Render docs/reference/t5x-projects.md from the manifest and the recorded checks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from builder.core import markdown_table
from builder.pipeline.project_checks import RECORD

if TYPE_CHECKING:
    from builder.core.manifest import Manifest

PAGE = "docs/reference/t5x-projects.md"
_HEAD = f"""# Projects built on T5X

*Reference: the public projects on top of T5X that can be added to its environment or image, and
what works there. Generated from `manifest.yaml` and `{RECORD}` by `python build.py docs`.
Edit those files, not this page.*

Each night imports every module of each project, and trains a tiny model of it with T5X's trainer on
a CPU. The table is of the last recorded check. The report of a night has the table of that night.

"""
_ADD = """
## Add a project

`--with` adds a project to an environment:

<!-- test: options only; needs upstream's sources -->
```bash
python3 build.py --distribution t5x --with flaxformer
build/t5x-cpu-flaxformer/bin/rosetta selftest --project flaxformer
```

It adds a project to an image in the same way, for any accelerator:

<!-- test: options only; needs a container engine -->
```bash
python3 build.py --distribution t5x --accelerator cuda13 --with mt3 --output image:t5x-mt3
```

- `--with` may be repeated. A project comes with the projects that it needs.
- The sources are pinned in [manifest.yaml](manifest.md#projectsname), and the packages that a
  project adds are locked by hash in `locks/projects`. All other packages stay as they are.
- Gin files are found by their path in the project, for example
  `flaxformer/t5x/configs/t5/models/t5_1_1_small.gin`.
- `build.py reproduce` and `build.py bisect` do not take an environment or an image with projects.

"""
_MODULES = """## Modules that do not import

The check fails when one of these modules imports after all.

"""
_CHECKS = """
## What is checked

`python3 build.py test --projects` runs the check, for one project with its name. `--renew` records
the table of this page.

- Every module but the tests is imported. The environment has all projects. With the name of one,
  it has this project and those that it needs.
- The model is the project's own, in tiny sizes: `rosetta/selftest/projects/PROJECT.gin`. It trains
  for three steps on sentences or random spectrograms that need no download.
- The loss is summed over the tokens of a batch. It must be finite at each step, change between the
  steps, and stay within 10 times the first. This proves that the steps run and do not diverge. It
  does not prove that the model learns: each step has another batch.
- prompt-tuning trains its prompt only. All other parameters stay as they are, so that the loss
  hardly falls.
- The training step of longt5 runs the code of flaxformer only. No step runs longt5's own modules.
- Real data, checkpoints that the projects published, and evaluation are not checked.
"""


def render(manifest: Manifest, record: dict[str, Any]) -> str:
    """Return the text of the page.

    Args:
        manifest: The manifest with the projects.
        record: The results that `build.py test --projects --renew` recorded.
    """
    results = {row["name"]: row for row in record.get("projects", [])}
    rows = []
    modules = []
    for name, project in manifest.projects.items():
        source = manifest.sources[name]
        link = f"[{name}]({str(source.git).removesuffix('.git')})"
        result = results.get(name, {})
        commit = f"`{str(source.commit)[:7]}`"
        rows.append((link, commit, *_describe_result(result), ", ".join(project.needs)))
        modules += [
            (name, f"`{module}`", reason) for module, reason in result.get("skipped", {}).items()
        ]
    head = ("project", "commit", "modules that import", "loss of steps 1 to 3", "needs")
    text = _HEAD + markdown_table.render(head, rows) + _ADD
    return (
        text + _MODULES + markdown_table.render(("project", "module", "reason"), modules) + _CHECKS
    )


def _describe_result(result: dict[str, Any]) -> tuple[str, str]:
    """Return the cells about modules and losses."""
    if not result:
        return "not checked", "not checked"
    importable = result["modules"] - len(result["skipped"]) - len(result["failed"])
    losses = ", ".join(f"{loss:.4g}" for loss in result["losses"].values())
    if result["problems"]:
        losses = f"fails: {result['problems'][0].splitlines()[0]}"
    return f"{importable} of {result['modules']}", losses
