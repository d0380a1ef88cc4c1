"""The target's features for all tokens of a set of sequences, computed once and kept on disk in bfloat16."""

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import torch

from .data import Sequences
from .teacher import Target

BATCH_TOKENS = 8192  # tokens of one pass of the target


def digest(s: Sequences, target: Target) -> str:
    """A digest of everything that determines the features: target, layers and tokens."""
    h = hashlib.blake2b(repr((target.features, target.config)).encode(), digest_size=12)
    h.update(target.embedding[:: max(1, len(target.embedding) // 64)].float().cpu().numpy().tobytes())
    for ids in (*s.prompts, *s.completions):
        h.update(np.asarray(ids, np.int32).tobytes())
        h.update(b"|")
    return h.hexdigest()


def offsets(s: Sequences) -> list[int]:
    """The first row of each sequence, whose prompt and completion follow each other, and the end of the last."""
    lengths = [len(p) + len(c) for p, c in zip(s.prompts, s.completions, strict=True)]
    return [0, *np.cumsum(lengths).tolist()]


def path_of(folder: Path, s: Sequences, target: Target) -> Path:
    return folder / f"{digest(s, target)}.features"


def opened(path: Path, rows: int, width: int, create: bool = False) -> torch.Tensor:
    """A tensor over a file, bfloat16 [rows, width]."""
    if create:
        with open(path, "wb") as f:
            f.truncate(rows * width * 2)
    return torch.from_file(str(path), shared=create, size=rows * width, dtype=torch.bfloat16).view(rows, width)


def write(folder: Path, s: Sequences, target: Target, rows: list[torch.Tensor]) -> Path:
    """Stores features that are already known, one tensor [tokens, width] for each sequence; returns the file."""
    path = path_of(folder, s, target)
    at = offsets(s)
    folder.mkdir(parents=True, exist_ok=True)
    making = path.with_suffix(f".{os.getpid()}")
    out = opened(making, at[-1], rows[0].shape[1], create=True)
    for begin, end, part in zip(at[:-1], at[1:], rows, strict=True):
        out[begin:end] = part
    del out
    making.rename(path)
    return path


def batches(order: Iterable[int], lengths: Sequence[int], tokens: int = BATCH_TOKENS) -> list[list[int]]:
    """Consecutive groups of the sequence numbers, each of at most `tokens` tokens after padding, or of one sequence."""
    out = []
    group = []
    longest = 0
    for i in order:
        longest = max(longest, lengths[i])
        if group and longest * (len(group) + 1) > tokens:
            out.append(group)
            group = []
            longest = lengths[i]
        group.append(i)
    return [*out, group] if group else out


def prepare(
    s: Sequences, target: Target, folder: Path, progress: Callable[[int, int], None] | None = None
) -> torch.Tensor:
    """The features of the sequences, [all tokens, n H], read from the folder or computed; fills in s.top_* if absent.

    progress(tokens done, tokens in all) is called after every pass.
    """
    at = offsets(s)
    width = len(target.features) * target.config.hidden_size
    top = s.top_ids is None
    path = path_of(folder, s, target)
    tops_path = path.with_suffix(".top.npz")
    if not path.is_file() and width or top and not tops_path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        making = path.with_suffix(f".{os.getpid()}")
        out = opened(making, at[-1], width, create=True) if width else None
        tops: list = [None] * len(s)
        done = 0
        lengths = [e - b for b, e in zip(at[:-1], at[1:], strict=True)]
        for group in batches(sorted(range(len(s)), key=lengths.__getitem__), lengths):
            ids = [np.concatenate([s.prompts[i], s.completions[i]]) for i in group]
            features, got = target.read(ids, top)
            for k, i in enumerate(group):
                if width:
                    out[at[i] : at[i + 1]] = features[k]
                if top:
                    tops[i] = [x[len(s.prompts[i]) - 1 : -1] for x in got[k]]
                done += len(ids[k])
            if progress:
                progress(done, at[-1])
        if top:
            np.savez(tops_path, ids=np.concatenate([t[0] for t in tops]), nlp=np.concatenate([t[1] for t in tops]))
        if width:
            del out
            making.rename(path)
    if top:
        ends = np.cumsum([len(c) for c in s.completions])[:-1]
        with np.load(tops_path) as f:
            s.top_ids, s.top_nlp = (np.split(f[k], ends) for k in ("ids", "nlp"))
    return opened(path, at[-1], width) if width else torch.empty(at[-1], 0)
