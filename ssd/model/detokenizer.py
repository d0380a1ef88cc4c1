"""Text from token ids as they come: whole characters only, constant work a token."""

import codecs
import json
import re

import tokenizers


class TokenBytes:
    """The bytes that a token stands for, by the decoder of its tokenizer.json: byte-level, or pieces with bytes.

    Raises ValueError on a decoder of another kind.
    """

    def __init__(self, backend: tokenizers.Tokenizer):
        self.backend = backend
        decoder = json.loads(backend.decoder.__getstate__()) if backend.decoder else {}
        steps = decoder.get("decoders", [decoder])
        kinds = [step.get("type") for step in steps]
        self.byte_level = "ByteLevel" in kinds
        if not self.byte_level and not {"ByteFallback", "Metaspace"} & set(kinds):
            raise ValueError(f"tokenizer.json: decoder {kinds} is not supported, wanted ByteLevel or ByteFallback")
        self.strip = sum(step.get("start", 0) for step in steps if step.get("type") == "Strip")
        metaspaces = [step.get("prepend_scheme") for step in steps if step.get("type") == "Metaspace"]
        self.strip += sum(scheme != "never" for scheme in metaspaces)  # the one that it put in front
        self.byte_of = {char: byte for byte, char in enumerate(byte_level_alphabet())}
        self.special = {i for i, token in backend.get_added_tokens_decoder().items() if token.special}
        self.cache: dict[int, bytes] = {}

    def __getitem__(self, token: int) -> bytes:
        found = self.cache.get(token)
        if found is None:
            found = self.cache[token] = self._bytes(self.backend.id_to_token(token))
        return found

    def _bytes(self, text: str | None) -> bytes:
        if text is None:  # an id that the tokenizer does not know: a padded vocabulary has such rows
            return b""
        if self.byte_level:
            if all(char in self.byte_of for char in text):
                return bytes(self.byte_of[char] for char in text)
            return text.encode()  # an added token
        if byte := re.fullmatch("<0x([0-9A-Fa-f]{2})>", text):
            return bytes([int(byte[1], 16)])
        return text.replace("▁", " ").encode()


def byte_level_alphabet() -> list[str]:
    """The character that stands for each byte: itself where it is printable, else the next one from U+0100."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(spare)) for byte in range(256)]


class Detokenizer:
    """add(id) returns the text that a token completes; finish() what is left, incomplete characters as U+FFFD.

    Together the pieces are what decoding all ids at once gives. (Exception: where a model with byte pieces writes
    a run of bytes that is no UTF-8, the number of U+FFFD may differ.)
    """

    def __init__(self, token_bytes: TokenBytes, skip_special_tokens: bool = True):
        self._bytes = token_bytes
        self._skipped = token_bytes.special if skip_special_tokens else ()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip = token_bytes.strip  # spaces to take off the beginning

    def add(self, token: int) -> str:
        return "" if token in self._skipped else self._clean(self._decoder.decode(self._bytes[token]))

    def finish(self) -> str:
        return self._clean(self._decoder.decode(b"", final=True))

    def _clean(self, text: str) -> str:
        while self._strip and text:
            if not text.startswith(" "):
                self._strip = 0
                break
            text, self._strip = text[1:], self._strip - 1
        return text
