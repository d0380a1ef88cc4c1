import backends
import numpy as np
import pytest
import torch
from logits_cases import FILTERS, logits_of
from sampling import every, params

from ssd.kernels import top_f
from ssd.kernels.top_f import reference

ops = backends.fixture("cpu", "triton")


@pytest.mark.parametrize("vocab", backends.affordable([1, 5, 64, 65, 1003], [65]))
@pytest.mark.parametrize("f", backends.affordable([1, 3, 24], [3]))
@pytest.mark.parametrize("purpose", backends.affordable([0, 3], [3]))
def test_matches_reference(ops, vocab, f, purpose):
    a = every(ops.count(10, 1), backends.affordable([0, 0.5, 1.5], [1.5]), backends.affordable(FILTERS, FILTERS[2:5]))
    x = logits_of(len(a[0]), vocab)
    got, want = ops.top_f(x, *a, f, purpose=purpose)[0], reference.top_f(x, *a, f, purpose=purpose)
    wrong = (got != want).any(1).nonzero()[:, 0]
    assert not len(wrong), [p[wrong[0]] for p in a]


@pytest.mark.parametrize("temperature", backends.affordable([0, 0.7, 2], [0.7]))
def test_excluded_ids_do_not_count(ops, temperature):
    rows = ops.count(30, 1)
    x, a = logits_of(rows, ops.count(200, 60)), params(rows, temperature, top_k=20)
    best = ops.top_f(x, *a, 12)[0]
    exclude = torch.stack([best[:, 0], best[:, 5], torch.full((rows,), -1), best[:, 3]], 1)
    got = ops.top_f(x, *a, 8, exclude=exclude)[0]
    assert torch.equal(got, reference.top_f(x, *a, 8, exclude=exclude))
    assert torch.equal(got, best[:, [1, 2, 4, 6, 7, 8, 9, 10]])


@pytest.mark.parametrize("temperature", backends.affordable([0, 1], [1]))
def test_trimmed_vocabulary_uses_the_noise_of_the_target(ops, temperature):
    """A draft that knows some ids only finds the best of the full vocabulary with all others masked."""
    rows = ops.count(40, 1)
    full = torch.randn(rows, 501, generator=torch.Generator().manual_seed(1))
    a = params(rows, temperature)
    for ids in (torch.arange(0, 501, 5) + 0, torch.randperm(501)[:77], torch.tensor([500])):
        masked = torch.full_like(full, -torch.inf)
        masked[:, ids] = full[:, ids]
        want = reference.top_f(masked, *a, 6)
        trimmed = full[:, ids].contiguous()
        got = ops.top_f(trimmed, *a, 6, target_ids=ids)[0]
        assert torch.equal(got, want)
        assert torch.equal(got, reference.top_f(trimmed, *a, 6, target_ids=ids))
        some = ops.top_f(trimmed, *a, 6, target_ids=ids, exclude=want[:, :2].contiguous())[0]
        assert torch.equal(some[:, :4], want[:, 2:])


def test_scores_and_padding(ops):
    x = torch.full((2, 9), -torch.inf)
    x[:, 2:5] = torch.tensor([0.0, 2.0, 1.0])
    ids, scores = ops.top_f(x, *params(2, 0), 5)
    assert ids.tolist() == [[3, 4, 2, -1, -1]] * 2
    assert scores.tolist() == [[0, -1, -2, -torch.inf, -torch.inf]] * 2
    ids, scores = ops.top_f(x, *params(2, 1.3), 5, exclude=torch.tensor([[2, 3], [4, -1]]))
    assert (ids >= 0).sum(1).tolist() == [1, 2]
    assert (scores[:, :-1] >= scores[:, 1:]).all()
    none = ops.top_f(x, *params(2, 1.3), 5, exclude=torch.tensor([[2, 3, 4]] * 2))[0]
    assert (none == -1).all()


def test_of_equal_scores_the_lower_id_comes_first(ops):
    x = torch.zeros(1, 100)
    x[0, [90, 30, 70]] = 1
    x[0, 0] = -0.0
    assert ops.top_f(x, *params(1, 0), 5)[0].tolist() == [[30, 70, 90, 0, 1]]


def test_survivors_come_before_the_others(ops):
    rows = ops.count(50, 2)
    x, a = logits_of(rows, 90), params(rows, 1, top_k=4)
    ids = ops.top_f(x, *a, 9)[0]
    top = x.sort(dim=1, descending=True, stable=True).indices[:, :4]
    assert torch.equal(ids[:, :4].sort(1).values, top.sort(1).values)
    assert not (ids[:, 4:, None] == top[:, None]).any()


def test_the_first_is_the_token_that_the_target_would_draw(ops):
    a = every(ops.count(300, 1), [1], backends.affordable(FILTERS, FILTERS[3:5]))
    x = logits_of(len(a[0]), ops.count(777, 50))
    assert torch.equal(ops.top_f(x, *a, 5)[0][:, 0], ops.sample(x, *a)[0])


def test_isas_and_thread_counts_give_the_same_bits(isas):
    x, a = logits_of(24, 1001), params(24, 0.9, top_p=0.8)  # enough rows for several threads
    results = []
    for isa in isas:
        torch.ops.ssd.set_isa(isa)
        for threads in (1, 3):
            torch.ops.ssd.bind_threads([-1] * threads)
            results.append(top_f(x, *a, 40))
            results.append(top_f(x, *a, 40, target_ids=torch.arange(1001)))
    torch.ops.ssd.bind_threads([-1, -1])
    assert all(torch.equal(i, results[0][0]) and torch.equal(s, results[0][1]) for i, s in results)


def test_purpose_3_samples_without_replacement():
    """Ordered pairs of 5 tokens follow the exact distribution in 300,000 draws."""
    logits = torch.tensor([[0.0, 1.0, -1.0, 0.5, -2.0]])
    n, p = 300_000, torch.softmax(logits[0].double() / 0.8, 0).numpy()
    ids = top_f(logits.expand(n, 5).contiguous(), *params(n, 0.8), 2, purpose=3)[0].numpy()
    want = np.outer(p, p) / (1 - p)[:, None]
    np.fill_diagonal(want, 0)
    got = np.bincount(ids[:, 0] * 5 + ids[:, 1], minlength=25).reshape(5, 5) / n
    assert abs(want.sum() - 1) < 1e-9
    assert np.abs(got - want).max() < 5 * np.sqrt(0.25 / n)


def test_opcheck():
    x, a = logits_of(3, 20), params(3)
    torch.library.opcheck(torch.ops.ssd.top_f.default, (x, *a, 4))
    torch.library.opcheck(
        torch.ops.ssd.top_f.default, (x, *a, 4, torch.zeros(3, 2, dtype=torch.int64), torch.arange(20))
    )


def test_bad_arguments_are_named():
    x, a = torch.zeros(2, 10), params(2)
    with pytest.raises(ValueError, match="f: got 0"):
        top_f(x, *a, 0)
    with pytest.raises(ValueError, match="exclude: got 3 rows, wanted 2"):
        top_f(x, *a, 2, exclude=torch.zeros(3, 1, dtype=torch.int64))
    with pytest.raises(ValueError, match="target_ids: got 9 entries, wanted 10"):
        top_f(x, *a, 2, target_ids=torch.arange(9))
    with pytest.raises(ValueError, match="target_ids: got -1 in entry 0"):
        top_f(x, *a, 2, target_ids=torch.arange(10) - 1)
    with pytest.raises(ValueError, match="target_ids: got 2147483648 in entry 9, wanted 0 to 2"):
        top_f(x, *a, 2, target_ids=torch.arange(10) + 2**31 - 9)
    with pytest.raises(ValueError, match="purpose: got 4"):
        top_f(x, *a, 2, purpose=4)
    x[1, 3] = torch.nan
    with pytest.raises(ValueError, match="logits: got NaN or .inf in row 1"):
        top_f(x, *a, 2)
