"""The code blocks of the pages: comments, syntax, options, and the pages that code names."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from rosetta.t5x.run import gin_text
from tests.support import documentation_blocks, documentation_commands
from tests.support.documentation_blocks import (
    LANGUAGES,
    Block,
    Check,
    InvalidPageError,
    page_paths,
    parse_comment,
    parse_page,
    read_page,
)

ROOT = documentation_blocks.ROOT
PAGES = page_paths()
BLOCKS = [block for page in PAGES for block in read_page(page)]
# Where messages, help texts and comments name pages.
NAMING = (
    "README.md",
    "CONTRIBUTING.md",
    "build.py",
    "manifest.yaml",
    "pyproject.toml",
    "builder",
    "rosetta",
    "scripts",
    "overlay",
    "docker",
    "bench",
    "docs",
    "patches",
    ".ci",
    ".github",
    "Dockerfile.base",
    "Dockerfile.pax",
    "Dockerfile.t5x",
)
NAMED_PAGE = re.compile(r"(?<![\w/.-])docs/[\w/-]+\.md(?![\w.])")


def of_language(*languages: str) -> list[Block]:
    return [block for block in BLOCKS if block.language in languages]


def ids(blocks: list[Block]) -> list[str]:
    return [block.where for block in blocks]


def test_every_block_has_a_language() -> None:
    wrong = [block.where for block in BLOCKS if block.language not in LANGUAGES]
    assert not wrong, f"write one of {', '.join(LANGUAGES)} after the backticks: {wrong}"


def test_every_bash_block_says_how_it_is_tested() -> None:
    wrong = []
    for block in of_language("bash"):
        try:
            assert block.check
        except InvalidPageError as error:
            wrong.append(str(error))
    assert not wrong, "\n".join(wrong)


def test_bash_blocks_are_valid_bash() -> None:
    wrong = []
    for block in of_language("bash"):
        done = subprocess.run(
            ["bash", "-n"], input=block.text, capture_output=True, text=True, check=False
        )
        if done.returncode or done.stderr:
            wrong.append(f"{block.where}: {done.stderr}")
    assert not wrong, "\n".join(wrong)


def test_commands_have_the_options_that_blocks_use() -> None:
    wrong = []
    for block in of_language("bash"):
        if "fails with" in block.comment:
            continue
        found = documentation_commands.find_problems(block.text)
        wrong += [f"{block.where}: {problem}" for problem in found]
    assert not wrong, "\n".join(wrong)


def _parse(block: Block) -> None:
    if block.language == "python":
        compile(block.text, block.where, "exec")
    elif block.language == "yaml":
        list(yaml.safe_load_all(block.text))
    elif block.language == "toml":
        tomllib.loads(block.text)
    elif block.language == "gin":
        lines = iter(block.text.splitlines(keepends=True))
        list(gin_text.parse_statements(lambda: next(lines, "")))
    else:
        json.loads(block.text)


def test_other_blocks_parse() -> None:
    wrong = []
    for block in of_language("python", "yaml", "toml", "gin", "json"):
        try:
            _parse(block)
        except (SyntaxError, ValueError, yaml.YAMLError) as error:
            wrong.append(f"{block.where}: {error}")
    assert not wrong, "\n".join(wrong)


def test_pages_that_code_names_exist() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z", *NAMING], cwd=ROOT, capture_output=True, text=True, check=True
    )
    wrong = list[str]()
    for name in filter(None, listed.stdout.split("\0")):
        path = ROOT / name
        if not path.is_file() or path == Path(__file__):
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        named = sorted(set(NAMED_PAGE.findall(text)))
        wrong += [f"{name}: {page} is not a page" for page in named if not (ROOT / page).is_file()]
    assert not wrong, "\n".join(wrong)


def test_programs_that_pages_name_exist() -> None:
    pages = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"]
    named = {
        (page.relative_to(ROOT).as_posix(), file)
        for page in pages
        for file in re.findall(r"\b(?:tests|bench)/[\w/]+\.py\b", page.read_text(encoding="utf-8"))
    }
    assert named
    assert [pair for pair in sorted(named) if not (ROOT / pair[1]).is_file()] == []


# The tests of the reader itself.


def test_blocks_have_their_comment_place_and_text() -> None:
    first_block = "<!-- test: run in t5x -->\n```bash\nls\n```\n"
    text = f"# A\n\n{first_block}\n1. b\n\n    ```text\n    c\n      d\n    ```\n"
    first, second = parse_page("a.md", text)
    assert (first.where, first.text, first.check.places) == ("a.md:4", "ls\n", ("t5x",))
    assert (second.language, second.text, second.comment) == ("text", "c\n  d\n", "")
    with pytest.raises(InvalidPageError, match=r"a.md:1: .* not closed"):
        parse_page("a.md", "```bash\nls\n")


def test_comments_say_how_a_block_is_tested() -> None:
    words = "run in pax or pax-1.4; loss falls below 3.5; fails with 75; interrupted after step 20"
    assert parse_comment(words) == Check("run", ("pax", "pax-1.4"), 3.5, 75, 20)
    assert parse_comment("run in checkout; slow").slow
    assert parse_comment("options only; needs a GPU").reason == "needs a GPU"


@pytest.mark.parametrize(
    "words",
    [
        "",
        "run",
        "run in maxtext",
        "run in t5x; loss falls",
        "dry run in t5x; loss falls below 3",
        "options only",
        "options only; slow",
    ],
)
def test_other_comments_are_refused(words: str) -> None:
    with pytest.raises(InvalidPageError):
        parse_comment(words)


def test_commands_are_split_as_bash_does() -> None:
    text = """A=1 rosetta t5x pretrain \\
  DATA='text:a b' # a comment
cat > file <<'END' && ls "$(rosetta info --json)" 2>&1 | sort
rosetta nothing
END
for n in 1 2; do rosetta te; done
"""
    found = documentation_commands.split_commands(text)
    assert [command.words for command in found] == [
        ["rosetta", "t5x", "pretrain", "DATA=text:a b"],
        ["cat"],
        ["rosetta", "info", "--json"],
        ["ls", "$(rosetta info --json)"],
        ["sort"],
        ["for", "n", "in", "1", "2"],
        ["rosetta", "te"],
        ["done"],
    ]
    assert found[0].variables == {"A": "1"}


@pytest.mark.parametrize(
    "text",
    [
        "rosetta t5x pretrain T5_SIZE=small --dry-run",
        "ENC_SL=64 singlenode_pretrain_pile.sh tiny float32 1 8 logs model --dry-run",
        "docker run --rm IMAGE rosetta doctor --quick",
        "python3 build.py --distribution t5x --dry-run",
        "python3 build.py test --fast -- -k name -x",
        "rosetta profile -o step -- rosetta t5x pretrain T5_SIZE=small",
        "rosetta --help && build/t5x-cpu/bin/rosetta info",
        "docker pull HOST/rosetta/t5x-cuda13",
    ],
)
def test_valid_commands_pass(text: str) -> None:
    assert documentation_commands.find_problems(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "rosetta t5x pretrain --dry",
        "rosetta t5x pretrain T5_SIZES=small",
        "rosetta t5x pretrain TRAIN_STEPS=many",
        "TRAIN_STEPS=many rosetta run t5x-tiny",
        "rosetta run t5x-tiny TRAIN_STEPS=many",
        "TRAIN_STEP=5 singlenode_pretrain_pile.sh",
        "singlenode_pretrain_pile.sh tiny float33",
        "srun run_pile_singlenode.sh --fast",
        "docker run IMAGE rosetta doctors",
        "python3 build.py --distributions t5x",
        "python3 build.py tests",
        "echo $(rosetta nothing)",
    ],
)
def test_invalid_commands_are_found(text: str) -> None:
    assert len(documentation_commands.find_problems(text)) == 1
