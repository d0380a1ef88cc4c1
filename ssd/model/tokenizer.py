"""Text to token ids and back, by the checkpoint's own files."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import tokenizers

from ..text_files import read_text
from .chat_template import chat_environment, checked_messages
from .config import END_OF_TURN
from .detokenizer import Detokenizer, TokenBytes
from .hub import is_gguf
from .values import boolean, read_json, show

FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
ENDS = ("eos_token", "eot_token", "eom_token")
EXTRA = ("extra_special_tokens", "model_specific_special_tokens")  # objects with further special tokens by name
SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class Tokenizer:
    """The tokenizer of a folder (tokenizer.json, tokenizer_config.json, chat_template.jinja) or of a GGUF file.

    The post-processor of tokenizer.json alone decides whether a text gets BOS and EOS, as in transformers 5, which
    ignores add_bos_token and add_eos_token.
    Raises ValueError that names the file: no tokenizer.json, a file that cannot be read or has values of the wrong
    type, or a kind of tokenizer that is not supported.
    """

    def __init__(self, source: str | Path):
        if is_gguf(source):
            from .gguf.file import GGUFFile  # the package gguf is slow to import
            from .gguf.tokenizer import read_tokenizer

            self.backend, self.special_tokens, self.chat_template, aliases = read_tokenizer(GGUFFile(source))
            self.eos_ids = frozenset()  # LlamaConfig has those of a GGUF file
        else:
            aliases = {}
            self._read_folder(Path(source))
        self._template = None
        try:
            self._bytes = TokenBytes(self.backend, aliases)
        except ValueError as e:
            raise ValueError(f"{source}: {e}") from None

    def _read_folder(self, folder: Path) -> None:
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise ValueError(f"no tokenizer.json in {folder}: wanted one beside the weights, as transformers saves it")
        self.backend = backend_of(path)
        self.backend.no_truncation()
        self.backend.no_padding()
        config = optional_json(folder / "tokenizer_config.json")
        special = optional_json(folder / "special_tokens_map.json") | config
        named = (special, *(config[name] for name in EXTRA if isinstance(config.get(name), dict)))
        try:
            self.special_tokens = {k: text for k in SPECIAL if (text := content(k, special.get(k))) is not None}
            self._add_tokens(added_tokens(config))
            ends = {content(k, fields.get(k)) for fields in named for k in ENDS}
            self.chat_template = read_template(folder, config)
        except ValueError as e:
            raise e if str(folder) in str(e) else ValueError(f"{folder / 'tokenizer_config.json'}: {e}") from None
        template = self.chat_template or ""
        special = {token.content for token in self.backend.get_added_tokens_decoder().values() if token.special}
        ends |= {text for text in special.intersection(END_OF_TURN) if text in template}
        self.eos_ids = frozenset(i for text in ends if text and (i := self.backend.token_to_id(text)) is not None)

    def _add_tokens(self, tokens: list[dict]) -> None:
        """Add the tokens that stand in tokenizer_config.json alone."""
        special = [{"content": text, "special": True, "normalized": False} for text in self.special_tokens.values()]
        known = {token.content for token in self.backend.get_added_tokens_decoder().values()}
        for token in tokens + special:
            if token["content"] not in known:
                self.backend.add_tokens([tokenizers.AddedToken(**token)])
                known.add(token["content"])

    @cached_property
    def vocab_size(self) -> int:
        """One more than the highest id, added tokens included."""
        return 1 + max((*self.backend.get_vocab().values(), *self._bytes.aliases), default=-1)

    @property
    def has_chat_template(self) -> bool:
        return self.chat_template is not None

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids, with the BOS (and EOS) that the checkpoint asks for unless add_special_tokens is False."""
        if not isinstance(text, str):
            raise TypeError(f"text: got {type(text).__name__}, wanted str")
        return self.backend.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        known = [self._bytes.aliases.get(token, token) for token in ids]
        return self.backend.decode(known, skip_special_tokens=skip_special_tokens)

    def json(self) -> str:
        """The tokenizer in use as the text of a tokenizer.json, for other libraries."""
        return self.backend.to_str()

    def detokenizer(self, skip_special_tokens: bool = True, prompt: Sequence[int] = ()) -> Detokenizer:
        """A decoder of text that grows token by token, behind the ids of a prompt."""
        return Detokenizer(self._bytes, skip_special_tokens, prompt)

    def chat(self, messages: list[dict], add_generation_prompt: bool = True, **variables) -> str:
        """The prompt that the checkpoint's chat template makes of messages [{"role": ..., "content": ...}, ...].

        Raises ValueError when there is no template, no message, or the template refuses them.
        """
        if not self.has_chat_template:
            raise ValueError("this model has no chat template: give a text instead of messages (in commands, --raw)")
        messages = checked_messages(messages)
        known = {"tools": None, "documents": None, "add_generation_prompt": add_generation_prompt}
        try:
            if self._template is None:
                self._template = chat_environment().from_string(self.chat_template)
            return self._template.render(messages=messages, **(known | self.special_tokens | variables))
        except Exception as e:  # a template is a program, and raises what it likes
            raise ValueError(f"messages: the chat template refused them: {one_line(e)}") from None

    def encode_chat(self, messages: list[dict], add_generation_prompt: bool = True, **variables) -> list[int]:
        """Token ids of `chat`; the template writes BOS itself where the model wants one."""
        return self.encode(self.chat(messages, add_generation_prompt, **variables), add_special_tokens=False)


def backend_of(path: Path) -> tokenizers.Tokenizer:
    """The tokenizer of a tokenizer.json. Raises ValueError that names the file."""
    text = read_text(path)
    try:
        return tokenizers.Tokenizer.from_str(text)
    except Exception as e:  # the package raises Exception itself
        raise ValueError(f"{path} is not a valid tokenizer: {one_line(e)}") from None


def one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def optional_json(path: Path) -> dict:
    return read_json(path) if path.is_file() else {}


def content(name: str, token) -> str | None:
    """The text of a special token, which is written as that text or as an object that has it. Raises ValueError."""
    text = token.get("content") if isinstance(token, dict) else token
    if not isinstance(text, (str, type(None))):
        raise ValueError(f"{name}: got {show(token)}, wanted a text")
    return text


def added_tokens(config: dict) -> list[dict]:
    """The tokens of added_tokens_decoder by ascending id, each with its text and its flags. Raises ValueError."""
    listed = config.get("added_tokens_decoder") or {}
    if not isinstance(listed, dict) or not all(i.isdecimal() and isinstance(t, dict) for i, t in listed.items()):
        raise ValueError(f"added_tokens_decoder: got {show(listed)}, wanted tokens by their ids")
    found = []
    for i, token in sorted(listed.items(), key=lambda item: int(item[0])):
        if not isinstance(text := token.get("content"), str):
            raise ValueError(f"added_tokens_decoder: got {show(token)} for {i}, wanted a token with its content")
        found.append({"content": text} | {flag: boolean(token, flag) for flag in FLAGS if token.get(flag) is not None})
    return found


def read_template(folder: Path, config: dict) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return read_text(path)
    template = config.get("chat_template")
    if isinstance(template, list):  # several by name
        entries = [entry for entry in template if isinstance(entry, dict) and entry.get("name") == "default"]
        template = entries[-1].get("template") if entries else None
    if not isinstance(template, (str, type(None))):
        raise ValueError(f"chat_template: got {show(template)}, wanted a text")
    return template
