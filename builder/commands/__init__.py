"""One module for each command of build.py."""
