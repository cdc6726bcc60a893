"""Curves of runs: the values over the steps, and their charts in a terminal and as PNG."""
