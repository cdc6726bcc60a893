#!/usr/bin/env python3
"""rosetta's builder: see README.md. This file only finds a Python, makes the builder's own
environment and hands over.

Standard library and old syntax on purpose, so that an old Python prints a sentence and not a
SyntaxError.
"""

import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.abspath(__file__))
NEWEST, OLDEST = (3, 14), (3, 11)


def other_python():
    """Return the path of a supported Python, if PATH has one."""
    for minor in range(NEWEST[1], OLDEST[1] - 1, -1):
        for folder in os.environ.get("PATH", "").split(os.pathsep):
            path = os.path.join(folder, "python3.%d" % minor)
            # A version manager's shim is there for Pythons that are not.
            if (
                os.access(path, os.X_OK)
                and os.path.isfile(path)
                and subprocess.call(
                    [path, "-c", ""], stdout=subprocess.PIPE, stderr=subprocess.PIPE
                )
                == 0
            ):
                return path
    return None


def main():
    """Find a Python that fits, then hand over to the builder."""
    if not os.environ.get("HOME"):
        os.environ.pop(
            "HOME", None
        )  # an empty one would be the root folder; without one, everybody asks the user database
    if sys.version_info < OLDEST:
        path = other_python()
        if path and not os.environ.get("ROSETTA_REEXEC"):
            os.environ["ROSETTA_REEXEC"] = "1"
            os.execv(path, [path, os.path.abspath(__file__)] + sys.argv[1:])  # noqa: RUF005, S606
        sys.stderr.write(
            "rosetta: Python %d.%d is too old -> install Python 3.11 or newer (Debian 12, "
            "Ubuntu 24.04: apt-get install python3) "
            "and run: python3.11 build.py ...\n" % sys.version_info[:2]
        )
        return 2
    os.environ.pop("ROSETTA_REEXEC", None)
    sys.path.insert(0, ROOT)
    from builder import bootstrap
    from builder.core import environment_stamp

    if not environment_stamp.is_current(ROOT):
        from builder.packages import builder_environment

        status = builder_environment.make_environment(ROOT, sys.argv[1:])
        if status:
            return status
    return bootstrap.hand_over(ROOT, sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
