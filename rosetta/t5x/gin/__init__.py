"""Gin files. A package, because gin finds a file on Python's path only inside one."""
