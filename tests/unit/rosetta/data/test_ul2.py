"""UL2's mixture of denoisers against a reference of its definition, and over every kind of source.

The reference is written from table 1 of Tay et al. (arXiv 2205.05131), with plain loops.
tests/unit/rosetta/t5x/test_dataset.py compares the rows with T5's own preprocessors.
"""

from __future__ import annotations

import collections
import json
import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from rosetta.data import (
    batch_hashes,
    data_checks,
    objectives,
    pipeline,
    shuffling,
    token_cache,
    vocabularies,
)
from tests.support import corpora, errors

if TYPE_CHECKING:
    from pathlib import Path

BYTES = vocabularies.Vocabulary("byte", 200)
LENGTHS = {"inputs": 512, "targets": 512}
# Mean span length and corruption rate of each denoiser, and its mode token. 0 stands for a quarter
# of the window.
TABLE = collections.Counter(
    [
        ("[NLU]", 3.0, 0.15),
        ("[NLU]", 8.0, 0.15),
        ("[S2S]", 0.0, 0.25),
        ("[NLG]", 3.0, 0.5),
        ("[NLG]", 8.0, 0.5),
        ("[NLG]", 64.0, 0.15),
        ("[NLG]", 64.0, 0.5),
    ]
)
DOCS = corpora.make_documents(400)


def make_rule(**changes: Any) -> objectives.Objective:
    return objectives.make_objective("ul2", LENGTHS, **{"vocabulary": BYTES, **changes})


def describe_denoiser(denoiser: objectives.Objective) -> tuple[str, float, float]:
    mode = BYTES.decode(denoiser.mode_ids).strip()
    if denoiser.name == "prefix_lm":
        return mode, 0.0, denoiser.longest_share / 2
    return mode, denoiser.mean_noise_span_length, denoiser.noise_density


def test_the_denoisers_are_those_of_the_paper() -> None:
    assert collections.Counter(map(describe_denoiser, make_rule().denoisers)) == TABLE


def write_reference_row(
    tokens: list[int], mask: list[bool], mode: list[int], marked: bool
) -> tuple[list[int], list[int]]:
    """Return the inputs and targets of a window of which some tokens are masked.

    Args:
        tokens: the window.
        mask: whether each token is masked.
        mode: the ids of the mode token.
        marked: whether sentinels stand for what a side lacks; S has none.
    """
    sides: list[list[int]] = [list(mode), []]
    counts = [0, 0]
    for side, hidden_value in enumerate((True, False)):
        was_hidden = False
        for token, masked in zip(tokens, mask, strict=True):
            hidden = masked == hidden_value
            if not hidden:
                sides[side].append(token)
            elif not was_hidden and marked:
                sides[side].append(BYTES.size - 1 - counts[side])
                counts[side] += 1
            was_hidden = hidden
        sides[side].append(vocabularies.EOS)
    return sides[0], sides[1]


@pytest.mark.parametrize("number", range(7))
def test_rows_equal_the_reference(number: int) -> None:
    rule = make_rule()
    rule.check_fits(BYTES)
    denoiser = rule.denoisers[number]
    mode, span, density = describe_denoiser(denoiser)
    count, length = 40, denoiser.window_length
    tokens: Any = np.arange(count * length, dtype=np.int32).reshape(count, length) % 200 + 3
    keys = shuffling.derive_keys(5, np.arange(count))
    inputs, targets = rule.apply(list(tokens), keys, BYTES, np.full(count, number))
    if span:
        masks = objectives.draw_noise_mask(length, keys, density, span)
    else:
        shown = (inputs != 0).sum(axis=1) - len(denoiser.mode_ids) - 1
        masks = np.arange(length) >= shown[:, None]
    for row in range(count):
        expected = write_reference_row(
            tokens[row].tolist(),
            masks[row].tolist(),
            BYTES.encode([f"{mode} "])[0].tolist(),
            span > 0,
        )
        for side, ids in zip((inputs[row], targets[row]), expected, strict=True):
            assert side[: len(ids)].tolist() == ids
            assert not side[len(ids) :].any()


@pytest.mark.parametrize("number", range(7))
def test_rates_and_span_lengths_are_the_published_ones(number: int) -> None:
    vocabulary = vocabularies.Vocabulary("byte", 1100)
    rule = objectives.make_objective(
        "ul2", {"inputs": 4096, "targets": 4096}, vocabulary=vocabulary
    )
    rule.check_fits(vocabulary)
    _, span, density = describe_denoiser(rule.denoisers[number])
    # The length of S is drawn, so its mean is taken over more rows.
    count, length = 40 if span else 2000, rule.window_lengths[number]
    windows: Any = np.full((count, length), 7, np.int32)
    _, targets = rule.apply(
        windows, shuffling.derive_keys(1, np.arange(count)), vocabulary, np.full(count, number)
    )
    masked = (targets == 7).sum()
    assert masked / windows.size == pytest.approx(density, rel=0.001 if span else 0.03)
    spans = (targets > 258).sum() if span else count
    # A row has a whole number of spans, which gives 64 only roughly.
    assert masked / spans == pytest.approx(span or length / 4, rel=0.03)


def test_rows_are_full_and_no_row_is_cut() -> None:
    rule = make_rule()
    for number, denoiser in enumerate(rule.denoisers):
        windows: Any = [np.full(denoiser.window_length, 7, np.int32)] * 50
        keys = shuffling.derive_keys(1, np.arange(50))
        inputs, targets = rule.apply(windows, keys, BYTES, np.full(50, number))
        kept = (inputs == 7).sum(axis=1) + (targets == 7).sum(axis=1)
        mode_sevens = denoiser.mode_ids.count(7)
        assert (kept == denoiser.window_length + mode_sevens).all()
        if denoiser.name == "span_corruption":
            assert ((inputs != 0).sum(axis=1) >= 510).all()


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("sets")
    cache_recipe = token_cache.CacheRecipe(
        "x", BYTES.fingerprint(), "byte", BYTES.size, document_ends=False, pairs=""
    )
    token_cache.write_cache(
        str(folder / "cache"),
        cache_recipe,
        DOCS,
        lambda batches: (BYTES.encode(batch) for batch in batches),
        shard_tokens=5000,
    )
    write_megatron_files(folder / "pile", DOCS)
    text = corpora.write_text_files(folder / "text", DOCS)
    return {
        "text": text,
        "jsonl": corpora.write_jsonl_files(folder / "jsonl", DOCS),
        "cache": f"cache:{folder}/cache",
        "megatron": f"megatron:{folder}/pile",
        "mixture": json.dumps({text: 3, f"cache:{folder}/cache": 1}),
    }


def write_megatron_files(prefix: Path, documents: list[str]) -> None:
    """Write tokens of bytes as Megatron-LM's IndexedDataset does: uint16 (type 8)."""
    ids = [encoded.astype("<u2") for encoded in BYTES.encode(documents)]
    sizes = np.array([len(one) for one in ids], "<i4")
    places = np.concatenate([[0], np.cumsum(sizes[:-1] * 2)]).astype("<i8")
    ends: Any = np.arange(len(ids) + 1, dtype="<i8")
    prefix.with_suffix(".bin").write_bytes(b"".join(one.tobytes() for one in ids))
    head = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 8, len(ids), len(ends))
    prefix.with_suffix(".idx").write_bytes(
        head + sizes.tobytes() + places.tobytes() + ends.tobytes()
    )


def make_batches(sets: dict[str, str], name: str, **changes: Any) -> pipeline.Batches:
    hosts = {key: changes.pop(key) for key in ("shard", "shards") if key in changes}
    recipe = corpora.make_recipe(sets[name], "ul2", extra_ids=200, inputs=64, targets=64, **changes)
    return pipeline.Batches(recipe, 12, **hosts)


SETS = ["text", "jsonl", "cache", "megatron", "mixture"]


@pytest.mark.parametrize("name", SETS)
def test_a_batch_depends_on_seed_and_step_alone(sets: dict[str, str], name: str) -> None:
    whole = make_batches(sets, name)
    hashes = [batch_hashes.hash_batch(whole.make_batch(step)) for step in range(8)]
    assert len(set(hashes)) == 8
    hosts = [make_batches(sets, name, shard=shard, shards=3) for shard in range(3)]
    for step in (7, 0):
        parts = [
            batch_hashes.hash_batch(host.make_batch(step), 4 * number)
            for number, host in enumerate(hosts)
        ]
        assert batch_hashes.add_hashes(parts) == hashes[step]
    assert batch_hashes.hash_batch(make_batches(sets, name, seed=1).make_batch(0)) not in hashes


@pytest.mark.parametrize("name", SETS)
def test_a_resumed_run_has_the_same_batches(sets: dict[str, str], name: str) -> None:
    first = make_batches(sets, name)
    state = json.loads(json.dumps(first.make_state(5)))
    again = make_batches(sets, name)
    assert again.resume(state, 5) is None
    for step in (5, 6, 40):
        assert batch_hashes.hash_batch(again.make_batch(step)) == batch_hashes.hash_batch(
            first.make_batch(step)
        )
    with errors.expect_user_error(errors.DIFFERS, names="mode_tokens"):
        make_batches(sets, name, mode_tokens="").resume(state, 5)


@pytest.mark.parametrize("name", SETS)
def test_the_denoisers_come_equally_often(sets: dict[str, str], name: str) -> None:
    batches = make_batches(sets, name)
    inputs = np.concatenate(
        [batches.make_batch(step)["encoder_input_tokens"] for step in range(40)]
    )
    modes = collections.Counter(BYTES.decode(row[:5]) for row in inputs)
    for mode, share in (("[NLU]", 2), ("[NLG]", 4), ("[S2S]", 1)):
        assert modes[mode] / len(inputs) == pytest.approx(share / 7, abs=0.07)
    assert sum(modes.values()) == sum(modes[mode] for mode in ("[NLU]", "[NLG]", "[S2S]"))


def test_windows_of_a_cache_lie_side_by_side(sets: dict[str, str]) -> None:
    source: Any = make_batches(sets, "cache", shuffle=False, mode_tokens="").source
    starts, sizes, turns = source.grid.locate_windows(np.arange(source.count))
    assert starts[0] == 0
    assert (starts[1:] == (starts + sizes)[:-1]).all()
    assert sizes.tolist() == [source.objective.window_lengths[turn] for turn in turns]
    end = int(starts[-1] + sizes[-1])
    assert end <= source.tokens.size < end + max(source.objective.window_lengths)


def test_each_window_meets_other_denoisers_in_other_epochs(sets: dict[str, str]) -> None:
    source: Any = make_batches(sets, "text").source
    modes = collections.defaultdict(set)
    for epoch in range(4):
        inputs = source.read_rows(
            np.arange(source.count * epoch, source.count * (epoch + 1))
        ).inputs
        for row in inputs:
            text = BYTES.decode(row)
            for word in text.split():
                if word.startswith("w") and len(word) == 6:
                    modes[word].add(text[:5])
    assert np.mean([len(known) > 1 for known in modes.values()]) > 0.4


def test_old_checkpoints_of_other_objectives_still_fit() -> None:
    """A recipe without the new fields has the fingerprint that it always had."""
    recipe = corpora.make_recipe("synthetic")
    assert pipeline.Batches(recipe, 4).fingerprint() == "02fe86108960163b"


@pytest.mark.parametrize(
    ("changes", "kind", "facts"),
    [
        ({"lengths": {"inputs": 512, "targets": 114}}, errors.INVALID, {"remedy": "506"}),
        ({"extra_ids": 100}, errors.TOO_BIG, {"value": 126, "remedy": "EXTRA_IDS"}),
        ({"lengths": {"inputs": 9, "targets": 64}}, errors.INVALID, {"value": 9, "remedy": "14"}),
        (
            {"vocab": "ids:500", "data": "megatron"},
            errors.UNSUPPORTED,
            {"where": "VOCAB=ids:500", "remedy": "MODE_TOKENS"},
        ),
        ({"mode_tokens": "[R] [X]"}, errors.INVALID, {"where": "MODE_TOKENS"}),
        ({"mode_tokens": "[R] [X] [R]"}, errors.INVALID, {"where": "MODE_TOKENS"}),
        ({"input_prefix": "[NLU]"}, errors.CONFLICT, {"where": "INPUT_PREFIX=[NLU]"}),
    ],
    ids=["targets", "sentinels", "inputs", "vocabulary", "two-modes", "equal-modes", "prefix"],
)
def test_what_does_not_fit_is_refused(
    sets: dict[str, str], changes: dict[str, Any], kind: str, facts: dict[str, Any]
) -> None:
    settings: dict[str, Any] = {
        "objective": "ul2",
        "vocab": "byte",
        "extra_ids": 126,
        "vocab_size": None,
        "lengths": LENGTHS,
        **changes,
    }
    settings["data"] = sets[settings.get("data", "text")]
    with errors.expect_user_error(kind, **facts):
        data_checks.check_data(**settings)


def test_what_fits_is_accepted(sets: dict[str, str]) -> None:
    data_checks.check_data(
        data=sets["megatron"],
        objective="ul2",
        vocab="ids:500",
        extra_ids=128,
        vocab_size=628,
        lengths=LENGTHS,
        mode_tokens="",
    )
