"""The one table of environment variables: what each means, who reads it, and which values it takes.

Start with `rosetta.core.variables.lookup`.
"""
