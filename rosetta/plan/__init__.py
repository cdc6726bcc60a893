"""Compile what a run would compile, for a GPU that is not here, and read off what it would do."""
