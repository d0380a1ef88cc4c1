"""Shapes of models, from their published config.json, and what one of their passes reads and computes."""

from dataclasses import dataclass
from pathlib import Path

BF16 = 2  # bytes


@dataclass(frozen=True)
class Shape:
    """A Llama-class model in bf16."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int

    @property
    def weights(self) -> int:
        """Number of weights that a pass reads: those of linear layers and output matrix, not the embedding table."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.intermediate) + self.hidden * self.vocab

    @property
    def weight_bytes(self) -> int:
        return BF16 * self.weights

    @property
    def kv_bytes(self) -> int:
        """Bytes of the keys and values of one token."""
        return 2 * BF16 * self.layers * self.kv_heads * self.head_dim

    def flops(self, rows: int, context: float) -> float:
        """Operations of a pass over `rows` rows, each of which sees `context` tokens."""
        return rows * (2.0 * self.weights + 4.0 * self.layers * self.heads * self.head_dim * context)


MODELS = {
    shape.name: shape
    for shape in (
        Shape("llama-3.2-1b", 16, 2048, 32, 8, 64, 8192, 128256),
        Shape("llama-3.1-8b", 32, 4096, 32, 8, 128, 14336, 128256),
        Shape("llama-3.1-70b", 80, 8192, 64, 8, 128, 28672, 128256),
        Shape("qwen3-0.6b", 28, 1024, 16, 8, 128, 3072, 151936),
        Shape("qwen3-32b", 64, 5120, 64, 8, 128, 25600, 151936),
        Shape("smollm2-135m", 30, 576, 9, 3, 64, 1536, 49152),
    )
}


def model(name: str, option: str = "--target") -> Shape:
    """The Shape of a model by name, or from the config.json in a folder. Raises ValueError if `name` is neither."""
    if name.lower() in MODELS:
        return MODELS[name.lower()]
    if not name or not Path(name).is_dir():
        raise ValueError(f"{option}: got {name!r}, wanted a folder with a config.json or one of {', '.join(MODELS)}")
    from ssd.model.config import LlamaConfig

    c = LlamaConfig.from_folder(name)
    return Shape(
        Path(name).name, c.num_layers, c.hidden_size, c.num_heads, c.num_kv_heads, c.head_dim, c.intermediate_size,
        c.vocab_size,
    )  # fmt: skip
