from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.fake_machine import INSTALLED, find_finding, find_levels, make_machine


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"jax-cuda13-plugin": ["0.10.1"]}, {"plugin-version": "blocker"}),
        ({"jax-cuda13-pjrt": []}, {"plugin-incomplete": "blocker"}),
        ({"jax": ["0.9.0"]}, {"jax-older-than-jaxlib": "blocker"}),
        ({"jax": ["0.10.3"]}, {}),
        ({"jaxlib": []}, {"jax-incomplete": "blocker"}),
        ({"jaxlib": ["0.10.2", "0.9.1"]}, {"package-twice": "warning"}),
        (
            {"jax-cuda12-plugin": ["0.10.2"], "jax-cuda12-pjrt": ["0.10.2"]},
            {"two-plugins": "warning"},
        ),
        ({"jax-cuda13-plugin": [], "jax-cuda13-pjrt": []}, {"no-plugin": "blocker"}),
        ({"transformer-engine-jax": ["2.20.2"], "transformer-engine-cu13": ["2.20.2"]}, {}),
        (
            {"transformer-engine-jax": ["2.20.2"], "transformer-engine-cu13": ["2.19.0"]},
            {"te-version": "blocker"},
        ),
        (
            {"transformer-engine-jax": ["2.20.2"], "transformer-engine-cu12": ["2.20.2"]},
            {"te-cuda": "blocker"},
        ),
    ],
)
def test_packages_that_do_not_fit_together(
    tmp_path: Path, changes: dict[str, list[str]], found: dict[str, str]
) -> None:
    installed = {name: versions for name, versions in {**INSTALLED, **changes}.items() if versions}
    examined = make_machine(
        tmp_path, installed=installed, environment={"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    )
    assert find_levels(examined) == found


def test_packages_that_differ_from_the_lock(tmp_path: Path) -> None:
    examined = make_machine(
        tmp_path,
        pinned={
            "jax": "0.10.2",
            "jaxlib": "0.10.2",
            "nvidia-cudnn-cu13": "9.30",
            "nvidia-nccl-cu13": "2.32.3",
            "seqio": "1",
        },
    )
    there, locked = re.findall(r"\d[\d.]+\d", find_finding(examined, "not-as-locked").what)
    assert (there, locked) == ("9.28.1.4", "9.30")
    assert "nvidia-nccl-cu13" in find_finding(examined, "locked-package-missing").what


def test_a_python_without_jax(tmp_path: Path) -> None:
    examined = make_machine(tmp_path, driver="", gpus=(), baked=False, record={}, installed={})
    assert find_levels(examined) == {"no-driver": "note", "no-jax": "note"}


def test_jax_without_a_cuda_plugin_on_a_gpu_machine(tmp_path: Path) -> None:
    plain = {"jax": ["0.10.2"], "jaxlib": ["0.10.2"]}
    assert (
        find_levels(make_machine(tmp_path, installed=plain, record={"accelerator": "cpu"}))[
            "no-plugin"
        ]
        == "blocker"
    )
    assert "no-plugin" not in find_levels(
        make_machine(
            tmp_path,
            installed=plain,
            record={"accelerator": "cpu"},
            environment={"JAX_PLATFORMS": "cpu"},
        )
    )
