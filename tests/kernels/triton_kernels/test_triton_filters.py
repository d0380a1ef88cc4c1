"""The filters keep the tokens of the definition, whatever the blocks in which they are sorted and the rows beside."""

import numpy as np
import pytest
import torch

from ssd.kernels.sample import reference
from ssd.kernels.sample import triton_filters as form

VOCAB = 150
ALL, NO_ID = 0x7F7FFFFF, 0x7FFFFFFF


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch):
    monkeypatch.setattr(form, "CHUNK", 128)
    monkeypatch.setattr(form, "BLOCK", 32)


def logits_of(kind, generator):
    x = torch.randn(VOCAB, generator=generator) * 3
    match kind:
        case "ties":
            return x.round()
        case "flat":
            return torch.zeros(VOCAB)
        case "two levels":
            return (x > 2).float() * 1.5
        case "few":
            x[torch.rand(VOCAB, generator=generator) < 0.9] = -torch.inf
        case "peaked":
            x[77] = 60
        case "wide":
            return x * 1e37
    return x


KINDS = ("random", "ties", "flat", "two levels", "few", "peaked", "wide")
SETTINGS = [  # temperature, top_k, top_p, min_p
    (1, 1, 1, 0),
    (1, 40, 1, 0),
    (0.7, VOCAB - 1, 0.9, 0),
    (1.3, VOCAB, 0.5, 0),
    (1, 9999, 1, 0.1),
    (1, 0, 1e-6, 0),
    (1, 0, 0.5, 0),
    (2, 0, 1 - 2**-24, 0),
    (1, 20, 0.75, 0.02),
    (1e-30, 7, 0.9, 0),
    (1e30, 11, 0.3, 0.5),
    (1, 0, 1, 1.0),
    (1, 0, 1, 0),
]


def rows(device):
    """Logits and parameters of all kinds with all settings, and the cases' names."""
    generator = torch.Generator().manual_seed(0)
    cases = [(kind, settings) for kind in KINDS for settings in SETTINGS]
    logits = torch.stack([logits_of(kind, generator) for kind, _ in cases])
    t, k, p, m = (torch.tensor(values) for values in zip(*(settings for _, settings in cases), strict=True))
    return cases, [a.to(device) for a in (logits, t.float(), k.int(), p.float(), m.float())]


def kept(x, temperature, cut):
    z = (x - x.max()) * np.float32(1 / np.float32(temperature))
    bits = torch.from_numpy(-z).view(torch.int32).numpy() & 0x7FFFFFFF
    return np.flatnonzero((bits < cut[0]) | ((bits == cut[0]) & (np.arange(VOCAB) <= cut[1])))


@pytest.fixture(scope="module")
def found(device):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(form, "CHUNK", 128)
        patch.setattr(form, "BLOCK", 32)
        cases, args = rows(device)
        return cases, args, form.open_rows(*args, None)[1].cpu()


@pytest.mark.filterwarnings("ignore:overflow")
def test_survivors_are_those_of_the_definition(found):
    cases, args, cuts = found
    for (kind, settings), x, cut in zip(cases, args[0].cpu().numpy(), cuts.tolist(), strict=True):
        want = reference.survivors(x, *settings)[0]
        assert kept(x, settings[0], cut).tolist() == sorted(want.tolist()), (kind, settings)


def test_a_row_that_asks_for_no_filter_keeps_all(found):
    cases, _, cuts = found
    off = [i for i, (_, settings) in enumerate(cases) if settings[1:] == (0, 1, 0)]
    assert len(off) == len(KINDS) and cuts[off].tolist() == [[ALL, NO_ID]] * len(off)


@pytest.mark.parametrize("changes", [{"BLOCK": 16}, {"BLOCK": 128, "CHUNK": 64}, {"SCRATCH": 1}])
def test_cuts_do_not_depend_on_blocks_and_rows(found, changes, monkeypatch):
    _, args, cuts = found
    for name, value in changes.items():
        monkeypatch.setattr(form, name, value)
    some = range(0, len(cuts), 9)
    part = [a[::9].contiguous() for a in args]
    assert torch.equal(form.open_rows(*part, None)[1].cpu(), cuts[list(some)])


def test_parameters_by_entry(found, device):
    _, args, cuts = found
    order = torch.tensor([20, 3, 46], dtype=torch.int32, device=device)
    got = form.open_rows(args[0][order.long()], *args[1:], order)[1]
    assert torch.equal(got.cpu(), cuts[order.long().cpu()])
