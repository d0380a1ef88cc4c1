import json
import random

import pytest
import tokenizers
from tokenizer_helpers import TEXT, like_mistral, pieces, save, with_byte_pieces
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from ssd.model.tokenizer import Tokenizer

TEMPLATE = (
    "{% for m in messages %}{{ bos_token }}{{ m['role'] }}: {{ m['content'] | trim }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}{{ bos_token }}assistant:{% endif %}"
)


def byte_level():
    t = tokenizers.Tokenizer(models.BPE())
    t.pre_tokenizer, t.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    t.train_from_iterator(TEXT, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False))
    t.add_special_tokens(["<s>", "</s>"])
    t.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", t.token_to_id("<s>"))])
    t.add_tokens(["added token"])
    return t


@pytest.mark.parametrize("make", [byte_level, with_byte_pieces])
@pytest.mark.parametrize(
    "config",
    [
        {},
        {"add_bos_token": True},
        {"add_bos_token": False},
        {"add_bos_token": True, "add_eos_token": True},
        {"bos_token": {"__type": "AddedToken", "content": "<s>", "special": True}, "eos_token": "<new>"},
        {"added_tokens_decoder": {"999": {"content": "<|more|>", "special": True, "normalized": False}}},
    ],
    ids=str,
)
def test_ids_and_text_of_transformers(tmp_path, make, config):
    transformers = pytest.importorskip("transformers")
    ours = save(tmp_path, make(), **config)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in [*TEXT[:3], "", " ", "<s>the</s>", "x <|more|><new> added token y", "\x00\u200b😀 1\r\n"]:
        assert ours.encode(text) == theirs(text)["input_ids"]
        assert ours.encode(text, add_special_tokens=False) == theirs(text, add_special_tokens=False)["input_ids"]
        ids = ours.encode(text)
        for skip in (True, False):
            assert (
                ours.decode(ids, skip)
                == theirs.decode(ids, skip_special_tokens=skip)
                == "".join(pieces(ours, ids, skip))
            )


def test_pieces_of_random_ids_make_the_decoded_text(tmp_path):
    tokenizer, rng = save(tmp_path, byte_level()), random.Random(0)
    for _ in range(300):
        ids = [rng.randrange(tokenizer.vocab_size + 2) for _ in range(rng.randrange(20))]
        known = [i for i in ids if i < tokenizer.vocab_size]
        assert "".join(pieces(tokenizer, ids)) == tokenizer.decode(known)


@pytest.mark.parametrize("make", [byte_level, with_byte_pieces])
def test_only_whole_characters_come_out(tmp_path, make):
    tokenizer = save(tmp_path, make())
    ids = tokenizer.encode("the 😀", add_special_tokens=False)[:-1]  # the last byte is missing
    got = pieces(tokenizer, ids)
    assert "".join(got[:-1]) == "the " and got[-1] == "\ufffd"
    whole = pieces(tokenizer, tokenizer.encode("é東😀", add_special_tokens=False))
    assert [p for p in whole if p] == ["é", "東", "😀"]


def test_chat_template_of_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")
    extra = (
        "{{ messages | tojson }}{% generation %}x{% endgeneration %}{{ strftime_now('%Y') }}"
        "{% for i in [1, 2, 3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}"
        "{% if tools is none %}no tools{% endif %}{{ '<&>' }}"
    )
    messages = [{"role": "system", "content": " Grüße "}, {"role": "user", "content": 'a "b" <c>'}]
    for template in (TEMPLATE, TEMPLATE + extra, [{"name": "tool_use", "template": "no"}] * 1):
        if isinstance(template, list):
            template = [*template, {"name": "default", "template": TEMPLATE}]
        ours = save(tmp_path, byte_level(), chat_template=template)
        theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
        for prompt in (True, False):
            text = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)
            ids = theirs.apply_chat_template(messages, add_generation_prompt=prompt, return_dict=True)["input_ids"]
            assert (ours.chat(messages, prompt), ours.encode_chat(messages, prompt)) == (text, ids)
    (tmp_path / "chat_template.jinja").write_text("from the file")
    assert Tokenizer(tmp_path).chat(messages) == "from the file"


@pytest.mark.parametrize(
    "template,message",
    [
        (None, "no chat template"),
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{% for %}", "the chat template refused them"),
        ("{{ messages[0].content + 1 }}", "the chat template refused them"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "the chat template refused them"),
    ],
)
def test_templates_that_fail(tmp_path, template, message):
    tokenizer = save(tmp_path, byte_level(), **({"chat_template": template} if template else {}))
    assert tokenizer.has_chat_template == bool(template)
    with pytest.raises(ValueError, match=message) as e:
        tokenizer.chat([{"role": "user", "content": "hi"}])
    assert "\n" not in str(e.value)


def test_null_content_says_nothing(tmp_path):
    tokenizer = save(tmp_path, byte_level(), chat_template=TEMPLATE)

    def said(content):
        return tokenizer.chat([{"role": "user", "content": content, "name": None, "tool_calls": None}])

    assert said(None) == said("") == said([]) and "None" not in said(None)
    assert said([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]) == said("a\nb")
    for template in ("{{ messages[0].content }}", "{{ 'x' + messages[0].content }}", "{{ messages[0].name ~ '' }}"):
        assert "None" not in save(tmp_path, byte_level(), chat_template=template).chat(MESSAGE)


MESSAGE = [{"role": "user", "content": None, "name": None}]


@pytest.mark.parametrize(
    "message,wanted",
    [
        ({"role": "user", "content": 5}, r"messages\[0\]: content: got 5, wanted a text"),
        ({"role": "user", "content": {"a": 1}}, "content: got {'a': 1}, wanted a text"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "content: got a part {'type': 'image_url'}, wanted"),
        ({"role": "user", "content": [None]}, "content: got a part None, wanted"),
        ({"role": None, "content": "a"}, r"messages\[0\]: role: got None, wanted a text"),
        ({"content": "a"}, "role: got None, wanted a text"),
    ],
)
def test_messages_of_the_wrong_type_are_named(message, wanted, tmp_path):
    tokenizer = save(tmp_path, byte_level(), chat_template=TEMPLATE)
    with pytest.raises(ValueError, match=wanted) as e:
        tokenizer.chat([message])
    assert "\n" not in str(e.value)


def with_metaspace():
    t = like_mistral()
    t.decoder = decoders.Metaspace("▁", prepend_scheme="first")
    return t


@pytest.mark.parametrize("make", [byte_level, with_byte_pieces, with_metaspace])
def test_the_text_of_an_answer_is_what_follows_the_prompt(make, tmp_path):
    tokenizer, rng = save(tmp_path, make()), random.Random(0)
    size = tokenizer.vocab_size
    for _ in range(500):
        ids = [rng.randrange(size) for _ in range(rng.randrange(12))]
        cut = rng.randrange(len(ids) + 1)
        before, whole = tokenizer.decode(ids[:cut]), tokenizer.decode(ids)
        if whole.startswith(before) and "\ufffd" not in whole:
            stream = tokenizer.detokenizer(prompt=ids[:cut])
            assert "".join([stream.add(i) for i in ids[cut:]]) + stream.finish() == whole[len(before) :]


def test_the_space_of_a_continued_text_is_kept(tmp_path):
    tokenizer = save(tmp_path, with_byte_pieces())
    the = tokenizer.backend.token_to_id("▁the")
    stream = tokenizer.detokenizer(prompt=tokenizer.encode("fox"))
    assert [stream.add(the), stream.add(the)] == [" the", " the"]
    stream = tokenizer.detokenizer(prompt=[tokenizer.backend.token_to_id("<s>")])
    assert [stream.add(the), stream.add(the)] == ["the", " the"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32"])
def test_files_in_any_unicode_encoding_are_read(encoding, tmp_path):
    wanted = save(tmp_path, byte_level(), chat_template=TEMPLATE)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        text = (tmp_path / name).read_text(encoding="utf-8")
        (tmp_path / name).write_text(text, encoding=encoding)
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8-sig")
    got = Tokenizer(tmp_path)
    assert got.json() == wanted.json() and got.chat_template == TEMPLATE
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        kept = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(b'{"a": "\xe9"}')
        with pytest.raises(ValueError, match=f"{name} is not Unicode text, wanted UTF-8"):
            Tokenizer(tmp_path)
        (tmp_path / name).write_bytes(kept)


@pytest.mark.parametrize(
    "config,message",
    [
        ({"eos_token": 5}, "eos_token: got 5, wanted a text"),
        ({"eot_token": {"content": [1]}}, "eot_token: got .*, wanted a text"),
        ({"added_tokens_decoder": [1]}, "added_tokens_decoder: got .*, wanted tokens by their ids"),
        ({"added_tokens_decoder": {"x": {"content": "a"}}}, "added_tokens_decoder: got .*, wanted tokens by their ids"),
        ({"added_tokens_decoder": {"1": {"content": None}}}, "added_tokens_decoder: got .* for 1, wanted a token"),
        ({"added_tokens_decoder": {"1": {"content": "a", "special": "no"}}}, "special: got 'no', wanted true or false"),
        ({"chat_template": 7}, "chat_template: got 7, wanted a text"),
        ({"chat_template": [{"name": "default"}, 3]}, None),
        ({"eos_token": None, "chat_template": None, "added_tokens_decoder": None}, None),
    ],
)
def test_tokenizer_files_with_values_of_the_wrong_type(config, message, tmp_path):
    save(tmp_path, byte_level())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    if message is None:
        Tokenizer(tmp_path)
        return
    with pytest.raises(ValueError, match=f"tokenizer_config.json: {message}") as e:
        Tokenizer(tmp_path)
    assert "\n" not in str(e.value)


def test_bad_input_is_named(tmp_path):
    with pytest.raises(ValueError, match="no tokenizer.json in "):
        Tokenizer(tmp_path)
    tokenizer = save(tmp_path, byte_level(), chat_template=TEMPLATE)
    for messages in ([], "hi", ["hi"], None):
        with pytest.raises(ValueError, match="messages: got .*, wanted a list of at least one"):
            tokenizer.chat(messages)
    with pytest.raises(TypeError, match="text: got int, wanted str"):
        tokenizer.encode(3)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ValueError, match="tokenizer_config.json is not valid JSON"):
        Tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match="tokenizer.json is not a valid tokenizer"):
        Tokenizer(tmp_path)
    backend = byte_level()
    backend.decoder = decoders.WordPiece()
    with pytest.raises(ValueError, match="decoder .'WordPiece'. is not supported, wanted ByteLevel or ByteFallback"):
        save(tmp_path, backend)
