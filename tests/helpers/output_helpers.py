"""Requests with penalties and biases, and everything that an output has."""

import torch

from ssd.runtime import SamplingParams

VOCAB = 272


PROMPTS = ["once upon a time", "ab" * 20, "x", "0123456789" * 4]


PENALISED = [
    dict(presence_penalty=1.5),
    dict(frequency_penalty=-0.7),
    dict(repetition_penalty=1.4),
    dict(repetition_penalty=0.7, frequency_penalty=0.4, presence_penalty=-1.0, logit_bias={97: 3.0, 5: -100, 271: 0.5}),
    dict(logit_bias={98: 100.0}),
]


def requests(**more):
    """(prompts, params) of every kind at temperature 0 and above, with and without filters."""
    cases = [(t, k, extra) for extra in PENALISED for t, k in ((0.0, 0), (0.9, 40))]
    params = [
        SamplingParams(
            temperature=t, top_k=k, seed=i, max_tokens=24, ignore_eos=True, top_logprobs=i % 3, **extra, **more
        )
        for i, (t, k, extra) in enumerate(cases)
    ]
    return [PROMPTS[i % len(PROMPTS)] for i in range(len(cases))], params


def told(outputs):
    return [(o.text, o.token_ids, o.logprobs, o.top_logprobs, o.finish_reason, o.index) for o in outputs]


def penalised(logits, prompt, answer, p):
    x = logits.clone()
    for token, bias in (p.logit_bias or {}).items():
        x[token] += bias
    for token in {*prompt, *answer}:
        x[token] = x[token] / p.repetition_penalty if x[token] > 0 else x[token] * p.repetition_penalty
    for token in set(answer):
        x[token] -= p.frequency_penalty * torch.tensor(float(answer.count(token)))
        x[token] -= p.presence_penalty
    return x
