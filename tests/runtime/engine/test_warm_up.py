"""What runs before the first request compiles every kernel that passes of the configured sizes can need."""

import os
import random

import pytest

pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("needs Triton's compiler", allow_module_level=True)

import torch  # noqa: E402

from bench.kernel_report.triton import recorded  # noqa: E402
from bench.launches.passes import PAGE, Drafting, Target, forms, nets  # noqa: E402
from bench.launches.signatures import signatures_of, specialised  # noqa: E402
from ssd.runtime.drafting.draft_runner import DraftRows  # noqa: E402
from ssd.runtime.drafting.draft_sampling import parameters  # noqa: E402
from ssd.runtime.drafting.warm_up import draft_passes  # noqa: E402
from ssd.runtime.engine import warm_up  # noqa: E402
from ssd.runtime.engine.scheduler import Plan  # noqa: E402
from ssd.runtime.engine.tree import Tree  # noqa: E402
from ssd.runtime.engine.warm_up import target_passes, work  # noqa: E402
from ssd.runtime.lanes.draft_lane import CHUNK  # noqa: E402

BATCH, PROMPT, NODES = 8, 512, 7
MOST = 60  # kernels of a model


def compiled(launches) -> dict:
    return {specialised(s, 90): s.name for s in signatures_of(launches)}


def random_target_passes(r: random.Random, longest: int):
    """A batch that holds rows of prompts and chains or trees of any sizes."""
    for _ in range(250):
        sequences = r.randint(1, BATCH)
        counts = [min(longest, r.choice((1, 1, r.randint(1, PROMPT // sequences)))) for _ in range(sequences)]
        nodes = [r.randint(0, NODES) if count == 1 else 0 for count in counts]
        branching = max(counts) == 1 and r.random() < 0.5
        trees = [Tree([0] * n, [r.randint(-1, i - 1) for i in range(n)] if branching else None) for n in nodes]
        yield Plan(work(c, n, PAGE, r.randint(0, longest - c)) for c, n in zip(counts, nodes, strict=True)), trees


def random_draft_passes(r: random.Random, nodes: int):
    """Rows of prompts, and nodes of forests, some beside new tokens."""
    for _ in range(250):
        made, masked = [], r.random() < 0.7
        for slot in range(r.randint(1, BATCH)):
            seen = r.randint(1, nodes if r.random() < 0.8 else CHUNK + NODES)
            count = r.randint(1, min(seen, 64)) if masked else r.randint(1, CHUNK // BATCH)
            bits = [1 << seen - 1 | 1] * count if masked else None
            made.append(DraftRows(slot, r.randint(0, 99), [0] * count, range(count), range(count), bits, range(count)))
        yield made


@pytest.fixture(params=["SmolLM2-135M", "Llama-1B"])
def target(request):
    net = next(net for net in nets(request.param) if not net.drafts)
    side = Target(net.make(most=2), "verify", max_batch=BATCH)

    def run(passes):
        with torch.inference_mode(), forms(), recorded() as launches:
            for plan, trees in passes:
                side.run(*side.buffers.fill(plan, trees))
        return compiled(launches)

    return run, net.positions


@pytest.fixture(params=["draft of SmolLM2-135M", "Llama-1B"])
def draft(request):
    net = next(net for net in nets(request.param))
    side = Drafting(net.make(), "draft", BATCH)

    def run(passes):
        with torch.inference_mode(), forms(), recorded() as launches:
            for rows in passes:
                side.run(rows, parameters([warm_up.asker(1)], [0]))
        return compiled(launches)

    return run, side.runner


def draft_sizes(runner) -> tuple:
    return BATCH, CHUNK, runner.nodes, max(runner.nodes, CHUNK + NODES), runner.max_len


def test_no_pass_of_a_target_needs_a_kernel_that_was_not_compiled(target):
    run, longest = target
    known = run(target_passes(BATCH, PROMPT, NODES, longest, PAGE, True))
    assert set(run(random_target_passes(random.Random(0), longest))) <= set(known)
    assert len(known) <= MOST


def test_no_pass_of_a_draft_needs_a_kernel_that_was_not_compiled(draft):
    run, runner = draft
    known = run(draft_passes(*draft_sizes(runner)))
    assert set(run(random_draft_passes(random.Random(0), runner.nodes))) <= set(known)
    assert len(known) <= MOST


def test_fewer_sizes_would_not_do(target, monkeypatch):
    run, longest = target
    monkeypatch.setattr(warm_up, "numbers", lambda first, last: [first, last])
    known = run(target_passes(BATCH, PROMPT, NODES, longest, PAGE, True))
    assert set(run(random_target_passes(random.Random(0), longest))) - set(known)


def test_numbers_hold_the_ends_and_what_is_next_to_a_power_of_two():
    assert warm_up.numbers(1, 9) == [1, 2, 3, 4, 5, 8, 9] and warm_up.numbers(3, 6) == [3, 4, 5, 6]
    assert warm_up.numbers(4, 4) == [4] and warm_up.batches(1) == [1] and warm_up.batches(6) == [1, 2, 4, 6]
    assert warm_up.shares(7, 3) == [3, 2, 2]
