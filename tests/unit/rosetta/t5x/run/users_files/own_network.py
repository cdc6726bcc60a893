"""A user's module, as own_network.gin imports it."""

from rosetta.t5x.network import T5Config

__all__ = ["OwnConfig", "Settings", "T5Config", "Transformer", "make"]

Settings = T5Config


class OwnConfig:
    def __init__(self, emb_dim: int = 1) -> None:
        self.emb_dim = emb_dim


class Transformer:
    def __init__(self, config: object = None) -> None:
        self.config = config


def make(depth: int = 1) -> int:
    return depth
