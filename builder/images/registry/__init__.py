"""The client of a container registry."""
