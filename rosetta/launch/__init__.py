"""What T5X's and Pax's scripts share: cards, devices, folders, words and variables, progress, how a
process becomes the trainer, and how a run is started anywhere. Needs no JAX.
"""
