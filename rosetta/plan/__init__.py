"""Compile the train step of a run for a GPU that this machine does not have, and read from the
compiled step how much memory, computation and communication it needs.
"""
