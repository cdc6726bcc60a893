from __future__ import annotations

import re

import pytest

from rosetta.core.gpus import GPUS
from rosetta.plan import xla_target


@pytest.mark.parametrize("name", GPUS)
def test_a_target_is_a_text_proto_with_every_field(name: str) -> None:
    gpu, text = GPUS[name], xla_target.describe_target(GPUS[name])
    depth = 0
    for bracket in re.findall(r"[{}]", text):
        depth += 1 if bracket == "{" else -1
        assert depth >= 0
    assert depth == 0
    fields = dict(re.findall(r"(\w+): (\"[^\"]*\"|[\d.]+)", text))
    assert fields["core_count"] == str(gpu.sms)
    assert fields["device_memory_size"] == str(gpu.memory)
    assert fields["device_description_str"] == f'"{gpu.name}"'
    major, minor = gpu.capability
    assert f"cuda_compute_capability {{ major: {major} minor: {minor} }}" in text
    assert len(fields) >= 20
