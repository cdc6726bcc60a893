from __future__ import annotations

import re
from pathlib import Path

import pytest

from rosetta.core import xla_flags
from rosetta.core.errors import UserError
from rosetta.pax.run import preflight
from rosetta.presets import preset_files, schema
from rosetta.t5x.run import gin_files
from tests.support import resolved_presets

ROOT = Path(__file__).parents[4]


def test_every_value_that_is_shipped_has_a_reason() -> None:
    layers = [
        preset_files.common(),
        *preset_files.presets().values(),
        *preset_files.named("precisions").values(),
        *preset_files.named("switches").values(),
    ]
    bodies = [body for layer in layers for body in (layer.values, *layer.cards.values())] + [
        each.values for each in preset_files.accelerators().values()
    ]
    without = [
        f"{value.origin}: {path}"
        for body in bodies
        for path, value in body.items()
        if not value.why
    ]
    assert len(bodies) > 40
    assert without == []


def test_a_workaround_that_has_ended_in_what_is_locked_is_still_there_to_be_looked_at() -> None:
    """An `until` at or below a locked version: look whether the workaround is needed, then remove it or move its end on."""
    locked = {
        name: version
        for file in (ROOT / "locks" / "current").glob("*.txt")
        for name, version in re.findall(r"^([a-z0-9-]+)==([^ ;]+)", file.read_text(), re.MULTILINE)
    }
    layers = [
        preset_files.common(),
        *preset_files.presets().values(),
        *preset_files.named("precisions").values(),
        *preset_files.named("switches").values(),
    ]
    ends = [
        (value.origin, package, end)
        for layer in layers
        for value in layer.values.values()
        for package, end in value.until.items()
    ]
    assert ends
    assert all(package in locked for _, package, _ in ends)
    assert [
        each for each in ends if xla_flags.numbers(locked[each[1]]) >= xla_flags.numbers(each[2])
    ] == []


def test_presets_are_of_models_that_there_are() -> None:
    known = set(preflight.names())
    for name in resolved_presets.MODELS:
        chain = preset_files.chain(name)
        if chain[0].name == "pax":
            assert set(chain[-1].configs) <= known
            assert chain[-1].configs
        else:
            gin_files.model("t5_1_1", chain[-1].values["settings.T5_SIZE"].value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nodes: 2\n", "{}: it extends nothing; write extends: NAME, of t5x, "),
        (
            "extends: gpt-5\n",
            "{}: there is no preset 'gpt-5'; did you mean gpt-5b? It may be a file, or one of: ",
        ),
        ("extends: 5\n", "{}:1: extends: it is 5; give a text"),
        ("extends: gpt-5b\nnode: 2\n", "{}:2: node: there is no such field; it may have "),
        ("extends: gpt-5b\nnodes: 0\n", "{}:2: nodes: it is 0; give a whole number, at least 1"),
        (
            "extends: gpt-5b\nnodes: null\n",
            "{}:2: nodes: it is None; give a whole number, at least 1",
        ),
        ("extends: gpt-5b\nprecision: null\n", "{}:2: precision: it is None; choose one of: bf16"),
        (
            "extends: gpt-5b\nnodes: {value: 2, because: x}\n",
            "{}:2: nodes: it has because; write a value, or ",
        ),
        ("extends: gpt-5b\nnodes: {why: x}\n", "{}:2: nodes: it has no value; write a value, or "),
        (
            "extends: gpt-5b\nenv:\n  A: 1\n",
            "{}:3: env.A: it is 1; give a text; a number in quotes",
        ),
        ("extends: gpt-5b\nenv:\n  lower: x\n", "{}:3: env.lower: there is no such field; "),
        ("extends: gpt-5b\nenv: 1\n", "{}:2: env: it is no mapping; write env: {{NAME: VALUE}}"),
        (
            "extends: gpt-5b\nxla_flags:\n  --xla_gpu_x: true\n",
            "{}:3: xla_flags.--xla_gpu_x: there is no such field; ",
        ),
        (
            "extends: gpt-5b\nmesh: {ici: [1, gpu, 1]}\n",
            "{}:2: mesh.ici: it is [1, 'gpu', 1]; give [data, fsdp, tensor], ",
        ),
        (
            "extends: gpt-5b\nbatch: {per_gpu: '1.5'}\n",
            "{}:2: batch.per_gpu: it is '1.5'; give a whole number, at least 1",
        ),
        (
            "extends: gpt-5b\nprecision: fp4\n",
            "{}:2: precision: it is 'fp4'; choose one of: bf16, fp32, fp8-xla, fp8-te",
        ),
        (
            "extends: gpt-5b\nenv:\n  A: {value: x, until: {jaxlib: soon}}\n",
            '{}:3: env.A: until names no versions; write until: {{PACKAGE: "VERSION"}}',
        ),
        (
            "extends: gpt-5b\naccelerators:\n  h300: {}\n",
            "{}:3: accelerators.h300: there is no such card; choose of a100, h100, ",
        ),
        (
            "extends: gpt-5b\naccelerators: [h100]\n",
            "{}:2: accelerators: it is no mapping; write accelerators: ",
        ),
        (
            "extends: gpt-5b\nconfigs: Pile5B\n",
            "{}:2: configs: it is 'Pile5B'; give a list of experiments",
        ),
        ("- extends\n", "{}:1: it is no mapping; write NAME: VALUE"),
    ],
)
def test_a_wrong_file_is_one_line_with_its_line_and_key(
    tmp_path: Path, text: str, message: str
) -> None:
    file = resolved_presets.write(tmp_path, text)
    with pytest.raises(UserError) as error:
        preset_files.chain(file)
    assert str(error.value).startswith(message.format(file))
    assert "\n" not in str(error.value)


def test_files_that_extend_each_other_are_refused(tmp_path: Path) -> None:
    one, two = tmp_path / "one.yaml", tmp_path / "two.yaml"
    one.write_text(f"extends: {two}\n")
    two.write_text(f"extends: {one}\n")
    with pytest.raises(UserError, match=r"one\.yaml: what it extends comes back to it"):
        preset_files.chain(str(one))


def test_a_name_that_is_none_and_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"preset: there is no preset 'llama70b'; did you mean llama-70b\?"
    ):
        preset_files.chain("llama70b")
    with pytest.raises(
        UserError, match=r"gone\.yaml: it cannot be read: No such file or directory"
    ):
        preset_files.chain(f"{tmp_path}/gone.yaml")


def test_the_sites_file_is_where_the_variable_or_the_home_says(tmp_path: Path) -> None:
    home = tmp_path / ".config" / "rosetta"
    home.mkdir(parents=True)
    (home / "site.yaml").write_text("gpus_per_node: 4\n")
    elsewhere = resolved_presets.write(tmp_path, "gpus_per_node: 2\n")
    environment = {"HOME": str(tmp_path)}
    assert preset_files.site(environment).values["gpus_per_node"] == schema.Value(
        4, f"{home}/site.yaml:1"
    )
    assert (
        preset_files.site({**environment, "ROSETTA_SITE": elsewhere}).values["gpus_per_node"].value
        == 2
    )
    assert preset_files.site({**environment, "ROSETTA_SITE": ""}).values == {}
    assert preset_files.site({}).values == {}
    with pytest.raises(UserError, match="it cannot be read"):
        preset_files.site({"ROSETTA_SITE": "/nowhere.yaml"})
    (home / "site.yaml").write_text("# nothing yet\n")
    assert preset_files.site(environment).values == {}
