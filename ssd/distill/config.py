"""The shape of a draft, and its initial weights, which are taken from the target."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch

from ssd.model.checkpoint import Checkpoint
from ssd.model.config import LlamaConfig
from ssd.model.families import FAMILIES
from ssd.model.values import read_json
from ssd.model.weights import tensor_shapes


@dataclass(frozen=True)
class DraftConfig:
    """The shape of a draft: a small Llama, whose first layer reads features of the target if it has feature_layers."""

    hidden_size: int
    target_hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    rms_norm_eps: float
    vocab_size: int  # the target's
    draft_vocab_size: int  # tokens that the draft can propose
    feature_layers: tuple[int, ...] = ()  # layers of the target whose outputs are the features
    base: dict | None = None  # config.json of the target: RoPE, EOS tokens and so on
    qkv_bias: bool = False  # whether the q, k and v projections have biases
    qk_norm: bool = False  # whether q and k are normalised head by head

    @property
    def has_fc(self) -> bool:
        """Whether a matrix projects the features; a single feature as wide as the draft needs none."""
        return len(self.feature_layers) * self.target_hidden_size not in (0, self.hidden_size)

    def to_dict(self) -> dict:
        """The contents of the draft's config.json."""
        keep = (
            "rope_theta",
            "rope_scaling",
            "rope_parameters",
            "max_position_embeddings",
            "eos_token_id",
            "bos_token_id",
        )
        kind = "qwen3" if self.qk_norm else "qwen2" if self.qkv_bias else "llama"
        out = {"architectures": [FAMILIES[kind].architecture], "model_type": kind, "hidden_act": "silu"}
        out |= {k: self.base[k] for k in keep if self.base.get(k) is not None}
        out |= dict(
            hidden_size=self.hidden_size, num_hidden_layers=self.num_layers, num_attention_heads=self.num_heads,
            num_key_value_heads=self.num_kv_heads, head_dim=self.head_dim, intermediate_size=self.intermediate_size,
            rms_norm_eps=self.rms_norm_eps, vocab_size=self.vocab_size, tie_word_embeddings=False,
            draft_vocab_size=self.draft_vocab_size,
        )  # fmt: skip
        if self.feature_layers:
            out |= {"feature_layers": list(self.feature_layers), "target_hidden_size": self.target_hidden_size}
        return out

    @classmethod
    def from_folder(cls, folder: Path) -> "DraftConfig":
        base = read_json(Path(folder) / "config.json")
        c = LlamaConfig.from_folder(folder)
        return cls(
            c.hidden_size, base.get("target_hidden_size", c.hidden_size), c.num_layers, c.num_heads, c.num_kv_heads,
            c.head_dim, c.intermediate_size, c.rms_norm_eps, c.vocab_size, base.get("draft_vocab_size", c.vocab_size),
            tuple(base.get("feature_layers", ())), base, *heads(c),
        )  # fmt: skip


def heads(c: LlamaConfig) -> tuple[bool, bool]:
    """(qkv_bias, qk_norm) of a draft, taken from its target; a draft has no biases beside those of q, k and v."""
    return c.attention_bias and not c.output_bias, c.qk_norm


def plan(folder: Path, layers: list[int], feature_layers: tuple[int, ...], hidden_size: int | None, vocab: int | None):
    """The DraftConfig of a draft that starts from these layers of a target. Raises ValueError for bad arguments."""
    c = LlamaConfig.from_folder(folder)
    if not layers or any(not 0 <= i < c.num_layers for i in layers):
        raise ValueError(f"layers: got {layers}, wanted numbers from 0 to {c.num_layers - 1}")
    wide = hidden_size or c.hidden_size
    vocab = vocab or c.vocab_size
    if not 1 <= wide <= c.hidden_size:
        raise ValueError(f"hidden size: got {wide}, wanted 1 to {c.hidden_size}, the target's")
    if not 8 <= vocab <= c.vocab_size:
        raise ValueError(f"draft vocabulary: got {vocab}, wanted 8 to {c.vocab_size}, the target's")
    return DraftConfig(
        wide, c.hidden_size, len(layers), c.num_heads, c.num_kv_heads, c.head_dim, c.intermediate_size, c.rms_norm_eps,
        c.vocab_size, vocab, tuple(feature_layers), read_json(Path(folder) / "config.json"), *heads(c),
    )  # fmt: skip


def choose_vocabulary(top_ids: torch.Tensor, top_nlp: torch.Tensor, size: int, vocab_size: int, eos) -> torch.Tensor:
    """The tokens with the most teacher mass, int64 [size], ascending; EOS tokens are always among them."""
    mass = torch.zeros(vocab_size, dtype=torch.float64)
    mass.index_add_(0, top_ids.flatten(), torch.exp(top_nlp.double().flatten() / -16))
    mass[list(eos)] = float("inf")
    return torch.sort(mass, descending=True, stable=True).indices[:size].sort().values


def narrower(c: DraftConfig, t: LlamaConfig) -> bool:
    return c.hidden_size < t.hidden_size


def first_weights(c: DraftConfig, folder: Path, layers: list[int], d2t: torch.Tensor, seed: int):
    """(weights, embedding [V, H]) of a new draft, taken from the target in a folder.

    A narrower draft works in the space of the embedding's first singular vectors; norm weights are folded into the
    matrices behind them. In a feature draft, the deepest feature enters unchanged, and the token's half of the first
    layer's attention starts small.
    """
    t = LlamaConfig.from_folder(folder)
    checkpoint = Checkpoint(folder)
    known = tensor_shapes(t)

    def get(name):
        return checkpoint.tensor(name, known[name]).float()

    embedding = get("model.embed_tokens.weight")
    head = embedding if t.tie_word_embeddings else get("lm_head.weight")
    narrow = None
    if narrower(c, t):
        narrow = torch.linalg.svd(embedding.T @ embedding)[0][:, : c.hidden_size].contiguous()  # [Ht, H]
    random = torch.Generator().manual_seed(seed)
    out = {}

    def reads(weight, norm):  # a matrix that reads the normed residual stream
        return weight if narrow is None else (weight * norm) @ narrow

    def norm_of(weight):
        return weight if narrow is None else torch.ones(c.hidden_size)

    def writes(weight):
        return weight if narrow is None else narrow.T @ weight

    for i, source in enumerate(layers):
        p = f"model.layers.{i}."
        q = f"model.layers.{source}."
        before = get(q + "input_layernorm.weight")
        after = get(q + "post_attention_layernorm.weight")
        fed = i == 0 and bool(c.feature_layers)
        out[p + "input_layernorm.weight"] = torch.ones(c.hidden_size) if fed else norm_of(before)
        if fed:
            out[p + "hidden_norm.weight"] = norm_of(before)
        for x in "qkv":
            name = f"self_attn.{x}_proj.weight"
            w = reads(get(q + name), before)
            if fed:
                w = torch.cat([torch.randn(w.shape, generator=random) * 0.5 * w.std(), w], 1)
            out[p + name] = w
            if c.qkv_bias:
                bias = f"self_attn.{x}_proj.bias"
                out[p + bias] = get(q + bias)
        for name in ("self_attn.q_norm.weight", "self_attn.k_norm.weight") if c.qk_norm else ():
            out[p + name] = get(q + name)
        out[p + "self_attn.o_proj.weight"] = writes(get(q + "self_attn.o_proj.weight"))
        out[p + "post_attention_layernorm.weight"] = norm_of(after)
        for x in ("gate", "up"):
            out[p + f"mlp.{x}_proj.weight"] = reads(get(q + f"mlp.{x}_proj.weight"), after)
        out[p + "mlp.down_proj.weight"] = writes(get(q + "mlp.down_proj.weight"))
    final = get("model.norm.weight")
    out["model.norm.weight"] = norm_of(final)
    out["lm_head.weight"] = reads(head[d2t], final)
    if c.has_fc:
        n = len(c.feature_layers)
        ht = t.hidden_size
        deepest = max(range(n), key=lambda k: c.feature_layers[k])
        fc = torch.zeros(c.hidden_size, n * ht)
        fc[:, deepest * ht : (deepest + 1) * ht] = torch.eye(ht) if narrow is None else narrow.T
        out["fc.weight"] = fc
    return out, embedding if narrow is None else embedding @ narrow


def save_json(path: Path, content: dict) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")
