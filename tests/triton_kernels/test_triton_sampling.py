import pytest
import torch

from ssd.kernels.sample import reference
from ssd.kernels.sample import triton as form
from ssd.kernels.top_f import reference as top_f_reference
from ssd.kernels.top_f.triton import top_f
from ssd.kernels.verify import reference as verify_reference
from ssd.kernels.verify.triton import verify_coupled

VOCAB = 200


@pytest.fixture(autouse=True)
def short_chunks(monkeypatch):
    monkeypatch.setattr(form, "CHUNK", 128)  # two a row


def to(device, *tensors):
    return [t.to(device) for t in tensors]


def rows(count, **changes):
    """logits and parameters of `count` rows, one filter or temperature each."""
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
        9,
        temperature={1: 0, 2: 0.3, 3: 1.7, 8: 0},
        top_k={3: 7, 4: 30, 5: 9999},
        top_p={4: 0.8, 6: 0.35},
        min_p={5: 0.1},
    )
    args[0][3:5] = args[0][3:5].round()  # ties at the cut
    args[0][6, 150:] = -torch.inf
    args[0][8, 20:60] = args[0].max() + 1  # ties at the top: the lowest id
    return args


def test_noise_words_are_those_of_the_definition(device):
    seeds, positions = torch.tensor([5, -7, 2**62 + 11]), torch.tensor([0, 77, 2**31 + 3])
    for purpose in (0, 3):
        got = form.noise_words(*to(device, seeds, positions), 37, purpose)
        assert got.tolist() == reference.noise_words(seeds, positions, 37, purpose).tolist()


def test_sample_matches_reference(device):
    args = filtered()
    tokens, logprobs = form.sample(*to(device, *args))
    want, want_logprobs = reference.sample(*args)
    assert tokens.tolist() == want.tolist()
    torch.testing.assert_close(logprobs.cpu(), want_logprobs, rtol=1e-5, atol=1e-5)


def test_survivors_are_those_of_the_definition(device):
    args = filtered()
    cuts = form.open_rows(*to(device, *args[:5]), None)[1].cpu()
    for row in range(2, 7):
        keep, z = reference.survivors(args[0][row].numpy(), *(a[row].item() for a in args[1:5]))
        bits, ids = torch.from_numpy(-z).view(torch.int32) & 0x7FFFFFFF, torch.arange(VOCAB)
        mine = ids[(bits < cuts[row, 0]) | ((bits == cuts[row, 0]) & (ids <= cuts[row, 1]))]
        assert mine.tolist() == sorted(keep.tolist())


def test_row_alone_equals_row_among_others(device):
    args = to(device, *filtered())
    tokens, logprobs = form.sample(*args)
    for row in (0, 4):
        alone = form.sample(*(a[row : row + 1] for a in args))
        assert alone[0][0] == tokens[row] and alone[1][0] == logprobs[row]


def test_rows_that_cannot_be_drawn_give_no_token(device):
    args = rows(4)
    args[0][0, 5], args[0][1, 150], args[0][2] = torch.nan, torch.inf, -torch.inf
    tokens, logprobs = form.sample(*to(device, *args))
    assert tokens[:3].tolist() == [-1, -1, -1] and logprobs[:3].isnan().all()
    assert tokens[3] >= 0 and logprobs[3].isfinite()
    assert top_f(*to(device, *args), 2)[0][:3].tolist() == [[-1, -1]] * 3


@pytest.mark.parametrize("options", ["plain", "excluded", "trimmed"])
def test_top_f_matches_reference(device, options):
    args = rows(5, temperature={1: 0, 2: 0.6}, top_k={2: 2}, top_p={3: 0.3})
    args[0][4, 3:] = -torch.inf  # fewer tokens than asked for
    more = {}
    if options != "plain":
        more["exclude"] = torch.randint(-1, VOCAB, (5, 30))
        more["exclude"][:, 0] = top_f_reference.top_f(*args, 1)[:, 0]
    if options == "trimmed":
        more["target_ids"], more["purpose"] = torch.randperm(1000)[:VOCAB], 3
    ids, scores = top_f(*to(device, *args), 4, **{k: v.to(device) if k != "purpose" else v for k, v in more.items()})
    assert ids.tolist() == top_f_reference.top_f(*args, 4, **more).tolist()
    assert (scores.isfinite() == (ids >= 0)).all()
    inside = scores[[0, 3, 4]].nan_to_num(neginf=-1e9)
    assert (inside[:1].diff() <= 0).all()


def test_verify_coupled_matches_reference(device):
    """A request of one root, a chain that fits all the way, a tree whose second child of a node fits."""
    offsets = torch.tensor([0, 1, 5, 11], dtype=torch.int32)
    parents = torch.tensor([[9] * 5, [-1, 0, 1, 9, 9], [-1, 0, 0, 2, 2]], dtype=torch.int8)
    logits, *params = rows(11)
    params = [p[:3] for p in params]
    params[0][2] = 0
    tokens = torch.zeros(3, 5, dtype=torch.int32)
    for b, n in ((1, 3), (2, 5)):
        for i in range(n):
            parent, depth = int(parents[b, i]), 0
            row = int(offsets[b]) + parent + 1
            while parent >= 0:
                parent, depth = int(parents[b, parent]), depth + 1
            one = [p[b : b + 1] for p in params]
            tokens[b, i] = reference.sample(logits[row : row + 1], *one[:-1], one[-1] + depth)[0]
    tokens[2, 1] = (tokens[2, 1] + 1) % VOCAB
    got = verify_coupled(*to(device, logits, offsets, tokens, parents, *params), logprobs=True)
    want = verify_reference.verify_coupled(logits, offsets, tokens, parents, *params)
    assert [x.tolist() for x in got[:3]] == [x.tolist() for x in want]
    assert got[1].tolist() == [0, 3, 3]
    for b in range(3):
        assert got[3][b].isfinite().tolist() == (got[2][b] >= 0).tolist()


def test_bad_arguments_are_named(device):
    args = to(device, *rows(2))
    with pytest.raises(TypeError, match="top_k: got dtype"):
        form.sample(*args[:2], args[2].long(), *args[3:])
    with pytest.raises(ValueError, match="logits: got"):
        form.sample(args[0].half(), *args[1:])
