"""Tiny checkpoints, and batches written out by hand."""

import torch

from ssd.model.batch import Batch

TINY = dict(
    vocab_size=99,
    hidden_size=64,
    intermediate_size=80,
    num_hidden_layers=2,
    num_attention_heads=4,
    head_dim=64,
    num_key_value_heads=2,
    max_position_embeddings=64,
)


def save_tiny(folder, seed=0, family="Llama", **changes):
    """A random model of transformers, saved; its weights are large enough that attention is far from uniform."""
    import transformers

    torch.manual_seed(seed)
    config = getattr(transformers, f"{family}Config")(**(TINY | changes), attn_implementation="eager")
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(1.0 if parameter.dim() == 1 else 0.0, 0.2)
    model.save_pretrained(folder)
    return model


one_request = Batch.chain


def one_tree(ids, parents, prefix, page_size=16):
    """The Batch of a tree after `prefix` tokens in pages 0, 1, ...; parents: the parent of each row, -1 for the
    root."""
    batch, depth, mask = one_request(ids, prefix, page_size), [], []
    for i, parent in enumerate(parents):
        depth.append(depth[parent] + 1 if parent >= 0 else 0)
        mask.append((mask[parent] if parent >= 0 else 0) | 1 << i)
    batch.positions = torch.tensor([prefix + d for d in depth], dtype=torch.int32)
    batch.mask = torch.tensor(mask)[:, None]
    return batch


def relative_error(got, wanted):
    return ((got - wanted).norm() / wanted.norm()).item(), ((got - wanted).abs().max() / wanted.abs().max()).item()
