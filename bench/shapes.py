"""The named shapes of the benchmarks and the kernel report: models, and sizes of calls of tree attention."""

import itertools
from dataclasses import dataclass

from ssd.simulate.models import MODELS as SHAPES


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
        """(N, K) of each product of a decoder layer, by name."""
        q = self.heads * self.head_dim
        kv = self.kv_heads * self.head_dim
        return {
            "qkv": (q + 2 * kv, self.hidden),
            "o": (self.hidden, q),
            "gate_up": (2 * self.inner, self.hidden),
            "down": (self.hidden, self.inner),
        }


def rank_of(name: str, shape: str, ranks: int = 1) -> Model:
    """The Model of one of `ranks` tensor-parallel ranks of a shape in ssd.simulate."""
    s = SHAPES[shape]
    heads, kv_heads, inner = (n // ranks for n in (s.heads, s.kv_heads, s.intermediate))
    return Model(name, s.hidden, heads, kv_heads, s.head_dim, inner, s.layers, s.vocab)


MODELS = {
    m.name: m
    for m in (
        rank_of("SmolLM2-135M", "smollm2-135m"),
        rank_of("Llama-1B", "llama-3.2-1b"),
        rank_of("Llama-8B", "llama-3.1-8b"),
        rank_of("Llama-70B/4", "llama-3.1-70b", 4),
    )
}
TINY = {m.name: m for m in (Model("tiny", 64, 4, 2, 64, 96, 2, 256), Model("tiny-draft", 32, 1, 1, 64, 48, 1, 256))}
ROWS = (1, 5, 8, 16, 32, 64)
PREFIXES = (128, 1024, 4096, 32768)
BATCHES = (1, 8, 32)
BASE = {"batch": 1, "rows": 8, "prefix": 4096}
PAGE = 16  # tokens of a page


def models(names: str | None) -> list[Model]:
    """The models of these names, which commas separate; all for None. Raises ValueError for an unknown name."""
    wanted = names.split(",") if names else list(MODELS)
    if unknown := [name for name in wanted if name not in MODELS]:
        raise ValueError(f"models: got {unknown[0]!r}, wanted some of {', '.join(MODELS)}")
    return [MODELS[name] for name in wanted]


@dataclass(frozen=True)
class Size:
    """A call of tree attention: a batch of trees, or of forests, behind a prefix."""

    model: Model
    batch: int
    rows: int  # nodes of a tree, or branches of a forest, of which the deepest nodes are computed
    prefix: int  # tokens before the tree
    depth: int = 0  # nodes of each branch of a forest; 0 for a tree

    @property
    def length(self) -> int:
        """Number of keys of a request."""
        return self.prefix + self.rows * max(1, self.depth)

    @property
    def words(self) -> int:
        """Number of words in the mask of a row."""
        return -(-(self.length - self.prefix) // 64)

    @property
    def kv_bytes(self) -> int:
        """Bytes of keys and values of 16 bits."""
        return 4 * self.batch * self.length * self.model.kv_heads * self.model.head_dim

    def __str__(self) -> str:
        forest = f" forest of depth {self.depth}" if self.depth else ""
        return f"{self.model.name} B={self.batch} T={self.rows} L={self.prefix}{forest}"


def sizes(chosen: list[Model], full: bool) -> tuple[list[Size], list[Size]]:
    """(sizes to measure, sizes that are left out unless `full`), the most telling first: all rows at batch 1 behind
    4096 tokens; one row and eight rows also at all prefixes and at all batches; a forest of 24 branches."""
    every = [Size(m, b, r, p) for b, r, p, m in itertools.product(BATCHES, ROWS, PREFIXES, chosen)]
    every += [Size(m, b, 24, p, 4) for b, p, m in itertools.product(BATCHES, PREFIXES, chosen)]

    def distance(size: Size) -> tuple:
        off = (size.batch != BASE["batch"]) + (size.prefix != BASE["prefix"])
        return off + (size.rows not in (1, BASE["rows"])), size.batch * size.length

    every.sort(key=distance)
    near = [s for s in every if distance(s)[0] <= 1]
    return (every, []) if full else (near, [s for s in every if s not in near])


def attention_cost(size: Size, itemsize: int, tree: bool = True) -> dict[str, int]:
    """The cost of a call. bytes: K, V, queries, output and mask words; flops: the two products, where a row sees every
    node of a tree, or its branch of a forest."""
    rows = size.batch * size.rows
    queries = rows * size.model.heads * size.model.head_dim
    return {
        "bytes": size.kv_bytes * itemsize // 2 + 2 * queries * itemsize + 8 * rows * size.words * tree,
        "flops": 4 * queries * (size.prefix + (size.depth or size.rows)),
    }
