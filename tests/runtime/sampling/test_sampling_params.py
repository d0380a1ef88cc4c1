"""Numbers that the front door lets in can be computed with; the others are refused by name."""

import pytest

from ssd.model.tokenizer import Tokenizer
from ssd.runtime import LLM, SamplingParams
from ssd.runtime.sampling.sampling_params import COLDEST, HOTTEST


@pytest.mark.parametrize(
    "field, value",
    [
        ("temperature", 1e39), ("temperature", 1e-46), ("temperature", float("inf")), ("temperature", -0.1),
        ("top_p", 1e-46), ("top_p", 1 + 1e-9), ("min_p", 1 - 1e-12), ("min_p", -1e-9), ("top_k", 2**31),
        ("presence_penalty", 1e39), ("repetition_penalty", 1e-46), ("seed", 2**63), ("min_tokens", 2**70),
    ],
)  # fmt: skip
def test_numbers_that_float32_or_the_kernels_cannot_hold_are_refused_by_name(field, value):
    with pytest.raises(ValueError, match=f"{field}: got "):
        SamplingParams(**{field: value})


@pytest.mark.parametrize(
    "field, value",
    [
        ("ignore_eos", "no"),
        ("ignore_eos", None),
        ("logprobs", 5),
        ("logprobs", "x"),
        ("json_object", "no"),
        ("regex", 5),
    ],
)
def test_values_of_another_type_are_refused_by_name(field, value):
    with pytest.raises(TypeError, match=f"^{field}: got "):
        SamplingParams(**{field: value})


@pytest.mark.parametrize(
    "field, value",
    [
        ("regex", "a\ud800"), ("json_schema", '{"const": "\\ud800"}'), ("json_schema", '{"const": NaN}'),
        ("json_schema", {"const": float("inf")}), ("json_schema", "{"),
    ],
)  # fmt: skip
def test_texts_that_no_grammar_can_hold_are_refused_by_name(field, value):
    with pytest.raises(ValueError, match=f"^{field}: got "):
        SamplingParams(**{field: value})


EXTREMES = [
    dict(temperature=HOTTEST), dict(temperature=COLDEST), dict(temperature=0.7, top_p=1e-37),
    dict(temperature=0.7, min_p=1 - 1e-7), dict(temperature=HOTTEST, top_p=1e-37, min_p=1 - 1e-7, top_k=2**31 - 1),
    dict(temperature=COLDEST, repetition_penalty=100, frequency_penalty=2, presence_penalty=2),
    dict(temperature=1.0, repetition_penalty=0.01, frequency_penalty=-2, presence_penalty=-2),
    dict(logit_bias={5: -100.0, 6: 100.0}, temperature=HOTTEST), dict(seed=2**63 - 1, temperature=1.0),
]  # fmt: skip


def test_the_extremes_that_are_let_in_are_computed_and_harm_no_neighbour(tiny_folder, tiny_target):
    llm = LLM.from_model(tiny_target, Tokenizer(tiny_folder), threads=1)
    plain = SamplingParams(max_tokens=12, ignore_eos=True)
    alone = llm.generate("Hello", plain)[0]
    params = [SamplingParams(max_tokens=12, ignore_eos=True, **extreme) for extreme in EXTREMES]
    *others, last = llm.generate(["Hello"] * (len(params) + 1), [*params, plain])
    assert last.token_ids == alone.token_ids
    assert all(o.error is None and len(o.token_ids) == 12 for o in others)
