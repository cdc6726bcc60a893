"""`rosetta tune`: what batch and which switches of presets suit a model on the cards at hand, found
by trying them.
"""
