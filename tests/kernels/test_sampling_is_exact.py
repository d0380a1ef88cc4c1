"""The joint distribution of the next three tokens, for every rule and kind of proposal, against the exact one.

Each test has at least 400,000 draws. A result passes if chi-squared (with cells below an expectation of 5 pooled) is
not significant at 1e-6, and if the total variation is less than its expectation, at most sum sqrt(p (1 - p) / n) / 2,
plus the margin of McDiarmid's inequality for 1e-6, sqrt(ln 1e6 / 2n). Planted biases must fail.
"""

import math

import numpy as np
import pytest
import torch
from sampling import params
from scipy import stats

from ssd.kernels import Kind, probs, saguaro, sample, top_f, verify_coupled, verify_rejection
from ssd.kernels.verify.reference import exponential

DRAWS, DEPTH = 400_000, 3


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.ops.ssd.bind_threads([-1])
    yield
    torch.set_num_threads(threads)
    torch.ops.ssd.bind_threads([-1] * threads)


def passes(counts, expected):
    """Whether the counts of cells may come from the distribution `expected`."""
    n = counts.sum()
    assert n >= DRAWS and abs(expected.sum() - 1) < 1e-6
    tv = np.abs(counts / n - expected).sum() / 2
    limit = np.sqrt(expected * (1 - expected) / n).sum() / 2 + math.sqrt(math.log(1e6) / (2 * n))
    large = expected * n >= 5
    if counts[expected == 0].any():
        return False
    observed = np.append(counts[large], counts[~large].sum())
    wanted = np.append(expected[large], expected[~large].sum()) * n
    used = wanted > 0
    chi2 = ((observed[used] - wanted[used]) ** 2 / wanted[used]).sum()
    return bool(chi2 < stats.chi2.isf(1e-6, max(used.sum() - 1, 1)) and tv < limit)


class World:
    """A target and a draft whose next token depends on the last one, and the exact distribution of the target's
    text."""

    def __init__(self, vocab, temperature, quality, filters=(0, 1.0, 0.0), seed=0):
        g = torch.Generator().manual_seed(seed)
        self.vocab, self.temperature, self.filters = vocab, temperature, filters
        self.target = torch.randn(vocab, vocab, generator=g) * 1.5
        self.draft = quality * self.target + (1 - quality) * torch.randn(vocab, vocab, generator=g) * 1.5
        p = torch.softmax(self.target.double() / temperature, 1).numpy()
        for row in p:
            order = np.argsort(-row)
            if filters[0]:
                row[order[filters[0] :]] = 0
            if filters[1] < 1:
                row[order[np.searchsorted(np.cumsum(row[order]) / row.sum(), filters[1]) + 1 :]] = 0
        self.p = p / p.sum(1, keepdims=True)

    def exact(self, start=0):
        first = self.p[start]
        return (first[:, None, None] * self.p[:, :, None] * self.p[None]).ravel()

    def sampling(self, rows, seeds, positions):
        return (*params(rows, self.temperature, *self.filters)[:4], seeds, positions)


def propose(world, kind, shape, last, seeds, positions, saguaro_c):
    """Trees with len(shape) levels and shape[d] children a node: tokens [B, N], parents [N], last token of each row,
    q."""
    batch, parents, tokens, rows, level = len(last), [], [], [last], [(-1, last)]
    q = torch.zeros(batch, 1 + sum(math.prod(shape[: d + 1]) for d in range(len(shape))), world.vocab)
    for depth, width in enumerate(shape):
        below = []
        for node, token in level:
            logits, a = world.draft[token], world.sampling(batch, seeds, positions + depth)
            own = probs(logits, *a[:4])
            if kind == "coupled":
                ids = top_f(logits, *a, width)[0]
            elif kind == "sampled":
                own = saguaro(own, 2, saguaro_c) if saguaro_c is not None else own
                ids = top_f(own.log(), *params(batch)[:4], seeds, positions + depth, width, purpose=3)[0]
            elif kind == "greedy":
                ids = logits.topk(width, 1).indices
            else:  # arbitrary tokens, as from some table: here neighbours of the last token
                ids = (token[:, None] * 3 + depth + torch.arange(width)) % world.vocab
            q[:, node + 1] = own
            for i in range(width):
                parents.append(node)
                tokens.append(ids[:, i])
                rows.append(ids[:, i])
                below.append((len(tokens) - 1, ids[:, i]))
        level = below
    return tokens, parents, rows, q


def simulate(world, rule, kind, shape, flag=None, saguaro_c=None, plant=None, batch=100_000):
    """Counts of the next three tokens after token 0, speculated round by round, over DRAWS requests."""
    counts = np.zeros(world.vocab**DEPTH, dtype=np.int64)
    for first in range(0, DRAWS, batch):
        out = torch.zeros(batch, DEPTH + 10, dtype=torch.int64)
        length = torch.zeros(batch, dtype=torch.int64)
        live = torch.arange(batch)
        while len(live):
            n = len(live)
            seeds, positions = live + first + 10**6, length[live] + 1
            last = torch.where(length[live] > 0, out[live, length[live] - 1], 0)
            tokens, parents, rows, q = propose(world, kind, shape, last, seeds, positions, saguaro_c)
            nodes = len(tokens)
            logits = world.target[torch.stack(rows, 1)].reshape(n * (nodes + 1), world.vocab)
            if plant == "wrong row":
                q = q.roll(1, 0)
            trees = (
                torch.arange(0, n * (nodes + 1) + 1, nodes + 1, dtype=torch.int32),
                torch.stack(tokens, 1).int(),
                torch.tensor(parents, dtype=torch.int8).expand(n, nodes).contiguous(),
            )
            a = world.sampling(n, seeds, positions * (plant != "same noise"))
            if rule == "coupled":
                v = verify_coupled(logits, *trees, *a)
            else:
                known = flag or {"sampled": Kind.SAMPLED}.get(kind, Kind.DETERMINISTIC)
                kinds = torch.full((n,), int(known), dtype=torch.int8)
                v = verify_rejection(logits, *trees, kinds, q.reshape(logits.shape), *a)
            for d in range(int(v.accepted.max()) + 1):
                some = v.accepted >= d
                out[live[some], length[live[some]] + d] = v.emitted[some, d]
            length[live] += v.accepted + 1
            live = live[length[live] < DEPTH]
        index = sum(out[:, d] * world.vocab ** (DEPTH - 1 - d) for d in range(DEPTH))
        counts += np.bincount(index.numpy(), minlength=len(counts))
    return counts


@pytest.mark.parametrize(
    "vocab,temperature,quality,filters,kind,shape",
    [
        (5, 1.0, 0.9, (0, 1.0, 0.0), "coupled", (1, 1, 1)),
        (8, 2.0, 0.0, (0, 1.0, 0.0), "coupled", (2, 2)),
        (7, 0.3, 0.5, (0, 0.9, 0.0), "coupled", (3,)),
        (50, 1.0, 0.7, (0, 1.0, 0.0), "coupled", (2, 1)),
        (6, 1.3, 0.5, (4, 1.0, 0.0), "sampled", (1, 1)),
        (6, 1.0, 0.0, (0, 1.0, 0.0), "arbitrary", (2, 1)),
        (6, 1.0, 0.5, (0, 1.0, 0.0), "greedy", (1, 1)),
    ],
)
def test_coupled_rule(vocab, temperature, quality, filters, kind, shape):
    world = World(vocab, temperature, quality, filters)
    assert passes(simulate(world, "coupled", kind, shape), world.exact())


@pytest.mark.parametrize(
    "vocab,temperature,quality,filters,kind,shape,saguaro_c",
    [
        (5, 1.0, 0.9, (0, 1.0, 0.0), "sampled", (1, 1, 1), None),
        (8, 0.3, 0.0, (0, 1.0, 0.0), "sampled", (1, 1), None),
        (7, 2.0, 0.5, (0, 1.0, 0.0), "sampled", (3, 2), None),
        (50, 1.0, 0.5, (0, 1.0, 0.0), "sampled", (4,), None),
        (6, 1.0, 0.3, (0, 0.9, 0.0), "sampled", (2, 1), None),
        (6, 1.0, 0.7, (0, 1.0, 0.0), "sampled", (1, 1), 0.3),
        (6, 1.0, 0.7, (0, 1.0, 0.0), "sampled", (2,), 0.0),
        (6, 1.0, 0.0, (0, 1.0, 0.0), "arbitrary", (1, 1, 1), None),
        (6, 2.0, 0.0, (0, 1.0, 0.0), "arbitrary", (3, 1), None),
        (7, 0.7, 0.8, (5, 1.0, 0.0), "greedy", (2, 2), None),
    ],
)
def test_rejection_rule(vocab, temperature, quality, filters, kind, shape, saguaro_c):
    world = World(vocab, temperature, quality, filters)
    assert passes(simulate(world, "rejection", kind, shape, saguaro_c=saguaro_c), world.exact())


@pytest.mark.parametrize(
    "rule,kind,flag,plant",
    [
        ("coupled", "coupled", None, "same noise"),  # the same noise for all positions of a round
        ("rejection", "sampled", None, "wrong row"),  # q of another request: ratio and residual are wrong
        ("rejection", "arbitrary", Kind.SAMPLED, None),  # fillers verified as if they were samples of q
        ("rejection", "greedy", Kind.SAMPLED, None),
    ],
)
def test_planted_faults_are_seen(rule, kind, flag, plant):
    world = World(6, 1.0, 0.5)
    assert not passes(simulate(world, rule, kind, (1, 1), flag, plant=plant), world.exact())


# One step in NumPy with faults to plant. p and q have ratios of 0, 1/2, 3/4 and more where q proposes, so that
# coarse uniforms k / 256 lose nothing.
P, Q = np.array([0, 0, 2, 3, 3, 4, 4, 0]) / 16, np.array([4, 4, 4, 4, 0, 0, 0, 0]) / 16


def chain_step(fault, n=DRAWS):
    g = np.random.default_rng(0)
    x, u = g.choice(8, n, p=Q), g.integers(0, 256, n) / 256
    accept = u < P[x] / Q[x]
    if fault == "<=":
        accept = u <= P[x] / Q[x]
    if fault == "accept on argmax":
        accept = x == np.argmax(np.where(Q > 0, P, 0))
    rest = np.maximum(P - (Q[::-1] if fault == "wrong residual" else Q), 0)
    rest = P if fault == "p for the residual" else rest
    drawn = np.argmax(rest / rest.sum() / exponential(g.integers(0, 2**32, (n, 8), dtype=np.uint64)), 1)
    return np.bincount(np.where(accept, x, drawn), minlength=8)


def test_chain_step_passes_without_a_fault():
    assert passes(chain_step(None), P)


@pytest.mark.parametrize("fault", ["<=", "accept on argmax", "wrong residual", "p for the residual"])
def test_chain_step_fails_with_a_fault(fault):
    assert not passes(chain_step(fault), P)


@pytest.mark.parametrize("vocab,temperature", [(5, 0.3), (50, 1), (33, 2)])
def test_sample_draws_from_the_processed_distribution(vocab, temperature):
    x = torch.randn(1, vocab, generator=torch.Generator().manual_seed(vocab))
    for filters in [(0, 1, 0), (3, 1, 0), (0, 0.8, 0), (0, 1, 0.2)]:
        a = params(DRAWS, temperature, *filters)
        tokens = sample(x.expand(DRAWS, vocab).contiguous(), *a, False)[0]
        want = probs(x, *(v[:1] for v in a[:4]))[0].double().numpy()
        assert passes(np.bincount(tokens.numpy(), minlength=vocab), want / want.sum())


def test_small_biases_are_seen():
    """The threshold has the power to see a hundredth of the mass moved."""
    x = torch.zeros(DRAWS, 10)
    counts = np.bincount(sample(x, *params(DRAWS), False)[0].numpy(), minlength=10)
    assert passes(counts, np.full(10, 0.1))
    moved = np.full(10, 0.1)
    moved[0], moved[1] = 0.11, 0.09
    assert not passes(counts, moved)
