"""The models whose shapes the kernel report names."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Model:
    name: str
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    depth: int
    vocab: int

    @property
    def layers(self) -> dict[str, tuple[int, int]]:
        """(N, K) of the products of a decoder layer."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return {
            "qkv": (q + 2 * kv, self.hidden),
            "o": (self.hidden, q),
            "gate_up": (2 * self.inner, self.hidden),
            "down": (self.hidden, self.inner),
        }


MODELS = {
    m.name: m
    for m in (
        Model("SmolLM2-135M", 576, 9, 3, 64, 1536, 30, 49152),
        Model("Llama-1B", 2048, 32, 8, 64, 8192, 16, 128256),
        Model("Llama-8B", 4096, 32, 8, 128, 14336, 32, 128256),
        Model("Llama-70B of 4 ranks", 8192, 16, 2, 128, 7168, 80, 128256),
    )
}
