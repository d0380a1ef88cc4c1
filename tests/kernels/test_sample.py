import backends
import numpy as np
import pytest
import torch
from logits_cases import FILTERS, logits_of
from sampling import every, params

from ssd.kernels import probs, sample
from ssd.kernels.sample import reference
from ssd.kernels.verify.reference import probs as reference_probs

ops = backends.fixture("cpu", "triton")


@pytest.mark.parametrize("vocab", backends.affordable([1, 5, 63, 64, 65, 1000, 5003], [5, 65]))
def test_matches_reference(ops, vocab):
    """The params of rows, each with its own."""
    a = every(ops.count(20, 1), backends.affordable([0, 0.01, 0.3, 1, 2], [0, 0.3]), FILTERS)
    x = logits_of(len(a[0]), vocab)
    tokens, logprobs = ops.sample(x, *a)
    want, want_logprobs = reference.sample(x, *a)
    wrong = (tokens != want).nonzero()[:, 0]
    assert not len(wrong), [p[wrong[0]] for p in a]
    torch.testing.assert_close(logprobs, want_logprobs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("vocab", [7, 64, 1003])
def test_probs_match_reference(vocab):
    x = logits_of(12, vocab)
    for filters in FILTERS:
        for temperature in (0, 0.5, 2):
            a = params(12, temperature, *filters)[:4]
            torch.testing.assert_close(probs(x, *a).double(), reference_probs(x, *a), rtol=1e-5, atol=1e-7)


def test_greedy_takes_the_lowest_id(ops):
    x = torch.zeros(3, 100)
    x[1, 40] = x[1, 70] = 1
    x[2, 99] = 1
    assert ops.sample(x, *params(3, 0))[0].tolist() == [0, 40, 99]
    assert ops.sample(x, *params(3, 1, top_k=1))[0].tolist() == [0, 40, 99]


def test_ties_at_a_filter_go_to_the_lower_ids():
    x = torch.zeros(1, 40)
    for a, kept in [(params(1, 1, top_k=7), 7), (params(1, 1, top_p=0.25), 10), (params(1, 1, min_p=1.0), 40)]:
        assert torch.nonzero(probs(x, *a[:4])[0])[:, 0].tolist() == list(range(kept))


def test_top_p_of_flat_and_of_peaked_distributions():
    flat = probs(torch.zeros(1, 20_000), *params(1, 1, top_p=0.5)[:4])[0]
    assert torch.nonzero(flat)[:, 0].tolist() == list(range(10_000))
    peaked = torch.full((1, 5001), -24.5)
    peaked[0, 7] = 0
    assert torch.nonzero(probs(peaked, *params(1, 1, top_p=0.999)[:4])[0])[:, 0].tolist() == [7]
    kept = torch.nonzero(probs(peaked, *params(1, 1, top_p=1 - 2**-24)[:4])[0])[:, 0]
    # the tail has more mass than 2^-24, so the lowest ids come first
    assert 1000 < len(kept) < 4000 and kept[-1] == len(kept) - 1


def test_isas_give_the_same_bits(isas):
    x = logits_of(8, 3001)
    for filters in FILTERS:
        for temperature in (0, 0.7, 1.5):
            a, results = params(8, temperature, *filters), []
            for isa in isas:
                torch.ops.ssd.set_isa(isa)
                results.append((*sample(x, *a), probs(x, *a[:4])))
            for got in results[1:]:
                assert all(torch.equal(g, w) for g, w in zip(got, results[0], strict=True))


def test_thread_counts_give_the_same_bits():
    x, a = logits_of(16, 777), params(16, 0.8, top_p=0.95)
    tokens, logprobs = sample(x, *a)
    for threads in (1, 3, 2):
        torch.ops.ssd.bind_threads([-1] * threads)
        got = sample(x, *a)
        assert torch.equal(got[0], tokens) and torch.equal(got[1], logprobs)


def test_a_row_depends_on_itself_alone(ops):
    rows = ops.count(16, 3)
    x, a = logits_of(rows, ops.count(777, 100)), every(rows, [0.8], [(0, 0.95, 0)])
    tokens, logprobs = ops.sample(x, *a)
    for r in range(0, rows, ops.count(1, 2)):
        alone = ops.sample(x[r : r + 1], *(p[r : r + 1] for p in a))
        assert alone[0][0] == tokens[r] and alone[1][0] == logprobs[r]


def test_tokens_of_no_probability_are_never_drawn(ops):
    rows = ops.count(2000, 6)
    x = torch.full((rows, 37), -torch.inf)
    x[:, 36] = 0
    assert (ops.sample(x, *params(rows, 2))[0] == 36).all()


def test_masked_tokens_are_never_drawn():
    x = torch.randn(2000, 37)
    x[:, 1::2] = -torch.inf
    assert (sample(x, *params(2000, 2))[0] % 2 == 0).all()
    assert (sample(x, *params(2000, 2, top_k=36))[0] % 2 == 0).all()


def test_filtered_tokens_are_never_drawn():
    x = logits_of(1, 203).expand(3000, 203).contiguous()
    for filters in FILTERS[1:]:
        a = params(3000, 1.5, *filters)
        kept = reference.survivors(x[0], 1.5, *filters)[0]
        drawn = np.unique(sample(x, *a)[0].numpy())
        assert np.isin(drawn, kept).all()
        assert len(drawn) == len(kept) or len(kept) > 3


def test_a_slice_of_a_padded_vocabulary(ops):
    rows = ops.count(9, 3)
    x = logits_of(rows, 128)
    x[:, 100:] = 1e9
    for cut in (x[:, :100], x[:, 3:100]):
        assert torch.equal(ops.sample(cut, *params(rows))[0], reference.sample(cut, *params(rows))[0])


@pytest.mark.parametrize("seed,word,chosen", [(1836991927, 0, 0), (1352247272, 2**32 - 1, 1)])
def test_the_smallest_and_greatest_noise(ops, seed, word, chosen):
    """The seeds were found by search: the word of token 0 at position 0 is 0, or 2^32 - 1."""
    seeds, positions = torch.tensor([seed]), torch.tensor([0])
    assert ops.noise_words(seeds, positions, 1)[0, 0] == word
    a = (*params(1)[:4], seeds, positions)
    x = torch.tensor([[-15.0 if word == 0 else 1.5, 0.0]])
    assert ops.sample(x, *a)[0] == reference.sample(x, *a)[0] == chosen
    assert ops.sample(x[:, :1].contiguous(), *a)[0] == 0


def test_large_and_small_temperatures(ops):
    rows = ops.count(50, 6)
    x = torch.randn(rows, ops.count(300, 60), generator=torch.Generator().manual_seed(0))
    for small in (1e-38, 1e-44):
        assert torch.equal(ops.sample(x, *params(rows, small))[0], x.argmax(1))
    assert ops.sample(x, *params(rows, 1e38))[0].unique().numel() > rows / 2
    assert torch.equal(ops.sample(x * 1e37, *params(rows, 1))[0], x.argmax(1))


def test_opcheck():
    torch.library.opcheck(torch.ops.ssd.sample.default, (logits_of(3, 50), *params(3)))
    torch.library.opcheck(torch.ops.ssd.sample.default, (logits_of(3, 50), *params(3), False))
    torch.library.opcheck(torch.ops.ssd.probs.default, (logits_of(3, 50), *params(3)[:4]))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("at", [0, 15, 16, 99])
@pytest.mark.parametrize("temperature", [0, 1])
def test_logits_that_are_not_numbers_name_the_row(bad, at, temperature):
    x = torch.zeros(4, 100)
    x[2, at] = bad
    for call in (lambda: sample(x, *params(4, temperature)), lambda: probs(x, *params(4, temperature)[:4])):
        with pytest.raises(ValueError, match=r"logits: got NaN or \+inf in row 2"):
            call()
    with pytest.raises(ValueError, match="logits: got nothing but -inf in row 1"):
        sample(torch.tensor([[0.0], [-torch.inf]]), *params(2, temperature))


def test_bad_arguments_are_named():
    x = torch.zeros(2, 10)
    for position, value, message in [
        (0, torch.tensor([1.0, -0.5]), "temperature: got -0.5 in entry 1"),
        (0, torch.tensor([1.0, torch.nan]), "temperature: got nan in entry 1"),
        (1, torch.tensor([0, -1], dtype=torch.int32), "top_k: got -1 in entry 1"),
        (2, torch.tensor([0.0, 1.0]), "top_p: got 0 in entry 0"),
        (3, torch.tensor([0.0, 1.5]), "min_p: got 1.5 in entry 1"),
        (4, torch.tensor([1]), "seeds: got 1 entries, wanted 2"),
        (5, torch.tensor([-1, 0]), "positions: got -1 in entry 0"),
    ]:
        a = list(params(2))
        a[position] = value
        with pytest.raises(ValueError, match=message):
            sample(x, *a)
    with pytest.raises(TypeError, match="logits: got dtype"):
        sample(x.half(), *params(2))
    with pytest.raises(ValueError, match="logits: got strides"):
        sample(torch.zeros(10, 2).t(), *params(2))
    with pytest.raises(ValueError, match="logits: got a vocabulary of 0"):
        sample(torch.zeros(2, 0), *params(2))
    assert sample(torch.zeros(0, 5), *params(0))[0].shape == (0,)
