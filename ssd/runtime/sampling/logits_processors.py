"""What requests change in the target's logits before a token is drawn. All of it is a function of the tokens before,
so a row of a speculation is changed by the confirmed tokens and the path above it, whatever else is verified."""

from collections.abc import Iterable
from copy import deepcopy

import numpy as np
import torch

from ssd.kernels import Kind

from .grammar import Mask
from .sampling_params import SamplingParams


class Penalties:
    """logit_bias and the penalties of one request, on the columns that they touch.

    prompt: its token ids; room: the most tokens of the answer.
    """

    def __init__(self, params: SamplingParams, prompt: np.ndarray, room: int):
        self.repetition = np.float32(params.repetition_penalty)
        self.frequency, self.presence = np.float32(params.frequency_penalty), np.float32(params.presence_penalty)
        self.counts_tokens = self.repetition != 1 or self.frequency != 0 or self.presence != 0
        bias, prompt = params.logit_bias or {}, np.unique(prompt[: len(prompt) if self.repetition != 1 else 0])
        known = np.union1d(prompt, np.array([*bias], np.int64))
        size = len(known) + room
        self.ids, self.bias = np.zeros(size, np.int64), np.zeros(size, np.float32)
        self.count, self.in_prompt = np.zeros(size, np.float32), np.zeros(size, bool)
        self.ids[: len(known)], self.in_prompt[: len(known)] = known, np.isin(known, prompt)
        self.column = {token: i for i, token in enumerate(known.tolist())}
        for token, value in bias.items():
            self.bias[self.column[token]] = value
        self.answered = 0  # tokens of the answer that count

    def copy(self) -> "Penalties":
        return deepcopy(self)

    def __call__(self, rows: np.ndarray, answer: np.ndarray, paths: list[list[int]]) -> None:
        """Change logits float32 [n, vocab] in place. answer: the confirmed tokens so far; paths: of each row the tokens
        that come after them."""
        if self.counts_tokens:
            for token in answer[self.answered :].tolist():
                column = self.column.setdefault(token, len(self.column))
                self.ids[column] = token
                self.count[column] += 1
            self.answered = len(answer)
        known = len(self.column)
        guessed = {t for path in paths for t in path} - self.column.keys() if self.counts_tokens else ()
        guessed = {token: known + i for i, token in enumerate(guessed)}
        ids = np.concatenate([self.ids[:known], np.fromiter(guessed, np.int64)])
        count = np.zeros((len(rows), len(ids)), np.float32)
        count[:, :known] = self.count[:known]
        if self.counts_tokens:
            for row, path in enumerate(paths):
                for token in path:
                    count[row, guessed[token] if token in guessed else self.column[token]] += 1
        x = rows[:, ids]
        x[:, :known] += self.bias[:known]
        if self.repetition != 1:
            seen = count > 0
            seen[:, :known] |= self.in_prompt[:known]
            x = np.where(seen, np.where(x > 0, x / self.repetition, x * self.repetition), x)
        if self.frequency:
            x -= self.frequency * count
        if self.presence:
            x -= self.presence * (count > 0)
        rows[:, ids] = x


class MinTokens:
    """Keeps tokens that end an answer out of its first tokens, unless nothing else is left to draw."""

    def __init__(self, least: int, ends: Iterable[int]):
        self.least, self.ends = least, list(ends)

    def copy(self) -> "MinTokens":
        return self

    def __call__(self, rows: np.ndarray, answer: np.ndarray, paths: list[list[int]]) -> None:
        """Change logits float32 [n, vocab] in place, as Penalties does."""
        for row, path in zip(rows, paths, strict=True):
            if len(answer) + len(path) < self.least:
                kept = row[self.ends]
                row[self.ends] = -np.inf
                if row.max() == -np.inf:
                    row[self.ends] = kept


def logits_processors_of(params: SamplingParams, prompt: np.ndarray, room: int) -> list:
    """What a request asks to be done to its logits, in order."""
    plain = (params.presence_penalty, params.frequency_penalty, params.repetition_penalty) == (0, 0, 1)
    return [] if plain and not params.logit_bias else [Penalties(params, prompt, room)]


def prune_by_grammar(plan, trees) -> None:
    """Take the end of each tree that the request's grammar refuses out of the verification. Nodes keep their numbers;
    those that were sampled stay where their parent does, for the rule of rejection looks at them."""
    for work, tree in zip(plan, trees, strict=True):
        logits_processors = work.sequence.logits_processors if tree else ()
        masks = [processor for processor in logits_processors if isinstance(processor, Mask)]
        for mask in masks:
            keep = [mask.allows(work.sequence.answer, tree.path(node)) for node in range(len(tree))]
            if tree.kind == Kind.SAMPLED:
                keep = [parent < 0 or keep[parent] for parent in tree.parents]
            tree.cut(max((i + 1 for i, kept in enumerate(keep) if kept), default=0))


def process_logits(plan, trees, logits: torch.Tensor, row_offsets: torch.Tensor) -> torch.Tensor:
    """Change in place the rows of the sequences that ask for it. Returns the logits as they were, a copy only where
    somebody wants to know."""
    shaped = [work.sequence for work in plan if work.samples and work.sequence.logits_processors]
    if not shaped:
        return logits
    raw = logits.clone() if any(sequence.params.logprobs for sequence in shaped) else logits
    offsets = iter(row_offsets.tolist())
    for work, tree in zip(plan, trees, strict=True):
        sequence = work.sequence
        begin = next(offsets) if work.samples else None
        if begin is None or not sequence.logits_processors:
            continue
        rows = logits[begin : begin + 1 + len(tree or ())]
        paths = [tree.path(node) if tree else [] for node in range(-1, len(rows) - 1)]
        host = rows.cpu()  # on the CPU the same memory
        for processor in sequence.logits_processors:
            processor(host.numpy(), sequence.answer, paths)
        if host.device != rows.device:
            rows.copy_(host)
    return raw


def process_draft_logits(
    logits: torch.Tensor, nodes: list[tuple], ids: torch.Tensor | None, vocab: int
) -> torch.Tensor:
    """What the target's logits would go through, done to a draft's [n, outputs], so that it proposes what may be
    accepted. nodes: for each row (a sequence or what stands for it, tree, node); ids: the target's id of each output,
    or None; vocab: of the target. Rows of which nothing would be left stay as they are."""
    groups: dict[object, list[int]] = {}
    for row, (owner, _, _) in enumerate(nodes):
        if owner.logits_processors:
            groups.setdefault(owner, []).append(row)
    if not groups:
        return logits
    host, places = logits.cpu().numpy().copy(), slice(None) if ids is None else ids.cpu().numpy()
    for owner, rows in groups.items():
        full = np.full((len(rows), vocab), -np.inf, np.float32)
        full[:, places] = host[rows]
        paths = [tree.path(node) for _, tree, node in (nodes[row] for row in rows)]
        try:
            for processor in owner.logits_processors:
                processor(full, owner.answer, paths)
        except ValueError:  # the target's pass says it in a sentence, and ends the request
            continue
        shaped = full[:, places]
        left = shaped.max(1, keepdims=True) > -np.inf
        host[rows] = np.where(left, shaped, host[rows])
    return torch.from_numpy(host).to(logits.device)
