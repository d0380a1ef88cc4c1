"""How many tokens of a draft the target would accept, measured on text that the draft was not trained on."""

import torch

from ssd import kernels

from .batches import Batch, Data
from .model import Draft

SHOWN = 256  # rows whose logits over the whole vocabulary are in memory at a time


def uniform(n: int, temperature: float) -> list[torch.Tensor]:
    """The arguments temperature, top_k, top_p and min_p for n rows without filters."""
    return [
        torch.full((n,), temperature), torch.zeros(n, dtype=torch.int32), torch.ones(n), torch.zeros(n)
    ]  # fmt: skip


def teacher_picks(b: Batch, vocab: int, temperature: float, seeds: torch.Tensor) -> torch.Tensor:
    """The token that the target would draw in each row from its recorded top tokens alone, int64 [N]."""
    if temperature == 0:
        return b.top_ids[:, 0]
    picks = []
    for i in range(0, len(b.rows), SHOWN):
        ids = b.top_ids[i : i + SHOWN]
        nlp = b.top_nlp[i : i + SHOWN]
        logits = torch.full((len(ids), vocab), float("-inf")).scatter_(1, ids, nlp.float() / -16)
        rows = uniform(len(ids), temperature)
        picks.append(kernels.sample(logits, *rows, seeds[i : i + SHOWN], b.position[i : i + SHOWN], False)[0])
    return torch.cat(picks)


@torch.no_grad()
def accepted(draft: Draft, b: Batch, steps: int, temperature: float, seeds: torch.Tensor, wanted: torch.Tensor):
    """bool [steps, N]: whether step s of the draft proposes the wanted token in a row, ranked with the noise of seeds
    [N]. A draft without features computes one step, which holds at every depth."""
    out = []
    own = steps if draft.config.feature_layers else 1
    for x in draft(b.ids, b.features, own):
        logits = draft.logits(x.flatten(0, 1)[b.rows]).cpu()
        rows = uniform(len(logits), temperature)
        ids, _ = kernels.top_f(logits, *rows, seeds, b.position, 1, None, draft.d2t.cpu())
        out.append(ids[:, 0] == wanted)
    return torch.stack(out * (steps // own))


def chains(ok: torch.Tensor, sequence: torch.Tensor) -> torch.Tensor:
    """How many tokens of a chain below each row are accepted: int64 [N] in 0..steps, -1 where the text ends too soon.

    ok [steps, N] is in the order of the text. Step s below row r is judged in row r + s.
    """
    steps, n = ok.shape
    alive = torch.ones(n, dtype=torch.bool)
    taken = torch.zeros(n, dtype=torch.int64)
    last = torch.arange(n) + steps - 1
    whole = (last < n) & (sequence[last.clamp_max(n - 1)] == sequence)
    for s in range(steps):
        row = (torch.arange(n) + s).clamp_max(n - 1)
        alive &= ok[s][row]
        taken += alive
    return torch.where(whole, taken, -1)


def walk(taken: torch.Tensor, sequence: torch.Tensor) -> tuple[int, int]:
    """(rounds, tokens) of decoding: each round moves from a row past its accepted tokens and the bonus token."""
    rounds = tokens = row = 0
    while row < len(taken):
        if taken[row] < 0:  # the end of a sequence
            ends = (sequence[row:] != sequence[row]).nonzero()
            row = row + int(ends[0]) if len(ends) else len(taken)
            continue
        rounds += 1
        tokens += int(taken[row]) + 1
        row += int(taken[row]) + 1
    return rounds, tokens


class Tally:
    """Counts acceptance by position, given that the positions before were accepted, and tokens of a round.

    Lengths are counted in two ways: with a round at every position of the text, and with the rounds that decoding in
    chains of k tokens would run. Decoding starts a round after every rejection, where text is hard to guess, so its
    rounds are shorter. The bonus token counts.
    """

    def __init__(self, steps: int):
        self.tried = torch.zeros(steps)
        self.taken = torch.zeros(steps)
        self.first = self.rows = 0
        self.rounds = [0] * steps
        self.tokens = [0] * steps

    def add(self, ok: torch.Tensor, sequence: torch.Tensor) -> None:
        taken = chains(ok, sequence)
        self.first += int(ok[0].sum())
        self.rows += ok.shape[1]
        for k in range(len(ok)):
            rounds, tokens = walk(taken.clamp_max(k + 1), sequence)
            self.rounds[k] += rounds
            self.tokens[k] += tokens
        taken = taken[taken >= 0]
        for s in range(len(ok)):
            self.tried[s] += (taken >= s).sum()
            self.taken[s] += (taken > s).sum()

    def result(self) -> dict:
        """The rates and lengths. walked_length has the tokens of a decoding round for chains of 1, 2, ... tokens; the
        other figures start a round at every position."""
        per_position = (self.taken / self.tried.clamp_min(1)).tolist()
        share = 1.0
        length = 1.0
        for a in per_position:
            share *= a
            length += share
        walked = [round(t / max(r, 1), 4) for t, r in zip(self.tokens, self.rounds, strict=True)]
        return {
            "first": round(self.first / max(self.rows, 1), 4),
            "per_position": [round(a, 4) for a in per_position],
            "expected_length": round(length, 4),
            "walked_length": walked,
            "tokens": self.rows,
        }


def best(lengths: list[float], cost: float) -> tuple[float, int]:
    """(greatest speed-up E / (1 + K c), its K), where E is the accepted length of chains of K = 1, 2, ... tokens and c
    the cost of a draft pass in target passes; (1, 0) where no K is faster."""
    return max([(1.0, 0), *((length / (1 + k * cost), k) for k, length in enumerate(lengths, 1))])


def on_teacher(draft: Draft, data: Data, items: list[int], steps: int, tokens: int) -> dict:
    """Tally.result against the teacher's top tokens, for "greedy" (temperature 0) and "coupled" (temperature 1)."""
    tallies = {"greedy": Tally(steps), "coupled": Tally(steps)}
    device = draft.d2t.device
    for group in data.groups(items, tokens):
        b = data.batch(group)
        for (_, tally), temperature in zip(tallies.items(), (0.0, 1.0), strict=True):
            wanted = teacher_picks(b, draft.config.vocab_size, temperature, b.sequence)
            ok = accepted(draft, b if device.type == "cpu" else b.to(device), steps, temperature, b.sequence, wanted)
            tally.add(ok, b.sequence)
    return {name: tally.result() for name, tally in tallies.items()}


def on_text(draft: Draft, data: Data, items: list[int], steps: int, tokens: int) -> dict:
    """Tally.result against the recorded text, by (kind, temperature): what decoding it again would accept.

    Only greedy text, and text that this project's engine drew, can be predicted; other sequences are left out.
    """
    out: dict = {}
    device = draft.d2t.device
    for group in data.groups(items, tokens):
        kinds: dict = {}
        for k in group:
            number, i, *_ = data.items[k]
            s = data.sets[number][0]
            if s.temperatures and (s.temperatures[i] == 0 or s.seeds[i] >= 0):
                kinds.setdefault((s.kinds[i], s.temperatures[i]), []).append(k)
        for key, members in kinds.items():
            b = data.batch(members)
            seeds = torch.tensor([max(0, data.sets[data.items[k][0]][0].seeds[data.items[k][1]]) for k in b.sequence])
            ok = accepted(draft, b if device.type == "cpu" else b.to(device), steps, key[1], seeds, b.next_ids)
            out.setdefault(key, Tally(steps)).add(ok, b.sequence)
    return {key: tally.result() for key, tally in sorted(out.items())}
