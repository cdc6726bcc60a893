from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from rosetta.data import (
    batch_hashes,
    data_recipe,
    mixtures,
    pipeline,
    row_sources,
    seqio_features,
    token_cache,
    vocabularies,
)
from tests.support import corpora, errors

if TYPE_CHECKING:
    from pathlib import Path

DOCS = corpora.make_documents(200)
BYTES = vocabularies.Vocabulary("byte", 100)
MNLI = [
    {
        "premise": f"p{n} " + "x" * (n % 7),
        "hypothesis": f"h{n}",
        "label": n % 3 - (n == 51),
        "idx": n,
    }
    for n in range(60)
]


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
    (folder / "mnli.jsonl").write_text("".join(json.dumps(record) + "\n" for record in MNLI))
    return {
        "synthetic": "synthetic",
        "text": corpora.write_text_files(folder / "text", DOCS),
        "jsonl": corpora.write_jsonl_files(folder / "jsonl", DOCS),
        "cache": f"cache:{folder}/cache",
        "mnli": f"jsonl:{folder}/mnli.jsonl",
        "mixture": json.dumps({f"text:{folder}/text/*.txt": 3, f"cache:{folder}/cache": 1}),
    }


def recipe(sets: dict[str, str], name: str, **changes: Any) -> data_recipe.Recipe:
    objective = "mnli" if name.startswith("mnli") else "span_corruption"
    return corpora.make_recipe(sets[name], objective, **changes)


SETS = ["synthetic", "text", "jsonl", "cache", "mnli", "mixture"]


@pytest.mark.parametrize("name", SETS)
def test_a_batch_depends_on_seed_and_step_alone_whatever_the_hosts(
    sets: dict[str, str], name: str
) -> None:
    whole = pipeline.Batches(recipe(sets, name), 12)
    hashes = [batch_hashes.hash_batch(whole.make_batch(step)) for step in range(12)]
    assert len(set(hashes)) == 12
    again = pipeline.Batches(recipe(sets, name), 12)
    assert [batch_hashes.hash_batch(again.make_batch(step)) for step in (7, 0, 11)] == [
        hashes[7],
        hashes[0],
        hashes[11],
    ]
    for shards in (2, 4):
        hosts = [
            pipeline.Batches(recipe(sets, name), 12, shard=shard, shards=shards)
            for shard in range(shards)
        ]
        for step in (0, 9):
            parts = [host.make_batch(step) for host in hosts]
            for feature, values in whole.make_batch(step).items():
                assert (np.concatenate([part[feature] for part in parts]) == values).all()
            assert (
                batch_hashes.add_hashes(
                    batch_hashes.hash_batch(part, 12 // shards * n) for n, part in enumerate(parts)
                )
                == hashes[step]
            )
    other = pipeline.Batches(recipe(sets, name, seed=1), 12)
    assert batch_hashes.hash_batch(other.make_batch(0)) not in hashes


@pytest.mark.parametrize("name", SETS)
def test_batches_have_the_names_and_lengths_of_feature_lengths(
    sets: dict[str, str], name: str
) -> None:
    for kind, pack in (
        (seqio_features.ENCODER_DECODER, False),
        (seqio_features.ENCODER_DECODER, True),
        (seqio_features.DECODER, False),
        (seqio_features.DECODER, True),
    ):
        batches = pipeline.Batches(recipe(sets, name, pack=pack), 4, kind=kind)
        batch = batches.make_batch(3)
        assert {feature: values.shape for feature, values in batch.items()} == {
            feature: (4, length) for feature, length in batches.feature_lengths.items()
        }
        assert {values.dtype for values in batch.values()} == {np.dtype(np.int32)}
        assert batch["decoder_target_tokens"].max() < BYTES.size


@pytest.mark.parametrize("name", ["text", "jsonl", "cache"])
def test_an_epoch_has_nearly_all_text_and_the_next_one_the_rest(
    sets: dict[str, str], name: str
) -> None:
    text_recipe = recipe(sets, name, inputs=40, targets=40, mean_noise_span_length=3.0)
    source: Any = row_sources.open_sources(dataclasses.replace(text_recipe, objective="prefix_lm"))
    words = {word for doc in DOCS for word in doc.split()}
    shown: set[str] = set()
    for epoch in range(4):
        source_rows = source.read_rows(np.arange(source.count * epoch, source.count * (epoch + 1)))
        joined = [
            BYTES.decode(line) + BYTES.decode(rest)
            for line, rest in zip(source_rows.inputs, source_rows.targets, strict=True)
        ]
        now = {
            word for line in joined for word in line.replace("w", " w").split() if len(word) == 6
        }
        assert len(now) > 0.7 * len(words)
        shown |= now
    assert len(shown) > 0.99 * len(words)


def test_windows_of_text_are_full(sets: dict[str, str]) -> None:
    batch = pipeline.Batches(recipe(sets, "text"), 64).make_batch(0)
    assert (batch["encoder_input_tokens"] != 0).mean() > 0.97
    full = pipeline.Batches(recipe(sets, "cache"), 64).make_batch(0)
    assert (full["encoder_input_tokens"] != 0).all()


def test_every_pair_comes_once_an_epoch_and_unlabelled_ones_never(sets: dict[str, str]) -> None:
    for pack in (False, True):
        source: Any = row_sources.open_sources(recipe(sets, "mnli", pack=pack, inputs=128))
        source_rows = source.read_rows(np.arange(source.count))
        text = " ".join(
            BYTES.decode(line[segments == n])
            for line, segments in zip(source_rows.inputs, source_rows.input_segments, strict=True)
            for n in range(1, segments.max() + 1)
        )
        numbers = sorted(
            int(word[1:]) for word in text.split() if word.startswith("h") and word[1:].isdecimal()
        )
        assert numbers == [n for n in range(60) if n != 51]
        assert (source.count < 59) is pack


def test_a_mixture_draws_at_its_rates_and_none_of_its_examples_twice(sets: dict[str, str]) -> None:
    source = row_sources.open_sources(recipe(sets, "mixture"))
    assert isinstance(source, mixtures.Mixture)
    which, number = source.locate_draws(np.arange(3 * source.BLOCK))
    assert np.bincount(which).tolist() == [9216, 3072]
    for source_number in (0, 1):
        assert sorted(number[which == source_number].tolist()) == list(
            range((which == source_number).sum())
        )
    assert np.bincount(which[:400])[1] > 60  # mixed within a block
    some = source.locate_draws(np.arange(5000, 5100))
    assert (some[0] == which[5000:5100]).all()
    assert (some[1] == number[5000:5100]).all()


def test_a_mixture_is_read_once_at_its_rates() -> None:
    source = mixtures.Mixture([], [3, 1], ["a", "b"], seed=0)
    draws = list(source.list_draws_once([10, 2000]))
    assert sorted(draws) == [(0, row) for row in range(10)] + [(1, row) for row in range(2000)]
    assert [part for part, _ in draws[:12]].count(0) >= 6  # three of four, before they run out
    assert list(source.list_draws_once([0, 0])) == []


def test_a_rate_too_small_to_draw_is_refused(sets: dict[str, str]) -> None:
    data = json.dumps({sets["text"]: 100_000, sets["cache"]: 1})
    with errors.expect_user_error(errors.INVALID, where="DATA", names=("cache:", "4096")):
        row_sources.open_sources(corpora.make_recipe(data))


def test_a_run_resumes_where_it_stopped_also_with_another_batch_size(sets: dict[str, str]) -> None:
    first = pipeline.Batches(recipe(sets, "mixture"), 8)
    state = json.loads(json.dumps(first.make_state(10)))
    same = pipeline.Batches(recipe(sets, "mixture"), 8)
    assert same.resume(state, 10) is None
    assert batch_hashes.hash_batch(same.make_batch(10)) == batch_hashes.hash_batch(
        first.make_batch(10)
    )
    larger = pipeline.Batches(recipe(sets, "mixture"), 16)
    line = larger.resume(state, 10)
    assert (
        line
        == "data: the batch was 8, now 16: from step 10 on with example 80, none repeated or left out"
    )
    for name, values in larger.make_batch(10).items():
        assert (
            values == np.concatenate([first.make_batch(10)[name], first.make_batch(11)[name]])
        ).all()
    third = pipeline.Batches(recipe(sets, "mixture"), 4)
    third.resume(json.loads(json.dumps(larger.make_state(12))), 12)  # a change after a change
    assert third.find_first_example(12) == 80 + 2 * 16


def test_resuming_with_other_data_is_refused(sets: dict[str, str]) -> None:
    state = pipeline.Batches(recipe(sets, "text"), 8).make_state(3)
    for name, changes, where, names in (
        ("text", {"seed": 5}, "seed", ("0", "5")),
        ("jsonl", {}, "DATA=jsonl:", "other files"),
        ("text", {"extra_ids": 50}, "DATA=text:", ("vocabulary byte (", ", now byte (")),
        ("text", {"inputs": 60}, "DATA=text:", ("inputs 64", "60")),
    ):
        with errors.expect_user_error(errors.DIFFERS, where=where, names=names):
            pipeline.Batches(recipe(sets, name, **changes), 8).resume(state, 3)


def test_data_that_moved_to_another_folder_is_the_same(
    sets: dict[str, str], tmp_path: Path
) -> None:
    moved = corpora.write_text_files(tmp_path / "elsewhere", DOCS)
    here, there = (pipeline.Batches(corpora.make_recipe(data), 4) for data in (sets["text"], moved))
    assert here.fingerprint() == there.fingerprint()
    assert (
        here.fingerprint()
        != pipeline.Batches(
            corpora.make_recipe(corpora.write_text_files(tmp_path / "b", DOCS[:-1])), 4
        ).fingerprint()
    )


def test_without_shuffling_the_order_is_that_of_the_data(sets: dict[str, str]) -> None:
    source: Any = row_sources.open_sources(recipe(sets, "mnli", shuffle=False, inputs=128))
    assert [BYTES.decode(line).split()[2] for line in source.read_rows(np.arange(3)).inputs] == [
        "h0",
        "h1",
        "h2",
    ]


@pytest.mark.parametrize(
    ("data", "objective", "changes", "kind", "facts"),
    [
        ("text", "mnli", {}, errors.CONFLICT, {"where": "DATA=text:", "value": "text"}),
        ("cache", "lm", {"inputs": 0}, errors.DIFFERS, {"names": "span_corruption"}),
        ("mnli", "squad", {}, errors.INVALID, {"where": "line 1", "names": "squad"}),
        (
            "text",
            "span_corruption",
            {"vocab": "ids:100"},
            errors.CONFLICT,
            {"where": "VOCAB=ids:100"},
        ),
        ("mnli", "span_corruption", {}, errors.INVALID, {"where": "line 1", "names": "'text'"}),
    ],
)
def test_settings_that_conflict_are_refused(
    sets: dict[str, str],
    data: str,
    objective: str,
    changes: dict[str, Any],
    kind: str,
    facts: dict[str, Any],
) -> None:
    with errors.expect_user_error(kind, **facts):
        pipeline.Batches(corpora.make_recipe(sets[data], objective, **changes), 4)


def test_a_batch_that_does_not_divide_is_refused_with_one_that_does(sets: dict[str, str]) -> None:
    with errors.expect_user_error(errors.INVALID, where="BATCH_SIZE", value=9, remedy=("4", "8")):
        pipeline.Batches(recipe(sets, "text"), 9, shards=4)
    for batch in (0, -8):
        with errors.expect_user_error(errors.INVALID, where="BATCH_SIZE", value=batch, remedy="1"):
            pipeline.Batches(recipe(sets, "text"), batch)


def test_the_hash_changes_with_any_value_and_with_the_rows_order() -> None:
    batch: dict[str, Any] = {
        "a": np.arange(12, dtype=np.int32).reshape(3, 4),
        "b": np.ones((3, 2), np.int32),
    }
    base = batch_hashes.hash_batch(batch)
    changed = {**batch, "b": batch["b"].copy()}
    changed["b"][2, 1] = 0
    turned = {name: values[::-1] for name, values in batch.items()}
    assert (
        len(
            {
                base,
                batch_hashes.hash_batch(changed),
                batch_hashes.hash_batch(turned),
                batch_hashes.hash_batch({"a": batch["a"], "c": batch["b"]}),
            }
        )
        == 4
    )
    halves = [
        ({name: values[:1] for name, values in batch.items()}, 0),
        ({name: values[1:] for name, values in batch.items()}, 1),
    ]
    assert (
        batch_hashes.add_hashes(batch_hashes.hash_batch(part, first) for part, first in halves)
        == base
    )
