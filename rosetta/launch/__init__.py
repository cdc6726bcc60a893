"""Start runs: T5X's and Pax's trainers on this machine, and any run under Docker or a scheduler.

The package needs no JAX.
"""
