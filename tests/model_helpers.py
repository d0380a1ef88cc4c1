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


def save_tiny(folder, seed=0, **changes):
    """A random Llama of transformers, saved; weights large enough that attention is far from uniform."""
    import transformers

    torch.manual_seed(seed)
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**(TINY | changes), attn_implementation="eager")
    ).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(1.0 if parameter.dim() == 1 else 0.0, 0.2)
    model.save_pretrained(folder)
    return model


def one_request(ids, prefix=0, page_size=16, first_page=0):
    """Batch of one request whose pages are first_page, first_page + 1, ...; logits of every row."""
    rows, total = len(ids), prefix + len(ids)
    pages = torch.arange(first_page, first_page - (-total // page_size), dtype=torch.int32)
    index = torch.arange(prefix, total)
    return Batch(
        ids=torch.as_tensor(ids, dtype=torch.int64),
        positions=index.int(),
        slots=pages[index // page_size].long() * page_size + index % page_size,
        row_offsets=torch.tensor([0, rows], dtype=torch.int32),
        prefix_lens=torch.tensor([prefix], dtype=torch.int32),
        page_table=pages[None],
        logit_rows=torch.arange(rows),
    )


def relative_error(got, wanted):
    return ((got - wanted).norm() / wanted.norm()).item(), ((got - wanted).abs().max() / wanted.abs().max()).item()
