"""One module for each command of `rosetta`."""
