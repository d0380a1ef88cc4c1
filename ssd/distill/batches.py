"""Padded batches of sequences of similar length, with the target's features."""

import hashlib
import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from .data import TOP, Sequences
from .features import batches, offsets, prepare
from .loss import teacher


@dataclass
class Batch:
    """A padded batch of B sequences of T tokens. In N of its B * T rows, the teacher's next tokens are known."""

    ids: torch.Tensor  # int64 [B, T]
    features: torch.Tensor | None  # bfloat16 [B, T, n H], the target's
    rows: torch.Tensor  # int64 [N]: indices into the flattened [B * T]
    top_ids: torch.Tensor  # int64 [N, TOP]: the teacher's most probable next tokens, target ids
    top_nlp: torch.Tensor  # uint8 [N, TOP]: their negative log-probabilities, in sixteenths of a nat
    next_ids: torch.Tensor  # int64 [N]: the token that the text has next
    sequence: torch.Tensor  # int64 [N]: number of the sequence
    position: torch.Tensor  # int64 [N]: position of the next token

    def to(self, device) -> "Batch":
        return Batch(*(None if t is None else t.to(device, non_blocking=True) for t in vars(self).values()))


def held_out(prompt, share: float) -> bool:
    """Whether a prompt is held out for evaluation. Its digest decides, so all answers to it are held out or none."""
    h = hashlib.blake2b(np.asarray(prompt, np.int32).tobytes(), digest_size=4).digest()
    return int.from_bytes(h, "little") < share * 2**32


class Data:
    """Several sets of sequences, each with the target's features (None for drafts that take none)."""

    def __init__(self, max_length: int = 1024):
        self.items: list = []  # (number of the set, number in the set, first row of its features, length)
        self.lengths: list[int] = []
        self.sets: list[tuple[Sequences, torch.Tensor | None]] = []
        self.max_length = max_length

    def add(self, s: Sequences, features: torch.Tensor | None) -> None:
        number = len(self.sets)
        at = offsets(s)
        self.sets.append((s, features))
        for i, (begin, end) in enumerate(zip(at[:-1], at[1:], strict=True)):
            if len(s.prompts[i]) < self.max_length - 1:
                self.lengths.append(min(end - begin, self.max_length))
                self.items.append((number, i, begin, self.lengths[-1]))

    def prompt(self, item: int):
        number, i, *_ = self.items[item]
        return self.sets[number][0].prompts[i]

    def subject(self, item: int):
        """The tokens that tell sequences apart: the prompt, or a whole text, whose prompt is only its first token."""
        number, i, *_ = self.items[item]
        prompt = self.prompt(item)
        return prompt if len(prompt) > 1 else np.concatenate([prompt, self.sets[number][0].completions[i]])

    def split(self, share: float) -> tuple[list[int], list[int]]:
        """(numbers of the sequences to train on, numbers of those held out)."""
        out = [held_out(self.subject(k), share) for k in range(len(self.items))]
        return [k for k, o in enumerate(out) if not o], [k for k, o in enumerate(out) if o]

    def batch(self, group: list[int]) -> Batch:
        length = max(self.lengths[k] for k in group)
        ids = torch.zeros(len(group), length, dtype=torch.int64)
        wide = self.sets[0][1] is not None
        features = torch.zeros(len(group), length, self.sets[0][1].shape[1], dtype=torch.bfloat16) if wide else None
        parts: list = [[] for _ in range(6)]
        for b, k in enumerate(group):
            number, i, begin, n = self.items[k]
            s, f = self.sets[number]
            plen = len(s.prompts[i])
            row = np.concatenate([s.prompts[i], s.completions[i]]).astype(np.int64)[:n]
            ids[b, :n] = torch.from_numpy(row)
            if wide:
                features[b, :n] = f[begin : begin + n]
            at = np.arange(plen - 1, n - 1)
            values = (b * length + at, s.top_ids[i][: n - plen].astype(np.int64), s.top_nlp[i][: n - plen], row[plen:])
            for part, value in zip(parts, (*values, np.full(n - plen, k), at + 1), strict=True):
                part.append(value)
        return Batch(ids, features, *(torch.from_numpy(np.concatenate(p)) for p in parts))

    def groups(self, items: list[int], tokens: int) -> list[list[int]]:
        """Batches of at most `tokens` tokens each, padding included."""
        return batches(sorted(items, key=self.lengths.__getitem__), self.lengths, tokens)

    def epoch(self, items: list[int], tokens: int, seed: int, number: int) -> list[list[int]]:
        """The batches of one epoch, a function of the arguments; each epoch orders and groups the sequences anew."""
        shuffle = random.Random(f"{seed} {number}")
        like = {k: (self.lengths[k] // 48, len(self.prompt(k)) // 16, shuffle.random()) for k in items}
        items = sorted(items, key=like.__getitem__)  # similar lengths together, of prompts too
        groups = batches(items, self.lengths, tokens)
        shuffle.shuffle(groups)
        return groups


def load_data(sets: list[Sequences], target, cache: Path, progress=None) -> Data:
    """The sets with the target's features and most probable tokens, which are computed unless the cache has them."""
    data = Data()
    for s in sets:
        features = prepare(s, target, cache, progress) if target.features or s.top_ids is None else None
        data.add(s, features)
    return data


def teacher_of(batch: Batch, t2d: torch.Tensor):
    return teacher(batch.top_ids, batch.top_nlp, t2d)


def all_tops(data: Data, items: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """(ids, nlp), each [tokens, TOP]: the teacher's most probable tokens at every position of these sequences."""
    pairs = [(data.sets[n][0].top_ids[i], data.sets[n][0].top_nlp[i]) for n, i, *_ in (data.items[k] for k in items)]
    ids, nlp = (np.concatenate([p[j] for p in pairs]).reshape(-1, TOP) for j in (0, 1))
    return torch.from_numpy(ids.astype(np.int64)), torch.from_numpy(nlp)
