"""The tokenizer of a GGUF file, as a tokenizer of the package tokenizers."""

from typing import NamedTuple

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from .config import CONTROL
from .file import GGUFFile
from .metadata import Metadata

TOKENS = "tokenizer.ggml.tokens"
NORMAL, UNKNOWN, USER_DEFINED = 1, 2, 4  # types of tokens, beside CONTROL
ADDED = (CONTROL, USER_DEFINED, UNKNOWN)
WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3, QWEN2 = WORDS + r"\p{N}{1,3}" + REST, WORDS + r"\p{N}" + REST
# by tokenizer.ggml.pre: how text is split (None as in GPT-2), whether whole words skip the merges, NFC, BOS by default
SPLITS = {
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3"), (LLAMA3, True, False, True)),
    "qwen2": (QWEN2, False, True, False),
    "deepseek-r1-qwen": (QWEN2, False, False, False),
    "tekken": (TEKKEN, True, False, True),
    "smollm": (r"\p{N}", False, False, False),
    "gpt-2": (None, False, False, False),
}
SPECIAL = {
    "bos_token": "bos",
    "eos_token": "eos",
    "unk_token": "unknown",
    "pad_token": "padding",
}


class GGUFTokenizer(NamedTuple):
    backend: Tokenizer
    special_tokens: dict[str, str]  # by their names in tokenizer_config.json
    chat_template: str | None
    aliases: dict[int, int]  # for an id whose text a later id has too, that id


def read_tokenizer(file: GGUFFile) -> GGUFTokenizer:
    """The tokenizer of a GGUF file.

    Raises ValueError that names the file: missing or unfit metadata, or a kind of tokenizer that is not supported.
    """
    meta = Metadata(file.path, file.meta)
    tokens, kind = meta.array(TOKENS, str), meta.get("tokenizer.ggml.model", str)
    types = [NORMAL] * len(tokens)
    if "tokenizer.ggml.token_type" in file.meta:
        types = meta.array("tokenizer.ggml.token_type", int, len(tokens))
    ids = {token: i for i, token in enumerate(tokens)}
    if kind not in ("gpt2", "llama"):
        raise ValueError(f"{file.path}: tokenizer {kind!r} is not supported: wanted gpt2 or llama")
    try:
        tokenizer, bos = byte_level(meta, ids) if kind == "gpt2" else with_scores(meta, ids, types)
        added = zip(tokens, types, strict=True)
        tokenizer.add_tokens(
            [AddedToken(token, special=k != USER_DEFINED, normalized=False) for token, k in added if k in ADDED]
        )
    except ValueError:
        raise
    except Exception as e:  # the package raises Exception itself
        raise ValueError(f"{file.path} holds no valid tokenizer: {e}") from None
    named = {name: meta.optional(f"tokenizer.ggml.{key}_token_id", int) for name, key in SPECIAL.items()}
    named = {name: i for name, i in named.items() if i is not None and 0 <= i < len(tokens)}
    first = named.get("bos_token") if meta.get("tokenizer.ggml.add_bos_token", bool, bos) else None
    last = named.get("eos_token") if meta.get("tokenizer.ggml.add_eos_token", bool, False) else None
    if first is not None or last is not None:
        added = {"first": first, "last": last}
        tokenizer.post_processor = processors.TemplateProcessing(
            [name for name in ("first", "$A", "last") if added.get(name, 0) is not None],
            special_tokens=[{"id": n, "ids": [i], "tokens": [tokens[i]]} for n, i in added.items() if i is not None],
        )
    aliases = {i: ids[token] for i, token in enumerate(tokens) if ids[token] != i}
    special = {name: tokens[i] for name, i in named.items()}
    return GGUFTokenizer(tokenizer, special, meta.optional("tokenizer.chat_template", str), aliases)


def byte_level(meta: Metadata, ids: dict[str, int]) -> tuple[Tokenizer, bool]:
    """A byte-level BPE tokenizer, and whether a text begins with BOS where the file does not say."""
    pre = meta.optional("tokenizer.ggml.pre", str)
    if pre not in SPLITS:
        raise ValueError(f"{meta.path}: tokenizer gpt2/{pre} is not supported: wanted one of {', '.join(SPLITS)}")
    pattern, ignore_merges, nfc, bos = SPLITS[pre]
    pairs = [tuple(merge.split(" ", 1)) for merge in meta.array("tokenizer.ggml.merges", str)]
    merges = [pair for pair in pairs if len(pair) == 2 and {*pair, "".join(pair)} <= ids.keys()]
    tokenizer = Tokenizer(models.BPE(ids, merges, ignore_merges=ignore_merges))
    if nfc:
        tokenizer.normalizer = normalizers.NFC()
    plain = pattern is None or pre == "smollm"  # the split of GPT-2, after that of digits
    steps = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=plain)]
    if pattern:
        steps.insert(0, pre_tokenizers.Split(Regex(pattern), "isolated"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, bos


def with_scores(meta: Metadata, ids: dict[str, int], types: list[int]) -> tuple[Tokenizer, bool]:
    """A SentencePiece BPE tokenizer, which merges the neighbours whose joint piece has the highest score first.

    Text without a piece is written as bytes. A text begins with BOS where the file does not say.
    """
    scores = meta.array("tokenizer.ggml.scores", float, len(types))
    pieces = {token for token, i in ids.items() if types[i] == NORMAL}
    pairs = []
    for piece in pieces:
        splits = ((piece[:i], piece[i:]) for i in range(1, len(piece)))
        pairs += [(scores[ids[piece]], len(a), len(b), a, b) for a, b in splits if a in pieces and b in pieces]
    merges = [(a, b) for *_, a, b in sorted(pairs, reverse=True)]
    unknown = next((token for token, i in ids.items() if types[i] == UNKNOWN), None)
    tokenizer = Tokenizer(models.BPE(ids, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    prefix = meta.get("tokenizer.ggml.add_space_prefix", bool, True)
    spaces = [normalizers.Prepend("▁")] * prefix + [normalizers.Replace(" ", "▁")]
    tokenizer.normalizer = normalizers.Sequence(spaces)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(steps + [decoders.Strip(" ", 1, 0)] * prefix)
    return tokenizer, True
