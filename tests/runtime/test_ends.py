"""Where an answer ends: the end-of-sequence tokens of all files, stop_token_ids, special tokens as stop strings, and
min_tokens; the same whatever speculates."""

import json
from dataclasses import replace

import pytest
import tiny_checkpoint
from draft_helpers import write_draft
from output_helpers import told

from ssd.model.draft import Draft
from ssd.model.llama import Llama
from ssd.model.tokenizer import Tokenizer
from ssd.runtime import LLM, SamplingParams

UNUSED, START, END = 256, 257, 258
MODES = [
    dict(mode="sd", k=3, tree_width=2),
    dict(mode="ssd", k=2, max_batch=2),
    dict(mode="auto"),
    dict(mode="sd", verify="rejection", k=3),
]


def make(folder, target=None, draft=None, **options):
    more = dict(lockstep=True, draft_threads=1) if options.get("mode") == "ssd" else {}
    target = target or Llama.load(folder, "bf16")
    return LLM.from_model(target, Tokenizer(folder), draft=draft, threads=1, **more, **options)


def says(llm, token, **params):
    """The answer of a model that wants to say one token only."""
    return llm.generate("abc", SamplingParams(logit_bias={token: 100.0}, max_tokens=4, **params))[0]


@pytest.mark.parametrize(
    "config,generation,tokenizer,ends",
    [
        (None, None, {"eos_token": "<|im_end|>"}, {END}),
        (UNUSED, None, {"eos_token": "<|im_end|>"}, {UNUSED, END}),
        (UNUSED, [START, -1, 9999], {}, {UNUSED, START}),
        (None, None, {"eos_token": "<|unused|>", "eot_token": {"content": "<|im_end|>"}}, {UNUSED, END}),
        (UNUSED, None, {"extra_special_tokens": {"eom_token": "<|im_start|>"}}, {UNUSED, START}),
        (UNUSED, None, {"chat_template": "{{ messages[0].content }}<|im_end|>"}, {UNUSED, END}),
        (UNUSED, None, {"chat_template": None, "eos_token": None}, {UNUSED}),
    ],
)
def test_an_answer_ends_at_the_end_of_sequence_token_of_any_file(config, generation, tokenizer, ends, tmp_path):
    tiny_checkpoint.write(tmp_path, eos_token_id=config)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": generation}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    llm = make(tmp_path)
    for token in (UNUSED, START, END):
        answer = says(llm, token)
        assert (answer.finish_reason, len(answer.token_ids)) == (("stop", 1) if token in ends else ("length", 4))


def test_a_special_token_as_stop_string_ends_the_answer(tiny_folder, tiny_target):
    llm = make(tiny_folder, tiny_target)
    for stop in ("<|unused|>", ("never", "<|unused|>"), "used|><|unu"):
        answer = says(llm, UNUSED, stop=stop)
        assert (answer.text, answer.finish_reason) == ("", "stop")
    answer = says(llm, END, stop="<|im_end|>", ignore_eos=True)
    assert (answer.token_ids, answer.finish_reason) == ([END], "stop")
    assert says(llm, UNUSED, stop="<|im_end|>").finish_reason == "length"


def test_a_stop_string_may_begin_with_a_special_token(tiny_folder):
    from ssd.runtime.sampling.text_stream import TextStream

    tokenizer = Tokenizer(tiny_folder)
    stream = TextStream(tokenizer.detokenizer(), ("<|unused|>no",))
    ids = [*tokenizer.encode("yes"), UNUSED, *tokenizer.encode("ok"), UNUSED, *tokenizer.encode("no more")]
    assert "".join(stream.add(i) for i in ids) == "yesok" and stream.stopped


def test_stop_token_ids_end_the_answer_before_their_text(tiny_folder, tiny_target):
    llm = make(tiny_folder, tiny_target)
    free = SamplingParams(temperature=1, seed=3, max_tokens=40, ignore_eos=True)
    (whole,) = llm.generate("abc", free)
    token = whole.token_ids[17]
    first = whole.token_ids.index(token)
    (cut,) = llm.generate("abc", replace(free, stop_token_ids=(token, 5)))
    assert cut.token_ids == whole.token_ids[: first + 1] and cut.finish_reason == "stop"
    assert cut.text == Tokenizer(tiny_folder).decode(cut.token_ids[:-1])
    with pytest.raises(ValueError, match="^stop_token_ids: got 272, wanted token ids from 0 to 271"):
        llm.generate("abc", SamplingParams(stop_token_ids=(3, 272)))


@pytest.mark.parametrize(
    "given,message",
    [
        (dict(stop_token_ids=3), "stop_token_ids: got 3, wanted a tuple of token ids"),
        (dict(stop_token_ids=("a",)), "stop_token_ids: got 'a', wanted an integer"),
        (dict(stop_token_ids=(-1,)), "stop_token_ids: got -1, wanted token ids from 0"),
        (dict(min_tokens=-1), "min_tokens: got -1, wanted 0 to max_tokens, 128"),
        (dict(min_tokens=5, max_tokens=4), "min_tokens: got 5, wanted 0 to max_tokens, 4"),
        (dict(min_tokens=1.5), "min_tokens: got 1.5, wanted an integer"),
    ],
)
def test_bad_ends_are_named(given, message):
    with pytest.raises((ValueError, TypeError), match=f"^{message}"):
        SamplingParams(**given)


def test_min_tokens_is_plain_decoding_without_ends_and_then_with_them(tiny_folder, tiny_target):
    llm = make(tiny_folder, tiny_target)
    ends = tuple(range(0, 256, 3))  # so many that an answer ends soon
    for seed in range(8):
        params = SamplingParams(temperature=1.0, seed=seed, max_tokens=40, stop_token_ids=ends)
        (answer,) = llm.generate("abc", replace(params, min_tokens=12))
        banned = {token: -100.0 for token in (*ends, END)}
        (first,) = llm.generate("abc", replace(params, stop_token_ids=(), logit_bias=banned, max_tokens=12))
        prompt = [*Tokenizer(tiny_folder).encode("abc"), *first.token_ids]
        (rest,) = llm.generate([prompt], replace(params, max_tokens=28))
        assert answer.token_ids == first.token_ids + rest.token_ids and answer.finish_reason == rest.finish_reason


def test_min_tokens_holds_stop_strings_back_too(tiny_folder, tiny_target):
    llm = make(tiny_folder, tiny_target)
    assert says(llm, 65, stop="bb", min_tokens=4).text == says(llm, 65).text == "bbbb"
    assert says(llm, 65, stop="bb", min_tokens=3).text == "bb"  # the fourth token completes another one
    for least, count in ((0, 1), (2, 3)):
        answer = says(llm, 65, stop=says(llm, 65).text[0], min_tokens=least)
        assert len(answer.token_ids) == count and answer.text == says(llm, 65).text[: count - 1]
        answer = says(llm, END, min_tokens=least)
        assert answer.token_ids.count(END) == 1 and len(answer.token_ids) == count


def test_min_tokens_gives_way_to_a_grammar_that_is_complete(tiny_folder, tiny_target):
    pytest.importorskip("llguidance")
    llm = make(tiny_folder, tiny_target)
    (answer,) = llm.generate("abc", SamplingParams(regex="(ab)+", min_tokens=6, max_tokens=30, temperature=1.0))
    assert len(answer.text) >= 6 and answer.finish_reason == "stop"
    (answer,) = llm.generate("abc", SamplingParams(regex="ab", min_tokens=6))
    assert answer.text == "ab" and answer.finish_reason == "stop"


@pytest.mark.parametrize("options", MODES[:3])
@pytest.mark.parametrize("kind", ["itself", "trimmed"])
def test_ends_are_those_of_plain_decoding_in_every_mode(kind, options, tiny_folder, tiny_target, tmp_path):
    folder = tiny_folder if kind == "itself" else write_draft(tmp_path / "d", layers=[1, 2], outputs=60)
    draft = "ngram" if options["mode"] == "auto" else Draft.load(folder, tiny_target, "bf16")
    prompts = ["abc", "x" * 40, "ab" * 12, "once upon a time"] * 2
    params = [
        SamplingParams(
            temperature=i % 2, seed=i, max_tokens=30, min_tokens=(0, 9, 20)[i % 3],
            stop_token_ids=tuple(range(i, 256, 9)), stop=("<|unused|>", "e"), top_logprobs=i % 2,
            frequency_penalty=(i % 3) / 2, ignore_eos=i % 4 == 3,
        )
        for i in range(len(prompts))
    ]  # fmt: skip
    plain = told(make(tiny_folder, tiny_target).generate(prompts, params))
    llm = make(tiny_folder, tiny_target, draft, **options)
    assert told(llm.generate(prompts, params)) == plain
    llm.close()


def test_min_tokens_holds_under_rejection_sampling(tiny_folder, tiny_target):
    llm = make(tiny_folder, tiny_target, Draft.load(tiny_folder, tiny_target, "bf16"), **MODES[3])
    ends = tuple(range(0, 256, 2))
    params = [SamplingParams(temperature=1, seed=i, max_tokens=20, min_tokens=9, stop_token_ids=ends) for i in range(8)]
    answers = [o.token_ids for o in llm.generate(["abc"] * 8, params)]
    assert all(not {*ends, END}.intersection(ids[:9]) and len(ids) > 9 for ids in answers)
