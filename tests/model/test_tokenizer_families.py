"""Tokenizers and chat templates like those of Qwen's and Mistral's checkpoints, against transformers."""

import pytest
from tokenizer_helpers import INST, MADE, QWEN, TEXT, like_mistral, like_qwen, messages, pieces, save
from tokenizers import decoders, pre_tokenizers

transformers = pytest.importorskip("transformers")
TALK = [("user", "Hi!"), ("assistant", "<think>\nhm\n</think>\n\nHello."), ("user", "Why?")]


@pytest.mark.parametrize("make, config", MADE.values(), ids=MADE)
def test_ids_text_and_chats_of_transformers(tmp_path, make, config):
    ours = save(tmp_path, make(), **config)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    texts = ["I can't, we'LL", "x = 12345;\r\n\n  y", "e\u0301 é 東京🙂", "<think>the</think> [INST] the [/INST]", " "]
    for text in [*TEXT[:3], *texts]:
        ids = ours.encode(text)
        assert ids == theirs(text)["input_ids"]
        for skip in (True, False):
            assert ours.decode(ids, skip) == theirs.decode(ids, skip_special_tokens=skip)
            assert "".join(pieces(ours, ids, skip)) == ours.decode(ids, skip)
    for talk in (TALK[:1], TALK):
        chat = messages(*talk)
        wanted = theirs.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        assert ours.chat(chat) == wanted
        assert ours.encode_chat(chat) == theirs(wanted, add_special_tokens=False)["input_ids"]


def test_a_default_system_prompt_and_thinking(tmp_path):
    tokenizer = save(tmp_path, like_qwen(), **QWEN)
    chat = tokenizer.chat(messages(*TALK))
    assert chat.startswith("<|im_start|>system\nYou are helpful.<|im_end|>\n<|im_start|>user\nHi!<|im_end|>\n")
    assert "assistant\nHello.<|im_end|>" in chat and chat.endswith("<|im_start|>assistant\n")
    own = tokenizer.chat(messages(("system", "Be brief."), *TALK[:1]), enable_thinking=False)
    assert own.startswith("<|im_start|>system\nBe brief.<|im_end|>") and "helpful" not in own
    assert own.endswith("<think>\n\n</think>\n\n")


def test_a_template_that_knows_no_system_says_so_in_one_sentence(tmp_path):
    tokenizer = save(tmp_path, like_mistral(), chat_template=INST)
    with pytest.raises(ValueError, match="messages: the chat template refused them: Roles must alternate user") as e:
        tokenizer.chat(messages(("system", "Be brief."), *TALK[:1]))
    assert "\n" not in str(e.value)
    broken = "{{ messages[0].content.encode('ascii') }}{{ 1 // 0 }}"
    for text in ("é", "a"):  # errors of Python itself
        with pytest.raises(ValueError, match="messages: the chat template refused them: ") as e:
            save(tmp_path, like_mistral(), chat_template=broken).chat(messages(("user", text)))
        assert "\n" not in str(e.value)


@pytest.mark.parametrize("scheme", ["always", "first", "never"])
def test_a_decoder_that_takes_off_the_space_that_was_put_in_front(tmp_path, scheme):
    backend = like_mistral()
    backend.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme=scheme, split=True)
    backend.decoder = decoders.Metaspace("▁", prepend_scheme=scheme)
    tokenizer = save(tmp_path, backend)
    for text in ("the quick the", " the", "  the"):
        ids = [i for i in tokenizer.encode(text) if i > 258]  # no bytes, which this decoder does not know
        assert "".join(pieces(tokenizer, ids)) == tokenizer.decode(ids)


@pytest.mark.parametrize("make, config", MADE.values(), ids=MADE)
def test_ids_beyond_the_tokenizer_have_no_text(tmp_path, make, config):
    tokenizer = save(tmp_path, make(), **config)
    known, n = tokenizer.encode("the quick"), tokenizer.vocab_size
    padded = [n, *known, n + 127, 1 << 20]
    assert "".join(pieces(tokenizer, padded)) == tokenizer.decode(padded) == tokenizer.decode(known) == "the quick"
