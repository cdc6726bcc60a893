"""Our experiments are upstream's, as configurations in full size and as numbers in small, but for the differences they name."""

from __future__ import annotations

import importlib.util
import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import required_modules

required_modules.need_modules("jax", "paxml")

import fiddle as fdl
import jax
import numpy as np
from absl import flags

from rosetta.pax import configs
from tests.support import pax_training
from tests.support.pinned_files import need_pinned_file

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.upstream

NAMES = (
    "Synthetic126M",
    "Synthetic5B",
    "Synthetic175B",
    "Pile126M",
    "Pile5B",
    "Pile175B",
    "GPT5B",
    "GPT175B",
    "Lambada126M",
    "PileGLaM126M64E",
    "PileGLaM64B64E",
    "LambadaGLaM126M64E",
    "LambadaGLaM64B64E",
    "LLaMA7B",
    "LLaMA13B",
    "LLaMA70B",
)
# Upstream's names that do nothing there, or that a vocabulary answers here.
ABSENT = {"R_COS_MIN_RATIO", "NUM_GPUS", "MODEL_DTYPE", "EOS_ID"}
# What a configuration may have otherwise after its DIFFERENCES were taken back: the path, and why.
EXPLAINED = {
    r"model\.lm_tpl\.softmax_tpl((\.feed_forward_tpl\.linear_tpl)?\.einsum_tpl(\.summed)?)?": "a vocabulary padded in products, where it is no multiple of 128",
    r"model\.lm_tpl\.softmax_tpl\.(lookup_style|array_lookup_tpl.*)": "an embedding looked up by index, with gradients added up in float32",
    r"model\.lm_tpl\.position_emb_tpl\.einsum_tpl(\.kept)?": "the position embedding's table is gathered, not its gradient",
    r"train\.enable_input_checkpointing": "a checkpoint says where in the data it stands",
    r"model\.(report_strict_acc|eval_task)": "LAMBADA's accuracy by its present name, and not in pretraining",
}


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Upstream's own configs.py at its pin, which the overlay stands in for in what we ship."""
    text = need_pinned_file("paxml", "paxml/contrib/gpu/scripts_gpu/configs.py")
    path = tmp_path_factory.mktemp("upstream") / "upstream_configs.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    if not flags.FLAGS.is_parsed():
        flags.FLAGS(["test"])
    return found


def _made(kind: Any, **given: Any) -> Any:
    made = kind()
    for name, value in {"TRUE_TOKEN": 5, "FALSE_TOKEN": 6, **given}.items():
        setattr(made, name, value)
    return made


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every class and every value of a configuration, defaults included, by its path."""
    if isinstance(value, fdl.Buildable):
        yield path, fdl.get_callable(value).__qualname__
        for name, each in fdl.ordered_arguments(value, include_defaults=True).items():
            yield from _flat(each, f"{path}.{name}" if path else name)
    else:
        yield (
            path,
            np.asarray(value).tolist()
            if isinstance(value, (jax.Array, np.ndarray, np.generic))
            else repr(value),
        )


@pytest.mark.parametrize("name", NAMES)
def test_configurations_differ_only_in_what_is_said(upstream: Any, name: str) -> None:
    kind, theirs = getattr(configs, name), getattr(upstream, name)
    assert [
        each
        for each in dir(theirs)
        if each.isupper() and each not in ABSENT and not hasattr(kind, each)
    ] == []
    for hyper in ("ICI_MESH_SHAPE", "DCN_MESH_SHAPE"):
        assert list(getattr(kind, hyper)) == getattr(theirs, hyper)

    said = {each.name: each.theirs for each in kind.DIFFERENCES}
    for hyper in ("PERCORE_BATCH_SIZE", "MAX_SEQ_LEN", "MAX_STEPS"):
        assert said.get(hyper, getattr(kind, hyper)) == getattr(theirs, hyper), hyper
    expected, found = dict(_flat(_made(theirs).task())), dict(_flat(_made(kind, **said).task()))
    other = {
        path
        for path in expected.keys() | found.keys()
        if repr(expected.get(path)) != repr(found.get(path))
        and str(expected.get(path)) != str(found.get(path))
    }
    assert {
        path: (expected.get(path), found.get(path))
        for path in other
        if not any(re.fullmatch(known, path) for known in EXPLAINED)
    } == {}

    plain = dict(_flat(_made(kind).task()))
    assert (
        bool(said) == ({path for path in plain if plain[path] != found.get(path)} != set())
        or "PERCORE_BATCH_SIZE" in said
    )


_SIZE = {
    "NUM_LAYERS": 2,
    "NUM_HEADS": 4,
    "MODEL_DIMS": 64,
    "HIDDEN_DIMS": 256,
    "DIMS_PER_HEAD": 16,
    "VOCAB_SIZE": 512,
    "MAX_SEQ_LEN": pax_training.LENGTH,
    "FPROP_DTYPE": "float32",
    "ICI_MESH_SHAPE": [1, 1, 1],
    "DCN_MESH_SHAPE": [1, 1, 1],
    "PERCORE_BATCH_SIZE": pax_training.BATCH,
    "MAX_STEPS": 3,
    "PACKED_INPUT": True,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "GPT": ("Pile126M", {}),
    "GPT, repeated layers": ("Pile126M", {"USE_REPEATED_LAYER": True}),
    "GPT, repeated layers, dropout of their inputs": ("Pile5B", {"INPUT_DROPOUT_PROB": 0.1}),
    "GPT, a vocabulary of 500": ("Pile175B", {"DIMS_PER_HEAD": None, "VOCAB_SIZE": 500}),
    "GLaM": ("PileGLaM126M64E", {"NUM_EXPERTS": 4}),
    "GLaM, repeated layers": ("PileGLaM64B64E", {"NUM_EXPERTS": 4, "GROUPS_PER_PART": 1}),
    "LLaMA": ("LLaMA7B", {}),
    "LLaMA, repeated layers": ("LLaMA7B", {"USE_REPEATED_LAYER": True}),
    "LLaMA, grouped queries": ("LLaMA70B", {"NUM_KV_HEADS": 2}),
    "LLaMA, grouped queries, repeated layers": (
        "LLaMA70B",
        {"NUM_KV_HEADS": 2, "USE_REPEATED_LAYER": True},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_three_steps_are_upstreams(upstream: Any, case: str) -> None:
    """Bit for bit, but where the vocabulary is padded: there sums of zeros are added in another order."""
    name, given = CASES[case]
    given = (
        {**_SIZE, **given}
        if not name.startswith("LLaMA")
        else {**_SIZE, **given, "PACKED_INPUT": False}
    )
    theirs, ours = (
        pax_training.Run(_made(getattr(module, name), **given)) for module in (upstream, configs)
    )
    assert ours.params.keys() == theirs.params.keys()
    for leaf, value in theirs.params.items():
        np.testing.assert_array_equal(ours.params[leaf], value, err_msg=leaf)
    losses = theirs.steps(3), ours.steps(3)
    exact = "vocabulary" not in case
    np.testing.assert_allclose(losses[1], losses[0], rtol=0 if exact else 1e-6)
    for leaf, value in theirs.params.items():
        np.testing.assert_allclose(
            ours.params[leaf],
            value,
            rtol=0 if exact else 1e-6,
            atol=0 if exact else 1e-7,
            err_msg=leaf,
        )
