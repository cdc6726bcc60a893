"""Users and groups without a name get their number for one; those with a name keep it."""

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[3] / "rosetta/standins"
_ASK = "import sys; sys.path.insert(0, sys.argv[1]); {load}import pwd, grp, getpass; print(pwd.getpwuid(0).pw_name, grp.getgrgid(0).gr_name, pwd.getpwuid(987654).pw_name, grp.getgrgid(987654).gr_name)"


def _ask(load: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-I", "-S", "-c", _ASK.format(load=load), str(FOLDER)],
        capture_output=True,
        text=True,
        check=False,
    )


def test_unknown_users_are_named_by_their_number() -> None:
    plain = _ask("")
    if plain.returncode == 0:
        pytest.skip("this machine names the user 987654")
    assert "KeyError" in plain.stderr
    named = _ask("import rosetta_accounts; ")
    assert named.stdout.split() == ["root", "root", "987654", "987654"]
