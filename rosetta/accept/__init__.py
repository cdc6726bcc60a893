"""The command `rosetta accept`: what only a GPU can tell, in one run of ten minutes."""
