"""What the forms of the kernel report share: the models that it names, costs, and how machine code is read."""

import re
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


def attention_cost(m: Model, batch: int, rows: int, prefix: int, size: int, tree: bool) -> dict[str, int]:
    """bytes: of K, V, queries, output and mask, elements of `size` bytes; flops: of the two products."""
    keys, queries = batch * (prefix + rows) * m.kv_heads * m.head_dim, batch * rows * m.heads * m.head_dim
    return {
        "bytes": 2 * keys * size + 2 * queries * size + 8 * batch * rows * tree,
        "flops": 4 * queries * (prefix + rows),
    }


def instructions(sass: str) -> dict:
    """Tensor-core instructions by name, and how many loads of 128 bits from global memory."""
    return {
        "mma": sorted(set(re.findall(r"\b((?:HMMA|HGMMA|UTCHMMA|IMMA|QGMMA)[.\w]*)", sass))),
        "wide_loads": len(re.findall(r"\b(?:LDG|LDGSTS)\.\S*128\b", sass)),
    }
