"""Convert the weights of LLaMA models between Meta's, Hugging Face's and Pax's files.

`rosetta convert llama` uses this package.
"""
