"""The draft in torch: a Llama, or one that reads the target's features (EAGLE-3: Li et al., arXiv 2503.01840)."""

import torch
import torch.nn.functional as F
from torch import nn

from .config import DraftConfig
from .teacher import normed_heads, rms_norm, rotate


def shapes(c: DraftConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every trained tensor, as the checkpoint has them."""
    q = c.num_heads * c.head_dim
    kv = c.num_kv_heads * c.head_dim
    wide = c.hidden_size
    out = {}
    if c.has_fc:
        out["fc.weight"] = (wide, len(c.feature_layers) * c.target_hidden_size)
    for i in range(c.num_layers):
        p = f"model.layers.{i}."
        fed = 2 * wide if i == 0 and c.feature_layers else wide
        out[p + "input_layernorm.weight"] = (wide,)
        if fed > wide:
            out[p + "hidden_norm.weight"] = (wide,)
        out |= {p + f"self_attn.{x}_proj.weight": (n, fed) for x, n in (("q", q), ("k", kv), ("v", kv))}
        if c.qkv_bias:
            out |= {p + f"self_attn.{x}_proj.bias": (n,) for x, n in (("q", q), ("k", kv), ("v", kv))}
        if c.qk_norm:
            out |= {p + f"self_attn.{x}_norm.weight": (c.head_dim,) for x in "qk"}
        out[p + "self_attn.o_proj.weight"] = (wide, q)
        out[p + "post_attention_layernorm.weight"] = (wide,)
        out |= {p + f"mlp.{x}_proj.weight": (c.intermediate_size, wide) for x in ("gate", "up")}
        out[p + "mlp.down_proj.weight"] = (wide, c.intermediate_size)
    out["model.norm.weight"] = (wide,)
    out["lm_head.weight"] = (c.draft_vocab_size, wide)
    return out


def shifted(x: torch.Tensor, by: int, dim: int) -> torch.Tensor:
    """x moved along dim, so that row j is what row j - by was; the first rows are zeros."""
    if not by:
        return x
    length = x.shape[dim]
    return torch.cat([torch.zeros_like(x.narrow(dim, 0, min(by, length))), x.narrow(dim, 0, max(length - by, 0))], dim)


class Draft(nn.Module):
    """The draft in training. Weights are float32; products are computed in `dtype`.

    weights: {name: tensor} as in `shapes`. d2t: int64 [draft vocabulary], target ids. embedding [V, H] is not trained.
    cos, sin: float32 [positions, D / 2]. feature_scale [n H] divides the features before fc, so that all weights of fc
    learn at one pace; a checkpoint has it folded into fc.
    """

    def __init__(self, config: DraftConfig, weights: dict, d2t, embedding, cos, sin, dtype, feature_scale=None):
        super().__init__()
        self.config = config
        self.dtype = dtype
        self.names = list(shapes(config))
        self.tensors = nn.ParameterList([nn.Parameter(weights[n].float().clone()) for n in self.names])
        if feature_scale is None:
            feature_scale = torch.ones(len(config.feature_layers) * config.target_hidden_size)
        elif config.has_fc:
            with torch.no_grad():
                self.weights()["fc.weight"].mul_(feature_scale)
        fixed = dict(d2t=d2t, embedding=embedding, cos=cos, sin=sin, feature_scale=feature_scale)
        for name, tensor in fixed.items():
            self.register_buffer(name, tensor, persistent=False)

    def weights(self) -> dict[str, torch.Tensor]:
        return dict(zip(self.names, self.tensors, strict=True))

    def forward(self, ids: torch.Tensor, features: torch.Tensor | None, steps: int = 1, skip: int = 0) -> list:
        """The residual stream after the last layer at each of the draft's own steps: [B, T, H] at step 0, then
        [B, T - skip, H], without the first `skip` rows.

        ids [B, T]; features [B, T, n H] of the target, or None. At step s, row j is fed with the draft's own feature of
        row j - 1 at step s - 1. It sees what it will see in use, a chain of s tokens below root j - s: rows up to j - s
        from step 0, then row j - s + i from step i. Rows below skip + s - 1, or s, have no root and mean nothing.
        """
        c = self.config
        t = ids.shape[1]
        w = {n: x.to(self.dtype) if x.dim() == 2 else x for n, x in self.weights().items()}
        token = self.embedding[ids].float()
        cos = self.cos[:t]
        sin = self.sin[:t]
        hidden = None
        if c.feature_layers:
            hidden = shifted(self.entered(features), 1, 1)
        past: list[list] = [[] for _ in range(c.num_layers)]  # for each layer, K and V of every step
        out = []
        for step in range(steps):
            x = token if hidden is None else hidden
            for i in range(c.num_layers):
                x = self.layer(w, i, x, token, cos, sin, past[i])
            out.append(x)
            hidden = shifted(x, 1, 1)
            if step == 0 and skip:
                hidden = hidden[:, skip:]
                token = token[:, skip:]
                cos = cos[skip:]
                sin = sin[skip:]
        return out

    def entered(self, features: torch.Tensor) -> torch.Tensor:
        """The residual stream that the draft's first layer reads, made of the target's features."""
        if not self.config.has_fc:
            return features.float()
        fc = self.weights()["fc.weight"].to(self.dtype)
        return F.linear((features / self.feature_scale).to(self.dtype), fc).float()

    def layer(self, w, i, x, token, cos, sin, past) -> torch.Tensor:
        c = self.config
        p = f"model.layers.{i}."
        eps = self.config.rms_norm_eps
        if i == 0 and c.feature_layers:
            parts = [
                rms_norm(token, w[p + "input_layernorm.weight"], eps),
                rms_norm(x, w[p + "hidden_norm.weight"], eps),
            ]
            h = torch.cat(parts, -1)
        else:
            h = rms_norm(x, w[p + "input_layernorm.weight"], eps)
        b, t, _ = h.shape
        h = h.to(self.dtype)
        biases = (w.get(p + f"self_attn.{n}_proj.bias") for n in "qkv")
        q, k, v = (
            F.linear(h, w[p + f"self_attn.{n}_proj.weight"], bias if bias is None else bias.to(self.dtype))
            .view(b, t, -1, c.head_dim)
            for n, bias in zip("qkv", biases, strict=True)
        )  # fmt: skip
        norms = (w.get(p + f"self_attn.{n}_norm.weight") for n in "qk")
        q, k = normed_heads(q.float(), k.float(), *norms, eps)
        q, k = (rotate(y.transpose(1, 2), cos, sin).to(self.dtype) for y in (q, k))
        past.append((k, v.transpose(1, 2)))
        a = F.linear(attention(q, past).transpose(1, 2).reshape(b, t, -1), w[p + "self_attn.o_proj.weight"])
        x = x + a.float()
        h = rms_norm(x, w[p + "post_attention_layernorm.weight"], eps).to(self.dtype)
        inner = F.silu(F.linear(h, w[p + "mlp.gate_proj.weight"])) * F.linear(h, w[p + "mlp.up_proj.weight"])
        return x + F.linear(inner, w[p + "mlp.down_proj.weight"]).float()

    def normed(self, x: torch.Tensor) -> torch.Tensor:
        """The input of the output head, in the dtype of products."""
        return rms_norm(x, self.weights()["model.norm.weight"], self.config.rms_norm_eps).to(self.dtype)

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(self.normed(x), self.weights()["lm_head.weight"].to(self.dtype)).float()


def attention(q: torch.Tensor, past: list) -> torch.Tensor:
    """Attention of the last T rows, q [B, Hq, T, D], at step s = len(past) - 1 over past[0..s], pairs of K and V. The
    rows that each row sees are those of Draft.forward."""
    step = len(past) - 1
    k, v = past[0]
    if step == 0:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    b, heads, t, d = q.shape
    kv, keys = k.shape[1:3]
    q = (q * d**-0.5).view(b, kv, heads // kv, t, d)
    row = torch.arange(t, device=q.device)[:, None]
    unseen = torch.arange(keys, device=q.device) > row + (keys - t - step)
    scores = [(q @ k[:, :, None].transpose(-1, -2)).masked_fill(unseen, float("-inf"))]
    own = []
    for i in range(1, step + 1):  # row j - (step - i) at step i
        ki, vi = (shifted(x, step - i, 2)[:, :, None] for x in past[i])
        scores.append((q * ki).sum(-1, keepdim=True).masked_fill(row < step - i, float("-inf")))
        own.append(vi)
    p = torch.cat(scores, -1).float().softmax(-1).to(q.dtype)
    out = p[..., :keys] @ v[:, :, None]
    for i, vi in enumerate(own):
        out = out + p[..., keys + i : keys + i + 1] * vi
    return out.view(b, heads, t, d)
