import numpy as np
import pytest
import torch
from scipy import stats

from ssd.kernels import noise_words
from ssd.kernels.sample import reference

# counter, key, result: known answers, published with the generator (Random123, kat_vectors)
KNOWN = [
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


@pytest.mark.parametrize("counter,key,want", KNOWN)
def test_known_answers(counter, key, want):
    assert torch.ops.ssd.philox(counter, key) == want
    assert [int(w) for w in reference.philox(*counter, *key)] == want


@pytest.mark.parametrize("ids", [1, 3, 64, 65, 1003])
def test_words_are_those_of_the_reference(ids, isas):
    seeds, positions = torch.tensor([0, -5, 2**63 - 1, 12345]), torch.tensor([0, 7, 2**31 - 1, 40])
    for purpose in range(4):
        want = reference.noise_words(seeds.numpy(), positions.numpy(), ids, purpose).astype(np.int64)
        for isa in isas:
            torch.ops.ssd.set_isa(isa)
            assert np.array_equal(noise_words(seeds, positions, ids, purpose).numpy(), want)


def test_word_of_an_id_is_word_id_mod_4_of_block_id_div_4():
    words = noise_words(torch.tensor([0x1234567890]), torch.tensor([77]), 30, 2)[0]
    for i in range(30):
        assert words[i] == torch.ops.ssd.philox([77, i // 4, 2, 0], [0x34567890, 0x12])[i % 4]


def test_uniform_is_open():
    assert reference.uniform(np.array([0], dtype=np.uint64))[0] == 2.0**-33
    assert reference.uniform(np.array([2**32 - 1], dtype=np.uint64))[0] == np.float32(1 - 2**-24)
    assert np.isfinite(np.log(reference.exponential(np.array([0, 2**32 - 1], dtype=np.uint64)))).all()


def test_noise_is_uniform():
    words = noise_words(torch.arange(50), torch.arange(50), 20_000).numpy().ravel()
    assert stats.kstest(words / 2.0**32, "uniform").pvalue > 1e-6
    bits = (words[:, None] >> np.arange(32) & 1).mean(0)
    assert np.abs(bits - 0.5).max() < 5.5 * 0.5 / np.sqrt(len(words))


@pytest.mark.parametrize("along", ["ids", "ids apart by 4", "positions", "seeds", "purposes"])
def test_noise_is_independent(along):
    """Pairs of neighbours fill a 16 x 16 table evenly."""
    n, zero = 300_000, torch.zeros(300_000, dtype=torch.int64)
    if along.startswith("ids"):
        words = noise_words(zero[:1] + 3, zero[:1] + 8, n)[0]
        step = 4 if "4" in along else 1
        a, b = words[:-step], words[step:]
    elif along == "positions":
        words = noise_words(zero + 3, torch.arange(n), 1)[:, 0]
        a, b = words[:-1], words[1:]
    elif along == "seeds":
        words = noise_words(torch.arange(n), zero + 8, 1)[:, 0]
        a, b = words[:-1], words[1:]
    else:
        a, b = (noise_words(torch.arange(n), zero + 8, 1, purpose)[:, 0] for purpose in (0, 3))
    table = np.bincount((a >> 28) * 16 + (b >> 28), minlength=256)
    assert stats.chisquare(table).pvalue > 1e-6


def test_bad_arguments_are_named():
    one = torch.zeros(1, dtype=torch.int64)
    with pytest.raises(ValueError, match="positions: got -1 in entry 0"):
        noise_words(one, one - 1, 4)
    with pytest.raises(ValueError, match="purpose: got 9"):
        noise_words(one, one, 4, 9)
    with pytest.raises(ValueError, match="ids: got -1"):
        noise_words(one, one, -1)


def test_opcheck():
    torch.library.opcheck(torch.ops.ssd.noise_words.default, (torch.arange(3), torch.arange(3), 10))
