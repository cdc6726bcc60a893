"""What T5X's and Pax's scripts share: cards, devices, folders, words and variables, progress, and how a process becomes the trainer. Needs no JAX."""
