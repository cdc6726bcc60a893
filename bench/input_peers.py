"""Compare how fast rosetta, SeqIO and Grain prepare the same rows, in one run.

    PYTHONPATH=. PYTHON bench/input_peers.py [--megabytes 24] [--rounds 6] [--json]

PYTHON is the Python of a baked environment for T5X. Grain is not part of it; without Grain, its
lines are left out. Each source makes rows of span corruption with 512 inputs and 128 targets, in
batches of 256, from the same text and with the same vocabulary of 32,000 ids.

Each pipeline has a process of its own. The processes take turns, several times, so all of them meet
the same load of the machine. A rate is the number of sequences divided by the processor time of the
process, with all its threads. The work that a pipeline does ahead while others have their turn
counts, too. Ratios are those of rates.

The last line is the rate at which SentencePiece alone makes ids of the text, in one thread.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import importlib.util
import itertools
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from rosetta.data import (
    data_recipe,
    data_spec,
    objectives,
    pipeline,
    shuffling,
    tfrecord,
    token_cache,
    vocabularies,
    vocabulary_training,
)
from tests.support import data_sources

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection

    Array = Any

INPUTS, TARGETS, BATCH = 512, 128, 256
WINDOW = objectives.find_window_length(INPUTS, 0.15, 3.0)
BATCHES_PER_TURN = 2
WARM_TURNS = 2
RAW = ("text", "jsonl", "csv", "tsv", "zst", "parquet", "saved", "arrayrecord", "tfrecord")
STORED = ("cache", "megatron")
MODEL = "bench.model"


def write_sources(folder: Path, documents: list[str]) -> dict[str, str]:
    """Write the documents in each form, and return the data by the name of the form."""
    records = [{"text": " ".join(text.split())} for text in documents]
    sources = {
        kind: data_sources.write_records(kind, folder / kind, records)
        for kind in data_sources.WRITERS
    }
    text_file = folder / "a.txt"
    text_file.write_text("".join(f"{record['text']}\n" for record in records), encoding="utf-8")
    sources["text"] = f"text:{text_file}"
    array_records = folder / "arrayrecord" / "a.array_record"  # Grain asks for groups of one
    sources["arrayrecord"] = data_sources.write_array_records(array_records, records, group_size=1)
    sources["tfrecord"] = data_sources.write_tfrecords(folder / "a.tfrecord", records)
    vocabulary_training.train_vocabulary(
        data_spec.parse_parts(sources["text"]), str(folder / MODEL), size=32_000
    )
    vocabulary = load_vocabulary(folder)
    recipe = token_cache.CacheRecipe(
        "bench", vocabulary.fingerprint(), MODEL, vocabulary.size, document_ends=False, pairs=""
    )
    texts = [record["text"] for record in records]
    token_cache.write_cache(
        str(folder / "cache"), recipe, texts, lambda parts: map(vocabulary.encode, parts)
    )
    sources["cache"] = f"cache:{folder}/cache"
    ids = [array.tolist() for array in vocabulary.encode(texts)]
    sources["megatron"] = data_sources.write_megatron(folder / "megatron", ids)
    write_windows(folder)
    return sources


def load_vocabulary(folder: Path) -> vocabularies.Vocabulary:
    """Return the vocabulary of the benchmark."""
    return vocabularies.load_vocabulary(str(folder / MODEL))


def write_windows(folder: Path) -> None:
    """Write the tokens of the cache as TFRecord records of one window each, for SeqIO."""
    import tensorflow as tf

    cache = token_cache.TokenCache(str(folder / "cache"))
    with tf.io.TFRecordWriter(str(folder / "windows.tfrecord")) as writer:
        for start in range(0, cache.size - WINDOW, WINDOW):
            ids = tf.train.Int64List(value=cache.read_tokens(start, start + WINDOW))
            feature = {"targets": tf.train.Feature(int64_list=ids)}
            example = tf.train.Example(features=tf.train.Features(feature=feature))
            writer.write(example.SerializeToString())


def read_with_rosetta(folder: Path, data: str) -> Iterator[Any]:
    """Yield the batches of a source of rosetta."""
    vocabulary = load_vocabulary(folder)
    recipe = data_recipe.Recipe(
        data, "span_corruption", vocabulary.name, vocabulary.extra_ids, INPUTS, TARGETS
    )
    batches = pipeline.Batches(recipe, BATCH)
    step = 0
    while True:
        yield batches.make_batch(step)
        step += 1


def read_with_seqio(folder: Path, form: str) -> Iterator[Any]:
    """Yield the batches that SeqIO makes with T5's preprocessors.

    Args:
        folder: The folder of the benchmark.
        form: "text" for lines of text, "tfrecord" for records of text, or "tokens".
    """
    import seqio
    import tensorflow as tf
    from t5.data import preprocessors

    feature = seqio.Feature(
        seqio.SentencePieceVocabulary(str(folder / MODEL), extra_ids=0), add_eos=True
    )
    features = {"inputs": feature, "targets": feature}
    denoise = functools.partial(
        preprocessors.denoise,
        inputs_fn=preprocessors.noise_span_to_unique_sentinel,
        targets_fn=preprocessors.nonnoise_span_to_unique_sentinel,
        noise_density=0.15,
        noise_mask_fn=functools.partial(
            preprocessors.random_spans_noise_mask, mean_noise_span_length=3.0
        ),
    )
    steps: list[Any] = [seqio.preprocessors.tokenize, preprocessors.span_corruption]
    if form == "text":
        source: Any = seqio.TextLineDataSource({"train": str(folder / "a.txt")})
        steps = [name_line, *steps]
    elif form == "tfrecord":
        source = seqio.TFExampleDataSource(
            {"train": str(folder / "a.tfrecord")}, {"text": tf.io.FixedLenFeature([], tf.string)}
        )
        rename = functools.partial(
            seqio.preprocessors.rekey, key_map={"inputs": None, "targets": "text"}
        )
        steps = [rename, *steps]
    else:
        source = seqio.TFExampleDataSource(
            {"train": str(folder / "windows.tfrecord")},
            {"targets": tf.io.FixedLenFeature([WINDOW], tf.int64)},
        )
        steps = [cast_tokens, denoise]
    task = seqio.Task(
        f"bench_{form}",
        source,
        output_features=features,
        preprocessors=[*steps, seqio.preprocessors.append_eos],
    )
    lengths = {"inputs": INPUTS, "targets": TARGETS}
    dataset = task.get_dataset(lengths, "train", shuffle=True, seed=0, num_epochs=None)
    converted = seqio.EncDecFeatureConverter(pack=False)(dataset, lengths)
    yield from converted.batch(BATCH, drop_remainder=True).as_numpy_iterator()


def name_line(dataset: Any) -> Any:
    """Return a data set of lines as one of examples without inputs."""
    return dataset.map(lambda line: {"inputs": "", "targets": line})


def cast_tokens(dataset: Any) -> Any:
    """Return a data set of windows with ids of SeqIO's type."""
    import tensorflow as tf

    return dataset.map(lambda example: {"targets": tf.cast(example["targets"], tf.int32)})


def corrupt(windows: Array, numbers: Array, vocabulary: vocabularies.Vocabulary) -> dict[str, Any]:
    """Return rows of windows of tokens, by the same code that rosetta uses."""
    objective = objectives.make_objective("span_corruption", {"inputs": INPUTS, "targets": TARGETS})
    keys = shuffling.derive_keys(7, numbers)
    inputs, targets = objective.apply(windows, keys, vocabulary)
    return {"inputs": inputs, "targets": targets}


class TokenWindows:
    """The windows of the token cache as a source of Grain.

    Attributes:
        cache: The cache.
    """

    def __init__(self, folder: Path) -> None:
        self.cache = token_cache.TokenCache(str(folder / "cache"))

    def __len__(self) -> int:
        """Return the number of windows."""
        return int(self.cache.size // WINDOW)

    def __getitem__(self, number: int) -> Array:
        """Return the tokens of a window."""
        return self.cache.read_tokens(number * WINDOW, (number + 1) * WINDOW)


def read_with_grain(folder: Path, form: str) -> Iterator[Any]:
    """Yield the batches that Grain makes, with rosetta's code for span corruption.

    Args:
        folder: The folder of the benchmark.
        form: "arrayrecord" or "parquet" for text; "rows" for tokens, of which each row is corrupted
            by itself, and "batches" for tokens that are corrupted a batch at a time.
    """
    grain = importlib.import_module("grain")
    # One thread and a short buffer cost the least processor time.
    one_thread = grain.ReadOptions(num_threads=1, prefetch_buffer_size=8)
    experimental = importlib.import_module("grain.experimental")
    vocabulary = load_vocabulary(folder)

    def encode(text: str) -> dict[str, Array]:
        return {"tokens": vocabulary.encode([text])[0]}

    def corrupt_row(example: dict[str, Array]) -> dict[str, Any]:
        rows = corrupt(example["tokens"][None], np.array([0]), vocabulary)
        return {name: row[0] for name, row in rows.items()}

    if form in ("rows", "batches"):
        windows = grain.MapDataset.source(TokenWindows(folder)).shuffle(seed=0).repeat()
        if form == "rows":
            rows = windows.map(lambda tokens: corrupt_row({"tokens": tokens}))
            yield from rows.batch(BATCH).to_iter_dataset(one_thread)
            return
        numbers = np.arange(BATCH)
        batches = windows.batch(BATCH).map(lambda tokens: corrupt(tokens, numbers, vocabulary))
        yield from batches.to_iter_dataset(one_thread)
        return
    if form == "arrayrecord":
        path = str(folder / "arrayrecord" / "a.array_record")
        records = grain.MapDataset.source(grain.sources.ArrayRecordDataSource([path]))
        texts = (
            records.shuffle(seed=0)
            .repeat()
            .map(lambda body: tfrecord.parse_text(body, "text", path))
        )
        documents = texts.map(encode).to_iter_dataset(one_thread)
    else:
        path = str(folder / "parquet" / "a.parquet")
        table = experimental.ParquetIterDataset(path)
        documents = table.map(lambda row: encode(row["text"]))
    split = experimental.ConcatThenSplitIterDataset(documents, length_struct={"tokens": WINDOW})
    rows = split.map(corrupt_row).batch(BATCH)
    while True:
        yield from rows


def encode_with_sentencepiece(folder: Path) -> Iterator[Any]:
    """Yield after as many characters as a batch needs, which SentencePiece has made ids of."""
    sentencepiece = importlib.import_module("sentencepiece")
    model = sentencepiece.SentencePieceProcessor(model_file=str(folder / MODEL))
    texts = (folder / "a.txt").read_text(encoding="utf-8").splitlines()
    count = 0
    while True:
        for text in texts:
            count += len(model.EncodeAsIds(text))
            if count >= BATCH * WINDOW:
                count -= BATCH * WINDOW
                yield None


def list_pipelines(folder: Path, sources: dict[str, str]) -> dict[str, Callable[[], Iterator[Any]]]:
    """Return name -> a function that returns the batches of a pipeline."""
    pipelines: dict[str, Callable[[], Iterator[Any]]] = {
        f"rosetta {name}": functools.partial(read_with_rosetta, folder, sources[name])
        for name in (*RAW, *STORED)
    }
    for form in ("text", "tfrecord", "tokens"):
        pipelines[f"seqio {form}"] = functools.partial(read_with_seqio, folder, form)
    if importlib.util.find_spec("grain"):
        for form in ("arrayrecord", "parquet", "rows", "batches"):
            pipelines[f"grain {form}"] = functools.partial(read_with_grain, folder, form)
    pipelines["SentencePiece alone"] = functools.partial(encode_with_sentencepiece, folder)
    return pipelines


def _serve_batches(open_batches: Callable[[], Iterator[Any]], connection: Connection) -> None:
    """Make batches in this process whenever it is asked for a number of them.

    It answers with the processor time of the process so far. None ends the process.
    """
    # Threads of a pipeline that wait for each other on several cores cost more than they bring.
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[os.getpid() % len(cores)]})
    batches = open_batches()
    while count := connection.recv():
        for _ in range(count):
            next(batches)
        connection.send(time.process_time())
    os._exit(0)  # the threads of a pipeline may still work ahead


def measure(folder: Path, sources: dict[str, str], rounds: int) -> dict[str, float]:
    """Return the sequences per second of processor time of each pipeline."""
    context = multiprocessing.get_context("spawn")
    connections: dict[str, Connection] = {}
    seconds: dict[str, list[float]] = {}
    for name, open_batches in list_pipelines(folder, sources).items():
        parent_end, child_end = context.Pipe()
        context.Process(target=_serve_batches, args=(open_batches, child_end), daemon=True).start()
        parent_end.send(1)
        seconds[name] = [parent_end.recv()]
        connections[name] = parent_end
        print(f"ready: {name}", file=sys.stderr)
    for turn in range(WARM_TURNS + rounds):
        print(f"turn {turn + 1} of {WARM_TURNS + rounds}", file=sys.stderr)
        for name, connection in connections.items():
            connection.send(BATCHES_PER_TURN)
            seconds[name].append(connection.recv())
    for connection in connections.values():
        connection.send(None)
    rates = {}
    for name, times in seconds.items():
        # In the first turns, pipelines fill the buffers of what they read ahead.
        turns = [later - earlier for earlier, later in itertools.pairwise(times[WARM_TURNS:])]
        rates[name] = BATCH * BATCHES_PER_TURN / statistics.median(turns)
    return rates


def format_table(rates: dict[str, float]) -> str:
    """Return the rates and ratios as the rows of a Markdown table."""
    lines = ["| pipeline | sequences/s a core | of seqio | of grain |", "|---|---|---|---|"]
    for name, rate in rates.items():
        is_stored = name.split()[-1] in (*STORED, "tokens", "rows", "batches")
        peers = ("seqio tokens", "grain rows") if is_stored else ("seqio text", "grain arrayrecord")
        ratios = [f"{rate / rates[peer]:.1f}" if peer in rates else "" for peer in peers]
        lines.append(f"| {name} | {rate:,.0f} | {' | '.join(ratios)} |")
    return "\n".join(lines)


def main() -> None:
    """Run the benchmark that the command line describes."""
    from bench import input as input_bench

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=24, help="text to read, in MiB")
    parser.add_argument("--rounds", type=int, default=6, help="turns of each pipeline that count")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    documents = input_bench.read_default_text(args.megabytes << 20)
    with tempfile.TemporaryDirectory() as name:
        os.environ["ROSETTA_HOME"] = f"{name}/home"
        folder = Path(name)
        sources = write_sources(folder, documents)
        rates = measure(folder, sources, args.rounds)
    print(json.dumps(rates, indent=2) if args.json else format_table(rates))


if __name__ == "__main__":
    main()
