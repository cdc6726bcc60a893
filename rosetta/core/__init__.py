"""What every part of rosetta uses: errors, values, GPUs, files, processes.

Nothing here needs JAX.
"""
