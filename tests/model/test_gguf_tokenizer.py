import json
import random
from types import SimpleNamespace

import gguf
import pytest
from tokenizer_helpers import pieces
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers, trainers

from ssd.model.gguf.config import end_ids
from ssd.model.gguf.metadata import Metadata
from ssd.model.gguf.tokenizer import SPLITS, read_tokenizer
from ssd.model.tokenizer import Tokenizer

TEXTS = [
    "Hello, world! I'm here, WE'LL see.  two  spaces\tand\n\n newlines \r\n",
    "1234567 3.14 ２３ Ⅷ ½ x**2  # camelCase HTTPServer",
    "Grüße, e\u0301 é Ελληνικά русский 日本語 العربية हिन्दी 😀👩‍👧 \u200b\u00a0",
    "the tokens of the text then the end",
    "",
    " ",
    "a" * 50,
]


def read(meta):
    return read_tokenizer(SimpleNamespace(path="x.gguf", meta={f"tokenizer.{k}": v for k, v in meta.items()}))[:3]


def byte_level_meta(pre):
    """A tokenizer that is trained on the texts, so that they have something to merge."""
    trained = Backend(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet, show_progress=False)
    trained.train_from_iterator(TEXTS, trainer)
    vocab = trained.get_vocab()
    tokens = sorted(vocab, key=vocab.get) + ["<|end|>", "<tool>", "<|im_end|>"]
    model = json.loads(trained.to_str())["model"]
    merges = [" ".join(pair) for pair in model["merges"]]
    types = [1] * len(vocab) + [3, 4, 3]
    return {
        "ggml.model": "gpt2",
        "ggml.pre": pre,
        "ggml.tokens": tokens,
        "ggml.token_type": types,
        "ggml.merges": merges,
        "ggml.eos_token_id": len(vocab),
        "ggml.bos_token_id": len(vocab),
        "chat_template": "{{ messages[0].content }}",
    }


def test_qwen2_as_transformers_has_it():
    transformers = pytest.importorskip("transformers")
    meta = byte_level_meta("qwen2")
    vocab = {token: i for i, token in enumerate(meta["ggml.tokens"])}
    theirs = transformers.Qwen2Tokenizer(vocab, [tuple(m.split(" ")) for m in meta["ggml.merges"]])
    ours, special, template = read(meta)
    for text in TEXTS:
        assert ours.encode(text).ids == theirs(text)["input_ids"]
    assert special == {"bos_token": "<|end|>", "eos_token": "<|end|>"} and template == meta["chat_template"]


def test_llama3_as_transformers_has_it():
    convert = pytest.importorskip("transformers.convert_slow_tokenizer")
    pattern = convert.TikTokenConverter.__init__.__defaults__[1]
    assert SPLITS["llama-bpe"][0] == pattern
    meta = byte_level_meta("llama-bpe")
    ours, _, _ = read(meta)
    eos = len(meta["ggml.tokens"]) - 3
    assert ours.encode("a", add_special_tokens=True).ids[0] == eos
    assert read(meta | {"ggml.add_bos_token": False})[0].encode("<|end|>").ids == [eos]
    assert read(meta | {"ggml.add_eos_token": True})[0].encode("<|end|>").ids == [eos] * 3


@pytest.mark.parametrize(
    "pre,pieces",
    [
        ("llama-bpe", ["don", "'t", "ĠStopHERE", "Ġ", "202", "4", ".Ċ", "//ĊĊ", "x"]),
        ("qwen2", ["don", "'t", "ĠStopHERE", "Ġ", "2", "0", "2", "4", ".Ċ", "//ĊĊ", "x"]),
        ("tekken", ["don", "'t", "ĠStop", "HERE", "Ġ", "2", "0", "2", "4", ".Ċ//ĊĊ", "x"]),
        ("smollm", ["don", "'t", "ĠStopHERE", "Ġ", "2", "0", "2", "4", ".", "Ċ", "//", "Ċ", "Ċ", "x"]),
        ("gpt-2", ["don", "'t", "ĠStopHERE", "Ġ2024", ".", "Ċ", "//", "Ċ", "Ċ", "x"]),
    ],
)
def test_splits(pre, pieces):
    ours, _, _ = read(byte_level_meta(pre))
    text = "don't StopHERE 2024.\n//\n\nx"
    got = [piece for piece, _ in ours.pre_tokenizer.pre_tokenize_str(text)]
    assert got == pieces


def test_special_tokens_come_whole():
    meta = byte_level_meta("qwen2")
    ours, _, _ = read(meta)
    first = len(meta["ggml.tokens"]) - 3
    assert ours.encode("<|end|><tool><|im_end|>").ids == [first, first + 1, first + 2]
    assert ours.decode([first, first + 1]) == "<tool>"  # user-defined, not special
    assert end_ids(Metadata("x.gguf", {f"tokenizer.{k}": v for k, v in meta.items()})) == [first, first + 2]


def pieces_by_score(text, scores):
    """SentencePiece BPE by its definition: of all neighbours, the two with the highest score of their joint piece
    merge, the first of equals; characters without a piece become bytes."""
    parts = list("▁" + text.replace(" ", "▁"))
    while True:
        joint = [(scores[a + b], -i) for i, (a, b) in enumerate(zip(parts, parts[1:], strict=False)) if a + b in scores]
        if not joint:
            return [p for part in parts for p in ([part] if part in scores else bytes_of(part))]
        i = -max(joint)[1]
        parts[i : i + 2] = [parts[i] + parts[i + 1]]


def bytes_of(part):
    return [f"<0x{b:02X}>" for b in part.encode()]


def test_scores_as_their_definition_says():
    rng = random.Random(0)
    pieces = ["▁", *"abcdehnot"]
    while len(pieces) < 80:
        piece = rng.choice(pieces) + rng.choice(pieces)
        if len(piece) < 7 and piece not in pieces:
            pieces.append(piece)
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *pieces]
    scores = [0.0] * 259 + [-float(i) for i in range(len(pieces))]
    types = [2, 3, 3] + [6] * 256 + [1] * len(pieces)
    meta = {"ggml.model": "llama", "ggml.tokens": tokens, "ggml.scores": scores, "ggml.token_type": types}
    meta |= {"ggml.bos_token_id": 1, "ggml.eos_token_id": 2}
    ours, special, template = read(meta)
    assert special == {"bos_token": "<s>", "eos_token": "</s>"} and template is None
    by_piece = dict(zip(pieces, scores[259:], strict=True))
    for _ in range(300):
        text = "".join(rng.choice("abcdehnot   é😀\n") for _ in range(rng.randrange(1, 30)))
        got = ours.encode(text)
        assert got.tokens == ["<s>", *pieces_by_score(text, by_piece)]
        assert ours.decode(got.ids) == text
    bare, _, _ = read(meta | {"ggml.add_space_prefix": False, "ggml.add_bos_token": False})
    assert bare.encode("ab").tokens == pieces_by_score("ab", by_piece)[-len(bare.encode("ab").tokens) :]
    assert bare.decode(bare.encode(" ab").ids) == " ab"


@pytest.mark.parametrize(
    "changes,message",
    [
        ({"ggml.model": "bert"}, "tokenizer 'bert' is not supported: wanted gpt2 or llama"),
        ({"ggml.pre": "falcon"}, "tokenizer gpt2/falcon is not supported: wanted one of llama-bpe"),
        ({"ggml.pre": None}, "tokenizer gpt2/None is not supported"),
        ({"ggml.tokens": None}, "tokenizer.ggml.tokens is missing in its metadata"),
        ({"ggml.merges": None}, "tokenizer.ggml.merges is missing in its metadata"),
        ({"ggml.token_type": [1]}, "tokenizer.ggml.token_type has 1 entries, wanted"),
    ],
)
def test_tokenizers_that_are_refused(changes, message):
    meta = {k: v for k, v in (byte_level_meta("qwen2") | changes).items() if v is not None}
    with pytest.raises(ValueError, match=f"x.gguf: {message}"):
        read(meta)


def test_default_target_from_its_file(default_target):
    from texts import PROMPTS, STRINGS

    (path,) = default_target.glob("*Q4_1.gguf")
    ours, folder = Tokenizer(path), Tokenizer(default_target)
    for text in STRINGS + PROMPTS:
        ids = ours.encode(text)
        assert ids == folder.encode(text)
        for skip in (True, False):
            assert ours.decode(ids, skip) == folder.decode(ids, skip)
    messages = [{"role": "user", "content": "hi"}]
    assert ours.chat(messages) == folder.chat(messages) and ours.special_tokens == folder.special_tokens


def written(path, meta):
    """The tokenizer of a GGUF file with these metadata."""
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in meta.items():
        writer.add_key_value(f"tokenizer.{key}", value, gguf.GGUFValueType.get_type(value))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return Tokenizer(path)


def test_two_ids_with_one_text_both_decode_to_it(tmp_path):
    meta = byte_level_meta("qwen2")
    tokens = meta["ggml.tokens"]
    twice = tokens.index("a"), tokens.index("Ġ")
    meta["ggml.tokens"] = [*tokens, "a", "Ġ", "<|im_end|>", ""]
    meta["ggml.token_type"] = [*meta["ggml.token_type"], 1, 1, 3, 1]
    tokenizer = written(tmp_path / "x.gguf", meta)
    size = len(tokens)
    assert tokenizer.decode([*twice, size, size + 1]) == "a a "
    assert "".join(pieces(tokenizer, [*twice, size, size + 1])) == "a a "
    assert tokenizer.decode([size - 1, size + 2]) == "" and tokenizer.decode([size - 1], False) == "<|im_end|>"
    assert tokenizer.vocab_size == size + 4
    assert tokenizer.decode(tokenizer.encode("banana")) == "banana"
    assert tokenizer.detokenizer().hidden(size - 1) == tokenizer.detokenizer().hidden(size + 2) == "<|im_end|>"


def test_the_space_of_a_continued_text_is_kept_with_a_gguf_file_too(tmp_path):
    pieces_of = ["▁", *"helowrd", "▁world", "▁hello"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *pieces_of]
    meta = {"ggml.model": "llama", "ggml.tokens": tokens, "ggml.scores": [-float(i) for i in range(len(tokens))]}
    meta |= {"ggml.token_type": [2, 3, 3, *[6] * 256, *[1] * len(pieces_of)], "ggml.bos_token_id": 1}
    tokenizer = written(tmp_path / "x.gguf", meta)
    world = tokens.index("▁world")
    stream = tokenizer.detokenizer(prompt=tokenizer.encode("hello"))
    assert [stream.add(world), stream.add(world)] == [" world", " world"]
    stream = tokenizer.detokenizer(prompt=[1])
    assert [stream.add(world), stream.add(world)] == ["world", " world"]


def test_merges_that_make_no_token_are_ignored():
    meta = byte_level_meta("qwen2")
    wanted = read(meta)[0].encode(TEXTS[0]).ids
    meta["ggml.merges"] = ["é à", "x", "a", *meta["ggml.merges"], "! !!!!!", "nowhere to", "a b c"]
    assert read(meta)[0].encode(TEXTS[0]).ids == wanted


@pytest.mark.parametrize(
    "changes,message",
    [
        ({"ggml.tokens": "abc"}, "tokenizer.ggml.tokens is 'abc', wanted an array"),
        ({"ggml.tokens": [1, 2]}, "tokenizer.ggml.tokens holds other values, wanted a text in every place"),
        ({"ggml.merges": [1]}, "tokenizer.ggml.merges holds other values"),
        ({"ggml.pre": 5}, "tokenizer.ggml.pre is 5, wanted a text"),
        ({"ggml.token_type": [1]}, "tokenizer.ggml.token_type has 1 entries, wanted"),
        ({"ggml.eos_token_id": "x"}, "tokenizer.ggml.eos_token_id is 'x', wanted a whole number"),
        ({"ggml.add_bos_token": 1}, "tokenizer.ggml.add_bos_token is 1, wanted true or false"),
        ({"chat_template": ["a"]}, "tokenizer.chat_template is .*, wanted a text"),
        ({"ggml.model": "llama", "ggml.scores": [0.0]}, "tokenizer.ggml.scores has 1 entries, wanted"),
    ],
)
def test_metadata_of_the_wrong_type_are_named(changes, message):
    with pytest.raises(ValueError, match=f"^x.gguf: {message}"):
        read(byte_level_meta("qwen2") | changes)
