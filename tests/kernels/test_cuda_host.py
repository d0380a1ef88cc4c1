"""The host that executes CUDA kernels, tests/helpers/cuda_host: its words, and that it finds what is wrong.
docs/kernels-cuda.md says what it shows."""

import numpy as np
import pytest
from cuda_host import harness
from cuda_host.rounds import B, N, Rounds, read


def test_words_do_what_their_definitions_say():
    i = np.arange(64)
    lane, warp = i % 32, i // 32 * 32
    want = [
        warp + 5,
        warp + (lane ^ 7),
        [sum(1 << k for k in range(32) if (w + k) % 3 == 0) for w in warp],
        [(int(k) & -int(k)).bit_length() for k in i],
        np.full(64, 2**32 - 1),  # fresh shared memory
        i ^ 31,
    ]
    for seed in range(3):
        out = np.frombuffer(harness.run([{"kernel": "words", "seed": seed}])[0]["out"], np.uint32).reshape(6, 64)
        for row, (got, expected) in enumerate(zip(out, want, strict=True)):
            assert np.array_equal(got, np.asarray(expected).astype(np.uint32)), row


EDITS = [  # in one build, where PLANTED(n) is true if a case asks for fault n
    (
        "verify_swap.cuh",
        "if (row >= width) continue;\n    id[h]",
        "if (row >= width + PLANTED(1)) continue;\n    id[h]",
    ),
    ("verify_swap.cuh", "arena.take<int>(64)", "arena.take<int>(PLANTED(2) ? 63 : 64)"),
    ("verify_swap.cuh", "== pack_key(node, token)", "== pack_key(node, token + PLANTED(3))"),
    (
        "verify_swap.cuh",
        "  __syncwarp();\n  if (lane == 0) {\n    c.length",
        "  if (!PLANTED(4)) __syncwarp();\n  if (lane == 0) {\n    c.length",
    ),
    ("verify_swap.cuh", "nodes), room));", "nodes), room + PLANTED(5)));"),
]
FAULTS = {
    "none": None,
    "reads past the last row": "AddressSanitizer",
    "writes past a shared array": "AddressSanitizer",
    "looks another token up": AssertionError,
    "no barrier before the parents of other rows are read": AssertionError,
    "a tree of more nodes than the pages hold": AssertionError,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_found(fault):
    broken = harness.build(EDITS, ("PLANTED(n)=(cuda_host::planted==n)",))
    r = Rounds(3)
    r.publish(range(B), N)
    r.capacity[3] = r.prefix[3] + len(r.walk(3)[1]) + 3

    def judge():
        want = read(harness.run([r.case()])[0])
        cases = [r.case(seed=seed, planted=list(FAULTS).index(fault)) for seed in range(6)]
        for got in map(read, harness.run(cases, broken)):
            assert all(np.array_equal(want[name], got[name]) for name in want)

    match FAULTS[fault]:
        case None:
            judge()
        case str(words):
            with pytest.raises(RuntimeError, match=words):
                judge()
        case error:
            with pytest.raises(error):
                judge()
