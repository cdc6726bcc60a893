from __future__ import annotations

import json
import sys
import types
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from rosetta.data import batch_hashes, data_recipe, mixtures, pipeline, streaming
from tests.support import corpora, errors

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DOCS = corpora.make_documents(300)
THEIRS = "hf_secret"
RECIPE = corpora.make_recipe("hf:owner/name")


class Streamed:
    """What datasets.load_dataset(streaming=True) gives, as far as it is used: an iterable with a position."""

    def __init__(self, records: list[dict[str, Any]], read: list[int]) -> None:
        self.records, self.place, self.read = records, 0, read

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while self.place < len(self.records):
            self.place += 1
            self.read.append(self.place - 1)
            yield self.records[self.place - 1]
        self.place = 0

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = state["place"]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the numbers of the records that were read from the set."""
    seen: list[int] = []

    def load_dataset(
        path: str, config: str | None, *, split: str, streaming: bool, token: str | None
    ) -> Streamed:
        if path == "owner/private" and token != THEIRS:
            raise ValueError(f"401 for {token or 'nobody'} at this address\nand more")
        assert streaming
        assert (config, split) == (None, "train")
        return Streamed([{"text": doc} for doc in DOCS], seen)

    module = types.ModuleType("datasets")
    module.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)
    return seen


def batches(
    shard: int = 0, shards: int = 1, batch: int = 16, recipe: data_recipe.Recipe = RECIPE
) -> pipeline.Batches:
    stream_batches = pipeline.Batches(recipe, batch, shard=shard, shards=shards)
    assert isinstance(stream_batches.source, streaming.Stream)
    stream_batches.source.block_characters = 5000
    return stream_batches


def test_a_stream_gives_the_same_rows_whatever_the_hosts(read: list[int]) -> None:
    whole = batches()
    hashes = [
        batch_hashes.hash_batch(whole.make_batch(step)) for step in range(150)
    ]  # several times through the set
    assert read.count(0) >= 2
    assert len(set(hashes)) == len(hashes)
    hosts = [batches(shard, 2) for shard in range(2)]
    for step in (0, 3, 40, 41, 149):
        assert (
            batch_hashes.add_hashes(
                batch_hashes.hash_batch(host.make_batch(step), 8 * n)
                for n, host in enumerate(hosts)
            )
            == hashes[step]
        )


@pytest.mark.parametrize("objective", ["span_corruption", "prefix_lm", "ul2"])
def test_resuming_reads_one_block_and_not_the_whole_stream(read: list[int], objective: str) -> None:
    recipe = corpora.make_recipe("hf:owner/name", objective, targets=64)
    first = batches(recipe=recipe)
    hashes = [batch_hashes.hash_batch(first.make_batch(step)) for step in range(60)]
    state = json.loads(json.dumps(first.make_state(40)))
    del read[:]
    again = batches(recipe=recipe)
    assert again.resume(state, 40) is None
    assert batch_hashes.hash_batch(again.make_batch(40)) == hashes[40]
    assert len(read) < 60
    assert [batch_hashes.hash_batch(again.make_batch(step)) for step in range(41, 60)] == hashes[
        41:
    ]


def test_a_mixture_reads_each_block_once_though_it_draws_across_their_ends(
    read: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mixtures.Mixture, "BLOCK", 64)
    data = json.dumps({"hf:owner/name": 1, corpora.write_text_files(tmp_path, DOCS): 1})
    stream_batches: Any = pipeline.Batches(corpora.make_recipe(data), 16)
    inner = next(
        source for source in stream_batches.source.sources if isinstance(source, streaming.Stream)
    )
    inner.block_characters = 5000
    for step in range(100):
        stream_batches.make_batch(step)
    assert inner.next_block > 5
    assert read == [number % len(DOCS) for number in range(len(read))]


def test_a_checkpoint_may_ask_while_the_loader_reads_on(read: list[int]) -> None:
    source: Any = batches().source

    class Reading(int):
        """An example's number whose comparison finds the loader's thread at work."""

        def __le__(self, other: int) -> bool:
            source.marks.append(streaming.Mark(5, 1000))
            return int(self) <= other

    source.marks.clear()
    source.marks.extend(streaming.Mark(number, Reading(10 * number)) for number in range(3))
    assert source.find_mark(15)["block"] == 1
    assert not read


def test_without_a_mark_the_stream_is_read_up_to_the_place(read: list[int]) -> None:
    whole = batches()
    expected = [batch_hashes.hash_batch(whole.make_batch(step)) for step in range(30)]
    del read[:]
    assert batch_hashes.hash_batch(batches().make_batch(29)) == expected[29]
    assert len(read) > 100


@pytest.mark.usefixtures("read")
def test_every_word_of_a_block_comes_once() -> None:
    source: Any = batches().source
    source.read_rows(np.array([0]))
    mark, corpus, row_count = source.held_blocks[0]
    assert corpus.documents == DOCS[: len(corpus.documents)]
    words = [
        word
        for number in range(row_count + 1)
        for text in corpus.read_texts(number * mark.stretch, (number + 1) * mark.stretch)
        for word in text.split()
    ]
    assert sorted(words) == sorted(word for doc in corpus.documents for word in doc.split())


@pytest.mark.usefixtures("read")
def test_the_token_is_passed_on_and_never_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    private = corpora.make_recipe("hf:owner/private")
    with errors.expect_user_error(
        errors.FAILED, where="hf:owner/private", remedy="HF_TOKEN"
    ) as raised:
        pipeline.Batches(private, 4)
    assert "\n" not in str(raised.value)
    monkeypatch.setenv("HF_TOKEN", "hf_wrong_secret")
    with errors.expect_user_error(
        errors.FAILED, where="hf:owner/private", names="401 for ***"
    ) as raised:
        pipeline.Batches(private, 4)
    assert "hf_wrong_secret" not in str(raised.value)
    monkeypatch.setenv("HF_TOKEN", THEIRS)
    assert pipeline.Batches(private, 4).make_batch(0)["encoder_input_tokens"].any()
    assert THEIRS not in json.dumps(pipeline.Batches(private, 4).make_state(0))


@pytest.mark.usefixtures("read")
def test_a_missing_package_or_field_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with errors.expect_user_error(
        errors.INVALID, where="hf:owner/name", names="'body' (it has: text)"
    ):
        pipeline.Batches(corpora.make_recipe("hf:owner/name", text_field="body"), 4).make_batch(0)
    with errors.expect_user_error(errors.INVALID, where="hf:a/b/c/d"):
        pipeline.Batches(corpora.make_recipe("hf:a/b/c/d"), 4)
    with errors.expect_user_error(errors.MISSING, where="/nowhere/set"):
        pipeline.Batches(corpora.make_recipe("hf:/nowhere/set"), 4)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with errors.expect_user_error(errors.MISSING, value="datasets", remedy="datasets"):
        pipeline.Batches(RECIPE, 4)
