"""The cost of a hit beside the models: the walk (greedy, over a vocabulary so small that sampling costs nothing), the
match, the swap and the post, each called from Python."""

import torch

from ssd.kernels import verify_coupled

from ..spec_cache import NODES, Rounds
from . import Case

VOCAB = 32


def cases(device: str, _):
    if device == "cpu":
        yield case(24)


def case(branches: int) -> Case:
    rounds = Rounds(1, branches)
    logits = torch.nn.functional.one_hot(rounds.emitted[0], VOCAB).float()  # their argmax is the outcome's tokens
    offsets = torch.tensor([0, NODES + 1], dtype=torch.int32)
    tokens = rounds.emitted[:, :NODES].int()
    parents = torch.arange(-1, NODES - 1, dtype=torch.int8)[None]
    settings = (torch.zeros(1), torch.zeros(1, dtype=torch.int32), torch.ones(1), torch.zeros(1))
    noise = torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)

    def run(_):
        path, rounds.accepted, rounds.emitted, _ = verify_coupled(logits, offsets, tokens, parents, *settings, *noise)
        rounds.match_swap()
        rounds.cache.post(rounds.slots, path, rounds.accepted, rounds.emitted, rounds.matched)
        rounds.epochs += 1

    def prepare(_):
        if rounds.epochs > rounds.seen + 1:
            rounds.read()
            rounds.seen += 1
        rounds.publish()

    def check():
        prepare(0)
        run(0)
        rounds.epochs -= 1
        rounds.read()
        right = rounds.right()
        rounds.epochs += 1
        rounds.seen += 1
        return right

    return Case(
        op="verify + match + swap",
        shape=f"hit, batch 1, {branches} branches of {NODES}",
        run=run,
        bytes=0,
        flops=0,
        check=check,
        prepare=prepare,
    )
