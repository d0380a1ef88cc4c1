"""Two lanes: whatever the draft lane prepares, late, wrong or not at all, the tokens are those of plain decoding."""

import pytest
import tiny_checkpoint
from lockstep import lockstep
from test_speculative import KINDS, PROMPTS, answers, load

from ssd.model.draft import Draft
from ssd.model.llama import Llama
from ssd.model.tokenizer import Tokenizer
from ssd.runtime import LLM, SamplingParams
from ssd.runtime.threads import CORES


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_checkpoint.write(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def target(folder):
    return Llama.load(folder, "bf16")


@pytest.fixture(scope="module")
def plain(folder, target):
    return answers(LLM.from_model(target, Tokenizer(folder), seed=3, threads=1))


def make(folder, target, draft, **options):
    options = {"threads": 1, "draft_threads": 1, "seed": 3, "mode": "ssd"} | options
    return LLM.from_model(target, Tokenizer(folder), draft=draft, **options)


SHAPES = [
    dict(k=3), dict(k=2, tree_width=2, branches=6, max_batch=2), dict(k=1, branches=1), dict(max_batch=1),
    dict(k=5, tree_width=3, branches=10, prefill_chunk=16),
]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_those_of_plain_decoding(kind, shape, folder, target, plain, tmp_path, monkeypatch):
    lockstep(monkeypatch)
    llm = make(folder, target, load(kind, folder, tmp_path, target, "bf16"), **shape)
    assert answers(llm) == plain
    assert llm.engine.speculator.failures == 0 and llm.engine.speculator.lane.rounds > 0


HITS = [
    dict(k=3, branches=40, max_batch=3), dict(k=4, tree_width=3, branches=18, max_batch=1),
    dict(k=1, branches=6, max_batch=1),
]  # fmt: skip


@pytest.mark.parametrize("shape", HITS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_target_as_its_own_draft_always_hits(shape, temperature, folder, target, monkeypatch):
    """Were KV moved wrongly, a candidate list taken from the wrong node or a key off by one, it would miss."""
    lockstep(monkeypatch)
    llm = make(folder, target, Draft.load(folder, target, "bf16"), **shape)
    llm.generate(PROMPTS, SamplingParams(temperature=temperature, max_tokens=31, ignore_eos=True))
    stats = llm.stats()
    assert llm.engine.speculator.failures == 0
    assert stats["hit_rate"] == 1.0 and stats["acceptance_rate"] == 1.0
    assert stats["mean_accepted_length"] > 0.7 * (1 + shape["k"])


@pytest.mark.skipif(len(CORES) < 2, reason="wants two cores")
@pytest.mark.parametrize("kind", ["itself", "features"])
def test_two_threads(kind, folder, target, plain, tmp_path):
    draft = load(kind, folder, tmp_path, target, "bf16")
    for shape in SHAPES[:2]:
        llm = make(folder, target, draft, threads=list(CORES[:1]), draft_threads=list(CORES[-1:]), **shape)
        assert answers(llm) == plain
        assert llm.engine.speculator.failures == 0
        llm.close()
        assert llm.engine.speculator.lane is None
