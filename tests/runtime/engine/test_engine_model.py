"""The engine on a real (tiny) Llama and with the real sampler: no schedule may change a token."""

import pytest
import tiny_checkpoint
import torch

from ssd.model.llama import Llama
from ssd.model.tokenizer import Tokenizer
from ssd.runtime import LLM, SamplingParams
from ssd.runtime.devices.threads import CORES

PROMPTS = ["a", "once upon a time", "x" * 70, "naïve café 日本", "0123456789" * 9, "the end", "? ?", "l" * 33]
PARAMS = [
    SamplingParams(temperature=(0.0, 0.7, 1.0)[i % 3], top_k=i % 2 * 40, top_p=0.95, max_tokens=24, logprobs=True)
    for i in range(len(PROMPTS))
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_checkpoint.write(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def threads():
    yield
    torch.ops.ssd.bind_threads([-1] * len(CORES))


def answers(model, tokenizer, **options):
    llm = LLM.from_model(model, tokenizer, seed=3, **options)
    outputs = llm.generate(PROMPTS, PARAMS)
    assert llm.engine.allocator.num_free == llm.engine.allocator.num_pages
    return [(o.text, o.token_ids, o.logprobs, o.finish_reason) for o in outputs]


@pytest.mark.parametrize("dtype", ["bf16", "int8", "q4", "fp32"])
def test_batch_chunks_and_threads_change_nothing(dtype, folder, threads):
    model, tokenizer = Llama.load(folder, dtype), Tokenizer(folder)
    want = answers(model, tokenizer, max_batch=1, threads=1)
    assert len({tuple(ids) for _, ids, _, _ in want}) == len(PROMPTS)
    for options in (
        {"max_batch": 8, "prefill_chunk": 1, "threads": 1},
        {"max_batch": 8, "prefill_chunk": 16, "threads": 1},
        {"max_batch": 3, "prefill_chunk": 512, "threads": len(CORES)},
        {"max_batch": 5, "prefill_chunk": 64, "kv_tokens": 256, "threads": 1},
    ):
        assert answers(model, tokenizer, **options) == want, options


def test_text_is_that_of_the_tokens(folder):
    model, tokenizer = Llama.load(folder), Tokenizer(folder)
    for text, ids, _, _ in answers(model, tokenizer):
        assert text == tokenizer.decode(ids)


def test_logprobs_cost_no_token(folder):
    llm = LLM.from_model(Llama.load(folder), Tokenizer(folder))
    params = [SamplingParams(temperature=1.0, seed=4, max_tokens=20, logprobs=logprobs) for logprobs in (True, False)]
    both = llm.generate(["hi"] * 2, params)
    assert both[0].token_ids == both[1].token_ids and both[1].logprobs is None
    assert all(logprob < 0 for logprob in both[0].logprobs)


def test_nan_logits_are_reported_and_leave_no_page_behind(folder):
    model = Llama.load(folder)
    llm = LLM.from_model(model, Tokenizer(folder))
    good = llm.generate("hi")[0]
    forward, model.forward = model.forward, lambda batch, kv: model.forward_composed(batch, kv) * float("nan")
    with pytest.raises(ValueError, match="logits"):
        llm.generate("hi")
    model.forward = forward
    assert llm.engine.allocator.num_free == llm.engine.allocator.num_pages
    assert llm.generate("hi")[0].token_ids == good.token_ids
