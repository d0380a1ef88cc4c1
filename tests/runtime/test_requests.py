"""Prompts, parameters and options: what is taken, and what is refused by name."""

import math

import pytest
from fakes import make

from ssd.runtime import SamplingParams


def test_kinds_of_prompts():
    params = SamplingParams(max_tokens=8)
    by_text = make().generate("user:hi\n", params)[0]
    by_ids = make().generate(list(b"user:hi\n"), params)[0]
    by_chat = make().generate([{"role": "user", "content": "hi"}], params)[0]
    both = make().generate(["user:hi\n", list(b"user:hi\n"), [{"role": "user", "content": "hi"}]], params)
    assert len({tuple(o.token_ids) for o in [by_text, by_ids, by_chat, *both]}) == 1
    assert by_text.prompt == "user:hi\n" and by_chat.prompt == [{"role": "user", "content": "hi"}]
    assert make().generate([]) == []


@pytest.mark.parametrize(
    "prompts,error,message",
    [
        ([""], ValueError, r"prompts\[0\]: is empty"),
        (["a", []], ValueError, r"prompts\[1\]: is empty"),
        (["a" * 256], ValueError, r"prompts\[0\]: got 256 tokens, wanted at most 255 in a context of 256"),
        ([[1, 258]], ValueError, "got token 258, wanted integers from 0 to 257"),
        ([[1, -1]], ValueError, "got token -1"),
        ([[1, 2.5]], ValueError, "got token 2.5"),
        (["\udcff"], ValueError, "not UTF-8"),
        ([3.5], TypeError, "got float"),
        (3.5, TypeError, "got float"),
    ],
)
def test_bad_prompts(prompts, error, message):
    llm = make()
    with pytest.raises(error, match=message):
        llm.generate(prompts)
    assert not llm.engine.scheduler.waiting


@pytest.mark.parametrize(
    "name,value,error",
    [
        ("temperature", -0.1, ValueError),
        ("temperature", math.nan, ValueError),
        ("temperature", math.inf, ValueError),
        ("temperature", "hot", TypeError),
        ("top_p", 0.0, ValueError),
        ("top_p", 1.01, ValueError),
        ("top_p", math.nan, ValueError),
        ("top_k", -1, ValueError),
        ("top_k", 2**31, ValueError),
        ("top_k", 1.5, TypeError),
        ("min_p", -0.1, ValueError),
        ("min_p", 1.0, ValueError),
        ("max_tokens", 0, ValueError),
        ("max_tokens", True, TypeError),
        ("seed", -1, ValueError),
        ("seed", 2**63, ValueError),
        ("stop", "", ValueError),
        ("stop", ("a", ""), ValueError),
        ("stop", (3,), TypeError),
        ("stop", None, TypeError),
    ],
)
def test_bad_params_are_named(name, value, error):
    with pytest.raises(error, match=f"^{name}: got"):
        SamplingParams(**{name: value})


@pytest.mark.parametrize(
    "name,value,error",
    [
        ("max_batch", 0, ValueError),
        ("max_model_len", -1, ValueError),
        ("kv_tokens", 0, ValueError),
        ("prefill_chunk", 0.5, TypeError),
        ("threads", 0, ValueError),
        ("threads", 100000, ValueError),
        ("threads", [0, 0], ValueError),
        ("threads", [100000], ValueError),
        ("seed", -1, ValueError),
    ],
)
def test_bad_options_are_named(name, value, error):
    with pytest.raises(error, match=f"^{name}: got"):
        make(**{name: value})


def test_number_of_params():
    with pytest.raises(ValueError, match="params: got 1 for 2 prompts"):
        make().generate(["a", "b"], [SamplingParams()])
    with pytest.raises(TypeError, match="params: got dict"):
        make().generate("a", {"temperature": 1.0})
