"""Files of the real upstreams at their pins, for tests that run inside a baked environment.

The builder's packages are made for the builder's own Python, and an environment may have another
one. So the builder's Python is started to read a file.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILDER_PYTHON = ROOT / ".venv/bin/python"
_NOT_IN_CACHE = 3  # the exit status that says so


def need_pinned_file(source: str, path: str) -> str:
    """Return the text of a file of a source, or skip the test if the builder's cache lacks it."""
    result = subprocess.run(
        [BUILDER_PYTHON, "-m", "tests.support.pinned_files", source, path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode == _NOT_IN_CACHE:
        pytest.skip(result.stderr.strip())
    assert result.returncode == 0, result.stderr
    return result.stdout


def main(source: str, path: str) -> None:
    """Print a file of a source; run by the builder's Python."""
    from tests.support.shipped_sources import need_pinned_source

    try:
        pin = need_pinned_source(source)
    except pytest.skip.Exception as reason:
        print(reason, file=sys.stderr)
        sys.exit(_NOT_IN_CACHE)
    sys.stdout.write(pin.git.text("show", f"{pin.commit}:{path}"))


if __name__ == "__main__":
    main(*sys.argv[1:])
