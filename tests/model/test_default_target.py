"""The default target against transformers, which reads the folder that our import wrote."""

import json

import pytest
import torch
from model_helpers import one_request, relative_error
from texts import PROMPTS, STRINGS

from ssd.model.llama import Llama
from ssd.model.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def transformers():
    return pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def theirs(default_target, transformers):
    return transformers.AutoModelForCausalLM.from_pretrained(default_target, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def ours(default_target):
    return Llama.load(default_target, "fp32")


@pytest.fixture(scope="module")
def tokenizer(default_target):
    return Tokenizer(default_target)


def ask(tokenizer, prompt):
    return tokenizer.encode_chat([{"role": "user", "content": prompt}])


def greedy(model, ids, count):
    kv = model.new_kv_cache(-(-(len(ids) + count) // 16))
    logits, out = model.forward(one_request(ids), kv)[-1:], []
    while True:
        out.append(int(logits.argmax()))
        if len(out) == count or out[-1] in model.config.eos_token_ids:
            return out
        logits = model.forward(one_request(out[-1:], prefix=len(ids) + len(out) - 1), kv)


def test_files(default_target):
    config = json.loads((default_target / "config.json").read_text())
    assert config["num_attention_heads"] == 9 and config["num_key_value_heads"] == 3 and config["rms_norm_eps"] == 1e-5
    assert (default_target / "SmolLM2-135M-Instruct.Q4_1.gguf").is_file()


def test_known_tokens(tokenizer):
    assert tokenizer.encode("Hello, world!") == [19556, 28, 905, 17]
    assert tokenizer.encode("<|endoftext|><|im_start|><|im_end|>") == [0, 1, 2]
    assert [tokenizer.decode([i]) for i in tokenizer.encode("x 2024")] == ["x", " ", "2", "0", "2", "4"]
    assert tokenizer.vocab_size == 49152


def test_tokens_text_and_chat_of_transformers(default_target, transformers, tokenizer):
    theirs = transformers.AutoTokenizer.from_pretrained(default_target)
    for text in STRINGS + PROMPTS:
        ids = tokenizer.encode(text)
        assert ids == theirs(text)["input_ids"]
        for skip in (True, False):
            stream = tokenizer.detokenizer(skip)
            pieces = [stream.add(i) for i in ids] + [stream.finish()]
            assert "".join(pieces) == tokenizer.decode(ids, skip) == theirs.decode(ids, skip_special_tokens=skip)
        for messages in (
            [{"role": "user", "content": text}],
            [{"role": "system", "content": "Be brief."}, {"role": "user", "content": text}],
            [{"role": r, "content": text} for r in ("user", "assistant", "user")],
        ):
            wanted = theirs.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]
            assert tokenizer.encode_chat(messages) == wanted


@torch.no_grad()
def test_logits_of_transformers(ours, theirs, tokenizer):
    for prompt in PROMPTS[:3]:
        ids = ask(tokenizer, prompt)
        got = ours.forward(one_request(ids), ours.new_kv_cache(8))
        assert max(relative_error(got, theirs(torch.tensor([ids])).logits[0])) <= 1e-5


@torch.no_grad()
def test_four_bits_as_its_file_stores_them(default_target, ours, tokenizer):
    """The pass reads 66 MB of Q4_1 in the layers and 30 MB of Q8_0 in the output matrix; only activations are
    rounded."""
    model = Llama.load(default_target, "q4")
    packed = [t for layer in model.weights.layers for t in vars(layer).values() if t is not None and t.dim() == 3]
    assert sum(t.nbytes for t in packed) == 66_355_200 and model.weights.lm_head.nbytes == 30_081_024
    ids = ask(tokenizer, PROMPTS[0])
    got, wanted = (m.forward(one_request(ids), m.new_kv_cache(8)) for m in (model, ours))
    assert relative_error(got, wanted)[0] < 0.1


def check_greedy(ours, theirs, tokenizer, prompts, count):
    for prompt in prompts:
        ids = ask(tokenizer, prompt)
        generated = theirs.generate(
            torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)), max_new_tokens=count, do_sample=False
        )
        assert greedy(ours, ids, count) == generated[0, len(ids) :].tolist(), prompt


def test_greedy_tokens_of_transformers(ours, theirs, tokenizer):
    check_greedy(ours, theirs, tokenizer, PROMPTS[:2], 24)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_greedy_tokens_of_transformers_at_length(ours, theirs, tokenizer):
    check_greedy(ours, theirs, tokenizer, PROMPTS, 200)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_weights_as_transformers_reads_them_from_the_gguf(default_target, transformers, theirs):
    pytest.importorskip("accelerate")  # transformers needs it to read a GGUF file
    (gguf,) = default_target.glob("*.gguf")
    other = transformers.AutoModelForCausalLM.from_pretrained(default_target, gguf_file=gguf.name, dtype=torch.float32)
    for (name, a), (_, b) in zip(theirs.named_parameters(), other.named_parameters(), strict=True):
        assert torch.equal(a, b), name
