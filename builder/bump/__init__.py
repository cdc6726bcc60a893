"""Pins moved along the branches they track, the stack tried on the way, and how far behind upstream we are."""
