import backends
import pytest
import torch
from logits_cases import logits_of
from sampling import params, random_trees

from ssd.kernels import sample, top_f, verify_coupled
from ssd.kernels.verify import reference

ops = backends.fixture("cpu", "triton")


@pytest.mark.parametrize("vocab", backends.affordable([3, 50], [3]))
@pytest.mark.parametrize("shape", backends.affordable(["any", "chain", "star", "full"], ["any"]))
@pytest.mark.parametrize("temperature", backends.affordable([0, 0.8], [0.8]))
def test_matches_reference(ops, vocab, shape, temperature):
    g, batch = torch.Generator().manual_seed(vocab), ops.count(40, 3)
    row_offsets, tokens, parents = random_trees(batch, 9, vocab, g, shape)
    x = logits_of(int(row_offsets[-1]), vocab)
    for filters in backends.affordable([(0, 1, 0), (3, 0.9, 0.01)], [(3, 0.9, 0.01)]):
        a = params(batch, temperature, *filters)
        got = ops.verify_coupled(x, row_offsets, tokens, parents, *a, logprobs=True)
        want = reference.verify_coupled(x, row_offsets, tokens, parents, *a)
        for g_, w in zip(got[:3], want, strict=True):
            assert torch.equal(g_.long(), w)
        rows = row_offsets[:-1, None] + torch.nn.functional.pad(got.path.long() + 1, (1, 0))  # of the emitted tokens
        logprobs = x.log_softmax(1)[rows.clamp(max=len(x) - 1), got.emitted.clamp(min=0)]
        logprobs[got.emitted < 0] = -torch.inf
        torch.testing.assert_close(got.logprobs, logprobs, rtol=1e-5, atol=1e-5)


class Language:
    """A target whose logits are a function of the last two tokens."""

    def __init__(self, vocab, seed):
        self.vocab = vocab
        self.table = torch.randn(vocab, vocab, vocab, generator=torch.Generator().manual_seed(seed)) * 2

    def logits(self, history):
        return self.table[history[-2], history[-1]]

    def decode(self, prompt, count, *sampling):
        out = list(prompt)
        for _ in range(count):
            *others, positions = sampling
            out.append(int(sample(self.logits(out)[None], *others, positions * 0 + len(out))[0]))
        return out

    def tree_rows(self, history, tokens, parents):
        """The logits of the root and of every node."""
        paths = [list(history)]
        for token, parent in zip(tokens, parents, strict=True):
            paths.append(paths[parent + 1] + [int(token)])
        return torch.stack([self.logits(p) for p in paths])


def propose(kind, history, plain, vocab, g):
    """(tokens, parents) of a speculation; `plain` is the continuation of plain decoding."""
    ahead = plain[len(history) : len(history) + 6]
    if kind == "empty":
        return [], []
    if kind == "right":
        return ahead[:4], list(range(-1, len(ahead[:4]) - 1))
    if kind == "wrong":
        return [(t + 1) % vocab for t in ahead[:4]], list(range(-1, len(ahead[:4]) - 1))
    if kind == "full":  # every token below the root, and below each of them
        return list(range(vocab)) * (vocab + 1), [-1] * vocab + [i for i in range(vocab) for _ in range(vocab)]
    if kind == "duplicate":  # every token occurs twice
        return [t for t in ahead[:3] for _ in (0, 1)], [-1, -1, 1, 0, 2, 3][: 2 * len(ahead[:3])]
    _, tokens, parents = random_trees(1, 12, vocab, g, "full")
    return tokens[0].tolist(), parents[0].tolist()


@pytest.mark.parametrize("kind", ["empty", "right", "wrong", "full", "duplicate", "random"])
@pytest.mark.parametrize("temperature", [0, 0.3, 1, 2])
def test_output_is_that_of_plain_sampling(kind, temperature):
    """Token by token, the text is that of plain decoding whatever the tree, with its log-probabilities."""
    language, g = Language(7, 3), torch.Generator().manual_seed(5)
    for seed in range(4):
        a = params(1, temperature, seed=seed, top_p=0.95)
        plain = language.decode([1, 2], 30, *a)
        history, rounds = [1, 2], 0
        while len(history) < 26:
            tokens, parents = propose(kind, history, plain, 7, g)
            rows = language.tree_rows(history, tokens, parents)
            v = verify_coupled(
                rows,
                torch.tensor([0, len(rows)], dtype=torch.int32),
                torch.tensor([tokens], dtype=torch.int32).reshape(1, len(tokens)),
                torch.tensor([parents], dtype=torch.int8).reshape(1, len(tokens)),
                *a[:5],
                torch.tensor([len(history)]),
                logprobs=True,
            )
            n = int(v.accepted[0])
            for token, logprob in zip(v.emitted[0, : n + 1].tolist(), v.logprobs[0].tolist(), strict=False):
                assert abs(torch.log_softmax(language.logits(history), 0)[token] - logprob) < 1e-5
                history.append(token)
            rounds += 1
        assert history == plain[: len(history)]
        if kind == "right":
            assert rounds <= 6
        if kind in ("empty", "wrong"):
            assert rounds == 24


def test_rows_off_the_path_are_not_read(ops):
    x = torch.full((5, 8), torch.nan)
    x[0] = x[2] = x[4] = 0.0
    x[0, 3] = x[2, 5] = x[4, 1] = 50.0
    tokens, parents = torch.tensor([[1, 3, 5, 5]], dtype=torch.int32), torch.tensor([[-1, -1, 0, 1]], dtype=torch.int8)
    v = ops.verify_coupled(x, torch.tensor([0, 5], dtype=torch.int32), tokens, parents, *params(1))
    assert v.path.tolist() == [[1, 3, -1, -1]] and v.accepted.tolist() == [2]
    assert v.emitted.tolist() == [[3, 5, 1, -1, -1]]


def test_of_equal_siblings_the_first_is_taken(ops):
    x = 50 * torch.eye(8)[[3, 1, 2]]
    tokens, parents = torch.tensor([[3, 3]], dtype=torch.int32), torch.tensor([[-1, -1]], dtype=torch.int8)
    v = ops.verify_coupled(x, torch.tensor([0, 3], dtype=torch.int32), tokens, parents, *params(1))
    assert v.path.tolist() == [[0, -1]] and v.emitted.tolist() == [[3, 1, -1]]


def test_every_node_draws_with_the_noise_of_its_depth(ops):
    """With flat logits and a wrong child before each right one, only the noise decides."""
    batch, n, vocab = 2, 5, 60
    a = params(batch)
    drawn = torch.stack([sample(torch.zeros(batch, vocab), *a[:5], a[5] + depth)[0] for depth in range(n + 1)], 1)
    assert all(len(set(row)) > 3 for row in drawn.tolist())
    tokens = torch.stack([(drawn[:, :n] + 1) % vocab, drawn[:, :n]], 2).flatten(1).int()
    above = torch.tensor([[2 * i - 1] * 2 for i in range(n)]).flatten().to(torch.int8)
    offsets = torch.arange(batch + 1, dtype=torch.int32) * (2 * n + 1)
    v = ops.verify_coupled(torch.zeros(int(offsets[-1]), vocab), offsets, tokens, above.repeat(batch, 1), *a)
    assert v.accepted.tolist() == [n] * batch and v.path[:, :n].tolist() == [[1, 3, 5, 7, 9]] * batch
    assert torch.equal(v.emitted[:, : n + 1], drawn)


def test_thread_counts_give_the_same_bits():
    g = torch.Generator().manual_seed(0)
    row_offsets, tokens, parents = random_trees(30, 12, 4, g)
    x, a = logits_of(int(row_offsets[-1]), 4), params(30, 1)
    first, *others = [
        [torch.ops.ssd.bind_threads([-1] * n), *verify_coupled(x, row_offsets, tokens, parents, *a, logprobs=True)][1:]
        for n in (1, 3, 2)
    ]
    for again in others:
        assert all(torch.equal(p, q) for p, q in zip(first, again, strict=True))


def test_a_request_depends_on_itself_alone(ops):
    batch = ops.count(30, 3)
    row_offsets, tokens, parents = random_trees(batch, 12, 4, torch.Generator().manual_seed(0))
    x, a = logits_of(int(row_offsets[-1]), 4), params(batch, 1)
    together = ops.verify_coupled(x, row_offsets, tokens, parents, *a, logprobs=True)
    for b in range(batch):
        r0, r1 = row_offsets[b : b + 2].tolist()
        offsets, own = torch.tensor([0, r1 - r0], dtype=torch.int32), slice(b, b + 1)
        one = ops.verify_coupled(
            x[r0:r1], offsets, tokens[own], parents[own], *(p[own] for p in a), logprobs=True
        )  # fmt: skip
        assert all(torch.equal(o[0], t[b]) for o, t in zip(one, together, strict=True))


def test_the_deepest_chain(ops):
    n = ops.count(64, 17)
    x = torch.zeros(n + 1, 66)
    for i in range(n + 1):
        x[i, i + 1] = 100.0
    tokens, parents = torch.arange(1, n + 1).int()[None], (torch.arange(n) - 1).to(torch.int8)[None]
    v = ops.verify_coupled(x, torch.tensor([0, n + 1], dtype=torch.int32), tokens, parents, *params(1))
    assert v.accepted.tolist() == [n] and v.path[0, -1] == n - 1 and v.emitted[0].tolist() == list(range(1, n + 2))


def test_coupled_drafts_are_accepted_more_often_than_independent_ones():
    """Acceptance is at least (1 - TV) / (1 + TV) for a draft that shares the noise."""
    n, g = 40_000, torch.Generator().manual_seed(0)
    p, q = torch.randn(30, generator=g), torch.randn(30, generator=g)
    q = p + q
    tv = (p.softmax(0) - q.softmax(0)).abs().sum() / 2
    a = params(n)
    shared = top_f(q.expand(n, 30).contiguous(), *a, 1)[0]
    own = top_f(q.expand(n, 30).contiguous(), *a, 1, purpose=3)[0]
    rows, parents = p.expand(2 * n, 30).contiguous(), torch.full((n, 1), -1, dtype=torch.int8)
    offsets = torch.arange(0, 2 * n + 1, 2, dtype=torch.int32)
    rate = [verify_coupled(rows, offsets, d.int(), parents, *a).accepted.float().mean() for d in (shared, own)]
    assert rate[0] > (1 - tv) / (1 + tv) - 4 * 0.5 / n**0.5
    assert rate[0] > rate[1] + 0.1


def test_opcheck():
    g = torch.Generator().manual_seed(0)
    trees = random_trees(4, 5, 9, g)
    x = logits_of(int(trees[0][-1]), 9)
    torch.library.opcheck(torch.ops.ssd.verify_coupled.default, (x, *trees, *params(4)))


def test_bad_arguments_are_named():
    offsets, tokens = torch.tensor([0, 2, 5], dtype=torch.int32), torch.zeros(2, 2, dtype=torch.int32)
    parents, x, a = torch.tensor([[-1, 0], [-1, 0]], dtype=torch.int8), torch.zeros(5, 6), params(2)
    verify_coupled(x, offsets, tokens, parents, *a)
    for bad, message in [
        ((x[:4], offsets, tokens, parents), "row_offsets: got 0 to 5, wanted 0 to 4"),
        ((x, torch.tensor([0, 0, 5], dtype=torch.int32), tokens, parents), "row_offsets: got 0 rows for request 0"),
        ((x, torch.tensor([0, 1, 5], dtype=torch.int32), tokens, parents), "row_offsets: got 4 rows for request 1"),
        ((x, offsets, tokens, parents + 1), "parents: got 0 for node 0 of request 0"),
        ((x, offsets, tokens, parents[:, :1].contiguous()), "parents: got shape"),
        ((x, offsets, torch.zeros(2, 65, dtype=torch.int32), torch.zeros(2, 65, dtype=torch.int8)), "got 65 nodes"),
        ((torch.full_like(x, torch.nan), offsets, tokens, parents), "logits: got NaN or .inf in row 0"),
    ]:
        with pytest.raises(ValueError, match=message):
            verify_coupled(*bad, *a)
    x[2:] = -torch.inf
    with pytest.raises(ValueError, match="logits: got nothing but -inf in row 2"):
        verify_coupled(x, offsets, tokens, parents, *a)
