from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from rosetta.data import (
    batch_hashes,
    batch_log,
    causal_features,
    rows,
    token_cache,
    vocabularies,
)
from tests.support import corpora, errors

if TYPE_CHECKING:
    from pathlib import Path

DOCS = corpora.make_documents(200)
BYTES = vocabularies.Vocabulary("byte", 0)
NONE: Any = np.zeros((1, 0), np.int32)


def make_features(tokens: list[int], *, pack: bool, bos: int = 0) -> dict[str, list[Any]]:
    source_rows = rows.make_unpacked_rows(NONE, np.array([tokens], np.int32))
    return {
        name: array[0].tolist()
        for name, array in causal_features.make_causal_features(
            source_rows, pack=pack, bos=bos, eos=1
        ).items()
    }


def test_a_row_of_running_text_is_one_segment() -> None:
    # 0 in the middle is an unknown token where a vocabulary has it there (LLaMA's), at the end it is padding.
    features = make_features([7, 0, 1, 9, 0, 0], pack=False, bos=5)
    assert features["ids"] == [5, 7, 0, 1, 9, 0]
    assert features["labels"] == [7, 0, 1, 9, 0, 0]
    assert features["weights"] == [1, 1, 1, 1, 0, 0]
    assert features["paddings"] == [0, 0, 0, 0, 1, 1]
    assert features["segment_ids"] == [1, 1, 1, 1, 0, 0]
    assert features["segment_pos"] == [0, 1, 2, 3, 0, 0]
    assert "inputs_indicator" not in features


def test_packed_documents_are_segments_that_begin_anew() -> None:
    features = make_features([7, 8, 1, 9, 1, 4, 0], pack=True, bos=5)
    assert features["segment_ids"] == [1, 1, 1, 2, 2, 3, 0]
    assert features["segment_pos"] == [0, 1, 2, 0, 1, 0, 0]
    assert features["ids"] == [5, 7, 8, 5, 9, 5, 0]
    assert features["labels"] == [7, 8, 1, 9, 1, 4, 0]
    assert features["weights"] == [1, 1, 1, 1, 1, 1, 0]


def test_features_have_the_types_of_paxml() -> None:
    source_rows = rows.make_unpacked_rows(
        np.array([[7, 8, 0]], np.int32), np.array([[9, 1]], np.int32)
    )
    features = causal_features.make_causal_features(source_rows, pack=False, bos=0, eos=1)
    assert {name: array.dtype.name for name, array in features.items()} == {
        "ids": "int32",
        "labels": "int32",
        "segment_ids": "int32",
        "segment_pos": "int32",
        "inputs_indicator": "int32",
        "paddings": "float32",
        "weights": "float32",
    }
    assert {array.shape for array in features.values()} == {(1, 5)}


@pytest.mark.parametrize("pack", [False, True])
def test_the_rows_of_all_hosts_are_the_global_batch(tmp_path: Path, pack: bool) -> None:
    recipe = corpora.make_recipe(
        corpora.write_text_files(tmp_path, DOCS), "lm", extra_ids=0, inputs=0, targets=48, pack=pack
    )
    whole = causal_features.CausalBatches(recipe, 8)
    for step in (0, 5):
        hosts = [
            causal_features.CausalBatches(recipe, 8, shard=shard, shards=2) for shard in range(2)
        ]
        assert batch_hashes.add_hashes(
            batch_hashes.hash_batch(host.make_batch(step), 4 * n) for n, host in enumerate(hosts)
        ) == batch_hashes.hash_batch(whole.make_batch(step))
    assert whole.feature_lengths == dict.fromkeys(
        ("ids", "labels", "paddings", "weights", "segment_ids", "segment_pos"), 48
    )


def test_a_cache_is_read_without_its_vocabulary(tmp_path: Path) -> None:
    cache_recipe = token_cache.CacheRecipe(
        "x", BYTES.fingerprint(), "byte", BYTES.size, document_ends=True, pairs=""
    )
    token_cache.write_cache(
        str(tmp_path / "c"),
        cache_recipe,
        DOCS,
        lambda batches: (BYTES.encode(batch) for batch in batches),
        end=2,
    )
    recipe = corpora.make_recipe(
        f"cache:{tmp_path}/c",
        "lm",
        vocab="ids:259",
        extra_ids=0,
        inputs=0,
        targets=400,
        shuffle=False,
    )
    assert (
        causal_features.CausalBatches(recipe, 1).make_batch(0)["labels"][0].tolist()
        == [token for doc in DOCS[:9] for token in [*BYTES.encode([doc])[0], 2]][:400]
    )
    with_sentinels = corpora.make_recipe(
        f"cache:{tmp_path}/c", "lm", vocab="byte", extra_ids=100, inputs=0, targets=400
    )
    assert causal_features.CausalBatches(with_sentinels, 1).make_batch(0)["labels"].all()
    with errors.expect_user_error(
        errors.DIFFERS, where=tmp_path / "c", names=("byte", "259"), remedy="VOCAB"
    ):
        causal_features.CausalBatches(
            corpora.make_recipe(
                f"cache:{tmp_path}/c", "lm", vocab="ids:300", extra_ids=0, inputs=0, targets=400
            ),
            1,
        )


def test_the_batch_log_lists_only_trained_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROSETTA_BATCH_LOG", str(tmp_path / "log"))
    batches = causal_features.CausalBatches(
        corpora.make_recipe("synthetic", "lm", vocab="ids:50", extra_ids=0, inputs=0, targets=8),
        4,
        shard=1,
        shards=2,
    )
    log = batch_log.BatchLog(batches)
    for step in range(3):
        log.record(step, batches.make_batch(step))
    log.discard_pending()
    log.flush()
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert lines == [
        {
            "step": step,
            "hash": batch_hashes.hash_batch(batches.make_batch(step), 2),
            "shard": 1,
            "shards": 2,
        }
        for step in range(2)
    ]
