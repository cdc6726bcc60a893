"""Modules that every part of rosetta uses: errors, values, GPUs, files and processes.

No module of this package needs JAX.
"""
