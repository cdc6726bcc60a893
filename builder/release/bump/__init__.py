"""Move pins along the branches that they track, and try the patch series."""
