"""Pages that must follow the code."""

from __future__ import annotations

import argparse
import dataclasses
import re
import shutil
from pathlib import Path

import pytest

from builder.commands import docs, quickstart
from builder.commands.registry import PROGRAM
from builder.core import (
    experiment_page,
    gpu_page,
    manifest,
    manifest_page,
    preset_page,
    reference_data,
    variable_page,
)
from builder.core.cache import Cache
from builder.core.command_context import Context, Result
from builder.images import contents_page, image_settings
from rosetta.core import gpus
from rosetta.core.variables import lookup
from rosetta.core.variables.declaration import Scope
from rosetta.doctor.gpu import OLDEST_DRIVER
from rosetta.pax.run import hyper_parameters
from rosetta.presets import preset_files, schema
from tests.support import errors

ROOT = Path(__file__).parents[4]


def test_the_manifest_page_is_current() -> None:
    page = (ROOT / manifest_page.PAGE).read_text(encoding="utf-8")
    assert page == manifest_page.render(), "run: python build.py docs"


def test_the_manifest_page_has_an_example_that_loads(tmp_path: Path) -> None:
    file = tmp_path / "manifest.yaml"
    file.write_text(manifest_page.EXAMPLE, encoding="utf-8")
    assert manifest.load(file).distribution("t5x").line == "current"


def test_the_page_of_image_contents_is_current() -> None:
    page = (ROOT / contents_page.PAGE).read_text(encoding="utf-8")
    assert page == contents_page.render(ROOT), "run: python build.py docs"


def test_the_page_of_image_contents_has_all_distributions_and_libraries() -> None:
    page = contents_page.render(ROOT)
    for name, entry in manifest.load(ROOT / "manifest.yaml").distributions.items():
        row = next(line for line in page.splitlines() if line.startswith(f"| `{name}` |"))
        assert all(f"`{accelerator}`" in row for accelerator in entry.accelerators), row
    assert re.search(r"^\| `nvidia-cudnn` \| [0-9.]+ \| [0-9.]+ \|$", page, re.MULTILINE)
    versions = r" \| [0-9.]+" * len(manifest.load(ROOT / "manifest.yaml").lines)
    assert re.search(rf"^\| `jax`{versions} \|$", page, re.MULTILINE)
    for cuda, driver in OLDEST_DRIVER.items():
        assert f"CUDA {cuda} needs driver {driver}" in " ".join(page.split())


def test_images_have_no_ports_volumes_or_user() -> None:
    """The page of image contents says so."""
    settings = image_settings.make_settings(
        contents_page.example_record("t5x"), contents_page.EXAMPLE_ORIGIN
    )
    assert set(settings) == {"Env", "Entrypoint", "Cmd", "WorkingDir", "Labels"}


def test_the_page_of_gpus_is_current() -> None:
    page = (ROOT / "docs/reference/gpus.md").read_text(encoding="utf-8")
    assert page == gpu_page.render(), "run: python build.py docs"
    assert all(f"| `{name}` |" in page for name in gpus.GPUS)


def test_the_page_of_presets_is_current() -> None:
    page = (ROOT / preset_page.PAGE).read_text(encoding="utf-8")
    assert page == preset_page.render(), "run: python build.py docs"
    assert all(f"\n### {name}\n" in page for name in preset_files.load_presets())
    for name in ("switches", "precisions"):
        assert all(f"| `{each}` |" in page for each in preset_files.load_named_layers(name))


def test_the_page_of_presets_says_what_a_run_has() -> None:
    (large,) = (
        line for line in preset_page.render().splitlines() if line.startswith("| [`t5x-large`]")
    )
    assert [cell.strip() for cell in large.strip("|").split("|")][2:] == [
        "64 (8 x 8)",
        "32",
        "2,048",
        "512 / 128",
        "`bf16`",
    ]


def test_every_field_of_a_preset_is_documented() -> None:
    assert schema.FIELD_HELP.keys() == {*schema.FIELDS, *schema._GROUP_RULES}


def test_the_page_of_experiments_is_current() -> None:
    page = (ROOT / experiment_page.PAGE).read_text(encoding="utf-8")
    assert page == experiment_page.render(), "run: python build.py docs"
    names = {*hyper_parameters.list_experiments(), *hyper_parameters.list_names()}
    assert all(f"`{name}`" in page for name in names)


def test_the_page_of_experiments_names_what_differs_from_upstream() -> None:
    section = experiment_page.render().split("## What differs from upstream", 1)[1]
    sources = (ROOT / "rosetta/pax").glob("*.py")
    texts = "".join(source.read_text(encoding="utf-8") for source in sources)
    names = set(re.findall(r'Difference\(\s*"(\w+)"', texts))
    assert len(names) > 4
    assert all(f"| `{name}` |" in section.split("\n## ", 1)[0] for name in names)


def test_reference_data_is_what_rosetta_sets() -> None:
    data = reference_data.read()
    assert [preset["name"] for preset in data["presets"]] == list(preset_files.load_presets())
    assert [each["name"] for each in data["experiments"]] == hyper_parameters.list_experiments()


def test_the_page_of_variables_is_current() -> None:
    page = (ROOT / variable_page.PAGE).read_text(encoding="utf-8")
    assert page == variable_page.render(), "run: python build.py docs"
    names = {variable.name for variable in lookup.TABLE}
    assert [
        name for name in names if f"| `{name}` |" not in page and f"### {name}\n" not in page
    ] == []


def test_each_setting_of_a_run_has_one_section() -> None:
    """A search for "what does PACK do" finds a section that has all of these words."""
    page = variable_page.render()
    settings = {variable.name for variable in lookup.list_variables_in_scope(Scope.RUN)}
    headings = re.findall(r"^### ([A-Z0-9_]+)$", page, re.MULTILINE)
    assert sorted(headings) == sorted(settings)
    anchors = [heading.lower() for heading in re.findall(r"^##+ (.*)$", page, re.MULTILINE)]
    assert len(set(anchors)) == len(anchors), "two headings have the same anchor"
    section = page.partition("### PACK\n")[2].partition("\n###")[0]
    assert "What it does" in section
    assert lookup.find_variable("PACK").details in section


def test_the_page_of_variables_says_which_commands_read_them() -> None:
    names = variable_page.find_public_names(variable_page.render())
    assert {("", "PACK", "rosetta t5x pretrain"), ("", "PACK", "rosetta t5x finetune")} < names
    assert ("", "PREC", "rosetta pax boolq") in names
    assert ("", "LOGDIR", "singlenode_pretrain_pile.sh") in names
    assert ("Variables of rosetta", "ROSETTA_DEBUG", "") in names
    assert not [name for name in names if name[1] == "PACK" and "pax" in name[2]]
    assert "HOME" not in {name for _, name, _ in names}


def run_docs(root: Path, *, check: bool) -> Result:
    """Run build.py docs on a copy of the committed pages."""
    context = Context(root, root / "manifest.yaml", Cache(root / "cache"))
    return docs.run(context, argparse.Namespace(check=check, site="", images="", repository=None))


def test_a_damaged_record_of_images_is_named(tmp_path: Path) -> None:
    file = tmp_path / "published-images.json"
    assert docs._read_record(file) == {}
    file.write_text('{"images": ', encoding="utf-8")
    with errors.expect_user_error(errors.DAMAGED, where=file):
        docs._read_record(file)


@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("dropped", [("pretrain", "finetune"), ("finetune",)])
def test_a_public_variable_cannot_be_dropped(
    dropped: tuple[str, ...], check: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The committed page is the record: a name goes when its section is deleted there, by hand."""
    for folder in ("docs", "scripts", "overlay", "locks"):
        shutil.copytree(ROOT / folder, tmp_path / folder, symlinks=True)
    for name in ("manifest.yaml", "README.md"):
        shutil.copy(ROOT / name, tmp_path)
    page = tmp_path / variable_page.PAGE
    committed = page.read_text(encoding="utf-8")
    pack = lookup.find_variable("PACK")
    kept = tuple(reader for reader in pack.read_by if reader.split()[1] not in dropped)
    shorter = (dataclasses.replace(pack, read_by=kept),) if kept else ()
    table = tuple(variable for variable in lookup.TABLE if variable is not pack)
    monkeypatch.setattr(lookup, "TABLE", (*table, *shorter))
    with errors.expect_user_error(
        errors.CONFLICT, where=variable_page.PAGE, value="PACK", names="PACK"
    ):
        run_docs(tmp_path, check=check)
    assert page.read_text(encoding="utf-8") == committed
    page.write_text(re.sub(r"### PACK\n.*?(?=^#)", "", committed, flags=re.DOTALL | re.MULTILINE))
    assert (
        run_docs(tmp_path, check=check).ok is not check
    )  # the page is written anew, so it differs


def test_every_key_is_documented() -> None:
    page = manifest_page.render()
    for model in manifest_page._MODELS.values():
        assert all(field.description for field in model.model_fields.values()), model
        assert all(f"`{field.alias or name}`" in page for name, field in model.model_fields.items())


def test_the_readme_names_what_exists() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!http)([^)#]+)", readme):
        assert (ROOT / target).exists(), target
    verbs = set(re.findall(r"build\.py ([a-z]+)", readme))
    assert verbs <= set(PROGRAM.names), verbs - set(PROGRAM.names)
    listed = set(re.findall(r"^\| `([a-z0-9.-]+)` \|", readme, re.MULTILINE))
    assert listed == set(manifest.load(ROOT / "manifest.yaml").distributions)


def test_the_readme_bakes_what_it_runs() -> None:
    """A reader may copy its blocks one after the other."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = "\n".join(re.findall(r"```bash\n(.*?)```", readme, re.DOTALL))
    used = re.findall(r"build/(\S+)/bin", blocks)
    assert used == [f"quickstart/{quickstart.DISTRIBUTIONS[0]}"]
    assert blocks.index("build.py quickstart\n") < blocks.index("/bin")


def test_the_readme_exports_nothing_that_changes_a_later_run() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    exports = re.findall(r"^export (.*)$", readme, re.MULTILINE)
    names = {name for line in exports for name in re.findall(r"(?:^| )([A-Z_]+)=", line)}
    assert names == {"PATH", "JAX_PLATFORMS"}


def test_the_windows_of_support_are_those_of_the_manifest() -> None:
    page = (ROOT / "docs/project/support.md").read_text(encoding="utf-8")
    shipped = manifest.load(ROOT / "manifest.yaml")
    section = page.partition("\n## Lines\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    assert len(rows) == len(shipped.lines)
    for (name, line), row in zip(shipped.lines.items(), rows, strict=True):
        named = ", ".join(
            f"`{each}`" for each, entry in shipped.distributions.items() if entry.line == name
        )
        assert (
            row
            == f"| `{name}` | {named} | {f'until {line.until}' if line.until else 'no end date'}: {line.support} |"
        )
