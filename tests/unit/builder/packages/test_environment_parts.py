from __future__ import annotations

import subprocess

from builder.packages import build_record, environment_parts
from builder.packages.lock_file import Pin

PINS = [Pin("jax", "0.10.2", "", ()), Pin("six", "1.17.0", "", ())]


def test_constraints_name_their_set_of_packages() -> None:
    text = environment_parts.constraints_text(PINS)
    head, *lines = text.splitlines()
    assert lines == ["jax==0.10.2", "six==1.17.0"]
    mark, word, key = head.split()
    assert (mark, word, len(key)) == ("#", "packages", 16)
    assert environment_parts.constraints_text(PINS[:1]).splitlines()[0] != head
    assert environment_parts.constraints_text(PINS) == text


def test_the_shell_reads_the_name() -> None:
    done = subprocess.run(
        ["sh", "-c", 'read -r _ _ key; printf %s "$key"'],
        input=environment_parts.constraints_text(PINS),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == environment_parts.constraints_text(PINS).split()[2]


def test_te_is_held_as_well() -> None:
    assert environment_parts.constraints_text(
        PINS, {"version": "2.20.2", "wheel_sha256": "0" * 64}
    ).endswith("transformer-engine-jax==2.20.2\n")
    assert "transformer" not in environment_parts.constraints_text(PINS, None)


def test_the_lock_is_json_with_a_last_line() -> None:
    assert build_record.lock_text({"schema": 1}) == '{\n "schema": 1\n}\n'
