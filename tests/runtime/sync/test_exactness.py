"""Speculative decoding: whatever is proposed, the tokens are those of plain decoding."""

import pytest
import torch
from draft_helpers import write_draft
from speculation_helpers import KINDS, PROMPTS, answers, load

from ssd.model.draft import Draft
from ssd.model.llama import Llama
from ssd.model.tokenizer import Tokenizer
from ssd.runtime import LLM, SamplingParams


@pytest.fixture(scope="module")
def models(tiny_folder):
    return {dtype: Llama.load(tiny_folder, dtype) for dtype in ("bf16", "int8", "fp32")}


SHAPES = [
    dict(k=3), dict(k=1), dict(k=8, tree_width=2, max_batch=2), dict(k=3, tree_width=5, prefill_chunk=16),
    dict(tree_width=3, prefill_chunk=7, max_batch=3), dict(max_batch=1), dict(k=21, tree_width=3, kv_tokens=256),
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["bf16", "int8"])
@pytest.mark.parametrize("kind", [*KINDS, "ngram"])
def test_tokens_are_those_of_plain_decoding(kind, dtype, tiny_folder, models, tmp_path):
    target, tokenizer = models[dtype], Tokenizer(tiny_folder)
    want = answers(LLM.from_model(target, tokenizer, seed=3, threads=1))
    draft = load(kind, tiny_folder, tmp_path, target, dtype)
    for options in SHAPES:
        llm = LLM.from_model(target, tokenizer, draft=draft, mode="sd", seed=3, threads=1, **options)
        assert answers(llm) == want, options
        assert llm.metrics.proposed or options != SHAPES[0] or kind == "ngram"


@pytest.mark.parametrize("shape", [dict(k=3), dict(k=4, tree_width=3), dict(k=2, tree_width=2, prefill_chunk=8)])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_target_as_its_own_draft_is_always_accepted(shape, temperature, tiny_folder, models):
    """If a row of the draft were in the wrong place, or its KV lost or moved wrongly, it would disagree with itself."""
    draft = Draft.load(tiny_folder, models["bf16"], "bf16")
    llm = LLM.from_model(models["bf16"], Tokenizer(tiny_folder), draft=draft, mode="sd", threads=1, **shape)
    llm.generate(PROMPTS, SamplingParams(temperature=temperature, max_tokens=29, ignore_eos=True))
    stats = llm.metrics.stats()
    assert stats["acceptance_per_position"] == [1.0] * shape["k"]
    assert stats["mean_accepted_length"] > 0.9 * shape["k"]


def test_kv_of_accepted_tokens_stands_where_it_belongs(tiny_folder, models):
    """KV of the target, and of a draft with the same weights, is bitwise that of a request alone without a draft."""
    target, tokenizer = models["bf16"], Tokenizer(tiny_folder)
    draft = Draft.load(tiny_folder, target, "bf16")
    llm = LLM.from_model(
        target, tokenizer, draft=draft, mode="sd", k=3, tree_width=3, prefill_chunk=8, max_batch=3, threads=1
    )
    proposer, checked = llm.engine.speculator.proposer, 0
    params = [SamplingParams(temperature=i % 2, seed=i, max_tokens=30, ignore_eos=True) for i in range(len(PROMPTS))]
    update = llm.engine._update

    def rows(kv, table, n):
        index = torch.arange(n)
        at = torch.as_tensor(table).long()[index // kv.page_size] * kv.page_size + index % kv.page_size
        return [t.flatten(1, 2)[:, at] for t in (kv.k, kv.v)]

    def compared(plan, *rest):
        nonlocal checked
        got = update(plan, *rest)
        for sequence in llm.engine.scheduler.running:
            state = proposer.states.get(sequence)
            n = min(sequence.num_cached, state.cached if state else 0)
            if n:
                mine = rows(proposer.runner.kv, proposer.runner.pages.table[state.slot], n)
                assert all(map(torch.equal, mine, rows(llm.engine.kv, sequence.page_row, n)))
                checked += 1
        return got

    llm.engine._update = compared
    llm.generate(PROMPTS, params)
    assert checked > 20


@pytest.mark.parametrize("shape", [dict(k=7), dict(k=5, tree_width=3)])
def test_the_end_inside_an_accepted_run_cuts_at_the_right_token(shape, tiny_folder, models):
    """With the target as its own draft, whole runs are accepted; they end with EOS, a stop string or max_tokens."""
    from dataclasses import replace

    target, tokenizer = models["bf16"], Tokenizer(tiny_folder)
    draft = Draft.load(tiny_folder, target, "bf16")
    any_end = dict(temperature=0.9, ignore_eos=True)
    alone = LLM.from_model(target, tokenizer, threads=1)
    ids, seed, at = next(
        (ids, seed, at)
        for seed in range(100)
        for ids in [alone.generate("once", SamplingParams(seed=seed, max_tokens=24, **any_end))[0].token_ids]
        for at in range(3, 6)
        if 32 < ids[at] < 127 and ids[at] not in ids[:at] and 258 not in ids
    )
    any_end["seed"] = seed
    short = SamplingParams(max_tokens=at + 1, **any_end)
    stop = SamplingParams(max_tokens=24, stop=(tokenizer.decode([ids[at]]),), **any_end)
    for params, eos in ((short, 258), (stop, 258), (SamplingParams(0.9, seed=seed, max_tokens=24), ids[at])):
        model = Llama(
            replace(target.config, eos_token_ids=(eos,)), target.weights, target.cos, target.sin, target.dtype
        )
        llm = LLM.from_model(model, tokenizer, draft=draft, mode="sd", threads=1, **shape)
        (plain,) = LLM.from_model(model, tokenizer, threads=1).generate("once", params)
        (got,) = llm.generate("once", params)
        assert got == plain and got.token_ids == ids[: at + 1]
        assert llm.metrics.rounds < at  # the end was inside a run
        assert llm.engine.allocator.num_free == llm.engine.allocator.num_pages


@pytest.mark.parametrize("mode", ["sd", "ssd"])
@pytest.mark.parametrize("layers", [None, [1, 2]])
def test_beyond_the_drafts_context_and_up_to_the_targets_own_nothing_is_proposed(
    mode, layers, tiny_folder, models, tmp_path
):
    target, tokenizer = models["bf16"], Tokenizer(tiny_folder)
    own = Draft.load(tiny_folder, target) if layers is None else None
    short = Draft.load(write_draft(tmp_path / "d", layers=layers, max_position_embeddings=64), target)
    params = SamplingParams(max_tokens=1000, ignore_eos=True)
    plain = LLM.from_model(target, tokenizer, threads=1).generate("x" * 40, params)
    assert len(plain[0].token_ids) == target.config.max_positions - 40
    for draft in filter(None, (short, own)):
        more = dict(lockstep=True) if mode == "ssd" else {}
        llm = LLM.from_model(target, tokenizer, draft=draft, mode=mode, k=4, threads=1, **more)
        assert llm.generate("x" * 40, params) == plain
        assert llm.metrics.proposed and (mode == "sd" or llm.engine.speculator.supervisor.failures == 0)
        if draft is short:
            assert sum(llm.metrics.proposed) < 4 * 64 and llm.metrics.rounds > 120


def test_feature_rows_see_the_hidden_state_of_the_token_before(tiny_folder, models, tmp_path):
    """The logits of a draft's tree under teacher forcing are those of one causal pass over the same tokens."""
    from draft_helpers import feature_draft_reference

    target = models["fp32"]
    where = write_draft(tmp_path / "d", layers=[1, 2], seed=1)
    draft = Draft.load(where, target, "fp32")
    llm = LLM.from_model(target, Tokenizer(tiny_folder), draft=draft, mode="sd", k=3, threads=1)
    proposer, seen = llm.engine.speculator.proposer, []
    forward = proposer.runner.forward
    proposer.runner.forward = lambda rows, hidden: seen.append((rows, hidden, *forward(rows, hidden))) or seen[-1][2:]
    llm.generate(PROMPTS[1], SamplingParams(max_tokens=12, ignore_eos=True))
    tokens, states, last, checked = {}, {}, {}, 0
    for rows, hidden, logits, _ in seen:
        (r,) = rows
        for k, index in enumerate(r.at):
            tokens[index], states[index] = r.tokens[k], hidden[k]
        upto = r.at[-1] + 1
        ids = torch.tensor([tokens[i] for i in range(upto)])
        want, _ = feature_draft_reference(
            where, target.weights.embedding, ids, torch.stack([states[i] for i in range(upto)])
        )
        last = want[-1]
        assert (logits[-1] - last).norm() < 1e-4 * last.norm()
        checked += 1
    assert checked > 6 and states[0].norm() == 0


def test_proposals_pay_or_stop(tiny_folder, models, tmp_path):
    """A draft that is never right is asked less and less."""
    draft = load("independent", tiny_folder, tmp_path, models["bf16"], "bf16")
    llm = LLM.from_model(models["bf16"], Tokenizer(tiny_folder), draft=draft, mode="sd", threads=1)
    llm.generate(PROMPTS[1], SamplingParams(max_tokens=200, ignore_eos=True, temperature=1.0))
    assert sum(llm.metrics.proposed[:1]) < 0.5 * llm.metrics.rounds


REPEATED = [7, 8, 9, 10, 11, 12] * 3


def test_ngram_goes_on_as_the_text_did_before_and_offers_all_that_compete():
    from ssd.runtime.drafting.ngram import NgramProposer
    from ssd.runtime.engine.sequence import Sequence
    from ssd.runtime.sync.policy import Policy

    def sequence(tokens):
        return Sequence.start(tokens, 9, SamplingParams(), 0, None)

    proposer, fixed = NgramProposer(), Policy(depth=4, width=3, nodes=7, adaptive=False)
    loop, choice = sequence(REPEATED), sequence([1, 2, 3, 9, 4, 1, 2, 4, 8, 1, 2])
    trees = proposer.propose([loop, choice, sequence([5, 6, 7])], [4, 2, 4], [(-1.0, -1.0)] * 3, fixed, 3)
    assert [(t.tokens, t.parents) for t in trees] == [
        ([7, 8, 9, 10], [-1, 0, 1, 2]),
        ([4, 8, 3, 9], [-1, 0, -1, 2]),  # the newest first
        ([], []),
    ]
    ahead = proposer.after(loop, [7, 8, 20, 7, 8], 3)  # tokens that the sequence does not have yet
    assert ahead.tokens == [20, 7, 8]
    loop.tokens[18:23], loop.num_tokens = [7, 8, 20, 7, 8], 23
    assert proposer.after(loop, [20], 2).tokens == [7, 8]
    assert proposer.after(sequence([3, 4, 3]), [], 4).tokens == [4, 3, 4, 3]
    proposer.release(loop)
    assert loop not in proposer.texts and choice in proposer.texts


def test_bad_options_are_named(tiny_folder, models):
    target, tokenizer = models["bf16"], Tokenizer(tiny_folder)
    for options, name in (
        (dict(mode="fast"), "mode"), (dict(k=0), "k"), (dict(k=64), "k"), (dict(k=32, tree_width=2), "k"),
        (dict(tree_width=0), "tree_width"), (dict(verify="typical"), "verify"), (dict(saguaro=0.5), "saguaro"),
        (dict(saguaro=2.0, verify="rejection"), "saguaro"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"^{name}: "):
            LLM.from_model(target, tokenizer, draft="ngram", **({"mode": "sd"} | options))
