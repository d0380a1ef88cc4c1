"""Sequences to train on: recorded teacher data (.npz) or text (.jsonl)."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from ssd.cli.jsonl import read_lines

TOP = 8  # teacher tokens kept at each position


@dataclass
class Sequences:
    """Prompts with their completions, and the teacher's most probable tokens if they were recorded."""

    kinds: list[str] = field(default_factory=list)  # a name by which results are grouped
    prompts: list = field(default_factory=list)  # arrays of token ids
    completions: list = field(default_factory=list)  # arrays of token ids
    top_ids: list | None = None  # [tokens, TOP] for each completion: the teacher's most probable tokens
    top_nlp: list | None = None  # uint8 [tokens, TOP]: their negative log-probabilities, in sixteenths of a nat
    temperatures: list[float] | None = None  # temperature at which each completion was drawn
    seeds: list[int] | None = None  # seed with which each completion was drawn, -1 for none

    def __len__(self) -> int:
        return len(self.prompts)


def encode_nlp(nlp: torch.Tensor) -> torch.Tensor:
    return (nlp * 16).round().clamp(0, 255).to(torch.uint8)


def save(path: Path, s: Sequences) -> None:
    """Writes an .npz file of S sequences: kind, plen, clen, temperature and seed [S]; prompt and comp, which hold the
    tokens of all sequences in a row; top_id and top_nlp16 [tokens, TOP]."""
    flat = np.concatenate([np.asarray(x, np.int64) for x in [*s.prompts, *s.completions]])
    ids = np.uint16 if max(flat.max(), max(t.max() for t in s.top_ids)) < 1 << 16 else np.uint32
    arrays = dict(
        kind=np.array(s.kinds),
        plen=np.array([len(p) for p in s.prompts]), clen=np.array([len(c) for c in s.completions]),
        prompt=np.concatenate(s.prompts).astype(ids), comp=np.concatenate(s.completions).astype(ids),
        top_id=np.concatenate(s.top_ids).astype(ids), top_nlp16=np.concatenate(s.top_nlp),
        temperature=np.array(s.temperatures), seed=np.array(s.seeds),
    )  # fmt: skip
    with open(path, "wb") as f:
        np.savez_compressed(f, **arrays)


def load_recorded(path: Path) -> Sequences:
    """The sequences of a file that `save` wrote; temperature and seed may be absent. Raises ValueError if broken."""
    try:
        with np.load(path) as f:
            a = {k: f[k] for k in f.files}
        ends = [np.cumsum(a[k])[:-1] for k in ("plen", "clen")]
        parts = [np.split(a[k], ends[i]) for k, i in (("prompt", 0), ("comp", 1), ("top_id", 1), ("top_nlp16", 1))]
        sums = [(a["plen"].sum(), len(a["prompt"])), *((a["clen"].sum(), len(a[k])) for k in ("comp", "top_id"))]
    except (OSError, ValueError, KeyError, EOFError) as e:
        raise ValueError(f"{path}: holds no recorded teacher data: {e}") from None
    if any(wanted != got for wanted, got in sums) or not len(a["plen"]):
        raise ValueError(f"{path}: holds no recorded teacher data: the lengths do not add up")
    more = [a[k].tolist() if k in a else None for k in ("temperature", "seed")]
    return Sequences(a["kind"].tolist(), *parts, *more)


def expand(paths: list[str]) -> list[Path]:
    """The files among these paths, and the .npz and .jsonl files in the folders among them."""
    files = []
    for path in map(Path, paths):
        inside = sorted(f for f in path.iterdir() if f.suffix in (".npz", ".jsonl")) if path.is_dir() else [path]
        if not path.exists():
            raise ValueError(f"no such file or folder: {path}")
        if not inside:
            raise ValueError(f"{path}: holds no .npz or .jsonl file")
        files += inside
    return files


def chat(tokenizer, text: str) -> list[int]:
    return tokenizer.encode_chat([{"role": "user", "content": text}])


def text_of(line: dict, key: str, where: str) -> str:
    if not isinstance(line[key], str) or not line[key]:
        raise ValueError(f"{where}: got {key} {line[key]!r}, wanted a text")
    return line[key]


def load_text(path: Path, tokenizer, eos: int | None) -> Sequences:
    """Sequences from lines {"text"}, of which every token is learned, or {"prompt", "completion"}, whose prompt goes
    through the chat template."""
    s = Sequences()
    for where, line in read_lines(path):
        if "completion" in line and "prompt" in line:
            prompt = chat(tokenizer, text_of(line, "prompt", where))
            rest = tokenizer.encode(text_of(line, "completion", where), add_special_tokens=False)
            rest += [eos] if eos is not None else []
        elif "text" in line:
            ids = tokenizer.encode(text_of(line, "text", where))
            prompt = ids[:1]
            rest = ids[1:]
        else:
            raise ValueError(f"{where}: wanted a `text`, or a `prompt` and its `completion`")
        if rest:
            s.kinds.append(str(line.get("task", path.stem)))
            s.prompts.append(np.array(prompt))
            s.completions.append(np.array(rest))
    return s


def load(files: list[Path], tokenizer, eos: int | None) -> Sequences:
    """All sequences of .npz and .jsonl files. A field that one of the files lacks, such as top_ids, is None."""
    parts = [load_recorded(f) if f.suffix == ".npz" else load_text(f, tokenizer, eos) for f in files]
    out = Sequences()
    for name in vars(out):
        values = [getattr(p, name) for p in parts]
        setattr(out, name, None if any(v is None for v in values) else [x for v in values for x in v])
    if not len(out):
        raise ValueError(f"no sequence in {', '.join(map(str, files))}")
    return out
