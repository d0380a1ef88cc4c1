import pytest
import torch
from logits_cases import logits_of
from sampling import params, random_trees

from ssd.kernels import Kind, noise_words, probs, saguaro, top_f, verify_rejection
from ssd.kernels.verify import reference

ONE = torch.tensor([0, 2], dtype=torch.int32), torch.zeros(1, 1, dtype=torch.int32), -torch.ones(1, 1, dtype=torch.int8)


def kinds(kind, batch):
    return torch.full((batch,), kind, dtype=torch.int8)


def single(n, x):
    """n requests with one child each, all with the same token x."""
    offsets = torch.arange(0, 2 * n + 1, 2, dtype=torch.int32)
    return offsets, torch.full((n, 1), x, dtype=torch.int32), torch.full((n, 1), -1, dtype=torch.int8)


def distinct_siblings(parents, vocab, g):
    """Tokens of which no two siblings are equal."""
    orders = torch.rand(*parents.shape, vocab, generator=g).argsort(-1)
    tokens = torch.zeros(parents.shape, dtype=torch.int32)
    for b, row in enumerate(parents.tolist()):
        seen = {}
        for i, parent in enumerate(row):
            tokens[b, i] = orders[b, parent + 1, seen.setdefault(parent, 0)]
            seen[parent] += 1
    return tokens


@pytest.mark.parametrize("vocab", [9, 50])
@pytest.mark.parametrize("shape", ["any", "chain", "star"])
@pytest.mark.parametrize("kind", [Kind.SAMPLED, Kind.DETERMINISTIC])
@pytest.mark.parametrize("temperature", [0.3, 1, 2])
def test_matches_reference(vocab, shape, kind, temperature):
    g = torch.Generator().manual_seed(vocab)
    row_offsets, _, parents = random_trees(60, 9, vocab, g, shape)
    tokens = distinct_siblings(parents, vocab, g)
    x = logits_of(int(row_offsets[-1]), vocab)
    q = torch.softmax(x * 0.5 + torch.randn(x.shape, generator=g), 1)
    for filters in [(0, 1, 0), (5, 0.93, 0.01)]:
        a = params(60, temperature, *filters)
        got = verify_rejection(x, row_offsets, tokens, parents, kinds(kind, 60), q, *a)
        want = reference.verify_rejection(x, row_offsets, tokens, parents, kinds(kind, 60), q, *a)
        for g_, w in zip(got[:3], want, strict=True):
            assert torch.equal(g_.long(), w)


def test_kinds_may_differ_within_a_batch():
    g = torch.Generator().manual_seed(2)
    row_offsets, _, parents = random_trees(40, 6, 9, g)
    tokens, x = distinct_siblings(parents, 9, g), logits_of(int(row_offsets[-1]), 9)
    kind = torch.randint(1, 3, (40,), generator=g, dtype=torch.int8)
    q, a = torch.softmax(torch.randn(x.shape, generator=g), 1), params(40)
    mixed = verify_rejection(x, row_offsets, tokens, parents, kind, q, *a)
    for k in (1, 2):
        alone = verify_rejection(x, row_offsets, tokens, parents, kinds(k, 40), q, *a)
        assert torch.equal(mixed.emitted[kind == k], alone.emitted[kind == k])
    deterministic = verify_rejection(x, row_offsets, tokens, parents, kinds(2, 40), None, *a)
    assert torch.equal(deterministic.emitted[kind == 2], mixed.emitted[kind == 2])


def test_a_proposal_from_p_itself_is_always_accepted():
    n, x = 20_000, torch.randn(1, 40, generator=torch.Generator().manual_seed(0))
    a = params(n, 0.9)
    p = probs(x, *(v[:1] for v in a[:4])).expand(2 * n, 40).contiguous()
    tokens = top_f(p[:n].log(), *params(n), 1, purpose=3)[0].int()
    offsets, _, parents = single(n, 0)
    v = verify_rejection(x.expand(2 * n, 40).contiguous(), offsets, tokens, parents, kinds(1, n), p, *a)
    assert v.accepted.float().mean() > 1 - 1e-3  # u < p / q where both are the result of one rounding


def test_a_proposal_disjoint_from_p_is_never_accepted():
    n, p, q = 50_000, torch.zeros(1, 8), torch.zeros(1, 8)
    p[0, :4], q[0, 4:] = -torch.inf, 0.25
    p[0, 4:] = torch.tensor([0.0, 1, 2, -1])
    q[0, :4], q[0, 4:] = 0.25, 0
    rows = p.expand(2 * n, 8).contiguous()
    for kind in (1, 2):
        v = verify_rejection(rows, *single(n, 2), kinds(kind, n), q.expand(2 * n, 8).contiguous(), *params(n))
        assert (v.accepted == 0).all() and (v.emitted[:, 0] >= 4).all() and (v.path == -1).all()
        share = torch.bincount(v.emitted[:, 0], minlength=8) / n
        assert (share - torch.softmax(p[0], 0)).abs().max() < 5 * 0.5 / n**0.5


def test_the_smallest_uniform_accepts_nothing_impossible():
    """The seed was found by search: the uniform of child 0 at position 0 has the word 0, and u is then 2^-33, not 0."""
    seeds, positions = torch.tensor([6513639667]), torch.tensor([0])
    assert noise_words(seeds, positions, 1, 1)[0, 0] == 0
    x, q = torch.tensor([[-torch.inf, 0.0]] * 2), torch.tensor([[1.0, 0.0]] * 2)
    v = verify_rejection(x, *ONE, kinds(1, 1), q, *params(1)[:4], seeds, positions)
    assert v.accepted[0] == 0 and v.emitted[0, 0] == 1
    x[:, 0] = -20.0  # 2e-9: possible, and above 2^-33
    assert verify_rejection(x, *ONE, kinds(1, 1), q, *params(1)[:4], seeds, positions).accepted[0] == 1


def test_a_residual_that_sums_to_0_falls_back_to_p():
    """q is at least p everywhere by rounding; a rejection must still draw from p."""
    n, p = 4000, torch.tensor([[0.0, 0.0, -torch.inf, -torch.inf]])
    q = torch.tensor([[0.5004, 0.5004, 0.0, 0.0]]).expand(2 * n, 4).contiguous()  # the sum is 1 within the tolerance
    v = verify_rejection(p.expand(2 * n, 4).contiguous(), *single(n, 0), kinds(1, n), q, *params(n))
    assert 0 < (v.accepted == 0).sum() < 20
    assert (v.emitted[:, 0] <= 1).all()
    certain = torch.tensor([[0.0, -torch.inf]] * 2)
    for seed in range(50):
        v = verify_rejection(certain, *ONE, kinds(2, 1), None, *params(1, seed=seed))
        assert v.accepted[0] == 1 and v.emitted[0].tolist() == [0, 0]


def test_temperature_0_is_greedy_for_every_kind():
    x = torch.randn(60, 11)
    a, best = params(30, 0), x.argmax(1)
    one_hot = torch.nn.functional.one_hot(best, 11).float()
    for kind in (1, 2):
        offsets, _, parents = single(30, 0)
        v = verify_rejection(x, offsets, best[::2, None].int(), parents, kinds(kind, 30), one_hot, *a)
        assert (v.accepted == 1).all() and torch.equal(v.emitted, torch.stack([best[::2], best[1::2]], 1))
    wrong = (best[::2, None].int() + 1) % 11
    v = verify_rejection(x, offsets, wrong, parents, kinds(2, 30), None, *a)
    assert (v.accepted == 0).all() and torch.equal(v.emitted[:, 0], best[::2])


def test_saguaro():
    q = torch.tensor([[0.5, 0.3, 0.2], [1.0, 0.0, 0.0]])
    torch.testing.assert_close(saguaro(q, 1, 0.5), torch.tensor([[1 / 3, 0.4, 4 / 15], [1.0, 0, 0]]))
    torch.testing.assert_close(saguaro(q, 1, 0), torch.tensor([[0, 0.6, 0.4], [1.0, 0, 0]]))
    assert torch.equal(saguaro(q, 2, 1), q)
    for f, c, message in [(1, 1.5, "c: got 1.5"), (1, -0.1, "c: got -0.1"), (0, 0.5, "f: got 0"), (4, 0.5, "f: got 4")]:
        with pytest.raises(ValueError, match=message):
            saguaro(q, f, c)


def test_logprobs_are_those_of_the_raw_logits():
    g = torch.Generator().manual_seed(1)
    row_offsets, tokens, parents = random_trees(20, 5, 3, g, "chain")
    x = logits_of(int(row_offsets[-1]), 3)
    v = verify_rejection(x, row_offsets, tokens, parents, kinds(2, 20), None, *params(20, 0.5), logprobs=True)
    for b in range(20):
        rows = int(row_offsets[b]) + torch.cat([torch.tensor([0]), v.path[b][: v.accepted[b]].long() + 1])
        want = torch.log_softmax(x[rows], 1).gather(1, v.emitted[b, : len(rows), None])[:, 0]
        torch.testing.assert_close(v.logprobs[b, : len(rows)], want, rtol=1e-5, atol=1e-5)
        assert v.logprobs[b, len(rows) :].isneginf().all()


def test_isas_and_thread_counts_give_the_same_bits(isas):
    g = torch.Generator().manual_seed(4)
    row_offsets, _, parents = random_trees(50, 8, 33, g)
    tokens, x = distinct_siblings(parents, 33, g), logits_of(int(row_offsets[-1]), 33)
    q, results = torch.softmax(torch.randn(x.shape, generator=g), 1), []
    for isa in isas:
        torch.ops.ssd.set_isa(isa)
        for threads in (1, 3, 2):
            torch.ops.ssd.bind_threads([-1] * threads)
            results.append(verify_rejection(x, row_offsets, tokens, parents, kinds(1, 50), q, *params(50), True))
    assert all(torch.equal(a, b) for r in results for a, b in zip(r, results[0], strict=True))


def test_opcheck():
    g = torch.Generator().manual_seed(0)
    row_offsets, _, parents = random_trees(4, 5, 9, g)
    tokens, x = distinct_siblings(parents, 9, g), logits_of(int(row_offsets[-1]), 9)
    q = torch.softmax(x, 1)
    op = torch.ops.ssd.verify_rejection.default
    torch.library.opcheck(op, (x, row_offsets, tokens, parents, kinds(1, 4), q, *params(4)))
    torch.library.opcheck(op, (x, row_offsets, tokens, parents, kinds(2, 4), None, *params(4), True))


def test_mismatches_of_kind_and_rule_are_refused():
    x, q, a = torch.zeros(2, 4), torch.full((2, 4), 0.25), params(1)
    with pytest.raises(ValueError, match="kinds: got 0 for request 0.*coupled proposals need verify_coupled"):
        verify_rejection(x, *ONE, kinds(Kind.COUPLED, 1), q, *a)
    with pytest.raises(ValueError, match="kinds: got 3 for request 0"):
        verify_rejection(x, *ONE, kinds(3, 1), q, *a)
    with pytest.raises(ValueError, match="q: got none for request 0"):
        verify_rejection(x, *ONE, kinds(Kind.SAMPLED, 1), None, *a)
    impossible = torch.tensor([[0.0, 0.5, 0.5, 0.0]] * 2)
    with pytest.raises(ValueError, match="q: got 0 in row 0 for a token proposed there"):
        verify_rejection(x, *ONE, kinds(Kind.SAMPLED, 1), impossible, *a)


def test_bad_arguments_are_named():
    x, q, a = torch.zeros(2, 4), torch.full((2, 4), 0.25), params(1)
    for bad in (q * 2, q * 0, torch.full_like(q, torch.nan), torch.tensor([[-1.0, 1, 0.5, 0.5]] * 2)):
        with pytest.raises(ValueError, match="q: row 0 is not a distribution"):
            verify_rejection(x, *ONE, kinds(1, 1), bad, *a)
    with pytest.raises(ValueError, match="q: got shape"):
        verify_rejection(x, *ONE, kinds(1, 1), q[:, :3].contiguous(), *a)
    for token in (-1, 4):
        with pytest.raises(ValueError, match=f"tokens: got {token} for node 0 of request 0, wanted 0 to 3"):
            verify_rejection(x, ONE[0], ONE[1] + token, ONE[2], kinds(2, 1), None, *a)
    with pytest.raises(ValueError, match="logits: got NaN or .inf in row 0"):
        verify_rejection(x + torch.inf, *ONE, kinds(2, 1), None, *a)
    with pytest.raises(ValueError, match="logits: got nothing but -inf in row 0"):
        verify_rejection(x - torch.inf, *ONE, kinds(2, 1), None, *a)
