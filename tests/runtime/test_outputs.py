"""What a request may ask beside sampling: each option against its definition, and the same whatever speculates."""

from copy import deepcopy
from dataclasses import asdict, replace

import pytest
import torch
from draft_helpers import write_draft
from model_helpers import one_request
from output_helpers import penalised, requests, told

from ssd import kernels
from ssd.model.draft import Draft
from ssd.model.tokenizer import Tokenizer
from ssd.runtime import LLM, SamplingParams
from ssd.runtime.sampling.seeds import sample_seed


def make(tiny_folder, target, draft=None, **options):
    more = dict(lockstep=True, draft_threads=1) if options.get("mode") == "ssd" else {}
    return LLM.from_model(target, Tokenizer(tiny_folder), draft=draft, threads=1, **more, **options)


SPECULATION = [
    dict(mode="sd", k=4), dict(mode="sd", k=3, tree_width=3, max_batch=2), dict(mode="ssd", k=3),
    dict(mode="sd", tree_width=3, prefill_chunk=9), dict(mode="ssd", k=2, tree_width=2, branches=8, max_batch=3),
]  # fmt: skip
KINDS = {"itself": None, "other": dict(depth=1), "trimmed": dict(layers=[1, 2], outputs=60)}


@pytest.fixture
def draft(request, tiny_folder, tiny_target, tmp_path):
    kind = KINDS[request.param]
    return Draft.load(write_draft(tmp_path / "d", **kind) if kind else tiny_folder, tiny_target, "bf16")


# --- penalties and bias -----------------------------------------------------------------------------------------------


def reference(target, ids, p):
    """Token ids, log-probabilities and the most probable tokens, from one forward pass over everything for each
    token."""
    answer, logprobs, tops = [], [], []
    for _ in range(p.max_tokens):
        tokens = [*ids, *answer]
        logits = target.forward(one_request(tokens), target.new_kv_cache(8))[-1:]
        x = penalised(logits[0], ids, answer, p)[None]
        f = [torch.tensor([v]) for v in (p.temperature, p.top_k, p.top_p, p.min_p, p.seed, len(tokens))]
        answer.append(int(kernels.sample(x, f[0], f[1].int(), *f[2:])[0]))
        log_p = logits[0].log_softmax(0)
        logprobs.append(float(log_p[answer[-1]]))
        tops.append(log_p.topk(max(p.top_logprobs, 1)))
    return answer, logprobs, tops


def test_definitions_of_penalties_bias_and_logprobs(tiny_folder, tiny_target):
    prompts, params = requests()
    llm = make(tiny_folder, tiny_target)
    plain = llm.generate(
        prompts, [SamplingParams(p.temperature, top_k=p.top_k, seed=p.seed, max_tokens=24) for p in params]
    )
    for prompt, p, got, without in zip(prompts, params, llm.generate(prompts, params), plain, strict=True):
        answer, logprobs, tops = reference(tiny_target, llm.encode(prompt), p)
        assert got.token_ids == answer and got.token_ids != without.token_ids
        if p.top_logprobs:
            assert got.logprobs == pytest.approx(logprobs, abs=2e-6)
            for mine, top in zip(got.top_logprobs, tops, strict=True):
                assert list(mine) == top.indices.tolist()
                assert list(mine.values()) == pytest.approx(top.values.tolist(), abs=2e-6)
            for token, own, top in zip(got.token_ids, got.logprobs, got.top_logprobs, strict=True):
                assert top.get(token, own) == own
        else:
            assert got.logprobs is None and got.top_logprobs is None


def test_bias_forces_and_bans(tiny_folder, tiny_target):
    llm = make(tiny_folder, tiny_target)
    (forced,) = llm.generate("a", SamplingParams(logit_bias={98: 100}, max_tokens=6))
    assert forced.token_ids == [98] * 6
    params = SamplingParams(temperature=1.0, seed=1, max_tokens=40, ignore_eos=True)
    (free,) = llm.generate("a", params)
    banned = {t: -100 for t in free.token_ids}
    (other,) = llm.generate("a", replace(params, logit_bias=banned))
    assert not set(other.token_ids) & set(banned)


@pytest.mark.parametrize("options", SPECULATION)
@pytest.mark.parametrize("draft", KINDS, indirect=True)
def test_speculation_changes_nothing(draft, options, tiny_folder, tiny_target):
    prompts, params = requests()
    want = told(make(tiny_folder, tiny_target).generate(prompts, params))
    llm = make(tiny_folder, tiny_target, draft, **options)
    assert told(llm.generate(prompts, params)) == want
    assert llm.metrics.proposed and llm.engine.allocator.num_free == llm.engine.allocator.num_pages
    if options["mode"] == "ssd":
        assert llm.engine.speculator.supervisor.failures == 0


@pytest.mark.parametrize("options", [dict(), dict(mode="sd", k=3, tree_width=2), dict(mode="ssd", k=2)])
@pytest.mark.parametrize("draft", ["trimmed"], indirect=True)
def test_preemption_and_kept_prefixes_change_nothing(draft, options, tiny_folder, tiny_target):
    prompts, params = requests()
    params = [replace(p, n=3) for p in params]
    want = told(make(tiny_folder, tiny_target, prefix_caching=False).generate(prompts, params))
    llm = make(tiny_folder, tiny_target, draft, kv_tokens=128, **({"mode": "ar"} | options))
    assert told(llm.generate(prompts, params)) == want == told(llm.generate(prompts, params))
    assert llm.stats()["preemptions"] > 0 and llm.stats()["cached_prompt_tokens"] > 100


@pytest.mark.parametrize("draft", ["itself"], indirect=True)
def test_logprobs_of_accepted_tokens_are_those_of_the_target(draft, tiny_folder, tiny_target):
    """Without penalties, the target accepts everything that it drafts itself, so most tokens are nodes of a tree."""
    params = SamplingParams(0.8, seed=3, max_tokens=24, ignore_eos=True, top_logprobs=4)
    llm = make(tiny_folder, tiny_target, draft, mode="sd", k=5)
    (got,) = llm.generate("once", params)
    _, logprobs, tops = reference(tiny_target, llm.encode("once"), params)
    assert llm.metrics.rounds < 8 and got.logprobs == pytest.approx(logprobs, abs=2e-6)
    assert [list(t) for t in got.top_logprobs] == [t.indices.tolist() for t in tops]
    chunks = list(make(tiny_folder, tiny_target, draft, mode="sd", k=5).stream("once", params))
    assert sum((c.logprobs for c in chunks), []) == got.logprobs
    assert sum((c.top_logprobs for c in chunks), []) == got.top_logprobs


def test_refused_params(tiny_folder, tiny_target):
    for name, value in dict(
        presence_penalty=2.1, frequency_penalty=float("nan"), repetition_penalty=0.0, top_logprobs=21, n=0,
        logit_bias={1: 101.0},
    ).items():  # fmt: skip
        with pytest.raises(ValueError, match=f"^{name}: got .*, wanted "):
            SamplingParams(**{name: value})
    for name, value in dict(presence_penalty="x", logit_bias=[3], top_logprobs=True, n=1.5).items():
        with pytest.raises(TypeError, match=f"^{name}: got .*, wanted "):
            SamplingParams(**{name: value})
    with pytest.raises(TypeError, match="^logit_bias: got 'a', wanted an integer"):
        SamplingParams(logit_bias={"a": 1})
    with pytest.raises(ValueError, match="^logit_bias: got token 272, wanted token ids from 0 to 271"):
        make(tiny_folder, tiny_target).generate("a", SamplingParams(logit_bias={272: 1}))
    params = SamplingParams(logit_bias={3: 1, 2: -1})
    assert replace(params, n=2).logit_bias == {2: -1.0, 3: 1.0} == asdict(deepcopy(params))["logit_bias"]


# --- samples ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [dict(), SPECULATION[1], SPECULATION[2]])
@pytest.mark.parametrize("draft", ["other"], indirect=True)
def test_sample_i_of_n_is_the_request_with_its_seed(draft, options, tiny_folder, tiny_target):
    params = SamplingParams(1.0, seed=5, max_tokens=16, n=4, presence_penalty=0.5, logprobs=True)
    alone = make(tiny_folder, tiny_target)
    want = [alone.generate("once", replace(params, n=1, seed=sample_seed(5, i)))[0] for i in range(4)]
    assert len({tuple(o.token_ids) for o in want}) == 4 and sample_seed(5, 0) == 5
    llm = make(tiny_folder, tiny_target, draft, **({"mode": "ar"} | options))
    done = {}
    got = llm.generate(["x", "once"], [replace(params, n=2), params], on_finish=done.__setitem__)
    assert got[2:] == [replace(o, index=i) for i, o in enumerate(want)] and done == dict(enumerate(got))
    assert [o.prompt for o in got] == ["x"] * 2 + ["once"] * 4
    chunks = list(llm.stream("once", params))
    for i, o in enumerate(want):
        mine = [c for c in chunks if c.index == i]
        assert sum((c.token_ids for c in mine), []) == o.token_ids and "".join(c.text for c in mine) == o.text
        assert [c.finish_reason for c in mine] == [None] * (len(mine) - 1) + [o.finish_reason]
    assert llm.engine.allocator.num_free == llm.engine.allocator.num_pages


def test_samples_without_a_seed_follow_from_that_of_the_request(tiny_folder, tiny_target):
    from ssd.runtime.sampling.seeds import derived_seed

    params = SamplingParams(1.0, max_tokens=12, n=3)
    got = make(tiny_folder, tiny_target, seed=9).generate(["a", "a"], params)
    seeds = [sample_seed(derived_seed(9, r), i) for r in (0, 1) for i in range(3)]
    alone = make(tiny_folder, tiny_target)
    assert [o.token_ids for o in got] == [
        alone.generate("a", SamplingParams(1.0, max_tokens=12, seed=s))[0].token_ids for s in seeds
    ]
    assert (
        len({sample_seed(s, i) for s in range(40) for i in range(40)} | {derived_seed(s, 7) for s in range(40)}) == 1640
    )


@pytest.mark.parametrize("options", [dict(mode="sd", k=3), dict(mode="ssd", k=2, branches=40, max_batch=3)])
@pytest.mark.parametrize("verify", ["coupled", "rejection"])
@pytest.mark.parametrize("draft", ["itself"], indirect=True)
def test_a_draft_is_penalised_as_the_target_is(draft, verify, options, tiny_folder, tiny_target):
    """The target as its own draft is then always right; with a wrong path or count it would disagree with itself."""
    prompts, params = requests()
    llm = make(tiny_folder, tiny_target, draft, verify=verify, **options)
    llm.engine.speculator.fallback = None  # n-grams may be wrong
    llm.generate(prompts, params)
    stats = llm.stats()
    assert stats["acceptance_rate"] == 1.0 and stats["mean_accepted_length"] > 0.7 * (1 + options["k"])
    assert options["mode"] == "sd" or stats["hit_rate"] == 1.0 or verify == "rejection"
