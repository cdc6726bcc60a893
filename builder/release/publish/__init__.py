"""Publish images: upload by digest, sign, describe, and move tags last."""
