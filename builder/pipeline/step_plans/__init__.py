"""Recorded plans of training steps (goldens), and their comparison with what is compiled now."""
