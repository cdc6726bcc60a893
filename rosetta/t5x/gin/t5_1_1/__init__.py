"""Gin files."""
