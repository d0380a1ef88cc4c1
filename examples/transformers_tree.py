"""Verifies a token tree on an unmodified Llama of Hugging Face transformers: `python -m examples.transformers_tree`.

tree_attention becomes an attention implementation of transformers (AttentionInterface). It reads the model's own cache
in place, since a contiguous cache is a paged one with a single page for each sequence. With `tree=` (mask words of
tree_attention), the rows of a forward pass are the nodes of a tree below the newest token; without it, they form a
chain. The example needs `pip install transformers`. Its argument is the folder of a Llama (a tiny random one).
"""

import sys

import torch
import torch.nn.functional as F
import transformers

from ssd.kernels import tree_attention

NAME = "ssd_tree"


def attention(module, query, key, value, attention_mask, scaling, tree=None, **_):
    """Attention [B, T, Hq, D] of query [B, Hq, T, D] over key and value [B, Hkv, L + T, D]; tree: int64 [B * T, W]."""
    if attention_mask is not None:
        raise ValueError("attention_mask: got one, wanted none; the sequences of a call need equal lengths, unpadded")
    batch, _, rows, _ = query.shape
    length = key.shape[2]
    if length < 16:  # a page holds 16 tokens or more
        key, value = (F.pad(x, (0, 0, 0, 16 - length)) for x in (key, value))
    ints = {"dtype": torch.int32, "device": query.device}
    out, _ = tree_attention(
        query.transpose(1, 2).flatten(0, 1),
        key.transpose(1, 2),
        value.transpose(1, 2),
        page_table=torch.arange(batch, **ints)[:, None],
        prefix_lens=torch.full((batch,), length - rows, **ints),
        row_offsets=torch.arange(0, (batch + 1) * rows, rows, **ints),
        mask=tree,
        scale=scaling,
    )
    return out.unflatten(0, (batch, rows)), None


def register() -> None:
    transformers.AttentionInterface.register(NAME, attention)
    transformers.AttentionMaskInterface.register(NAME, lambda *_, **__: None)  # tree_attention needs no dense mask


def mask_and_depths(parents: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """(mask words [T, 1], depths [T]) of a tree of at most 64 nodes, each after its parent; the root's parent is -1."""
    words = []
    depths = []
    for i, parent in enumerate(parents):
        words.append(1 << i | (words[parent] if parent >= 0 else 0))
        depths.append(depths[parent] + 1 if parent >= 0 else 0)
    signed = [w - (1 << 64) if w >> 63 else w for w in words]
    return torch.tensor(signed)[:, None], torch.tensor(depths)


@torch.inference_mode()
def verify(model, cache, tokens: list[int], parents: list[int]) -> tuple[list[int], torch.Tensor]:
    """Verifies a tree in one forward pass. tokens[0], the root, is the newest confirmed token, not yet in the cache.

    Returns the tokens that greedy decoding adds, the bonus token last, and the logits [T, V] of all nodes. Afterwards
    the cache has the root and the accepted path, in order.
    """
    start = cache.get_seq_length()
    mask, depths = mask_and_depths(parents)
    logits = model(
        torch.tensor([tokens]), position_ids=(start + depths)[None], past_key_values=cache, tree=mask
    ).logits[0]
    node = 0
    path = [0]
    emitted = []
    while True:
        emitted.append(int(logits[node].argmax()))
        child = [i for i, parent in enumerate(parents) if parent == node and tokens[i] == emitted[-1]]
        if not child:
            break
        node = child[0]
        path.append(node)
    keep = torch.tensor([*range(start), *(start + n for n in path)])
    for layer in cache.layers:
        layer.keys = layer.keys[:, :, keep]
        layer.values = layer.values[:, :, keep]
    return emitted, logits


def tiny_llama(**changes):
    """A random Llama whose attention is far from uniform; nothing is downloaded."""
    torch.manual_seed(0)
    sizes = dict(vocab_size=256, hidden_size=128, intermediate_size=256, num_hidden_layers=2, head_dim=64)
    heads = dict(num_attention_heads=4, num_key_value_heads=2, eos_token_id=None)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes | heads | changes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(float(parameter.dim() == 1), 0.1)
    return model


def main() -> None:
    register()
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1]) if sys.argv[1:] else tiny_llama()
    except (OSError, ValueError) as e:
        sys.exit(f"{sys.argv[1]}: is not the folder of a Llama: {e}")
    prompt = torch.arange(1, 24)[None]
    want = model.generate(prompt, max_new_tokens=8, do_sample=False)[0, prompt.shape[1] :].tolist()  # its own attention
    model.set_attn_implementation(NAME)
    cache = transformers.DynamicCache()
    with torch.inference_mode():
        root = int(model(prompt, past_key_values=cache).logits[0, -1].argmax())
    # the draft knows the next three tokens: at every depth below the root, it has a right and a wrong child
    tokens = [root]
    parents = [-1, 0, 0, 2, 2, 4, 4]
    for right in want[1:4]:
        tokens += [right - 1 if right else 1, right]
    emitted, _ = verify(model, cache, tokens, parents)
    print(f"one pass over {len(tokens)} nodes gave {len(emitted)} tokens: {emitted}")
    print(f"greedy decoding with the model's own attention: {want[1 : 1 + len(emitted)]}")


if __name__ == "__main__":
    main()
