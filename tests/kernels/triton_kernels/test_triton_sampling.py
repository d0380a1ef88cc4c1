"""What only the Triton kernels do; test_sample.py and similar tests check what they draw."""

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from ssd.kernels.sample import reference
from ssd.kernels.sample import triton as form
from ssd.kernels.sample import triton_filters as filters
from ssd.kernels.sample.triton import log_exponential
from ssd.kernels.top_f.triton import top_f

VOCAB = 200


@pytest.fixture(autouse=True)
def short_chunks(monkeypatch):
    monkeypatch.setattr(filters, "CHUNK", 128)  # two in each row
    monkeypatch.setattr(filters, "BLOCK", 32)


def to(device, *tensors):
    return [t.to(device) for t in tensors]


def rows(count, **changes):
    """Logits and parameters of `count` rows, each with one filter or temperature."""
    torch.manual_seed(0)
    params = {
        "logits": torch.randn(count, VOCAB) * 3,
        "temperature": torch.ones(count),
        "top_k": torch.zeros(count, dtype=torch.int32),
        "top_p": torch.ones(count),
        "min_p": torch.zeros(count),
        "seeds": torch.randint(-(2**63), 2**63 - 1, (count,)),
        "positions": torch.randint(0, 10**6, (count,)),
    }
    for name, values in changes.items():
        for row, value in values.items():
            params[name][row] = value
    return list(params.values())


def filtered():
    args = rows(
        10,
        temperature={1: 0, 2: 0.3, 3: 1.7, 8: 0},
        top_k={3: 7, 4: 30, 5: 9999, 9: VOCAB - 1},
        top_p={4: 0.8, 6: 0.35, 7: 0.5},
        min_p={5: 0.1},
    )
    args[0][7] = 0  # half of the tokens, and not one more
    args[0][3:5] = args[0][3:5].round()  # ties at the threshold
    args[0][6, 150:] = -torch.inf
    args[0][8, 20:60] = args[0].max() + 1  # ties at the top: the lowest id wins
    return args


def test_noise_words_are_those_of_the_definition(device):
    seeds, positions = torch.tensor([5, -7, 2**62 + 11]), torch.tensor([0, 77, 2**31 + 3])
    for purpose in (0, 3):
        got = form.noise_words(*to(device, seeds, positions), 37, purpose)
        assert got.tolist() == reference.noise_words(seeds, positions, 37, purpose).tolist()


@triton.jit
def log_exponential_kernel(words, out, N: tl.constexpr):
    o_n = tl.arange(0, N)
    tl.store(out + o_n, log_exponential(tl.load(words + o_n)))


def test_exponentials_are_exact_where_they_are_small(device):
    """The smallest exponentials belong to the tokens that are drawn; a logarithm of 1 - w in float32 would make them
    0."""
    words = np.concatenate([np.arange(64), 3 ** np.arange(20), 2**32 - 1 - np.arange(44)]).astype(np.uint64)
    out = torch.empty(128, device=device)
    log_exponential_kernel[(1,)](torch.from_numpy(words.astype(np.int64)).to(device), out, N=128)
    want = torch.from_numpy(np.log(reference.exponential(words))).float()
    torch.testing.assert_close(out.cpu(), want, rtol=1e-5, atol=1e-5)


def test_survivors_are_those_of_the_definition(device):
    args = filtered()
    cuts = filters.open_rows(*to(device, *args[:5]), None)[1].cpu()
    for row in (2, 3, 4, 5, 6, 7, 9):
        keep, z = reference.survivors(args[0][row].numpy(), *(a[row].item() for a in args[1:5]))
        bits, ids = torch.from_numpy(-z).view(torch.int32) & 0x7FFFFFFF, torch.arange(VOCAB)
        mine = ids[(bits < cuts[row, 0]) | ((bits == cuts[row, 0]) & (ids <= cuts[row, 1]))]
        assert mine.tolist() == sorted(keep.tolist())


def test_rows_that_cannot_be_drawn_give_no_token(device):
    args = rows(4)
    args[0][0, 5], args[0][1, 150], args[0][2] = torch.nan, torch.inf, -torch.inf
    tokens, logprobs = form.sample(*to(device, *args))
    assert tokens[:3].tolist() == [-1, -1, -1] and logprobs[:3].isnan().all()
    assert tokens[3] >= 0 and logprobs[3].isfinite()
    assert top_f(*to(device, *args), 2)[0][:3].tolist() == [[-1, -1]] * 3


def test_bad_arguments_are_named(device):
    args = to(device, *rows(2))
    with pytest.raises(TypeError, match="top_k: got dtype"):
        form.sample(*args[:2], args[2].long(), *args[3:])
    with pytest.raises(ValueError, match="logits: got"):
        form.sample(args[0].half(), *args[1:])
