"""Gin files of the training steps of the projects built on T5X."""
