"""The table of all environment variables: their meanings, readers, values and defaults.

Start with `rosetta.core.variables.lookup`.
"""
