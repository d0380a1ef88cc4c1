"""Text to token ids and back, as the checkpoint's own files say."""

import json
from datetime import datetime
from pathlib import Path

import jinja2
import tokenizers
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from .config import read_json
from .detokenizer import Detokenizer, TokenBytes
from .hub import is_gguf

SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class Tokenizer:
    """tokenizer.json with what tokenizer_config.json (and chat_template.jinja) add to it; or that of a GGUF file.

    Which of BOS and EOS a text gets is up to the post-processor of tokenizer.json, as in transformers 5, which
    pays no heed to add_bos_token and add_eos_token beside it.
    Raises ValueError that names the file: no tokenizer.json, one that tokenizers cannot read, broken JSON; of a GGUF
    file a tokenizer of another kind.
    """

    def __init__(self, source: str | Path):
        if is_gguf(source):
            from .gguf.file import GGUFFile  # the package gguf loads slowly
            from .gguf.tokenizer import read_tokenizer

            self.backend, self.special_tokens, self.chat_template = read_tokenizer(GGUFFile(source))
        else:
            self._read_folder(Path(source))
        self._template = None
        self._bytes = TokenBytes(self.backend)

    def _read_folder(self, folder: Path) -> None:
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise ValueError(f"no tokenizer.json in {folder}: wanted one beside the weights, as transformers saves it")
        try:
            self.backend = tokenizers.Tokenizer.from_file(str(path))
        except Exception as e:  # the package raises Exception itself
            raise ValueError(f"{path} is not a valid tokenizer: {e}") from None
        self.backend.no_truncation()
        self.backend.no_padding()
        config = optional_json(folder / "tokenizer_config.json")
        special = optional_json(folder / "special_tokens_map.json") | config
        self.special_tokens = {k: text for k in SPECIAL if (text := content(special.get(k))) is not None}
        self._add_tokens(config)
        self.chat_template = read_template(folder, config)

    def _add_tokens(self, config: dict) -> None:
        """Those that only tokenizer_config.json knows of."""
        listed = [t for _, t in sorted(config.get("added_tokens_decoder", {}).items(), key=lambda item: int(item[0]))]
        listed += [{"content": text, "special": True, "normalized": False} for text in self.special_tokens.values()]
        known = {token.content for token in self.backend.get_added_tokens_decoder().values()}
        flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
        for token in listed:
            if token["content"] not in known:
                self.backend.add_tokens(
                    [tokenizers.AddedToken(token["content"], **{k: token[k] for k in flags if k in token})]
                )
                known.add(token["content"])

    @property
    def vocab_size(self) -> int:
        """Ids are below this, added tokens included."""
        return self.backend.get_vocab_size()

    @property
    def has_chat_template(self) -> bool:
        return self.chat_template is not None

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids, with the BOS (and EOS) that the checkpoint asks for unless add_special_tokens is False."""
        if not isinstance(text, str):
            raise TypeError(f"text: got {type(text).__name__}, wanted str")
        return self.backend.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        return self.backend.decode(ids, skip_special_tokens=skip_special_tokens)

    def json(self) -> str:
        """tokenizer.json as it is in use, for other libraries."""
        return self.backend.to_str()

    def detokenizer(self, skip_special_tokens: bool = True) -> Detokenizer:
        """For text that grows token by token: add(id) and finish() return what is complete."""
        return Detokenizer(self._bytes, skip_special_tokens)

    def chat(self, messages: list[dict], add_generation_prompt: bool = True, **variables) -> str:
        """The prompt that the checkpoint's chat template makes of messages [{"role": ..., "content": ...}, ...].

        Raises ValueError when there is no template, no message, or the template refuses them.
        """
        if not self.has_chat_template:
            raise ValueError("this model has no chat template: give a text instead of messages (in commands, --raw)")
        if not isinstance(messages, (list, tuple)) or not messages or not all(isinstance(m, dict) for m in messages):
            raise ValueError(f"messages: got {messages!r}, wanted a list of at least one {{'role', 'content'}}")
        known = {"tools": None, "documents": None, "add_generation_prompt": add_generation_prompt}
        try:
            if self._template is None:
                self._template = chat_environment().from_string(self.chat_template)
            return self._template.render(messages=messages, **(known | self.special_tokens | variables))
        except Exception as e:  # a template is a program, and raises what it likes
            reason = " ".join(str(e).split()) or type(e).__name__
            raise ValueError(f"messages: the chat template refused them: {reason}") from None

    def encode_chat(self, messages: list[dict], add_generation_prompt: bool = True, **variables) -> list[int]:
        """Token ids of `chat`; the template writes BOS itself where the model wants one."""
        return self.encode(self.chat(messages, add_generation_prompt, **variables), add_special_tokens=False)


def optional_json(path: Path) -> dict:
    return read_json(path) if path.is_file() else {}


def content(token) -> str | None:
    """A special token is written as its text or as an object that has it."""
    return token.get("content") if isinstance(token, dict) else token


def read_template(folder: Path, config: dict) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):  # several by name
        template = {entry["name"]: entry["template"] for entry in template}.get("default")
    return template


class GenerationBlock(Extension):
    """{% generation %} ... {% endgeneration %} marks what the assistant wrote, for training; the text stays."""

    tags = {"generation"}

    def parse(self, parser):
        next(parser.stream)
        return parser.parse_statements(["name:endgeneration"], drop_needle=True)


def chat_environment() -> ImmutableSandboxedEnvironment:
    """Templates come with the weights and are not trusted: they run in jinja2's sandbox, with the usual helpers."""

    def raise_exception(message):
        raise jinja2.TemplateError(message)

    def to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, loopcontrols]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
    return environment
