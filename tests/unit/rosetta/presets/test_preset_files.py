from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from rosetta.core import xla_flags
from rosetta.pax.run import hyper_parameters
from rosetta.presets import preset_files, schema
from rosetta.t5x.run import gin_files
from tests.support import errors, resolved_presets

ROOT = Path(__file__).parents[4]


def test_every_shipped_value_has_a_reason() -> None:
    layers = [
        preset_files.load_common_layer(),
        *preset_files.load_presets().values(),
        *preset_files.load_named_layers("precisions").values(),
        *preset_files.load_named_layers("switches").values(),
    ]
    bodies = [body for layer in layers for body in (layer.values, *layer.by_gpu.values())] + [
        body for body in preset_files.load_accelerator_values().values() if body
    ]
    without = [
        f"{value.origin}: {path}"
        for body in bodies
        for path, value in body.items()
        if not value.why
    ]
    assert len(bodies) > 40
    assert without == []


def test_no_shipped_workaround_has_ended_in_the_locked_versions() -> None:
    """An `until` at or below a locked version: look whether the workaround is needed, then remove it or move its end on."""
    locked = {
        name: version
        for file in (ROOT / "locks" / "current").glob("*.txt")
        for name, version in re.findall(r"^([a-z0-9-]+)==([^ ;]+)", file.read_text(), re.MULTILINE)
    }
    layers = [
        preset_files.load_common_layer(),
        *preset_files.load_presets().values(),
        *preset_files.load_named_layers("precisions").values(),
        *preset_files.load_named_layers("switches").values(),
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
        each
        for each in ends
        if xla_flags.parse_version(locked[each[1]]) >= xla_flags.parse_version(each[2])
    ] == []


def test_every_preset_has_an_existing_model() -> None:
    known = set(hyper_parameters.list_experiments())
    for name in resolved_presets.MODELS:
        chain = preset_files.load_preset_chain(name)
        if chain[0].name == "pax":
            assert set(chain[-1].configs) <= known
            assert chain[-1].configs
        else:
            gin_files.find_model_file("t5_1_1", chain[-1].values["settings.T5_SIZE"].value)


@pytest.mark.parametrize(
    ("text", "kind", "facts"),
    [
        ("nodes: 2\n", errors.MISSING, {"where": "mine.yaml", "remedy": ("NAME", "t5x")}),
        (
            "extends: gpt-5\n",
            errors.UNKNOWN,
            {"where": "mine.yaml", "value": "gpt-5", "remedy": "gpt-5b"},
        ),
        ("extends: 5\n", errors.INVALID, {"where": "mine.yaml:1: extends", "value": 5}),
        (
            "extends: gpt-5b\nnode: 2\n",
            errors.UNKNOWN,
            {"where": "mine.yaml:2: node", "value": "node"},
        ),
        (
            "extends: gpt-5b\nnodes: 0\n",
            errors.INVALID,
            {"where": "mine.yaml:2: nodes", "value": 0},
        ),
        (
            "extends: gpt-5b\nnodes: null\n",
            errors.INVALID,
            {"where": "mine.yaml:2: nodes", "remedy": "1"},
        ),
        (
            "extends: gpt-5b\nprecision: null\n",
            errors.INVALID,
            {"where": "mine.yaml:2: precision", "remedy": "bf16"},
        ),
        (
            "extends: gpt-5b\nnodes: {value: 2, because: x}\n",
            errors.INVALID,
            {"where": "mine.yaml:2: nodes", "value": "because"},
        ),
        (
            "extends: gpt-5b\nnodes: {why: x}\n",
            errors.INVALID,
            {"where": "mine.yaml:2: nodes", "value": None, "remedy": "{value: VALUE"},
        ),
        (
            "extends: gpt-5b\nenv:\n  A: 1\n",
            errors.INVALID,
            {"where": "mine.yaml:3: env.A", "value": 1},
        ),
        (
            "extends: gpt-5b\nenv:\n  lower: x\n",
            errors.UNKNOWN,
            {"where": "mine.yaml:3: env.lower", "value": "lower"},
        ),
        (
            "extends: gpt-5b\nenv: 1\n",
            errors.INVALID,
            {"where": "mine.yaml:2: env", "remedy": "env: {NAME: VALUE}"},
        ),
        (
            "extends: gpt-5b\nxla_flags:\n  --xla_gpu_x: true\n",
            errors.UNKNOWN,
            {"where": "mine.yaml:3: xla_flags.--xla_gpu_x", "value": "--xla_gpu_x"},
        ),
        (
            "extends: gpt-5b\nmesh: {ici: [1, gpu, 1]}\n",
            errors.INVALID,
            {"where": "mine.yaml:2: mesh.ici", "value": [1, "gpu", 1]},
        ),
        (
            "extends: gpt-5b\nbatch: {per_gpu: '1.5'}\n",
            errors.INVALID,
            {"where": "mine.yaml:2: batch.per_gpu", "value": "1.5"},
        ),
        (
            "extends: gpt-5b\nprecision: fp4\n",
            errors.INVALID,
            {
                "where": "mine.yaml:2: precision",
                "value": "fp4",
                "remedy": ("bf16", "fp32", "fp8-xla", "fp8-te"),
            },
        ),
        (
            "extends: gpt-5b\nenv:\n  A: {value: x, until: {jaxlib: soon}}\n",
            errors.INVALID,
            {"where": "mine.yaml:3: env.A", "value": "until", "remedy": "VERSION"},
        ),
        (
            "extends: gpt-5b\naccelerators:\n  h300: {}\n",
            errors.UNKNOWN,
            {
                "where": "mine.yaml:3: accelerators.h300",
                "value": "h300",
                "remedy": ("a100", "h100"),
            },
        ),
        (
            "extends: gpt-5b\naccelerators: [h100]\n",
            errors.INVALID,
            {"where": "mine.yaml:2: accelerators", "remedy": "accelerators: {h100"},
        ),
        (
            "extends: gpt-5b\nconfigs: Pile5B\n",
            errors.INVALID,
            {"where": "mine.yaml:2: configs", "value": "Pile5B"},
        ),
        ("- extends\n", errors.INVALID, {"where": "mine.yaml:1", "remedy": ("NAME", "VALUE")}),
    ],
)
def test_an_invalid_file_is_reported_with_line_and_key(
    tmp_path: Path, text: str, kind: str, facts: dict[str, Any]
) -> None:
    file = resolved_presets.write_preset(tmp_path, text)
    with errors.expect_user_error(kind, **facts) as error:
        preset_files.load_preset_chain(file)
    assert error.value.where.startswith(file)
    assert "\n" not in str(error.value)


def test_files_that_extend_each_other_are_refused(tmp_path: Path) -> None:
    one, two = tmp_path / "one.yaml", tmp_path / "two.yaml"
    one.write_text(f"extends: {two}\n")
    two.write_text(f"extends: {one}\n")
    with errors.expect_user_error(errors.CONFLICT, where="one.yaml"):
        preset_files.load_preset_chain(str(one))


def test_unknown_names_and_missing_files_are_refused(tmp_path: Path) -> None:
    with errors.expect_user_error(
        errors.UNKNOWN, where="preset", value="llama70b", remedy="llama-70b"
    ):
        preset_files.load_preset_chain("llama70b")
    with errors.expect_user_error(errors.MISSING, where="gone.yaml", names="No such file"):
        preset_files.load_preset_chain(f"{tmp_path}/gone.yaml")


def test_the_sites_file_is_found_by_variable_or_home(tmp_path: Path) -> None:
    home = tmp_path / ".config" / "rosetta"
    home.mkdir(parents=True)
    (home / "site.yaml").write_text("gpus_per_node: 4\n")
    elsewhere = resolved_presets.write_preset(tmp_path, "gpus_per_node: 2\n")
    environment = {"HOME": str(tmp_path)}
    assert preset_files.load_site_layer(environment).values["gpus_per_node"] == schema.Value(
        4, f"{home}/site.yaml:1"
    )
    assert (
        preset_files.load_site_layer({**environment, "ROSETTA_SITE": elsewhere})
        .values["gpus_per_node"]
        .value
        == 2
    )
    assert preset_files.load_site_layer({**environment, "ROSETTA_SITE": ""}).values == {}
    assert preset_files.load_site_layer({}).values == {}
    with errors.expect_user_error(errors.MISSING, where="/nowhere.yaml"):
        preset_files.load_site_layer({"ROSETTA_SITE": "/nowhere.yaml"})
    (home / "site.yaml").write_text("# nothing yet\n")
    assert preset_files.load_site_layer(environment).values == {}
