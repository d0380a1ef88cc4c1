"""The choice of tokens from logits, greedy and at temperature 1, against torch's argmax and multinomial."""

import torch

from ssd.kernels import sample
from ssd.kernels.sample import reference

from . import Case, copies

VOCABULARIES = (49152, 128256)
SETTINGS = {"greedy": (0.0, 1.0), "temperature 1": (1.0, 1.0), "temperature 1, top-p 0.9": (1.0, 0.9)}


def cases(device: str, _):
    if device != "cpu":
        return
    for vocab in VOCABULARIES:
        for rows in (1, 8):
            for setting, (temperature, top_p) in SETTINGS.items():
                yield case(vocab, rows, setting, temperature, top_p)


def case(vocab: int, rows: int, setting: str, temperature: float, top_p: float) -> Case:
    many = copies(4 * rows * vocab)
    logits = (3 * torch.randn(4, rows, vocab)).repeat(-(-many // 4), 1, 1)
    settings = (
        torch.full((rows,), temperature),
        torch.zeros(rows, dtype=torch.int32),
        torch.full((rows,), top_p),
        torch.zeros(rows),
        torch.arange(rows),
        torch.arange(rows) + 100,
    )

    def run(turn):
        return sample(logits[turn % len(logits)], *settings, False)[0]

    def torchs(turn):
        x = logits[turn % len(logits)]
        if temperature == 0:
            return x.argmax(-1)
        p = x.softmax(-1)
        if top_p < 1:
            p, ids = p.sort(-1, descending=True)
            p = p.masked_fill_(p.cumsum(-1) - p >= top_p, 0)
            return ids.gather(-1, torch.multinomial(p, 1))
        return torch.multinomial(p, 1)

    return Case(
        op="sample",
        shape=f"{rows}x{vocab} {setting}",
        run=run,
        bytes=4 * rows * vocab,
        flops=0,
        check=lambda: bool((run(0) == reference.sample(logits[0], *settings)[0]).all()),
        baselines={"torch": torchs},
    )
