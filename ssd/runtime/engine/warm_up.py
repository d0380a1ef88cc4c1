"""Compiles the kernels that passes of the configured sizes need, before the first request.

On a GPU a kernel is compiled where it is first launched, which takes a second or so, and again for tiles of other
sizes. So passes of all sizes between which kernels change run here, behind no prefix and with token 0 everywhere. Their
KV goes to pages that no request has yet.
"""

from collections.abc import Iterator
from itertools import chain

import torch
from tqdm import tqdm

from ssd import kernels
from ssd.kernels import compiling

from ..devices.placement import Placement, array
from ..sampling.sampling_params import SamplingParams
from .engine import Engine
from .scheduler import Plan, Work
from .sequence import Sequence
from .tree import Tree


def numbers(first: int, last: int) -> list[int]:
    """The sizes from first to last between which no kernel changes: the ends, and powers of two and one more."""
    powers = [1 << i for i in range(last.bit_length())]
    return sorted({n + more for n in powers for more in (0, 1) if first < n + more < last} | {first, last})


def batches(most: int) -> list[int]:
    """Numbers of sequences: powers of two, to which kernels round them up."""
    return sorted({min(1 << i, most) for i in range(most.bit_length() + 1)})


def shares(rows: int, sequences: int) -> list[int]:
    """The rows of each sequence, about equally many."""
    return [rows // sequences + (i < rows % sequences) for i in range(sequences)]


def asker(tokens: int) -> Sequence:
    """A request that is never served, of so many tokens 0."""
    return Sequence.start([0] * tokens, 1, SamplingParams(), 0, None)


def work(rows: int, nodes: int, page_size: int, prefix: int = 0) -> Work:
    """The last rows of a prompt, and room for so many nodes behind them, in a cache where any page does."""
    sequence = asker(prefix + rows)
    sequence.take_pages([0] * -(-(prefix + rows + nodes) // page_size), page_size)
    sequence.num_cached = prefix
    return Work(sequence, rows)


def target_passes(
    max_batch: int, chunk: int, nodes: int, longest: int, page_size: int, branching: bool
) -> Iterator[tuple[Plan, list[Tree]]]:
    """What the passes of an engine may hold: rows of prompts beside single rows, chains of nodes, and trees."""
    for sequences in batches(max_batch):
        most = min(max_batch * (1 + nodes) + chunk, sequences * longest)
        for rows in numbers(sequences, most):
            yield Plan(work(n, 0, page_size) for n in shares(rows, sequences)), [Tree()] * sequences
        for rows in numbers(sequences, sequences * (1 + nodes)) if nodes else ():
            counts = [n - 1 for n in shares(rows, sequences)]
            plan = Plan(work(1, n, page_size) for n in counts)
            yield plan, [Tree([0] * n) for n in counts]
            if branching and counts[0] > 1:
                yield plan, [Tree([0] * n, [-1] * n) for n in counts]


def warm_up_moves(kv, placement: Placement, most: int) -> None:
    """Move KV onto itself, up to so many indices at once."""
    with placement.stream():
        for count in numbers(1, min(most, kv.num_pages * kv.page_size)) if most else ():
            kernels.kv_copy(kv.k, kv.v, *placement.put(array(range(count)), array(range(count))))


def warm_up_target(engine: Engine, branching: bool) -> Iterator[None]:
    """Run the passes of an engine, one at each step, where its device compiles kernels. branching: whether there are
    trees that are no chains."""
    scheduler, placement, nodes = engine.scheduler, engine.placement, engine.scheduler.nodes
    if not placement.remote:
        return
    sizes = scheduler.max_batch, scheduler.prefill_chunk, nodes, engine.max_model_len, scheduler.page_size, branching
    for plan, trees in target_passes(*sizes):
        with torch.inference_mode(), placement.stream():
            engine.run_alone(plan, trees)
        yield
    warm_up_moves(engine.kv, placement, scheduler.max_batch * nodes if branching else 0)


def warm_up(engine: Engine, branching: bool, progress: bool = True) -> None:
    """Run passes of all sizes of an engine and its speculator, where kernels are compiled; progress: with a bar."""
    passes = chain(warm_up_target(engine, branching), engine.speculator.warm_up())
    for _ in passes if compiling.watched else ():
        with tqdm(passes, "compile kernels", initial=1, unit=" passes", disable=not progress) as bar:
            for _ in bar:
                bar.set_postfix_str(f"{compiling.count} kernels", refresh=False)
