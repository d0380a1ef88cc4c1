"""What the tests of sampling and of verification share."""

import torch


def params(rows, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=0, position=5):
    """The arguments temperature, top_k, top_p, min_p, seeds and positions for `rows` rows, each with its own seed."""
    return (
        torch.full((rows,), float(temperature)),
        torch.full((rows,), top_k, dtype=torch.int32),
        torch.full((rows,), float(top_p)),
        torch.full((rows,), float(min_p)),
        torch.arange(rows) * 7919 + seed,
        torch.full((rows,), position),
    )


def every(rows, temperatures, filters, position=5):
    """The params of all pairs of a temperature and filters (top_k, top_p, min_p), repeated for `rows` rows."""
    pairs = [(t, *f) for _ in range(rows) for t in temperatures for f in filters]
    temperature, top_k, top_p, min_p = (torch.tensor(values) for values in zip(*pairs, strict=True))
    seeds = torch.arange(len(pairs)) * 7919
    return temperature.float(), top_k.int(), top_p.float(), min_p.float(), seeds, torch.full_like(seeds, position)


def random_trees(batch, nodes, vocab, generator, shape="any"):
    """(row_offsets, tokens, parents) of trees of 0 to `nodes` nodes; shape: any, chain, star or full (all nodes)."""
    sizes = torch.randint(0, nodes + 1, (batch,), generator=generator)
    if shape == "full":
        sizes[:] = nodes
    parents = torch.full((batch, nodes), -1, dtype=torch.int8)
    for i in range(1, nodes):
        drawn = torch.randint(-1, i, (batch,), generator=generator)
        parents[:, i] = {"chain": torch.full((batch,), i - 1), "star": torch.full((batch,), -1)}.get(shape, drawn)
    tokens = torch.randint(0, vocab, (batch, nodes), generator=generator, dtype=torch.int32)
    row_offsets = torch.cat([torch.zeros(1, dtype=torch.int64), (sizes + 1).cumsum(0)]).int()
    return row_offsets, tokens, parents
