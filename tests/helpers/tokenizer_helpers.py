"""Small tokenizers of several families, trained on a few words."""

import json

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

from ssd.model.tokenizer import Tokenizer

TEXT = ["the quick brown fox jumps over the lazy dog", "Grüße, 東京 🙂 and 12345 tokens", "a  b\n\n\tc é è ê"] * 3


def with_byte_pieces():
    """A tokenizer like that of Llama 1 and 2."""
    vocab = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), "▁", *"thequickbrownfx", "▁the", "th"]
    vocab += ["the"]
    ids = {piece: i for i, piece in enumerate(dict.fromkeys(vocab))}
    merges = [("t", "h"), ("th", "e"), ("▁", "the")]
    t = tokenizers.Tokenizer(models.BPE(ids, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    t.decoder = decoders.Sequence(steps)
    t.add_special_tokens(["<unk>", "<s>", "</s>"])
    return t


def save(folder, backend, **config):
    backend.save(str(folder / "tokenizer.json"))
    base = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(base | config))
    return Tokenizer(folder)


def pieces(tokenizer, ids, skip=True):
    d = tokenizer.detokenizer(skip)
    return [d.add(i) for i in ids] + [d.finish()]


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
