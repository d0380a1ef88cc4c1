"""Tokenizers and chat templates as Qwen's and Mistral's checkpoints have them, against transformers."""

import pytest
import tokenizers
from test_model_tokenizer import TEXT, pieces, save, with_byte_pieces
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

transformers = pytest.importorskip("transformers")
WORDS = r"(?i:n't|'ll)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CHATML = (
    "{%- if tools %}{{- raise_exception('no tools here') }}{%- endif %}"
    "{%- if messages[0]['role'] != 'system' %}{{- '<|im_start|>system\nYou are helpful.<|im_end|>\n' }}{%- endif %}"
    "{%- set ns = namespace(last=messages|length - 1) %}"
    "{%- for message in messages[::-1] %}{%- if message.content is string and message.role == 'user' %}"
    "{%- set ns.last = messages|length - 1 - loop.index0 %}{%- break %}{%- endif %}{%- endfor %}"
    "{%- for message in messages %}{%- set text = message.content %}"
    "{%- if message.role == 'assistant' and loop.index0 < ns.last %}"
    "{%- set text = text.split('</think>')[-1].lstrip('\\n') %}{%- endif %}"
    "{{- '<|im_start|>' + message.role + '\n' + text + '<|im_end|>' + '\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}"
    "{%- endif %}"
)
INST = (
    "{{- bos_token }}{%- for message in messages %}"
    "{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{- raise_exception('Roles must alternate user/assistant/user/...') }}{%- endif %}"
    "{%- if message['role'] == 'user' %}{{- '[INST] ' + message['content'] + ' [/INST]' }}"
    "{%- else %}{{- ' ' + message['content'] | trim + eos_token }}{%- endif %}{%- endfor %}"
)
TALK = [("user", "Hi!"), ("assistant", "<think>\nhm\n</think>\n\nHello."), ("user", "Why?")]


def messages(*pairs):
    return [{"role": role, "content": text} for role, text in pairs]


def like_qwen():
    t = tokenizers.Tokenizer(models.BPE())
    t.normalizer, t.decoder = normalizers.NFC(), decoders.ByteLevel()
    split = pre_tokenizers.Split(Regex(WORDS), "isolated")
    t.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    t.train_from_iterator(TEXT, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False))
    t.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    t.add_tokens(["<think>", "</think>"])
    return t


def like_mistral():
    t = with_byte_pieces()
    t.normalizer = None
    t.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="first", split=False)
    t.add_special_tokens(["[INST]", "[/INST]"])
    return t


QWEN = dict(bos_token=None, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=CHATML)
MADE = {"Qwen": (like_qwen, QWEN), "Mistral": (like_mistral, dict(chat_template=INST))}


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
        ids = [i for i in tokenizer.encode(text) if i > 258]  # no bytes: this decoder knows none
        assert "".join(pieces(tokenizer, ids)) == tokenizer.decode(ids)


@pytest.mark.parametrize("make, config", MADE.values(), ids=MADE)
def test_ids_beyond_the_tokenizer_have_no_text(tmp_path, make, config):
    tokenizer = save(tmp_path, make(), **config)
    known, n = tokenizer.encode("the quick"), tokenizer.vocab_size
    padded = [n, *known, n + 127, 1 << 20]
    assert "".join(pieces(tokenizer, padded)) == tokenizer.decode(padded) == tokenizer.decode(known) == "the quick"
