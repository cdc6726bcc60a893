"""Gin files. This file makes the folder a package, in which gin can find them."""
