"""Answers keep to a grammar, checked by asking the library afresh at every token, and are the same whatever
speculates."""

import json
import re
import sys
from dataclasses import replace

import numpy as np
import pytest
import tiny_checkpoint
import torch
from draft_helpers import write_draft
from model_helpers import one_request

from ssd import kernels
from ssd.model.draft import Draft
from ssd.model.tokenizer import Tokenizer
from ssd.runtime import LLM, SamplingParams
from ssd.runtime.devices.threads import CORES
from ssd.runtime.sampling.grammar import WHITESPACE, Mask

llguidance = pytest.importorskip("llguidance")

EOS, VOCAB = 258, 272
PERSON = {
    "type": "object",
    "properties": {"name": {"enum": ["Bob", "Bö日"]}, "age": {"type": "integer", "minimum": 0, "maximum": 120}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
NUMBERS = {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3}
DATE = r"(19|20)[0-9]{2}-[01][0-9]"
CASES = [
    dict(json_schema=PERSON),
    dict(json_schema=json.dumps(NUMBERS)),
    dict(regex=DATE),
    dict(regex="é+|(日本)*", frequency_penalty=1.0),
    dict(json_object=True, logit_bias={ord(c) - 33: 6.0 for c in '{"}:'}, presence_penalty=-1.0),
]
PARAMS = [
    SamplingParams((0.0, 1.0)[i // len(CASES)], seed=i, max_tokens=200, top_logprobs=i % 2, **CASES[i % len(CASES)])
    for i in range(2 * len(CASES))
]
PROMPTS = ["a person", "x" * 40]


def make(tiny_folder, target, draft=None, **options):
    more = dict(lockstep=True, draft_threads=1) if options.get("mode") == "ssd" else {}
    return LLM.from_model(target, Tokenizer(tiny_folder), draft=draft, threads=1, **more, **options)


def answers(llm, params=PARAMS):
    prompts = [PROMPTS[i % 2] for i in range(len(params))]
    return [(o.text, o.token_ids, o.top_logprobs, o.finish_reason) for o in llm.generate(prompts, params)]


def fits(text, p):
    if p.regex:
        return re.fullmatch(p.regex, text)
    value = json.loads(text)
    if p.json_object:
        return isinstance(value, dict)
    if json.loads(p.json_schema) == NUMBERS:
        return 1 <= len(value) <= 3 and all(isinstance(v, bool) for v in value)
    return set(value) == {"name", "age"} and value["name"] in ("Bob", "Bö日") and 0 <= value["age"] <= 120


@pytest.fixture(scope="module")
def plain(tiny_folder, tiny_target):
    return answers(make(tiny_folder, tiny_target))


def test_answers_keep_to_the_grammar(plain):
    for (text, ids, _, reason), p in zip(plain, PARAMS, strict=True):
        if reason == "stop":
            assert fits(text, p) and ids[-1] == EOS
        else:
            assert p.json_object or p.regex == "é+|(日本)*"
    assert sum(reason == "stop" for *_, reason in plain) >= 8


def test_masks_are_those_of_the_library_after_the_answer(plain, tiny_folder, tiny_target):
    tokenizer = Tokenizer(tiny_folder)
    library = llguidance.LLTokenizer(tokenizer.json(), n_vocab=VOCAB, eos_token=[EOS])
    for i in (0, 2, 5, 6, 7):
        p = PARAMS[i]
        grammar = (
            llguidance.LLMatcher.grammar_from_regex(p.regex) if p.regex
            else llguidance.LLMatcher.grammar_from_json_schema(p.json_schema, {"whitespace_pattern": WHITESPACE})
        )  # fmt: skip
        prompt, answer = tokenizer.encode(PROMPTS[i % 2]), []
        while not answer or answer[-1] != EOS:
            matcher = llguidance.LLMatcher(library, grammar)
            assert matcher.try_consume_tokens(answer) == len(answer)
            bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")[:VOCAB]
            tokens = prompt + answer
            logits = tiny_target.forward(one_request(tokens), tiny_target.new_kv_cache(16))[-1]
            logits[torch.from_numpy(bits == 0)] = -torch.inf
            f = [torch.tensor([v]) for v in (p.temperature, p.top_k, p.top_p, p.min_p, p.seed, len(tokens))]
            answer.append(int(kernels.sample(logits[None], f[0], f[1].int(), *f[2:])[0]))
        assert answer == plain[i][1]


OPTIONS = [
    dict(mode="sd", k=4), dict(mode="sd", k=3, tree_width=3, max_batch=2), dict(mode="ssd", k=3),
    dict(mode="sd", tree_width=3, prefill_chunk=9), dict(mode="ssd", k=2, tree_width=2, branches=8, max_batch=3),
]  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kind", [None, dict(layers=[1, 2], outputs=60), "ngram"])
def test_speculation_changes_nothing(kind, options, plain, tiny_folder, tiny_target, tmp_path):
    if kind == "ngram":
        if options["mode"] == "ssd":
            pytest.skip("ssd needs a draft model")
        draft = kind
    else:
        draft = Draft.load(write_draft(tmp_path / "d", **kind) if kind else tiny_folder, tiny_target, "bf16")
    llm = make(tiny_folder, tiny_target, draft, **options)
    assert answers(llm) == plain
    assert llm.engine.allocator.num_free == llm.engine.allocator.num_pages
    if options["mode"] == "ssd":
        assert llm.engine.speculator.supervisor.failures == 0


@pytest.mark.parametrize("options", [dict(mode="sd", k=3), dict(mode="sd", k=2, tree_width=2), dict(mode="ssd", k=2)])
def test_rejection_sampling_keeps_to_the_grammar_too(options, tiny_folder, tiny_target):
    draft = Draft.load(tiny_folder, tiny_target, "bf16")
    llm = make(tiny_folder, tiny_target, draft, verify="rejection", **options)
    for (text, *_, reason), p in zip(answers(llm), PARAMS, strict=True):
        assert reason == "length" or fits(text, p)


class Stuck:
    """A matcher that allows nothing, because its vocabulary cannot express what the grammar requires."""

    def compute_bitmask(self):
        return bytes(VOCAB // 8)

    def is_error(self):
        return False


def test_where_nothing_can_follow_the_answer_ends(tiny_folder, tiny_target, monkeypatch):
    rows = np.zeros((1, VOCAB), np.float32)
    Mask(Stuck(), frozenset([EOS, 256]), VOCAB)(rows, np.empty(0, np.int64), [[]])
    assert np.flatnonzero(np.isfinite(rows[0])).tolist() == [256, EOS]
    llm = make(tiny_folder, tiny_target)
    monkeypatch.setattr(llm.grammars, "start", lambda params: Mask(Stuck(), llm.engine.eos_ids, VOCAB))
    (got,) = llm.generate("a", SamplingParams(logprobs=True))
    assert (got.token_ids, got.finish_reason, got.text) == ([EOS], "stop", "") and got.logprobs[0] > -np.inf


def test_refused(tiny_folder, tiny_target, tmp_path, monkeypatch):
    llm = make(tiny_folder, tiny_target)
    for params, message in [
        (dict(regex="("), r"^regex: got \(, which is refused: .*unclosed group"),
        (dict(json_schema={"type": "strin"}), '^json_schema: got {"type": "strin"}, which is refused: Invalid type'),
    ]:
        with pytest.raises(ValueError, match=message) as e:
            llm.generate("a", SamplingParams(**params))
        assert "\n" not in str(e.value)
    for params, message in [
        (dict(json_schema="{"), "^json_schema: got '{', which is no JSON"),
        (dict(json_object=True, regex="a"), "^json_object, json_schema, regex: got more than one"),
        (dict(regex="a", ignore_eos=True), "^ignore_eos: got True beside a grammar"),
    ]:
        with pytest.raises(ValueError, match=message):
            SamplingParams(**params)
    for params in (dict(json_schema="3"), dict(regex=3)):
        with pytest.raises(TypeError, match="^[a-z_]+: got int, wanted"):
            SamplingParams(**params)
    endless = replace(tiny_target.config, eos_token_ids=())
    without_end = tiny_checkpoint.write(tmp_path / "endless")
    (without_end / "tokenizer_config.json").write_text("{}")
    from ssd.model.llama import Llama

    model = Llama(endless, tiny_target.weights, tiny_target.cos, tiny_target.sin, tiny_target.dtype)
    with pytest.raises(ValueError, match="^regex: needs a model with an end-of-sequence token"):
        make(without_end, model).generate("a", SamplingParams(regex="a"))
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(ImportError, match="^json_object: needs the package llguidance"):
        make(tiny_folder, tiny_target).generate("a", SamplingParams(json_object=True))


@pytest.mark.parametrize("options", [dict(mode="sd", k=3), dict(mode="ssd", k=2, branches=40, max_batch=3)])
def test_a_draft_keeps_to_the_grammar_as_the_target_does(options, tiny_folder, tiny_target):
    llm = make(tiny_folder, tiny_target, Draft.load(tiny_folder, tiny_target, "bf16"), **options)
    answers(llm)
    stats = llm.stats()
    assert stats["acceptance_rate"] == 1.0 and stats["mean_accepted_length"] > 0.7 * (1 + options["k"])
    assert options["mode"] == "sd" or stats["hit_rate"] > 0.9  # what would follow the end of an answer may be missed


@pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")
def test_two_threads(plain, tiny_folder, tiny_target):
    """Both lanes ask the library at once, each with its own state."""
    draft = Draft.load(tiny_folder, tiny_target, "bf16")
    cores = {"threads": list(CORES[:1]), "draft_threads": list(CORES[-1:])}
    llm = LLM.from_model(tiny_target, Tokenizer(tiny_folder), draft=draft, mode="ssd", k=3, max_batch=3, **cores)
    assert answers(llm) == plain and llm.engine.speculator.counts.rounds > 0
    llm.close()


SELF = {"$ref": "#"}
ENDLESS = [
    {"type": "object", "properties": {"x": SELF}, "required": ["x"]},
    {"type": "object", "required": ["x"], "additionalProperties": SELF},
    {"type": "object", "minProperties": 1, "additionalProperties": SELF},
    {"type": "array", "items": SELF, "minItems": 1},
    {"type": "array", "prefixItems": [{"type": "null"}], "items": SELF, "minItems": 2},
    {"anyOf": [SELF]},
    {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
    {"type": "object", "properties": {"x": {"$ref": "#/$defs/a~1b"}}, "required": ["x"], "$defs": {"a/b": SELF}},
    {"$id": "http://a/b", "type": "object", "properties": {"x": {"$ref": "http://a/b"}}, "required": ["x"]},
    {
        "$id": "http://a/b",
        "$ref": "#/$defs/t",
        "$defs": {"t": {"type": "object", "properties": {"x": {"$ref": "b#/$defs/t"}}, "required": ["x"]}},
    },
    {"type": "object", "properties": {"x": SELF}, "allOf": [{"required": ["x"]}]},
    {"allOf": [{"type": "object", "properties": {"x": SELF}}, {"type": "object", "required": ["x"]}]},
    {"type": "object", "required": ["x"], "patternProperties": {"^x$": SELF}, "additionalProperties": False},
]
FINITE = [
    {"type": "object", "properties": {"x": SELF}},
    {"type": "array", "items": SELF},
    {"properties": {"x": SELF}, "required": ["x"]},  # a number fits too
    {"type": "object", "properties": {"next": {"anyOf": [SELF, {"type": "null"}]}}, "required": ["next"]},
    {"type": ["object", "string"], "properties": {"x": SELF}, "required": ["x"]},
    {"type": "object", "properties": {"x": {"enum": [1]}, "y": SELF}, "required": ["x"], "minProperties": 1},
    {"type": "object", "properties": {"x": SELF}, "allOf": [{"required": ["y"]}]},
    {"type": "object", "required": ["x"], "patternProperties": {"^y": SELF}},
]


def test_a_grammar_without_a_finite_answer_is_refused(tiny_folder, tiny_target):
    llm = make(tiny_folder, tiny_target)
    for schema in ENDLESS:
        with pytest.raises(ValueError, match="^json_schema: got .* which has no finite answer") as e:
            llm.generate("a", SamplingParams(json_schema=schema))
        assert "\n" not in str(e.value)
    for schema in FINITE:
        llm.check(SamplingParams(json_schema=schema))
    with pytest.raises(ValueError, match="^regex: got .* which no answer of this model fits"):
        llm.check(SamplingParams(regex=r"[^\s\S]"))


def test_a_tokenizer_with_more_ids_than_the_model(tiny_folder, tiny_target, tmp_path):
    """Ids that the model lacks are never drawn, and ends of text that the tokenizer lacks do no harm."""
    folder = tiny_checkpoint.write(tmp_path / "more")
    tokenizer = Tokenizer(folder)
    tokenizer.backend.add_tokens([f"more{i}" for i in range(40)])
    assert tokenizer.vocab_size > VOCAB
    model = replace(tiny_target.config, eos_token_ids=(EOS, VOCAB - 1))
    for params, wanted in zip(PARAMS, answers(make(tiny_folder, tiny_target)), strict=True):
        llm = LLM.from_model(tiny_target, tokenizer, threads=1)
        (answer,) = llm.generate([PROMPTS[PARAMS.index(params) % 2]], params)
        assert (answer.text, answer.token_ids) == wanted[:2]
    padded = type(tiny_target)(model, tiny_target.weights, tiny_target.cos, tiny_target.sin, tiny_target.dtype)
    (answer,) = make(tiny_folder, padded).generate("a", SamplingParams(regex="(ab)*", max_tokens=30))
    assert re.fullmatch("(ab)*", answer.text) and answer.token_ids[-1] in (EOS, VOCAB - 1)


@pytest.mark.parametrize("mode", ["ar", "ssd"])
def test_a_grammar_that_grows_too_large_ends_its_request_in_a_sentence(mode, tiny_folder, tiny_target):
    """Only its use shows the limit, so such a grammar is let in. An empty answer that does not match is none."""
    draft = None if mode == "ar" else Draft.load(tiny_folder, tiny_target, "bf16")
    llm = LLM.from_model(tiny_target, Tokenizer(tiny_folder), draft=draft, mode=mode, threads=1)
    plain = SamplingParams(max_tokens=12, ignore_eos=True)
    alone = llm.generate("Hello", plain)[0].token_ids
    large = SamplingParams(max_tokens=12, regex="(a{1000}){1000}")
    try:
        first, second = llm.generate(["Hello", "Hello"], [plain, large])
    except ValueError as e:
        assert str(e).startswith("regex: got (a{1000}){1000}")  # refused at once is as good
    else:
        assert (first.token_ids, second.finish_reason) == (alone, "error")
        assert second.error.startswith("regex: cannot go on: ")
    assert llm.generate("Hello", plain)[0].token_ids == alone
    llm.close()
