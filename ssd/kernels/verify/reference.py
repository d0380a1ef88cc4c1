import numpy as np
import torch

from ..sample import reference
from ..sample.reference import exponential, noise_words, survivors, uniform

ACCEPT, RESIDUAL = 1, 2


def probs(logits, temperature, top_k, top_p, min_p):
    out = np.zeros(logits.shape)
    for r, row in enumerate(logits.numpy()):
        if temperature[r] == 0:
            out[r, row.argmax()] = 1
            continue
        keep, z = survivors(row, temperature[r].item(), int(top_k[r]), top_p[r].item(), min_p[r].item())
        out[r, keep] = np.exp(z[keep].astype(np.float64))
    return torch.from_numpy(out / out.sum(1, keepdims=True))


def normalised(p, otherwise):
    return p / p.sum() if p.sum() > 0 else otherwise


def rejection_step(p, q, children, kind, seed, position):
    """One step at a node with children [(node, token)]. Returns (node accepted or -1, token)."""
    for number, (node, x) in enumerate(children):
        u = uniform(noise_words([seed], [position], [number], ACCEPT))[0, 0]
        if u < p[x] / (q[x] if kind == 1 else 1):
            return node, x
        without = np.arange(len(p)) != x
        if kind == 1:
            p, q = normalised(np.maximum(p - q, 0), p), normalised(q * without, q)
        else:
            p = normalised(p * without, p)
    return -1, int(np.argmax(p / exponential(noise_words([seed], [position], len(p), RESIDUAL))[0]))


def walk(row_offsets, tokens, parents, step):
    """Path, accepted and emitted of walks by step(b, node, row, depth, children) -> (child or -1, token)."""
    batch, width = tokens.shape
    path, emitted = np.full((batch, width), -1), np.full((batch, width + 1), -1)
    accepted = np.zeros(batch, dtype=int)
    for b in range(batch):
        node, depth = -1, 0
        while True:
            n = int(row_offsets[b + 1] - row_offsets[b]) - 1
            children = [(i, int(tokens[b, i])) for i in range(n) if parents[b, i] == node]
            node, emitted[b, depth] = step(b, node, int(row_offsets[b]) + node + 1, depth, children)
            if node < 0:
                break
            path[b, depth], depth = node, depth + 1
        accepted[b] = depth
    return torch.from_numpy(path), torch.from_numpy(accepted), torch.from_numpy(emitted)


def verify_coupled(logits, row_offsets, tokens, parents, *params):
    def step(b, node, row, depth, children):
        *others, positions = (p[b : b + 1] for p in params)
        token = int(reference.sample(logits[row : row + 1], *others, positions + depth)[0])
        return next((i for i, t in children if t == token), -1), token

    return walk(row_offsets, tokens, parents, step)


def verify_rejection(logits, row_offsets, tokens, parents, kinds, q, *params):
    def step(b, node, row, depth, children):
        *filters, seeds, positions = (p[b : b + 1] for p in params)
        p = probs(logits[row : row + 1], *filters)[0].numpy()
        own = None if q is None else q[row].double().numpy()
        return rejection_step(p, own, children, int(kinds[b]), int(seeds[0]), int(positions[0]) + depth)

    return walk(row_offsets, tokens, parents, step)
