import random

import pytest
import tokenizers
from tokenizer_helpers import TEXT, pieces, save, with_byte_pieces
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
