"""The weights of a Llama, packed where they are to be; one product's matrices are in memory twice at a time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from .checkpoint import Checkpoint
from .config import LlamaConfig
from .memory import Arena

BLOCK = 16  # gate and up alternate in blocks of this many rows, which is also a panel of a packed weight
CHUNK = 1 << 23  # elements converted to float32 at a time
Pack = Callable[[torch.Tensor, int], torch.Tensor]  # some rows of a weight, and how many the whole has
Rows = Callable[[int, int], torch.Tensor]  # rows i to j - 1 of a weight


@dataclass
class LayerWeights:
    """One decoder layer. qkv (rows of q, k, v), o, gate_up (interleaved by BLOCK) and down are packed."""

    attention_norm: torch.Tensor  # float32 [H]
    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None  # float32 [(Hq + 2 Hkv) D]
    o: torch.Tensor
    o_bias: torch.Tensor | None  # float32 [H]
    mlp_norm: torch.Tensor  # float32 [H]
    gate_up: torch.Tensor
    gate_up_bias: torch.Tensor | None  # float32 [2 I], interleaved as the rows are
    down: torch.Tensor
    down_bias: torch.Tensor | None  # float32 [H]
    q_norm: torch.Tensor | None = None  # float32 [D], the same for every head
    k_norm: torch.Tensor | None = None


@dataclass
class Weights:
    embedding: torch.Tensor  # [V, H]
    layers: list[LayerWeights]
    norm: torch.Tensor  # float32 [H]
    lm_head: torch.Tensor  # packed


def tensor_shapes(config: LlamaConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that a checkpoint of this configuration must have."""
    hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
    q, kv = config.num_heads * dim, config.num_kv_heads * dim
    linears = {"self_attn.q_proj": (q, hidden), "self_attn.k_proj": (kv, hidden), "self_attn.v_proj": (kv, hidden)}
    linears |= {"self_attn.o_proj": (hidden, q), "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden)}
    linears |= {"mlp.down_proj": (hidden, inner)}
    biased = dict.fromkeys(("q_proj", "k_proj", "v_proj"), config.attention_bias) | {"o_proj": config.output_bias}
    biased |= dict.fromkeys(("gate_proj", "up_proj", "down_proj"), config.mlp_bias)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, hidden)}
    for i in range(config.num_layers):
        for name, shape in linears.items():
            shapes[f"model.layers.{i}.{name}.weight"] = shape
            if biased[name.split(".")[1]]:
                shapes[f"model.layers.{i}.{name}.bias"] = shape[:1]
        for name in ("q_norm", "k_norm") if config.qk_norm else ():
            shapes[f"model.layers.{i}.self_attn.{name}.weight"] = (dim,)
        for name in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"model.layers.{i}.{name}.weight"] = (hidden,)
    shapes["model.norm.weight"] = (hidden,)
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    return shapes


def pad_rows(x: torch.Tensor) -> torch.Tensor:
    """x with zero rows added up to a multiple of BLOCK."""
    return x if len(x) % BLOCK == 0 else torch.cat([x, x.new_zeros(-len(x) % BLOCK, *x.shape[1:])])


def pad_heads(x: torch.Tensor, dim: int, padded: int) -> torch.Tensor:
    """Rows of heads of dim, each half of a head filled up with zero rows, so that RoPE still pairs the halves."""
    halves = x.unflatten(0, (-1, 2, dim // 2))
    filled = x.new_zeros(len(halves), 2, padded // 2, *x.shape[1:])
    filled[:, :, : dim // 2] = halves
    return filled.flatten(0, 2)


def interleave(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Rows of gate and up in alternate blocks of BLOCK. A padded row gives silu(0) * 0 = 0."""
    gate, up = pad_rows(gate), pad_rows(up)
    return torch.stack([gate.unflatten(0, (-1, BLOCK)), up.unflatten(0, (-1, BLOCK))], 1).flatten(0, 2)


def concatenated(parts: Sequence[torch.Tensor]) -> Rows:
    starts = [sum(map(len, parts[:i])) for i in range(len(parts))]

    def rows(i, j):
        pieces = [part[max(0, i - start) : max(0, j - start)] for part, start in zip(parts, starts, strict=True)]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

    return rows


def pack_rows(rows: Rows, n: int, pack: Pack, arena: Arena) -> torch.Tensor:
    """The packed weight of n rows, packed a few at a time; on the CPU it lies in the arena.

    The first dimension of a packed weight counts panels of 16 rows.
    """
    first = rows(0, 1)
    step = max(2 * BLOCK, CHUNK // first[0].numel() // (2 * BLOCK) * 2 * BLOCK)
    packed = None
    for i in range(0, n, step):
        part = rows(i, min(i + step, n))
        part = pack((part if first.dtype == torch.uint8 else part.float()).contiguous(), n)
        if packed is None:
            shape = (-(-n // BLOCK), *part.shape[1:])
            packed = arena.empty(shape, part.dtype) if part.device.type == "cpu" else part.new_empty(shape)
        packed[i // BLOCK : i // BLOCK + len(part)] = part
    return packed


def load_weights(
    config: LlamaConfig,
    source: str | Path | Checkpoint,
    pack: Pack,
    embedding_dtype: torch.dtype = torch.float32,
    shapes: dict[str, tuple[int, ...]] | None = None,
    embedding: torch.Tensor | None = None,
    pack_head: Pack | None = None,
    norm_dtype: torch.dtype = torch.float32,
) -> Weights:
    """Read and pack a checkpoint; all names and shapes are checked before the first tensor is read.

    pack: makes a packed weight of some rows, float32 [any, K] or blocks, given how many rows the whole weight has;
    pack_head: the same for the output matrix, if it differs; shapes: by default tensor_shapes(config); embedding: used
    in place of the checkpoint's; norm_dtype: that of the activations. Raises ValueError as Checkpoint does; values sent
    to a device are for check_values to check.
    """
    checkpoint = source if isinstance(source, Checkpoint) else Checkpoint(source)
    shapes, folder, arena = shapes or tensor_shapes(config), checkpoint.folder, Arena()
    for name, shape in shapes.items():
        checkpoint.check(name, shape)
    for name in checkpoint.where:
        if name.endswith(("_proj.bias", "q_norm.weight", "k_norm.weight")) and name not in shapes:
            raise ValueError(f"tensor {name} is in {folder}, but config.json has no place for it")

    def get(name):
        return checkpoint.tensor(name, shapes[name])

    def vector(*names, join=torch.cat):
        return join([get(name).float() for name in names]) if names[0] in shapes else None

    def norm(name):
        return get(name).float().to(norm_dtype, copy=True) if name in shapes else None

    def matrices(*names):
        return checkpoint.matrices(names, [shapes[name] for name in names])

    def packed(*parts, pack=pack):
        return pack_rows(concatenated(parts), sum(map(len, parts)), pack, arena)

    dims = config.head_dim, config.padded_head_dim

    def heads(x):
        return x if x is None or dims[0] == dims[1] else pad_heads(x, *dims)

    def inputs_of_heads(o):
        return o if dims[0] == dims[1] else pad_heads(o.T, *dims).T

    def packed_pair(*names):
        gate, up = matrices(*names)
        n = 2 * (len(gate) + -len(gate) % BLOCK)
        return pack_rows(lambda i, j: interleave(gate[i // 2 : -(-j // 2)], up[i // 2 : -(-j // 2)]), n, pack, arena)

    def packed_down(name):
        (down,) = matrices(name)
        if down.dtype == torch.uint8:
            return pack_rows(concatenated([down]), len(down), pack, arena)
        return pack_rows(lambda i, j: pad_rows(down[i:j].T).T, len(down), pack, arena)

    def layer(i):
        attention, mlp = f"model.layers.{i}.self_attn.", f"model.layers.{i}.mlp."
        qkv = [f"{attention}{x}_proj." for x in "qkv"]
        pair = [f"{mlp}gate_proj.", f"{mlp}up_proj."]
        return LayerWeights(
            attention_norm=norm(f"model.layers.{i}.input_layernorm.weight"),
            qkv=packed(*map(heads, matrices(*(x + "weight" for x in qkv)))),
            qkv_bias=heads(vector(*(x + "bias" for x in qkv))),
            o=packed(inputs_of_heads(*matrices(f"{attention}o_proj.weight"))),
            o_bias=vector(f"{attention}o_proj.bias"),
            mlp_norm=norm(f"model.layers.{i}.post_attention_layernorm.weight"),
            gate_up=packed_pair(*(x + "weight" for x in pair)),
            gate_up_bias=vector(*(x + "bias" for x in pair), join=lambda biases: interleave(*biases)),
            down=packed_down(f"{mlp}down_proj.weight"),
            down_bias=vector(f"{mlp}down_proj.bias"),
            q_norm=norm(f"{attention}q_norm.weight"),
            k_norm=norm(f"{attention}k_norm.weight"),
        )

    def ends():
        """Embedding and packed output matrix."""
        name = "model.embed_tokens.weight"
        (head,) = matrices(name if config.tie_word_embeddings else "lm_head.weight")
        lm_head = packed(head, pack=pack_head or pack)
        if embedding is not None:
            return embedding, lm_head
        rows = head if config.tie_word_embeddings and head.dtype != torch.uint8 else get(name)
        return rows.to(embedding_dtype, copy=checkpoint.ring is None), lm_head  # never a view of the file

    embedding, lm_head = ends()  # the largest first, while little else is in memory
    layers = [layer(i) for i in range(config.num_layers)]
    return Weights(embedding, layers, norm("model.norm.weight"), lm_head)
