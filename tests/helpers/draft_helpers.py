"""Random drafts for the tiny checkpoint, and a feature draft written with plain torch."""

import json

import tiny_checkpoint
import torch
from safetensors.torch import load_file, save_file

CONFIG = tiny_checkpoint.CONFIG
HIDDEN, VOCAB = CONFIG["hidden_size"], CONFIG["vocab_size"]


def write_draft(folder, *, layers=None, outputs=None, own_embedding=False, depth=1, seed=1, eagle=False, **changes):
    """Writes a draft folder. layers: feature layers; outputs: size of a trimmed vocabulary; eagle: in EAGLE-3's
    published form."""
    config = CONFIG | dict(num_hidden_layers=depth, tie_word_embeddings=False) | changes
    hidden = config["hidden_size"]
    random = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=random) * 0.3

    tensors = {k: normal(*v.shape) if v.dim() == 2 else v for k, v in tiny_checkpoint.weights(config).items()}
    if not own_embedding:
        del tensors["model.embed_tokens.weight"]
    if outputs:
        config["draft_vocab_size"] = outputs
        tensors["d2t"] = torch.randperm(VOCAB, generator=random)[:outputs].sort().values
    tensors["lm_head.weight"] = normal(outputs or config["vocab_size"], hidden)
    if layers is not None:
        for x in "qkv":
            name = f"model.layers.0.self_attn.{x}_proj.weight"
            tensors[name] = normal(tensors[name].shape[0], 2 * hidden)
        tensors["model.layers.0.hidden_norm.weight"] = 1 + normal(hidden)
        if len(layers) * HIDDEN != hidden or seed % 2:
            tensors["fc.weight"] = normal(hidden, len(layers) * HIDDEN)
        config["feature_layers"] = layers
    if eagle:
        config["architectures"] = ["LlamaForCausalLMEagle3"]
        config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": config.pop("feature_layers")}
        tensors = {k.replace("model.layers.0.", "midlayer.").replace("model.", ""): v for k, v in tensors.items()}
        if outputs:
            tensors["t2d"] = torch.zeros(VOCAB, dtype=torch.bool).index_fill(0, tensors["d2t"], True)
            tensors["d2t"] -= torch.arange(outputs)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({k: v.contiguous() for k, v in tensors.items()}, folder / "model.safetensors")
    return folder


def rms(x, weight):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + CONFIG["rms_norm_eps"]) * weight


def rotate(x, positions):
    """The half-split rotary embedding of x [rows, heads, dim]."""
    dim = x.shape[-1]
    angle = positions[:, None] * 10000.0 ** (-torch.arange(0, dim, 2) / dim)
    cos, sin = (f(angle)[:, None].repeat(1, 1, 2) for f in (torch.cos, torch.sin))
    return x * cos + torch.cat([-x[..., dim // 2 :], x[..., : dim // 2]], -1) * sin


def feature_draft_reference(folder, embedding, tokens, hidden):
    """Logits [n, outputs] and features [n, H] of one causal layer, given the tokens and hidden states of its rows."""
    w = load_file(folder / "model.safetensors")
    w = {
        k.replace("midlayer.", "model.layers.0.").replace("model.layers.0.", "").replace("model.", ""): v
        for k, v in w.items()
    }
    heads, kv, dim = CONFIG["num_attention_heads"], CONFIG["num_key_value_heads"], CONFIG["head_dim"]
    positions, n = torch.arange(len(tokens)), len(tokens)
    x = torch.cat([rms(embedding[tokens], w["input_layernorm.weight"]), rms(hidden, w["hidden_norm.weight"])], 1)
    q, k, v = ((x @ w[f"self_attn.{c}_proj.weight"].T).view(n, -1, dim) for c in "qkv")
    q, k = rotate(q, positions), rotate(k, positions)
    k, v = (t.repeat_interleave(heads // kv, 1) for t in (k, v))
    out = torch.nn.functional.scaled_dot_product_attention(*(t.transpose(0, 1) for t in (q, k, v)), is_causal=True)
    y = hidden + out.transpose(0, 1).flatten(1) @ w["self_attn.o_proj.weight"].T
    z = rms(y, w["post_attention_layernorm.weight"])
    inner = torch.nn.functional.silu(z @ w["mlp.gate_proj.weight"].T) * (z @ w["mlp.up_proj.weight"].T)
    y = y + inner @ w["mlp.down_proj.weight"].T
    return rms(y, w["norm.weight"]) @ w["lm_head.weight"].T, y
