"""Weights of models between the layouts that people have them in and Pax's checkpoints."""
