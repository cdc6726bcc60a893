"""What users_experiments.py takes from another module."""

STEPS = 1_000
PARTS = 4


class Wide:
    MODEL_DIMS = 8192
    NUM_HEADS = 64
