"""The tokenizer of a GGUF file, as tokenizer.json would have it."""

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from .file import GGUFFile

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4  # types of tokens
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


def read_tokenizer(file: GGUFFile) -> tuple[Tokenizer, dict[str, str], str | None]:
    """The tokenizer, its special tokens by their names in tokenizer_config.json, and the chat template.

    Raises ValueError that names the file: a kind of tokenizer that is not supported, or missing metadata.
    """
    meta = file.meta

    def get(name):
        if f"tokenizer.ggml.{name}" not in meta:
            raise ValueError(f"{file.path}: tokenizer.ggml.{name} is missing in its metadata")
        return meta[f"tokenizer.ggml.{name}"]

    tokens, kind = get("tokens"), get("model")
    types = meta.get("tokenizer.ggml.token_type") or [NORMAL] * len(tokens)
    if len(types) != len(tokens):
        raise ValueError(f"{file.path}: tokenizer.ggml.token_type has {len(types)} entries, wanted {len(tokens)}")
    if kind == "gpt2":
        tokenizer, bos = byte_level(file.path, tokens, get("merges"), meta.get("tokenizer.ggml.pre"))
    elif kind == "llama":
        tokenizer, bos = with_scores(meta, tokens, types, get("scores")), True
    else:
        raise ValueError(f"{file.path}: tokenizer {kind!r} is not supported: wanted gpt2 or llama")
    tokenizer.add_tokens(
        [
            AddedToken(token, special=kind != USER_DEFINED, normalized=False)
            for token, kind in zip(tokens, types, strict=True)
            if kind in (CONTROL, USER_DEFINED, UNKNOWN)
        ]
    )
    ids = {name: meta.get(f"tokenizer.ggml.{key}_token_id") for name, key in SPECIAL.items()}
    special = {name: tokens[i] for name, i in ids.items() if i is not None and 0 <= i < len(tokens)}
    first = special.get("bos_token") if meta.get("tokenizer.ggml.add_bos_token", bos) else None
    last = special.get("eos_token") if meta.get("tokenizer.ggml.add_eos_token", False) else None
    if first or last:
        added = {text: tokenizer.token_to_id(text) for text in (first, last) if text}
        template = [text for text in (first, "$A", last) if text]
        tokenizer.post_processor = processors.TemplateProcessing(template, special_tokens=list(added.items()))
    return tokenizer, special, meta.get("tokenizer.chat_template")


def byte_level(path, tokens: list[str], merges: list[str], pre: str | None) -> tuple[Tokenizer, bool]:
    """Byte-level BPE, and whether a text begins with BOS where the file does not say."""
    if pre not in SPLITS:
        raise ValueError(f"{path}: tokenizer gpt2/{pre} is not supported: wanted one of {', '.join(SPLITS)}")
    pattern, ignore_merges, nfc, bos = SPLITS[pre]
    pairs = [tuple(merge.split(" ", 1)) for merge in merges]
    tokenizer = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, pairs, ignore_merges=ignore_merges))
    if nfc:
        tokenizer.normalizer = normalizers.NFC()
    plain = pattern is None or pre == "smollm"  # the split of GPT-2, after that of digits
    steps = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=plain)]
    if pattern:
        steps.insert(0, pre_tokenizers.Split(Regex(pattern), "isolated"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, bos


def with_scores(meta: dict, tokens: list[str], types: list[int], scores: list[float]) -> Tokenizer:
    """SentencePiece BPE with bytes for what it has no piece for: of two neighbours whose joint piece has the highest
    score, that piece is made first."""
    ids = {token: i for i, token in enumerate(tokens)}
    pieces = {t for t, kind in zip(tokens, types, strict=True) if kind == NORMAL}
    pairs = []
    for piece in pieces:
        splits = ((piece[:i], piece[i:]) for i in range(1, len(piece)))
        pairs += [(scores[ids[piece]], len(a), len(b), a, b) for a, b in splits if a in pieces and b in pieces]
    merges = [(a, b) for *_, a, b in sorted(pairs, reverse=True)]
    unknown = next((t for t, kind in zip(tokens, types, strict=True) if kind == UNKNOWN), None)
    tokenizer = Tokenizer(models.BPE(ids, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    prefix = meta.get("tokenizer.ggml.add_space_prefix", True)
    spaces = [normalizers.Prepend("▁")] * prefix + [normalizers.Replace(" ", "▁")]
    tokenizer.normalizer = normalizers.Sequence(spaces)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(steps + [decoders.Strip(" ", 1, 0)] * prefix)
    return tokenizer
