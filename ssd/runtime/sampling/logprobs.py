"""Log-probabilities of emitted tokens and of the likeliest beside them, under the model's own distribution."""

import torch

from ssd import kernels

Logprobs = tuple[float, dict[int, float]]  # of a token, and of the likeliest ones


def logprobs_of(rows: torch.Tensor, tokens: list[int], top: int) -> list[Logprobs]:
    """Under log_softmax of logits float32 [n, vocab], for each row its token's and the `top` greatest, best first, the
    lower id first among equals. A row's values depend on that row alone."""
    n = len(tokens)
    greedy = (torch.zeros(n), torch.zeros(n, dtype=torch.int32), torch.ones(n), torch.zeros(n))
    greedy += (torch.zeros(n, dtype=torch.int64), torch.zeros(n, dtype=torch.int64))
    best, least = kernels.sample(rows, *greedy)  # log-probability of the greatest: -log sum exp(logit - greatest)
    ids = [torch.tensor(tokens)[:, None], best[:, None]]
    if top:
        ids.append(kernels.top_f(rows, *greedy, min(top, rows.shape[1]))[0])
    values = rows.gather(1, torch.cat(ids, 1)).double()
    values += least[:, None] - values[:, 1:2]
    found = zip(ids[-1].tolist() if top else [()] * n, values.tolist(), strict=True)
    return [(own, dict(zip(likeliest, others, strict=False))) for likeliest, (own, _, *others) in found]
