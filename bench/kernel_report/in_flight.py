"""Bytes of weights that a launch of linear has on their way from memory at once, and how the compiler pipelined it."""

import re

SMS = 132  # multiprocessors of an H200
WANTED = 3.4e6  # bytes that 4.8 TB/s deliver within a latency of 700 ns
SMALL = 4e6
SHARED = {"sm_80": 164, "sm_90": 228, "sm_100": 228}  # KiB a multiprocessor; each block also takes 1 for itself


def resident(registers: int, threads: int, shared: int, arch: str) -> int:
    """The blocks that are resident on a multiprocessor of 64 warps. It has 65,536 registers, which warps get in units
    of 256, and at most 32 blocks."""
    warps = threads // 32
    by_registers = 65536 // (-(-registers * 32 // 256) * 256) // warps
    return min(by_registers, SHARED[arch] * 1024 // (shared + 1024), 64 // warps, 32)


def tile_bytes(args: dict) -> tuple[int, int]:
    """The bytes of a tile of weights with their scales, and of a tile of the input, by the arguments of a launch."""
    b = {name: args[name] for name in ("BM", "BN", "BK")}
    weights = b["BN"] * (1 + args["SWIGLU"]) * (b["BK"] * args["weight"].itemsize + 4 * args["INT8"])
    return weights, b["BM"] * b["BK"] * args["x"].itemsize


def turns(args: dict) -> int:
    """The tiles of weights that a program loads one after the other."""
    parts = args["PARTS"] if args["FOLD"] else 1
    return parts * -(-min(args["part_k"], args["K"]) // args["BK"])


def bytes_in_flight(grid: tuple[int, int, int], args: dict, blocks: int) -> int:
    """Bytes of different weights that all resident programs have on their way.

    grid: programs along the rows, which share their weights, along the outputs and along the parts of K; args: the
    arguments of linear_fwd_kernel; blocks: those resident on a multiprocessor.
    """
    rows, columns, parts = grid
    programs = min(rows * columns * parts, blocks * SMS) // rows
    return programs * min(args["STAGES"] - 1, turns(args)) * tile_bytes(args)[0]


def weight_bytes(args: dict) -> int:
    """Bytes of the weight without its padding; in int8 128 inputs have four bytes of scales."""
    weights = args["N"] * (1 + args["SWIGLU"]) * args["K"]
    return weights * args["weight"].itemsize + weights // 32 * args["INT8"]


def too_few(in_flight: int, weight: int) -> bool:
    """Whether these are fewer bytes than keep memory busy, though the weight has more.

    A weight of less than SMALL is never too large: it is read in less time than a launch takes.
    """
    return weight >= SMALL and in_flight < min(WANTED, weight)


def pipeline(ttgir: str) -> dict:
    """What Triton's GPU code says: buffers of the least buffered tile, loads in loops of products that wait for memory,
    and the order in which products take k (kWidth: neighbouring k of a thread), which must be one at all row counts."""
    tiles = re.findall(r"local_alloc : \(\) -> !ttg\.memdesc<(\d+)x", ttgir)
    loops = [m[0] for m in re.finditer(r"^( *)(?:%\S+ = )?scf\.for .*?^\1}", ttgir, re.M | re.S)]
    return {
        "buffers": min(map(int, tiles), default=0),
        "waiting_loads": sum(loop.count(" tt.load ") for loop in loops if " tt.dot " in loop),
        "k_order": sorted({int(n) for n in re.findall(r"kWidth = (\d+)", ttgir)}),
    }
