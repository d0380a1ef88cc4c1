"""A draft's candidates (top_f) and the verification of a chain of four tokens, all accepted, against torch."""

import torch

from ssd.kernels import Kind, top_f, verify_coupled, verify_rejection
from ssd.kernels.top_f import reference as top_f_reference
from ssd.kernels.verify import reference

from . import Case, copies

VOCAB = 49152
DEPTH = 4


def settings(rows: int):
    return (
        torch.ones(rows),
        torch.zeros(rows, dtype=torch.int32),
        torch.ones(rows),
        torch.zeros(rows),
        torch.arange(rows),
        torch.full((rows,), 100),
    )


def cases(device: str, _):
    if device != "cpu":
        return
    for rows, f in [(1, 1), (1, 8), (24, 1)]:
        yield candidates(rows, f)
    yield coupled()
    yield rejection()


def candidates(rows: int, f: int) -> Case:
    logits = 3 * torch.randn(copies(4 * rows * VOCAB), rows, VOCAB)

    def torchs(turn):
        x = logits[turn % len(logits)]
        return (x - torch.empty_like(x).exponential_().log_()).topk(f).indices

    return Case(
        op="top_f",
        shape=f"{rows}x{VOCAB}, best {f}",
        run=lambda turn: top_f(logits[turn % len(logits)], *settings(rows), f)[0],
        bytes=4 * rows * VOCAB,
        flops=0,
        check=lambda: torch.equal(
            top_f(logits[0], *settings(rows), f)[0], top_f_reference.top_f(logits[0], *settings(rows), f)
        ),
        baselines={"torch": torchs},
    )


def chain(tokens):
    offsets = torch.tensor([0, DEPTH + 1], dtype=torch.int32)
    return offsets, tokens[None].int(), torch.arange(-1, DEPTH - 1, dtype=torch.int8)[None]


def same(got, want) -> bool:
    return all(torch.equal(g.long(), w) for g, w in zip(got[:3], want, strict=True))


def coupled() -> Case:
    rows = 3 * torch.randn(copies(4 * (DEPTH + 1) * VOCAB), DEPTH + 1, VOCAB)
    a = settings(1)
    positions = torch.arange(DEPTH + 1) + 100
    every = tuple(p.expand(DEPTH + 1).contiguous() for p in a[:5])
    trees = [chain(top_f(x, *every, positions, 1)[0][:DEPTH, 0]) for x in rows]

    def torchs(turn):
        x = rows[turn % len(rows)]
        drawn = (x - torch.empty_like(x).exponential_().log_()).argmax(1)
        return (drawn[:DEPTH] == trees[turn % len(rows)][1][0]).cumprod(0).sum()

    return Case(
        op="verify_coupled",
        shape=f"chain of {DEPTH}, {VOCAB} tokens, all accepted",
        run=lambda turn: verify_coupled(rows[turn % len(rows)], *trees[turn % len(rows)], *a),
        bytes=4 * (DEPTH + 1) * VOCAB,
        flops=0,
        check=lambda: same(verify_coupled(rows[0], *trees[0], *a), reference.verify_coupled(rows[0], *trees[0], *a)),
        baselines={"torch": torchs},
    )


def rejection() -> Case:
    rows = 3 * torch.randn(copies(8 * (DEPTH + 1) * VOCAB), DEPTH + 1, VOCAB)
    q = torch.softmax(rows, 2)
    kinds = torch.tensor([Kind.SAMPLED], dtype=torch.int8)
    a = settings(1)
    trees = [chain(torch.multinomial(p, 1)[:DEPTH, 0]) for p in q]

    def torchs(turn):
        p = rows[turn % len(rows)].softmax(1)
        own = q[turn % len(rows)]
        tokens = trees[turn % len(rows)][1][0].long()
        at = torch.arange(DEPTH)
        n = int((torch.rand(DEPTH) < p[at, tokens] / own[at, tokens]).cumprod(0).sum())
        rest = p[n] if n == DEPTH else (p[n] - own[n]).clamp_(min=0)
        return torch.multinomial(rest + 1e-30, 1)

    def run(turn):
        i = turn % len(rows)
        return verify_rejection(rows[i], *trees[i], kinds, q[i], *a)

    return Case(
        op="verify_rejection",
        shape=f"chain of {DEPTH}, {VOCAB} tokens, all accepted",
        run=run,
        bytes=8 * (DEPTH + 1) * VOCAB,
        flops=0,
        check=lambda: same(run(0), reference.verify_rejection(rows[0], *trees[0], kinds, q[0], *a)),
        baselines={"torch": torchs},
    )
