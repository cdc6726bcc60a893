"""The commands of `rosetta`, one module for each or for a few that belong together.

A module has `add_parsers`, which adds its commands to the parser, and `RUN`, which maps the name of
a command to the function that runs it. The function returns the result for --json, and the text.
"""
