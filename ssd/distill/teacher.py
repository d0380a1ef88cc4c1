"""The target in torch, on a CPU or a GPU: features, most probable tokens and answers of many sequences at once."""

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F

from ssd.model.checkpoint import Checkpoint
from ssd.model.config import LlamaConfig
from ssd.model.rope import rope_tables
from ssd.model.source import ring_to
from ssd.model.weights import LayerWeights, tensor_shapes
from ssd.runtime.devices.placement import device_of

from .data import TOP, encode_nlp


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x [..., heads, T, D] rotated by cos, sin [..., T, D / 2]; the two halves of a head are pairs, as in Hugging
    Face's Llama."""
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def normed_heads(
    q: torch.Tensor, k: torch.Tensor, q_norm: torch.Tensor | None, k_norm: torch.Tensor | None, eps: float
):
    """(q, k), each [..., D] and normalised head by head if the model has norms for them."""
    return (x if w is None else rms_norm(x, w, eps) for x, w in ((q, q_norm), (k, k_norm)))


@dataclass
class Answers:
    """The answers of one batch; every list has one entry a sequence."""

    tokens: list[list[int]]
    top_ids: list  # [tokens, TOP]: the most probable tokens at each step
    top_nlp: list  # [tokens, TOP]: their negative log-probabilities, in sixteenths of a nat
    features: list | None  # [prompt + tokens, n * H], zeros for the last token, which the target never read


class Target:
    """A checkpoint of a family that ssd.model knows. The residual stream is float32; products are in `dtype`.

    features: layers whose residual stream is returned; 0 is the embedding, n the output of layer n.
    """

    def __init__(self, folder: str | Path, dtype=torch.bfloat16, device="cpu", features: tuple[int, ...] = ()):
        self.config = c = LlamaConfig.from_folder(folder)
        if any(not 0 <= n <= c.num_layers for n in features):
            raise ValueError(f"feature layers: got {list(features)}, wanted numbers from 0 to {c.num_layers}")
        self.features = tuple(features)
        self.dtype = dtype
        self.device = device_of(str(device))
        checkpoint = Checkpoint(folder, ring=ring_to(self.device))
        shapes = tensor_shapes(c)
        for name, shape in shapes.items():
            checkpoint.check(name, shape)

        def get(name):  # one tensor at a time, so that only one is in memory twice
            return checkpoint.tensor(name, shapes[name])

        def matrix(*names):
            return torch.cat([get(n).to(dtype) for n in names]) if names[0] in shapes else None

        def vector(name):
            return get(name).to(torch.float32, copy=True) if name in shapes else None

        self.embedding = matrix("model.embed_tokens.weight")
        self.norm = vector("model.norm.weight")
        self.lm_head = self.embedding if c.tie_word_embeddings else matrix("lm_head.weight")
        self.layers = []
        for i in range(c.num_layers):
            p = f"model.layers.{i}."
            parts = dict(qkv=["self_attn.q", "self_attn.k", "self_attn.v"], o=["self_attn.o"])
            parts |= dict(gate_up=["mlp.gate", "mlp.up"], down=["mlp.down"])
            products = {n: matrix(*(f"{p}{x}_proj.weight" for x in parts[n])) for n in parts}
            products |= {f"{n}_bias": matrix(*(f"{p}{x}_proj.bias" for x in parts[n])) for n in parts}
            norms = dict(attention_norm="input_layernorm", mlp_norm="post_attention_layernorm")
            norms |= dict(q_norm="self_attn.q_norm", k_norm="self_attn.k_norm")
            norms = {n: vector(f"{p}{x}.weight") for n, x in norms.items()}
            self.layers.append(LayerWeights(**products, **norms))  # plain: nothing packed, gate before up
        checkpoint.check_values()
        self.cos, self.sin = (t.to(self.device) for t in rope_tables(c))

    def forward(self, ids, positions, mask, cache=None, at=0):
        """(last residual stream [B, T, H], features [B, T, n H] or None). ids, positions [B, T]; mask [B, 1, T, keys]
        has what a row sees, None for causal; cache has one [2, B, Hkv, keys, D] a layer, written from column `at`."""
        c = self.config
        b, t = ids.shape
        heads = c.num_heads
        kv = c.num_kv_heads
        dim = c.head_dim
        group = c.num_heads // c.num_kv_heads
        cos, sin = self.cos[positions][:, None], self.sin[positions][:, None]
        x = self.embedding[ids].float()
        kept = {0: x}
        for i, layer in enumerate(self.layers):
            h = F.linear(
                rms_norm(x, layer.attention_norm, c.rms_norm_eps).to(self.dtype), layer.qkv, layer.qkv_bias
            ).float()
            q, k, v = h.view(b, t, heads + 2 * kv, dim).transpose(1, 2).split([heads, kv, kv], 1)
            q, k = normed_heads(q, k, layer.q_norm, layer.k_norm, c.rms_norm_eps)
            q, k, v = (y.to(self.dtype) for y in (rotate(q, cos, sin), rotate(k, cos, sin), v))
            if cache is not None:
                cache[i][0, :, :, at : at + t], cache[i][1, :, :, at : at + t] = k, v
                k, v = cache[i][:, :, :, : at + t]
            if t == 1:  # the query heads of a group are rows of one product
                q = q.reshape(b, kv, group, dim)
                a = F.scaled_dot_product_attention(q, k, v, attn_mask=mask).reshape(b, 1, heads * dim)
            else:
                a = F.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None, enable_gqa=True)
                a = a.transpose(1, 2).reshape(b, t, heads * dim)
            x = x + F.linear(a, layer.o, layer.o_bias).float()
            h = rms_norm(x, layer.mlp_norm, c.rms_norm_eps).to(self.dtype)
            gate, up = F.linear(h, layer.gate_up, layer.gate_up_bias).chunk(2, -1)
            x = x + F.linear(F.silu(gate) * up, layer.down, layer.down_bias).float()
            kept[i + 1] = x if i + 1 in self.features else None
        return x, torch.cat([kept[n] for n in self.features], -1).to(torch.bfloat16) if self.features else None

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(rms_norm(x, self.norm, self.config.rms_norm_eps).to(self.dtype), self.lm_head).float()

    @torch.inference_mode()
    def read(self, sequences: list, top: bool):
        """(features [tokens, n H] of each sequence, (ids, nlp) of the TOP tokens after each of its tokens if `top`).
        Sequences of similar length need the least padding."""
        lengths = [len(s) for s in sequences]
        ids = torch.zeros(len(sequences), max(lengths), dtype=torch.int64)
        for i, s in enumerate(sequences):
            ids[i, : len(s)] = torch.as_tensor(s, dtype=torch.int64)
        positions = torch.arange(ids.shape[1], device=self.device).expand(ids.shape)
        x, features = self.forward(ids.to(self.device), positions, None)
        cut = [f[:n].cpu() for f, n in zip(features, lengths, strict=True)] if features is not None else None
        if not top:
            return cut, None
        tops = []
        for row, n in zip(x, lengths, strict=True):
            logits = self.logits(row[:n])
            values, best = logits.topk(TOP, -1)
            nlp = encode_nlp(logits.logsumexp(-1, keepdim=True) - values)
            tops.append((best.cpu().numpy(), nlp.cpu().numpy()))
        return cut, tops

    @torch.inference_mode()
    def generate(self, prompts: list, temperatures, max_tokens: int, generator: torch.Generator) -> Answers:
        """The Answers to prompts of token ids, drawn with torch's generator; a sequence ends after an EOS token."""
        c = self.config
        n = len(prompts)
        pad = max(map(len, prompts))
        ids = torch.zeros(n, pad, dtype=torch.int64)
        lengths = torch.tensor([len(p) for p in prompts])
        for i, p in enumerate(prompts):
            ids[i, pad - len(p) :] = torch.as_tensor(p, dtype=torch.int64)  # all prompts end in the same column
        columns = torch.arange(pad + max_tokens)
        seen = (columns[None] >= (pad - lengths)[:, None])[:, None, None].to(self.device)  # [B, 1, 1, columns]
        positions = (columns[None, :pad] - (pad - lengths)[:, None]).clamp_min(0).to(self.device)
        causal = columns[None, :pad] <= columns[:pad, None]
        first = seen[..., :pad] & causal.to(self.device) | torch.eye(pad, dtype=torch.bool, device=self.device)
        shape = (2, n, c.num_kv_heads, pad + max_tokens, c.head_dim)
        cache = [torch.empty(shape, dtype=self.dtype, device=self.device) for _ in self.layers]
        heat = torch.tensor(temperatures, dtype=torch.float32, device=self.device)[:, None]
        alive = torch.arange(n)
        eos = torch.tensor(c.eos_token_ids)
        out = Answers([[] for _ in prompts], [[] for _ in prompts], [[] for _ in prompts], None)
        x, features = self.forward(ids.to(self.device), positions, first, cache)
        kept = (
            [[f[pad - l :]] for f, l in zip(features.cpu(), lengths.tolist(), strict=True)] if self.features else None
        )
        for step in range(max_tokens):
            logits = self.logits(x[:, -1])
            values, best = logits.topk(TOP, -1)
            nlp = encode_nlp(logits.logsumexp(-1, keepdim=True) - values).cpu().numpy()
            mass = torch.softmax(logits / heat.clamp_min(1e-6), -1).cumsum(-1)
            drawn = torch.rand(len(mass), 1, generator=generator, device=self.device) * mass[:, -1:]
            drawn = torch.searchsorted(mass, drawn, right=True)[:, 0].clamp_max(c.vocab_size - 1)
            token = torch.where(heat[:, 0] > 0, drawn, best[:, 0])
            for row, (i, t) in enumerate(zip(alive.tolist(), token.tolist(), strict=True)):
                out.tokens[i].append(t)
                out.top_ids[i].append(best[row].cpu().numpy())
                out.top_nlp[i].append(nlp[row])
            going = ~torch.isin(token.cpu(), eos)
            if step + 1 == max_tokens or not going.any():
                break
            if going.sum() < 0.85 * len(going) or len(going) < 16:  # drop the sequences that have ended
                going = going.nonzero()[:, 0]
                cache = [kv[:, going] for kv in cache]
                seen = seen[going]
                heat = heat[going]
                token = token[going]
                alive = alive[going]
            position = (lengths[alive] + step)[:, None].to(self.device)
            x, features = self.forward(token[:, None], position, seen[..., : pad + step + 1], cache, pad + step)
            if self.features:
                for i, f in zip(alive.tolist(), features.cpu(), strict=True):
                    kept[i].append(f)
        for i, tokens in enumerate(out.tokens):
            end = next((k + 1 for k, t in enumerate(tokens) if t in c.eos_token_ids), len(tokens))
            for rows in (out.tokens, out.top_ids, out.top_nlp):
                rows[i] = rows[i][:end]
            if self.features:
                kept[i] = torch.cat(kept[i])[: len(prompts[i]) + end - 1]
                kept[i] = torch.cat([kept[i], kept[i].new_zeros(1, kept[i].shape[1])])
        out.features = kept
        return out
