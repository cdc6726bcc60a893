from __future__ import annotations

from pathlib import Path

import pytest

from builder.upstream import patch_file, patch_path_rules
from rosetta.core.errors import UserError

FILE = Path("patches/up/mine.patch")
OLD, NEW = "1" * 40, "2" * 40
DIFF = f"""\
diff --git a/pkg/a.py b/pkg/a.py
index {OLD}..{NEW} 100644
--- a/pkg/a.py
+++ b/pkg/a.py
@@ -3,3 +3,4 @@ def f():
 three
-four
+FOUR
+four and a half
 five
@@ -20,2 +21 @@ def g():
 twenty
-twenty one
\\ No newline at end of file
diff --git a/pkg/b c.py b/pkg/b c.py
index {OLD}..{NEW} 100755
--- a/pkg/b c.py\t
+++ b/pkg/b c.py\t
@@ -0,0 +1,2 @@
+one
+two
"""
HEAD = """\
From: rosetta <rosetta@localhost>
Subject: [PATCH] up: mend a, not b: yet

Why: two
 lines
Upstream-Status: Inappropriate [only ours]
Drop-When: the sky falls

---
"""
GOOD = HEAD + DIFF


def _fails(text: str | bytes, what: str, line: int) -> UserError:
    with pytest.raises(UserError) as caught:
        patch_file.parse_patch(FILE, text if isinstance(text, bytes) else text.encode())
    assert what in caught.value.what
    assert caught.value.where == f"{FILE}:{line}"
    return caught.value


def test_a_good_patch_is_read_whole() -> None:
    patch = patch_file.parse_patch(FILE, GOOD.encode())
    assert (patch.name, patch.subject) == ("mine", "up: mend a, not b: yet")
    assert patch.fields == {
        "Why": "two\nlines",
        "Upstream-Status": "Inappropriate [only ours]",
        "Drop-When": "the sky falls",
    }
    first, second = patch.files
    assert (first.path, first.old, first.new, first.mode, first.added, first.removed) == (
        "pkg/a.py",
        OLD,
        NEW,
        "100644",
        2,
        2,
    )
    assert [(hunk.line, hunk.old_start, hunk.new_start, hunk.edges) for hunk in first.hunks] == [
        (14, 3, 3, (1, 1)),
        (20, 20, 21, (1, 0)),
    ]
    assert first.hunks[1].body == ((" ", b"twenty\n"), ("-", b"twenty one"))
    assert (second.path, second.mode) == ("pkg/b c.py", "100755")
    assert patch.diff == DIFF.encode()
    assert (
        patch.message
        == "up: mend a, not b: yet\n\nWhy: two\n lines\nUpstream-Status: Inappropriate [only ours]\nDrop-When: the sky falls\n"
    )


def test_reading_and_writing_are_inverse() -> None:
    patch = patch_file.parse_patch(FILE, GOOD.encode())
    assert (
        patch_file.render_patch(patch.sender, patch.subject, patch.fields, patch.diff)
        == GOOD.encode()
    )
    assert patch.with_diff(patch.diff) == patch.raw


@pytest.mark.parametrize(
    "value",
    [
        "Pending",
        "Submitted [https://example.org/1]",
        "Backport [abc]",
        "Denied [why]",
        "Inappropriate [why]",
    ],
)
def test_good_statuses(value: str) -> None:
    assert patch_file.find_status_problem(value) is None


@pytest.mark.parametrize(
    "value",
    [
        "pending",
        "Pending!",
        "Pending[x]",
        "Pending []",
        "Denied",
        "Inappropriate",
        "Inappropriate [ ]",
        "Accepted",
        "Pending [a] b",
        "Pending\n",
    ],
)
def test_bad_statuses(value: str) -> None:
    assert patch_file.find_status_problem(value)


@pytest.mark.parametrize(
    ("old", "new", "what", "line"),
    [
        ("From: rosetta <rosetta@localhost>\n", "", "`From: NAME <MAIL>`", 1),
        (
            "From: rosetta",
            f"From {OLD} Mon Sep 17 00:00:00 2001\nFrom: rosetta",
            "`From: NAME <MAIL>`",
            1,
        ),
        ("Subject: [PATCH] ", "Subject: ", "`Subject: [PATCH] ...`", 2),
        ("yet\n\nWhy", "yet\nWhy", "an empty line after the subject", 3),
        ("Why: two\n lines\n", "", "no Why", 6),
        ("Upstream-Status: Inappropriate [only ours]\n", "", "no Upstream-Status", 7),
        ("Drop-When: the sky falls\n", "", "no Drop-When", 7),
        ("Why: two", "Why: ", "unknown field 'Why'", 4),
        ("Inappropriate [only ours]", "Soon", "Upstream-Status is one of", 6),
        ("Inappropriate [only ours]", "Inappropriate", "needs its [reason]", 6),
        ("Drop-When: the", "Drop-When: x\nDrop-When: the", "a second Drop-When", 8),
        ("Drop-When: the", "Signed-off-by: x\nDrop-When: the", "unknown field 'Signed-off-by'", 7),
        ("falls\n\n---\n", "falls\n---\n", "unknown field '---'", 8),
        ("---\ndiff", "---\n pkg/a.py | 2 +-\ndiff", "`diff --git` expected", 10),
        ("+two\n", "+two\n-- \n2.39.5\n", "`diff --git` expected", 31),
        (
            "a/pkg/a.py b/pkg/a.py\nindex",
            "a/pkg/a.py b/pkg/z.py\nindex",
            "the two names of a file differ",
            10,
        ),
        ("--- a/pkg/a.py", "--- a/pkg/z.py", "`--- a/pkg/a.py` expected", 12),
        ("+++ b/pkg/a.py", "+++ b/../../x", "`+++ b/pkg/a.py` expected", 13),
        ("--- a/pkg/a.py", "--- /dev/null", "`--- a/pkg/a.py` expected", 12),
        (f"index {OLD}..", "index 1111111..", "`index <40 hex>..<40 hex> <mode>`", 11),
        (f"{NEW} 100644", f"{NEW} 120000", "mode 120000", 11),
        (f"{NEW} 100644", f"{NEW} 160000", "mode 160000", 11),
        (f"{NEW} 100644", f"{NEW} 100777", "mode 100777", 11),
        ("index 1", "new file mode 100644\nindex 1", "creates a file", 11),
        ("index 1", "new file mode 120000\nindex 1", "creates a file", 11),
        ("index 1", "deleted file mode 100644\nindex 1", "deletes a file", 11),
        ("index 1", "old mode 100644\nnew mode 100755\nindex 1", "changes a file's mode", 11),
        (
            "index 1",
            "similarity index 100%\nrename from x\nrename to y\nindex 1",
            "renames or copies",
            11,
        ),
        ("index 1", "rename from x\nindex 1", "renames a file", 11),
        ("index 1", "copy from x\nindex 1", "copies a file", 11),
        ("index 1", "dissimilarity index 80%\nindex 1", "rewrites a file", 11),
        ("--- a/pkg/a.py", "GIT binary patch", "is binary", 12),
        ("--- a/pkg/a.py", "Binary files a/x and b/x differ", "is binary", 12),
        ("@@ -3,3 +3,4 @@", "@@ -3,2 +3,4 @@", "a hunk is longer than its head says", 19),
        ("@@ -3,3 +3,4 @@", "@@ -3,2 +3,3 @@", "`diff --git` expected", 19),
        ("@@ -3,3 +3,4 @@", "@@ -3,3 +3,5 @@", "a hunk is shorter than its head says", 20),
        ("@@ -20,2 +21 @@", "@@ -20,2 +22 @@", "line numbers do not add up", 20),
        ("@@ -20,2 +21 @@", "@@ -5,2 +6 @@", "line numbers do not add up", 20),
        (
            "-four\n+FOUR\n+four and a half\n",
            "-four\n+FOUR\n+four and\r a half\n",
            "has a carriage return",
            18,
        ),
        ("+two\n", "+two", "the last line does not end", 30),
        (
            "@@ -20,2 +21 @@ def g():\n twenty\n-twenty one\n",
            "@@ -20,2 +21,2 @@\n twenty\n twenty one\n",
            "changes nothing",
            23,
        ),
        (
            "@@ -0,0 +1,2 @@\n+one\n+two\n",
            "@@ -1,2 +1,2 @@\n-x\n-y\n+one\n+two\n",
            "replaces the whole file",
            32,
        ),
        ("@@ -0,0 +1,2 @@\n+one\n+two\n", "", "no hunk for pkg/b c.py", 28),
        ("pkg/b c.py", "pkg/a.py", "pkg/a.py comes twice", 31),
    ],
)
def test_each_rule_names_its_line(old: str, new: str, what: str, line: int) -> None:
    assert old in GOOD
    changed = GOOD.replace(old, new)
    if what == "pkg/a.py comes twice":
        changed = changed.replace("\t", "")
    _fails(changed, what, line)


def test_a_nul_byte_and_bytes_that_are_not_utf8() -> None:
    _fails(GOOD.replace("FOUR", "FO\0UR"), "has a NUL byte", 17)
    _fails(GOOD.encode().replace(b"FOUR", b"F\xd6\xdcR"), "is not UTF-8", 17)


HOSTILE = [
    "../x",
    "pkg/../../x",
    "/etc/passwd",
    "./x",
    "pkg//x",
    "pkg/",
    ".git/config",
    "pkg/.git/hooks/x",
    ".GIT/config",
    ".git./config",
    ".git /config",
    "git~1/config",
    ".git::$INDEX_ALLOCATION/config",
    ".gitmodules",
    "pkg/.GitModules",
    ".gitattributes",
    "pkg/.gitattributes",
    "-x",
    ":(top)x",
    "C:/x",
    "a\\..\\b",
    "a\tb",
    "a\x7fb",
    "a\u200cb",
    ".g\u200cit/config",
    "caf\u00e9",
]


@pytest.mark.parametrize("path", HOSTILE)
def test_hostile_paths_are_refused(path: str) -> None:
    assert patch_path_rules.find_path_problem(path)
    _fails(GOOD.replace("pkg/a.py", path), "path ", 10)


@pytest.mark.parametrize(
    "path",
    ["pkg/a.py", ".github/x", ".gitignore", "a b/c", "x/-y", "gitx", "a.git/b", "a,b+c@d=e~f"],
)
def test_good_paths(path: str) -> None:
    assert patch_path_rules.find_path_problem(path) is None
    tab = "\t" if " " in path else ""
    changed = GOOD.replace("a/pkg/a.py b/pkg/a.py", f"a/{path} b/{path}").replace(
        "--- a/pkg/a.py", f"--- a/{path}{tab}"
    )
    assert (
        patch_file.parse_patch(
            FILE, changed.replace("+++ b/pkg/a.py", f"+++ b/{path}{tab}").encode()
        )
        .files[0]
        .path
        == path
    )


@pytest.mark.parametrize(
    "quoted", ['"a/pkg/\\303\\251.py" "b/pkg/\\303\\251.py"', '"a/../x" "b/../x"']
)
def test_quoted_paths_are_refused(quoted: str) -> None:
    _fails(GOOD.replace("a/pkg/a.py b/pkg/a.py", quoted, 1), "a quoted path", 10)


def test_a_diff_smuggled_into_the_head_is_no_diff() -> None:
    smuggled = HEAD.replace(" lines", " --- a/x\n +++ b/x\n @@ -1 +1 @@") + DIFF
    assert patch_file.parse_patch(FILE, smuggled.encode()).diff == DIFF.encode()
    _fails(HEAD.replace(" lines", "--- a/x") + DIFF, "unknown field", 5)


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("Why: two", "Why: tw\x1b[31mo", 4),
        (" lines", " li\u202enes", 5),
        ("mend a", "mend \x07 a", 2),
        ("From: rosetta", "From: ro\u2066setta", 1),
        ("the sky falls", "the sky\x9b1m falls", 7),
    ],
)
def test_a_head_has_visible_characters_only(old: str, new: str, line: int) -> None:
    _fails(GOOD.replace(old, new, 1), "hidden character", line)
    assert "\x1b" not in str(_fails(GOOD.replace(old, new, 1), "hidden character", line))
