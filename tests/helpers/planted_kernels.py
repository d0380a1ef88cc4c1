"""Small Triton kernels with known faults and known numbers of programs that have work. As a script, in Triton's
interpreter: counts those of `listed`, and pickles the signatures of `normed` to the file that is named."""

import pickle
import sys

import torch
import triton
import triton.language as tl


@triton.jit
def unguarded_kernel(x, extra, out, count):
    total = tl.load(x)
    for i in range(0, count):  # of no rounds where extra is None, but compiled all the same
        total += tl.load(extra + i)
    tl.store(out, total)


@triton.jit
def guarded_kernel(x, extra, out, count, EXTRA: tl.constexpr):
    total = tl.load(x)
    if EXTRA:
        for i in range(0, count):
            total += tl.load(extra + i)
    tl.store(out, total)


@triton.jit
def plain_kernel(x, n, unused):
    tl.store(x + n, 0.0)


@triton.jit(do_not_specialize=["n"])
def general_kernel(x, n, unused):
    tl.store(x + n, 0.0)


@triton.jit
def list_kernel(lengths, items, count):
    """Lists the entries with a length; the others are -1."""
    n = 0
    for i in range(0, count):
        tl.store(items + i, -1)
    for i in range(0, count):
        if tl.load(lengths + i) > 0:
            tl.store(items + n, i)
            n += 1


@triton.jit
def listed_kernel(items, x, out):
    item = tl.load(items + tl.program_id(0))
    if item < 0:
        return
    tl.store(out + item, tl.load(x + item))


def listed(lengths: torch.Tensor) -> None:
    """A list of the entries with a length, made for each call, then a program an entry."""
    n = len(lengths)
    items = torch.empty(n, dtype=torch.int32, device="meta")
    x = torch.empty(n, device="meta")
    list_kernel[(1,)](lengths, items, n)
    listed_kernel[n, 1](items, x, torch.empty_like(x))


def normed(device: str) -> None:
    """Launches of real kernels, of one row and of more."""
    from ssd.kernels.norm.triton import add_rms_norm, rms_norm

    for rows in (1, 2, 16):
        x, weight = torch.ones(rows, 48, device=device), torch.ones(48, device=device)
        rms_norm(x, weight, 1e-5)
        add_rms_norm(x, x, weight, 1e-5)


def main(file: str) -> None:
    from bench.launches.signatures import noted
    from bench.launches.work import counting

    with noted() as found:
        normed("cpu")
    with open(file, "wb") as f:
        pickle.dump(found, f)
    counter = counting()
    for some in ([3, 0, 0, 1], [0, 0, 0, 0, 2, 0, 0, 0]):
        for _ in range(2):
            listed(torch.tensor(some, dtype=torch.int32))
    print([(name, work) for name, _, work, _ in counter.found])


if __name__ == "__main__":
    main(*sys.argv[1:])
