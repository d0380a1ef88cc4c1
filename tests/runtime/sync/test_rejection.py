"""Rejection sampling through the whole engine: the joint distribution of three tokens against the exact one.

There are 6,000 answers, or 1,500 where a test says so. A result passes if chi-squared (with cells below an expectation
of 5 pooled) is not significant at 1e-6. A planted bias must fail.
"""

import numpy as np
import pytest
import tiny_checkpoint
import torch
from draft_helpers import write_draft
from fakes import FakeTokenizer
from model_helpers import one_request
from output_helpers import penalised
from scipy import stats

from ssd.kernels import probs
from ssd.model.draft import Draft
from ssd.model.llama import Llama
from ssd.runtime import LLM, SamplingParams
from ssd.runtime.sampling.grammar import Mask

VOCAB, DRAWS, PROMPT = 6, 6000, [1, 2, 1, 2, 3, 1, 2]
PARAMS = dict(temperature=0.9, top_k=5, ignore_eos=True)
SMALL = dict(vocab_size=VOCAB, bos_token_id=0, eos_token_id=0)


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return Llama.load(tiny_checkpoint.write(tmp_path_factory.mktemp("tiny"), **SMALL), "fp32")


@pytest.fixture(scope="module")
def exact(target):
    """Chances of the last three tokens, [216], by length of the answer."""
    return {length: answers_of(target, length) for length in (3, 5)}


def answers_of(target, length, change=lambda logits, answer: logits):
    p = torch.ones(1)
    for depth in range(length):
        heads = torch.cartesian_prod(*[torch.arange(VOCAB)] * depth).view(-1, depth) if depth else torch.empty(1, 0)
        logits = torch.cat([
            change(target.forward(one_request([*PROMPT, *head]), target.new_kv_cache(2))[-1:], head)
            for head in heads.long().tolist()
        ])  # fmt: skip
        rows = len(logits)
        values = (torch.full((rows,), 0.9), torch.full((rows,), 5, dtype=torch.int32), torch.ones(rows))
        p = (p[:, None] * probs(logits, *values, torch.zeros(rows))).flatten()
    return p.view(-1, VOCAB**3).sum(0).double().numpy()


def significance(target, exact, draft, extra=None, grammar=None, draws=DRAWS, length=3, **options):
    llm = LLM.from_model(
        target, FakeTokenizer(), draft=draft, verify="rejection", max_batch=64, max_model_len=32, threads=1,
        **({"mode": "sd"} | options),
    )  # fmt: skip
    if grammar:
        llm.grammars.start = lambda params: Mask(grammar.deep_copy(), frozenset(), VOCAB)
    exact, asked = exact[length], PARAMS | (extra or {})
    params = [SamplingParams(seed=s, max_tokens=length, **asked) for s in range(draws)]
    outputs = llm.generate([PROMPT] * draws, params)
    cells = [a * VOCAB * VOCAB + b * VOCAB + c for a, b, c in (o.token_ids[-3:] for o in outputs)]
    counts, wanted = np.bincount(cells, minlength=VOCAB**3), exact * draws
    if counts[exact == 0].any():
        return 0.0
    large = wanted >= 5
    observed, wanted = (np.append(x[large], x[~large].sum()) for x in (counts, wanted))
    used = wanted > 0
    chi2 = ((observed[used] - wanted[used]) ** 2 / wanted[used]).sum()
    assert llm.metrics.accepted and llm.metrics.accepted[0] > 0
    return stats.chi2.sf(chi2, used.sum() - 1)


# the draft lane starts with the second token of an answer, so answers are longer there
CASES = [
    (dict(depth=1, **SMALL), dict(k=2)),
    (dict(depth=1, **SMALL), dict(k=2, tree_width=3)),
    (dict(depth=1, **SMALL), dict(k=1, tree_width=2, saguaro=0.3)),
    (dict(depth=1, **SMALL, seed=4), dict(tree_width=2)),
    (dict(layers=[1, 2], **SMALL), dict(k=2)),
    ("ngram", dict(k=2, tree_width=2)),
    (dict(depth=1, **SMALL), dict(mode="ssd", k=2, branches=128, lockstep=True, length=5)),
    (dict(layers=[1, 2], **SMALL), dict(mode="ssd", k=1, branches=128, lockstep=True, length=5, saguaro=0.5)),
]


@pytest.mark.parametrize("draft, options", CASES)
def test_answers_have_the_targets_distribution(draft, options, target, exact, tmp_path):
    if draft != "ngram":
        draft = Draft.load(write_draft(tmp_path / "d", **draft), target, "fp32")
    assert significance(target, exact, draft, **options) > 1e-6


EXTRA = dict(presence_penalty=0.8, frequency_penalty=-0.5, repetition_penalty=1.3, logit_bias={4: 1.5})


class Steps:
    """A grammar by hand, with the interface of llguidance's matcher: no token follows itself or the one before it."""

    def __init__(self, last=None):
        self.last = last

    def deep_copy(self):
        return Steps(self.last)

    def refused(self):
        return [] if self.last is None else [self.last, (self.last - 1) % VOCAB]

    def try_consume_tokens(self, tokens):
        taken = 0
        while taken < len(tokens) and tokens[taken] not in self.refused():
            self.last, taken = tokens[taken], taken + 1
        return taken

    def is_error(self):
        return False

    def compute_bitmask(self):
        return bytes([sum(1 << t for t in range(VOCAB) if t not in self.refused())])


def penalty(logits, answer):
    return penalised(logits[0], PROMPT, answer, SamplingParams(**EXTRA))[None]


def masked(logits, answer):
    grammar = Steps()
    grammar.try_consume_tokens(answer)
    logits = logits.clone()
    logits[0, grammar.refused()] = -torch.inf
    return logits


@pytest.fixture(scope="module")
def changed(target):
    return {(change, n): answers_of(target, n, change) for change, n in ((penalty, 3), (masked, 3), (masked, 4))}


CHANGED = [
    (penalty, dict(k=2)), (penalty, dict(k=2, tree_width=3)), (masked, dict(k=2)), (masked, dict(k=2, tree_width=3)),
    (masked, dict(mode="ssd", k=2, branches=128, lockstep=True, length=4)),
]  # fmt: skip


@pytest.mark.parametrize("change, options", CHANGED)
def test_penalties_and_grammars_are_part_of_the_targets_distribution(change, options, target, changed, tmp_path):
    draft = Draft.load(write_draft(tmp_path / "d", depth=1, **SMALL), target, "fp32")
    asked = dict(extra=EXTRA) if change is penalty else dict(grammar=Steps())
    exact = {n: p for (kind, n), p in changed.items() if kind is change}
    assert significance(target, exact, draft, draws=1500, **asked, **options) > 1e-6


def test_what_an_ngram_proposes_against_the_grammar_is_left_out(target, changed):
    assert significance(target, {3: changed[masked, 3]}, "ngram", grammar=Steps(), draws=1500, k=2, tree_width=2) > 1e-6


def test_a_planted_bias_is_found(target, exact, tmp_path, monkeypatch):
    """The draft drops its own choice if its probability is small, as pruning by confidence would do."""
    from ssd.runtime.drafting import draft_sampling

    best = draft_sampling.RejectionSampler.candidates

    def pruned(self, *args):
        found = best(self, *args)
        chosen = [[t if found.q[i, t] > 0.25 else -1 for t in row] for i, row in enumerate(found.tokens)]
        return found._replace(tokens=chosen)

    monkeypatch.setattr(draft_sampling.RejectionSampler, "candidates", pruned)
    draft = Draft.load(write_draft(tmp_path / "d", depth=1, **SMALL), target, "fp32")
    assert significance(target, exact, draft, k=2) < 1e-6
