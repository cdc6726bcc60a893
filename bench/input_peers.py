"""Compare how fast rosetta, SeqIO and Grain prepare the same rows, in one run.

    PYTHONPATH=. PYTHON bench/input_peers.py [--megabytes 24] [--rounds 6] [--folder DIR] [--json]

PYTHON is the Python of a baked environment for T5X. Grain is not part of it; without Grain, its
lines are left out. Each source makes rows with 512 inputs and 128 targets, in batches of 256, from
the same text and with the same vocabulary of 32,000 ids. Rows of text and of tokens are those of
span corruption, and rows of records are pairs of inputs and targets. With --folder, the sources are
kept in a folder, and the next run with the same folder reads them again.

Each pipeline has a process of its own. The processes take turns, several times, so all of them meet
the same load of the machine. A rate is the number of sequences divided by the processor time of the
process, with all its threads. The work that a pipeline does ahead while others have their turn
counts, too. A stream reads a block of text at a time, so its turns are long enough for a block.
Ratios are those of rates.

The last line is the rate at which SentencePiece alone makes ids of the text, in one thread.
"""

from __future__ import annotations

import argparse
import contextlib
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
STREAM_BATCHES_PER_TURN = 32  # hold the rows of a block of streaming.BLOCK_CHARACTERS characters
WARM_TURNS = 2
STORES = ("csv", "tsv", "gz", "zst", "parquet", "saved", "arrayrecord")
RAW = ("text", "jsonl", "tfrecord", *STORES, "folder")
STORED = ("cache", "megatron")
RECORDS = "records"
MODEL = "bench.model"
# The characters of a record's inputs and of its targets, which nearly fill a row.
INPUT_CHARACTERS, TARGET_CHARACTERS = 1_500, 350


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
    sources["folder"] = f"hf:{folder / 'parquet'}"
    pairs = cut_pairs(" ".join(record["text"] for record in records))
    sources[RECORDS] = data_sources.write_tsv(folder / "pairs.tsv", pairs)
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


def cut_pairs(text: str) -> list[dict[str, str]]:
    """Return the records of a task that a text is cut into."""
    starts = range(0, len(text), INPUT_CHARACTERS + TARGET_CHARACTERS)
    parts = [text[start : start + INPUT_CHARACTERS + TARGET_CHARACTERS] for start in starts]
    return [
        {"inputs": part[:INPUT_CHARACTERS], "targets": part[INPUT_CHARACTERS:]}
        for part in parts
        if len(part) > INPUT_CHARACTERS
    ]


def read_pairs(folder: Path) -> list[dict[str, str]]:
    """Return the records of the task."""
    lines = (folder / "pairs.tsv").read_text(encoding="utf-8").splitlines()[1:]
    return [dict(zip(("inputs", "targets"), line.split("\t"), strict=True)) for line in lines]


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


def read_with_rosetta(folder: Path, data: str, objective: str = "span_corruption") -> Iterator[Any]:
    """Yield the batches of a source of rosetta."""
    vocabulary = load_vocabulary(folder)
    recipe = data_recipe.Recipe(
        data, objective, vocabulary.name, vocabulary.extra_ids, INPUTS, TARGETS
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
        form: "text" for lines of text, "tfrecord" for records of text, "tokens", or "records" of a
            task.
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
    elif form == RECORDS:
        source = seqio.TextLineDataSource({"train": str(folder / "pairs.tsv")}, skip_header_lines=1)
        steps = [split_line, seqio.preprocessors.tokenize]
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


def split_line(dataset: Any) -> Any:
    """Return a data set of lines with a tab as one of inputs and targets."""
    import tensorflow as tf

    def split(line: Any) -> dict[str, Any]:
        fields = tf.strings.split(line, "\t")
        return {"inputs": fields[0], "targets": fields[1]}

    return dataset.map(split)


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
            by itself, and "batches" for tokens that are corrupted a batch at a time; "records" of a
            task.
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
    if form == RECORDS:
        records = grain.MapDataset.source(read_pairs(folder)).shuffle(seed=0).repeat()
        rows = records.map(lambda record: encode_pair(record, vocabulary))
        yield from rows.batch(BATCH).to_iter_dataset(one_thread)
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


def encode_pair(record: dict[str, str], vocabulary: vocabularies.Vocabulary) -> dict[str, Array]:
    """Return the row of a record of the task."""
    row: dict[str, Array] = {}
    for name, length in (("inputs", INPUTS), ("targets", TARGETS)):
        ids = vocabulary.encode([record[name]])[0][: length - 1]
        row[name] = np.zeros(length, np.int32)
        row[name][: len(ids) + 1] = [*ids, vocabularies.EOS]
    return row


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
    pipelines[f"rosetta {RECORDS}"] = functools.partial(
        read_with_rosetta, folder, sources[RECORDS], "text_to_text"
    )
    for form in ("text", "tfrecord", "tokens", RECORDS):
        pipelines[f"seqio {form}"] = functools.partial(read_with_seqio, folder, form)
    if importlib.util.find_spec("grain"):
        for form in ("arrayrecord", "parquet", "rows", "batches", RECORDS):
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
            connection.send(count_batches(name))
            seconds[name].append(connection.recv())
    for connection in connections.values():
        connection.send(None)
    rates = {}
    for name, times in seconds.items():
        # In the first turns, pipelines fill the buffers of what they read ahead.
        turns = [later - earlier for earlier, later in itertools.pairwise(times[WARM_TURNS:])]
        rates[name] = BATCH * count_batches(name) / statistics.median(turns)
    return rates


def count_batches(name: str) -> int:
    """Return how many batches a pipeline makes in a turn."""
    return STREAM_BATCHES_PER_TURN if name == "rosetta folder" else BATCHES_PER_TURN


def format_table(rates: dict[str, float]) -> str:
    """Return the rates and ratios as the rows of a Markdown table."""
    alone = "SentencePiece alone"
    lines = [
        "| pipeline | sequences/s a core | times SeqIO | times Grain | of SentencePiece |",
        "|---|---|---|---|---|",
    ]
    for name, rate in rates.items():
        if not name.startswith("rosetta "):
            lines.append(f"| {name} | {rate:,.0f} | | | |")
            continue
        form = name.removeprefix("rosetta ")
        share = ""
        if form in STORED:
            peers = ["seqio tokens", "grain rows"]
        elif form == RECORDS:
            peers = [f"seqio {RECORDS}", f"grain {RECORDS}"]
        else:
            peers = ["seqio text", "grain arrayrecord"]
            share = f"{rate / rates[alone]:.0%}"
        ratios = [f"{rate / rates[peer]:.1f}" if peer in rates else "" for peer in peers]
        lines.append(f"| {name} | {rate:,.0f} | {' | '.join([*ratios, share])} |")
    return "\n".join(lines)


def main() -> None:
    """Run the benchmark that the command line describes."""
    from bench import input as input_bench

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=24, help="text to read, in MiB")
    parser.add_argument("--rounds", type=int, default=6, help="turns of each pipeline that count")
    parser.add_argument("--folder", help="where to keep the sources (default: they are removed)")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with contextlib.ExitStack() as stack:
        name = args.folder or stack.enter_context(tempfile.TemporaryDirectory())
        os.environ["ROSETTA_HOME"] = f"{name}/home"
        kept = Path(name, "sources.json")
        if not kept.exists():
            Path(name).mkdir(parents=True, exist_ok=True)
            documents = input_bench.read_default_text(args.megabytes << 20)
            kept.write_text(json.dumps(write_sources(Path(name), documents)))
        rates = measure(Path(name), json.loads(kept.read_text()), args.rounds)
    print(json.dumps(rates, indent=2) if args.json else format_table(rates))


if __name__ == "__main__":
    main()
