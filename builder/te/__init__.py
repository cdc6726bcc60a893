"""Transformer Engine: its locked packages, and the one wheel of it that has to be compiled."""
