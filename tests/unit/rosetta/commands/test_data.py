from __future__ import annotations

import bz2
import gzip
import json
import lzma
from typing import TYPE_CHECKING, Any

import pytest

from rosetta import cli
from rosetta.commands import data as data_command
from rosetta.commands import vocab
from rosetta.core.errors import UserError
from rosetta.data import compressed_files, token_cache
from tests.support import corpora, errors

if TYPE_CHECKING:
    from pathlib import Path

DOCS = corpora.make_documents(40)


def run(*words: str) -> tuple[dict[str, Any], str]:
    args = cli.build_parser(words[0]).parse_args(words)
    result, text = {**data_command.RUN, **vocab.RUN}[args.command](args)
    json.dumps(result)
    return result, text


def test_check_refuses_what_a_run_refuses(tmp_path: Path) -> None:
    data = corpora.write_text_files(tmp_path, DOCS)
    assert run("data", "check", data, "--mean-span", "20")[1].endswith("usable for span_corruption")
    with errors.expect_user_error(errors.TOO_BIG, where="byte", value=259, names="100"):
        run("data", "check", data, "--mean-span", "20", "--vocab-size", "100")


def test_check_examines_a_prepared_tfds_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    corpora.write_tfds_folder(
        tmp_path,
        "the_pile",
        {"train": [[corpora.encode_example(text=[doc.encode()]) for doc in DOCS]]},
    )
    result, text = run("data", "check", "tfds:the_pile", "--mean-span", "20")
    assert result["copies"]["tfds:the_pile"]["examples"] == 40
    assert "40 examples" in text


def test_check_reads_the_split_and_the_field_of_the_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROSETTA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    corpora.write_tfds_folder(
        tmp_path,
        "kept",
        {"validation": [[corpora.encode_example(body=[doc.encode()]) for doc in DOCS]]},
    )
    with errors.expect_user_error(errors.UNKNOWN, value="train"):
        run("data", "check", "tfds:kept", "--mean-span", "20")
    result, text = run("data", "check", "tfds:kept", "--mean-span", "20", "--split", "validation")
    assert not result["ok"]
    assert result["bad"]["kinds"] == {"no text under 'text'": 40}
    assert (
        "kept-validation.tfrecord-00000-of-00001, record 1: no text under 'text' (it has: body)"
        in text
    )
    assert run(
        "data",
        "check",
        "tfds:kept",
        "--mean-span",
        "20",
        "--split",
        "validation",
        "--field",
        "body",
    )[0]["ok"]


def test_check_looks_at_the_wording_of_records(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"premise": "p", "hypothesis": "h"}) + "\n")
    result, text = run("data", "check", f"jsonl:{tmp_path}/a.jsonl", "--objective", "mnli")
    assert not result["ok"]
    assert "a.jsonl, line 1: not a record of mnli" in text
    with errors.expect_user_error(errors.INVALID, where="a.jsonl, line 1", names="mnli"):
        run("data", "check", f"jsonl:{tmp_path}/a.jsonl", "--objective", "mnli", "--head")


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (bytes(range(256)) * 40, ("4,096", "null byte")),
        (bytes(range(1, 256)) * 40, ("4,096", "2048", "UTF-8")),
        (
            "schöne größe\n".encode("latin-1") * 9,
            ("117", "27", "UTF-8"),
        ),
        ((("two hundred letters " * 10).encode() + b"\xff\n") * 50, ()),
        (("汉字" * 3000 + "\n").encode() * 3, ()),
    ],
)
def test_data_without_text_is_refused(tmp_path: Path, body: bytes, says: tuple[str, ...]) -> None:
    (tmp_path / "a").write_text("text\n" * 100)
    (tmp_path / "b").write_bytes(body)
    for words in (
        ("data", "check", f"text:{tmp_path}/*", "--mean-span", "20"),
        ("data", "cache", f"text:{tmp_path}/*", "--out", str(tmp_path / "out"), "--jobs", "1"),
    ):
        if not says:
            run(*words)
            continue
        with errors.expect_user_error(
            errors.INVALID, where=tmp_path / "b", names=says, remedy="UTF-8"
        ):
            run(*words)
    assert (tmp_path / "out").exists() is not bool(says)


def test_show_of_rows_without_inputs(tmp_path: Path) -> None:
    result, text = run(
        "data",
        "show",
        corpora.write_text_files(tmp_path, DOCS),
        "--objective",
        "lm",
        "--targets",
        "32",
        "--batch",
        "2",
    )
    assert list(result["filled"]) == ["decoder_target_tokens"]
    assert [list(row) for row in result["rows"]] == [["decoder_target_tokens"]] * 2
    assert "filled: 100.0% of targets;" in text


def test_show_prints_text_and_the_hash_of_the_batch(tmp_path: Path) -> None:
    data = corpora.write_text_files(tmp_path, DOCS)
    result, text = run(
        "data",
        "show",
        data,
        "--inputs",
        "64",
        "--targets",
        "32",
        "--mean-span",
        "20",
        "--batch",
        "2",
        "--step",
        "3",
    )
    assert len(result["rows"]) == 2
    assert "<extra_id_0>" in result["rows"][0]["decoder_target_tokens"]
    assert result["hash"] in text
    again, _ = run(
        "data",
        "show",
        data,
        "--inputs",
        "64",
        "--targets",
        "32",
        "--mean-span",
        "20",
        "--batch",
        "2",
        "--step",
        "3",
    )
    assert again == result


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_cache_keeps_the_order_whatever_the_number_of_processes(tmp_path: Path, jobs: str) -> None:
    data = corpora.write_jsonl_files(tmp_path / "data", DOCS * 20)
    out = tmp_path / "out"
    result, text = run("data", "cache", data, "--out", str(out), "--jobs", jobs)
    tokens = token_cache.TokenCache(str(out))
    assert bytes((tokens.read_tokens(0, tokens.size) - 3).astype("u1")).decode() == "".join(
        DOCS * 20
    )
    assert result["documents"] == 800
    assert f"DATA=cache:{out}" in text
    assert run("data", "check", f"cache:{out}", "--mean-span", "20")[0]["ok"]


def compressed(body: bytes, ending: str) -> bytes:
    """Return the body in two frames, as programs that work in parallel leave it, and padded, as on tapes."""
    module: Any = (
        pytest.importorskip("zstandard")
        if ending == ".zst"
        else {".gz": gzip, ".bz2": bz2, ".xz": lzma}[ending]
    )
    return b"".join(module.compress(part) for part in (body[:100], body[100:])) + bytes(16)


@pytest.mark.parametrize("ending", compressed_files.SUFFIXES)
def test_compressed_text_can_be_cached_and_limited(tmp_path: Path, ending: str) -> None:
    whole = compressed("".join(f"{doc}\n" for doc in DOCS).encode(), ending)
    (tmp_path / f"a.txt{ending}").write_bytes(whole)
    result, _ = run(
        "data",
        "cache",
        f"text:{tmp_path}/a.txt{ending}",
        "--out",
        str(tmp_path / "out"),
        "--limit",
        "7",
        "--jobs",
        "1",
    )
    assert result["documents"] == 7
    tokens = token_cache.TokenCache(str(tmp_path / "out"))
    assert bytes((tokens.read_tokens(0, tokens.size) - 3).astype("u1")).decode() == "".join(
        DOCS[:7]
    )
    middle = len(whole) // 2
    damaged = {
        "cut": whole[:-36],
        "changed": whole[:middle]
        + bytes(byte ^ 0xFF for byte in whole[middle : middle + 30])
        + whole[middle + 30 :],
        "another": b"no such thing at all",
    }
    for name, body in damaged.items():
        (tmp_path / f"{name}.txt{ending}").write_bytes(body)
        with errors.expect_user_error(errors.DAMAGED, where=f"{name}.txt{ending}"):
            run(
                "data",
                "cache",
                f"text:{tmp_path}/{name}.txt{ending}",
                "--out",
                str(tmp_path / "broken"),
                "--jobs",
                "1",
            )


def test_a_cache_of_no_documents_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    data = corpora.write_text_files(tmp_path / "data", DOCS)
    with errors.expect_user_error(errors.MISSING, where=data):
        run("data", "cache", data, "--out", str(tmp_path / "out"), "--limit", "0", "--jobs", "1")
    assert not (tmp_path / "out").exists()


def test_a_cache_notices_another_file_under_its_glob(tmp_path: Path) -> None:
    data = corpora.write_text_files(tmp_path / "data", DOCS)
    run("data", "cache", data, "--out", str(tmp_path / "out"), "--jobs", "1")
    (tmp_path / "data" / "0a.txt").write_text("one more document\n")
    with errors.expect_user_error(errors.DIFFERS, where=tmp_path / "out", value="files"):
        run("data", "cache", data, "--out", str(tmp_path / "out"), "--jobs", "1")


def test_a_batch_of_nothing_is_refused_by_its_option(tmp_path: Path) -> None:
    data = corpora.write_text_files(tmp_path / "data", DOCS)
    with errors.expect_reported_error(errors.INVALID, where="--batch"):
        assert cli.main(["data", "show", data, "--batch", "0"]) == 2


def test_pairs_are_cached_as_pairs(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(
        "".join(
            json.dumps({"premise": f"p{n}", "hypothesis": f"h{n}", "label": n % 3}) + "\n"
            for n in range(9)
        )
    )
    result, _ = run(
        "data",
        "cache",
        f"jsonl:{tmp_path}/a.jsonl",
        "--objective",
        "mnli",
        "--out",
        str(tmp_path / "out"),
        "--jobs",
        "1",
    )
    assert (result["documents"], result["pairs"]) == (18, 9)
    limited, text = run(
        "data",
        "cache",
        f"jsonl:{tmp_path}/a.jsonl",
        "--objective",
        "mnli",
        "--out",
        str(tmp_path / "limited"),
        "--limit",
        "4",
        "--jobs",
        "1",
    )
    assert limited["pairs"] == 4
    assert "4 pairs" in text
    direct, _ = run(
        "data",
        "show",
        f"jsonl:{tmp_path}/a.jsonl",
        "--objective",
        "mnli",
        "--inputs",
        "64",
        "--batch",
        "9",
    )
    cached, _ = run(
        "data",
        "show",
        f"cache:{tmp_path}/out",
        "--objective",
        "mnli",
        "--inputs",
        "64",
        "--batch",
        "9",
    )
    assert cached["rows"] == direct["rows"]


@pytest.mark.parametrize(
    ("data", "where", "value"),
    [
        ("synthetic", "DATA=synthetic", "synthetic"),
        ('{"text:a": 1, "text:b": 1}', "SPEC", 2),
        ("task:x", "DATA=task:x", "task"),
    ],
)
def test_data_that_cannot_be_cached_is_refused(
    tmp_path: Path, data: str, where: str, value: str | int
) -> None:
    with errors.expect_user_error(errors.UNSUPPORTED, where=where, value=value):
        run("data", "cache", data, "--out", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_vocab_show_and_train(tmp_path: Path) -> None:
    result, text = run("vocab", "show", "byte", "ab")
    assert result["ids"] == [100, 101]
    assert "size: 259\nsentinels: 100\nsentinel_ids: 258 to 159, shared with bytes" in text
    pytest.importorskip(
        "sentencepiece", reason="NOT CHECKED: needs the packages of a baked environment"
    )
    data = corpora.write_text_files(tmp_path, corpora.make_sentences(300))
    result, text = run(
        "vocab", "train", "--data", data, "--out", str(tmp_path / "v.model"), "--size", "450"
    )
    assert (result["size"], result["sentinels"]) == (450, 100)
    assert text.endswith(
        f"100 of them sentinels; use it with VOCAB={tmp_path}/v.model, in Pax with VOCAB_PATH={tmp_path}/v.model"
    )
    with errors.expect_user_error(errors.INVALID, where=tmp_path, remedy=f"text:{tmp_path}/*"):
        run("vocab", "train", "--data", f"text:{tmp_path}", "--out", str(tmp_path / "w.model"))


@pytest.mark.parametrize("size", ["-1", "many", "1.5", "", "_", "1e3"])
def test_an_invalid_count_is_refused(size: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises((SystemExit, UserError)) as caught:
        run("vocab", "train", "--data", "text:a", "--out", "a.model", f"--size={size}")
    said = f"{caught.value} {capsys.readouterr().err}"
    assert repr(size) in said
    assert "from 0 to 999999999" in said
