"""`rosetta tune`: find the batch and the preset switches that are fastest for a model on the GPUs
of this machine, by trying them.
"""
