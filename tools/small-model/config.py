"""The shape of the model, apart from PyTorch so that files can be written without it."""
from dataclasses import asdict, dataclass


@dataclass
class Config:
    vocabulary: int = 2048
    width: int = 256
    ratios: tuple = (0, 0, 4, 128, 4, 0)
    hash_layers: int = 3
    heads: int = 4
    head_width: int = 128
    rotary: int = 64
    query_rank: int = 128
    output_groups: int = 2
    output_rank: int = 128
    experts: int = 8
    experts_used: int = 2
    expert_width: int = 256
    indexer_heads: int = 8
    indexer_width: int = 128
    top_k: int = 128
    window: int = 128
    streams: int = 4
    sinkhorn: int = 20
    clamp: float = 10.0
    expert_scale: float = 1.5
    epsilon: float = 1e-6

    def dict(self):
        return asdict(self)
