"""Reading what an upstream declares without running it."""

from __future__ import annotations

import pytest

from builder.packages import upstream_requirements
from tests.support import errors


def _declared(files: dict[str, str], own: tuple[str, ...] = ()) -> tuple[str, ...]:
    return upstream_requirements.read_declared(
        "thing", files.keys(), lambda path: files[path].encode(), own
    ).requirements


def test_requirements_in_comes_before_setup() -> None:
    files = {
        "requirements.in": "# head\n\nBeta_pkg>=1  # why\nalpha\n",
        "setup.py": "raise SystemExit('was run')",
    }
    assert _declared(files) == ("alpha", "beta-pkg>=1")


def test_own_sources_are_left_out() -> None:
    assert _declared({"requirements.in": "praxis\nnumpy\n"}, own=("praxis",)) == ("numpy",)


def test_setup_is_read_and_not_run() -> None:
    setup = """
import setuptools, sys
sys.exit('was run')
_version = '0.4.16'
base = ['absl-py', 'numpy']
setuptools.setup(
    name='thing',
    install_requires=base + [f'jax >= {_version}', ('tensor'
        'store >= 0.1'), 'a' + '-b'],
    extras_require={'test': ['pytest']},
)
"""
    assert _declared({"setup.py": setup}) == (
        "a-b",
        "absl-py",
        "jax>=0.4.16",
        "numpy",
        "tensorstore>=0.1",
    )


def test_metadata_of_a_wheel_without_its_extras() -> None:
    text = "Metadata-Version: 2.1\nName: thing\nVersion: 1\nRequires-Dist: jax (==0.4.26)\nRequires-Dist: zstandard ; extra == 'gpu'\nRequires-Dist: x ; python_version < '3.12'\n\nRequires-Dist: not-this\n"
    assert _declared({"thing-1.dist-info/METADATA": text, "thing/METADATA": "no"}) == (
        "jax==0.4.26",
        'x; python_version < "3.12"',
    )


@pytest.mark.parametrize(
    ("files", "place", "kind", "value"),
    [
        (
            {"requirements.in": "a\nclu @ git+https://example.com/clu\n"},
            "thing: requirements.in:2",
            errors.UNSUPPORTED,
            "clu",
        ),
        (
            {
                "setup.py": "from setuptools import setup\nsetup(install_requires=[\n 'flax @ git+https://example.com/flax'])\n"
            },
            "thing: setup.py:3",
            errors.UNSUPPORTED,
            "flax",
        ),
        (
            {"requirements.in": "-r other.txt\n"},
            "thing: requirements.in:1",
            errors.UNSUPPORTED,
            "-r",
        ),
        (
            {"requirements.in": "a b c\n"},
            "thing: requirements.in:1",
            errors.INVALID,
            "a b c",
        ),
        (
            {"setup.py": "setup(install_requires=read())\n"},
            "thing: setup.py:1",
            errors.UNSUPPORTED,
            "read()",
        ),
        (
            {"setup.py": "x = x + ['a']\nsetup(install_requires=x)\n"},
            "thing: setup.py:1",
            errors.UNSUPPORTED,
            "x",
        ),
        (
            {"setup.py": "setup(install_requires=[f'{open(1)}'])\n"},
            "thing: setup.py:1",
            errors.UNSUPPORTED,
            "open(1)",
        ),
        ({"setup.py": "setup(\n"}, "thing: setup.py", errors.INVALID, None),
        ({"setup.py": "(" * 5000}, "thing: setup.py", errors.INVALID, None),
        ({"setup.py": "x = 1\n"}, "thing: setup.py", errors.UNSUPPORTED, 0),
        (
            {"thing-1.dist-info/METADATA": "hello\n"},
            "thing: thing-1.dist-info/METADATA",
            errors.INVALID,
            None,
        ),
        ({"README.md": ""}, "thing", errors.MISSING, None),
    ],
)
def test_what_cannot_be_read_is_named(
    files: dict[str, str], place: str, kind: str, value: object
) -> None:
    with errors.expect_user_error(kind, where=place, value=value) as caught:
        _declared(files)
    assert "\n" not in str(caught.value)


def test_not_utf8() -> None:
    with errors.expect_user_error(errors.INVALID, where="thing: setup.py", names="UTF-8"):
        upstream_requirements.read_declared("thing", ["setup.py"], lambda _: b"\xff", ())
