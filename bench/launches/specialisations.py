"""How many kernels Triton compiles for a model that meets every number of rows and every batch up to 64, and which
arguments are to blame."""

from collections.abc import Iterable, Iterator
from itertools import product

import torch

from ..kernel_report.triton import recorded
from .passes import CONTEXT, LANES, PROMPTS, Net, forms, nets, side_of
from .signatures import Signature, signatures_of, specialised

MOST = 64  # rows, and sequences
SOME = range(1, MOST + 1)
ROWS = {"ar": [1], "verify": range(1, LANES.nodes + 2), "draft": SOME, "prompt": [*SOME, *PROMPTS]}  # of a sequence


def signatures(net: Net) -> list[Signature]:
    """The signatures of prompts, plain decoding, verifications of chains, and forests."""
    model = net.make(most=2)
    with torch.inference_mode(), forms(), recorded() as launches:
        for kind in net.kinds:
            side = side_of(net, model, kind, MOST)
            for sequences, rows in product([1] if kind == "prompt" else SOME, ROWS[kind]):
                if kind == "prompt" or rows * sequences <= MOST or (kind == "draft" and rows == LANES.outcomes):
                    side.run(*side.inputs(rows, sequences, CONTEXT))
    return signatures_of(launches)


def kept(signature: Signature, dropped: Iterable[str]) -> tuple:
    """What is left to tell compiled kernels apart if integers of these names are not specialised."""
    own = [(k, type(v) if k in dropped and isinstance(v, int) else v) for k, v in signature.arguments]
    return signature.kernel, tuple(own), signature.options


def blamed(signatures: list[Signature]) -> list[str]:
    """The integers, no constants, of one kernel that make it be compiled more often, in the order of arguments.

    An argument is to blame if fewer kernels are left without its specialisation, and that of the others to blame.
    """
    launch = signatures[0].launch()
    free = [p.name for p in launch.kernel.params if not p.is_constexpr]
    several = [name for name in free if len({dict(s.arguments)[name] for s in signatures}) > 1]
    least = len({kept(s, several) for s in signatures})
    needed = list(several)
    for name in several:
        if len({kept(s, [other for other in needed if other != name]) for s in signatures}) == least:
            needed.remove(name)
    return needed


def rows(name: str = "") -> Iterator[dict]:
    """A row for each model and kernel: compiled kernels, the arguments to blame, and what is left without them."""
    for net in nets(name):
        found = signatures(net)
        for kernel in dict.fromkeys(s.kernel for s in found):
            own = [s for s in found if s.kernel == kernel]
            now = {specialised(s, 90): s for s in own}
            names = blamed(list(now.values()))
            left = {kept(s, names): s for s in now.values()}
            constants = [p.name for p in own[0].launch().kernel.params if p.is_constexpr]
            varied = {c: len({dict(s.arguments)[c] for s in left.values()}) for c in constants}
            yield {
                "model": net.shape.name,
                "weights": net.format,
                "kernel": own[0].name,
                "compiles": len(now),
                "not to be specialised": " ".join(names),
                "left": len(left),
                "constants of several values": " ".join(f"{c}:{n}" for c, n in varied.items() if n > 1),
            }
