"""Text from a stream of token ids: whole characters only, constant work for each token."""

import codecs
import json
import re
from collections.abc import Mapping, Sequence

import tokenizers


class TokenBytes:
    """The bytes of each token. The decoder of tokenizer.json must be byte-level, or of pieces with byte fallback.

    Raises ValueError for another decoder.
    """

    def __init__(self, backend: tokenizers.Tokenizer, aliases: Mapping[int, int]):
        """aliases: for an id whose text another id has too, the id by which the backend knows that text."""
        self.backend, self.aliases = backend, aliases
        decoder = json.loads(backend.decoder.__getstate__()) if backend.decoder else {}
        steps = decoder.get("decoders", [decoder])
        kinds = [step.get("type") for step in steps]
        self.byte_level, self.byte_fallback = "ByteLevel" in kinds, "ByteFallback" in kinds
        if not self.byte_level and not {"ByteFallback", "Metaspace"} & set(kinds):
            raise ValueError(f"tokenizer.json: decoder {kinds} is not supported, wanted ByteLevel or ByteFallback")
        self.strip = sum(step.get("start", 0) for step in steps if step.get("type") == "Strip")
        metaspaces = [step.get("prepend_scheme") for step in steps if step.get("type") == "Metaspace"]
        self.joins_first = any(scheme != "never" for scheme in metaspaces)  # the first token loses its spaces
        self.byte_of = {char: byte for byte, char in enumerate(byte_level_alphabet())}
        self.special = {i: token.content for i, token in backend.get_added_tokens_decoder().items() if token.special}
        self.special |= {i: self.special[known] for i, known in aliases.items() if known in self.special}
        self.cache: dict[int, bytes] = {}

    def __getitem__(self, token: int) -> bytes:
        found = self.cache.get(token)
        if found is None:
            found = self.cache[token] = self._bytes(self._text(token))
        return found

    def first(self, token: int) -> bytes:
        """The bytes of a token with which the decoded text begins."""
        text = self._text(token)
        return self._bytes(text.replace("▁", "")) if self.joins_first and text else self[token]

    def _text(self, token: int) -> str | None:
        return self.backend.id_to_token(self.aliases.get(token, token))

    def _bytes(self, text: str | None) -> bytes:
        if text is None:  # an unknown id: padded vocabularies have some
            return b""
        if self.byte_level:
            if all(char in self.byte_of for char in text):
                return bytes(self.byte_of[char] for char in text)
            return text.encode()  # an added token
        if self.byte_fallback and (byte := re.fullmatch("<0x([0-9A-Fa-f]{2})>", text)):
            return bytes([int(byte[1], 16)])
        return text.replace("▁", " ").encode()


def byte_level_alphabet() -> list[str]:
    """The character for each byte: the byte itself where it is printable, else the next one from U+0100."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(spare)) for byte in range(256)]


class Detokenizer:
    """Decodes ids one at a time: add(id) returns the text that a token completes, finish() the rest.

    Bytes that form no character become U+FFFD. The pieces together are what decoding all ids at once gives, except
    that in a run of byte pieces that is not UTF-8 the number of U+FFFD may differ. prompt: ids before the first
    one; the pieces are then what decoding prompt and answer gives beyond decoding the prompt.
    """

    def __init__(self, token_bytes: TokenBytes, skip_special_tokens: bool = True, prompt: Sequence[int] = ()):
        self._bytes = token_bytes
        self._skipped = token_bytes.special if skip_special_tokens else {}
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip = token_bytes.strip  # spaces to take off the beginning
        self._begun = False
        self._decode(prompt)

    def add(self, token: int) -> str:
        return self._decode([token])

    def hidden(self, token: int) -> str:
        """The text of a special token that is skipped, else an empty text."""
        return self._skipped.get(token, "")

    def _decode(self, tokens: Sequence[int]) -> str:
        data = bytearray()
        for token in tokens:
            if token not in self._skipped and (found := self._bytes[token]):
                data += found if self._begun else self._bytes.first(token)
                self._begun = True
        return self._clean(self._decoder.decode(data))

    def finish(self) -> str:
        return self._clean(self._decoder.decode(b"", final=True))

    def _clean(self, text: str) -> str:
        while self._strip and text:
            if not text.startswith(" "):
                self._strip = 0
                break
            text, self._strip = text[1:], self._strip - 1
        return text
