"""Rejection sampling through the whole engine: the joint distribution of three tokens against the exact one.

6,000 answers each; a result passes if chi-squared (cells with an expectation below 5 pooled) is not significant at
1e-6. A planted bias must fail.
"""

import numpy as np
import pytest
import tiny_checkpoint
import torch
from draft_helpers import write_draft
from fakes import FakeTokenizer
from model_helpers import one_request
from scipy import stats

from ssd.kernels import probs
from ssd.model.draft import Draft
from ssd.model.llama import Llama
from ssd.runtime import LLM, SamplingParams

VOCAB, DRAWS, PROMPT = 6, 6000, [1, 2, 1, 2, 3, 1, 2]
PARAMS = dict(temperature=0.9, top_k=5, ignore_eos=True)
SMALL = dict(vocab_size=VOCAB, bos_token_id=0, eos_token_id=0)


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return Llama.load(tiny_checkpoint.write(tmp_path_factory.mktemp("tiny"), **SMALL), "fp32")


@pytest.fixture(scope="module")
def exact(target):
    """Length of an answer to the chances of its last three tokens, [216]."""
    return {length: answers_of(target, length) for length in (3, 5)}


def answers_of(target, length):
    p = torch.ones(1)
    for depth in range(length):
        heads = torch.cartesian_prod(*[torch.arange(VOCAB)] * depth).view(-1, depth) if depth else torch.empty(1, 0)
        logits = torch.cat([
            target.forward(one_request([*PROMPT, *head.long().tolist()]), target.new_kv_cache(2))[-1:] for head in heads
        ])  # fmt: skip
        rows = len(logits)
        values = (torch.full((rows,), 0.9), torch.full((rows,), 5, dtype=torch.int32), torch.ones(rows))
        p = (p[:, None] * probs(logits, *values, torch.zeros(rows))).flatten()
    return p.view(-1, VOCAB**3).sum(0).double().numpy()


def significance(target, exact, draft, **options):
    llm = LLM.from_model(
        target, FakeTokenizer(), draft=draft, verify="rejection", max_batch=64, max_model_len=32, threads=1,
        **({"mode": "sd"} | options),
    )  # fmt: skip
    length = 5 if options.get("mode") == "ssd" else 3  # the draft lane starts with the second token
    exact, params = exact[length], [SamplingParams(seed=s, max_tokens=length, **PARAMS) for s in range(DRAWS)]
    outputs = llm.generate([PROMPT] * DRAWS, params)
    cells = [a * VOCAB * VOCAB + b * VOCAB + c for a, b, c in (o.token_ids[-3:] for o in outputs)]
    counts, wanted = np.bincount(cells, minlength=VOCAB**3), exact * DRAWS
    if counts[exact == 0].any():
        return 0.0
    large = wanted >= 5
    observed, wanted = (np.append(x[large], x[~large].sum()) for x in (counts, wanted))
    used = wanted > 0
    chi2 = ((observed[used] - wanted[used]) ** 2 / wanted[used]).sum()
    assert llm.metrics.accepted and llm.metrics.accepted[0] > 0
    return stats.chi2.sf(chi2, used.sum() - 1)


CASES = [
    (dict(depth=1, **SMALL), dict(k=2)),
    (dict(depth=1, **SMALL), dict(k=2, tree_width=3)),
    (dict(depth=1, **SMALL), dict(k=1, tree_width=2, saguaro=0.3)),
    (dict(depth=1, **SMALL, seed=4), dict(tree_width=2)),
    (dict(layers=[1, 2], **SMALL), dict(k=2)),
    ("ngram", dict(k=2, tree_width=2)),
    (dict(depth=1, **SMALL), dict(mode="ssd", k=2, branches=128, lockstep=True)),
    (dict(layers=[1, 2], **SMALL), dict(mode="ssd", k=1, branches=128, lockstep=True, saguaro=0.5)),
]


@pytest.mark.parametrize("draft, options", CASES)
def test_answers_have_the_targets_distribution(draft, options, target, exact, tmp_path):
    if draft != "ngram":
        draft = Draft.load(write_draft(tmp_path / "d", **draft), target, "fp32")
    assert significance(target, exact, draft, **options) > 1e-6


def test_a_planted_bias_is_found(target, exact, tmp_path, monkeypatch):
    """The draft's own choice dropped where its probability is small, as pruning by confidence would do."""
    from ssd.runtime import candidates

    best = candidates.Sampled.best

    def pruned(self, *args):
        found = best(self, *args)
        chosen = [[t if found.q[i, t] > 0.25 else -1 for t in row] for i, row in enumerate(found.tokens)]
        return found._replace(tokens=chosen)

    monkeypatch.setattr(candidates.Sampled, "best", pruned)
    draft = Draft.load(write_draft(tmp_path / "d", depth=1, **SMALL), target, "fp32")
    assert significance(target, exact, draft, k=2) < 1e-6
