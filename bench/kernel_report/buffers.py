"""How the compiler pipelined the loops of attention, read from Triton's GPU code."""

import math
import re

LOOP = re.compile(r"^( *)(?:%\S+ = )?scf\.for .*?^\1}", re.M | re.S)
COPY = re.compile(r"async_copy_global_to_local %\S+, (%\w+).*? : tensor<([0-9x]+)x!tt\.ptr<[a-z]+(\d+)>")
INDEX = re.compile(r"(%\w+) = ttg\.memdesc_index (%\w+)\[.*?: !ttg\.memdesc<(\d+)x")


def loops(ttgir: str) -> list[str]:
    """The text of each loop of products that holds no other loop."""
    found = []
    for loop in (match[0] for match in LOOP.finditer(ttgir)):
        head, body = loop.split("\n", 1)
        inner = loops(body)
        found += inner or [loop] * (" tt.dot " in body)
    return found


def pipeline(ttgir: str) -> dict:
    """The worst of all loops: tile_copies (tiles that a turn copies: keys and values), buffers (of the least buffered
    of these tiles), waits (for copies, in a turn), waiting_loads (loads that do wait for memory). wide_copies: the
    instructions of all copies of tiles, in loops and before them, if each copies 128 bits for every thread."""
    held = {view: (base, int(count)) for view, base, count in INDEX.findall(ttgir)}
    worst = {"tile_copies": 9, "buffers": 9, "waits": 0, "waiting_loads": 0}
    for loop in loops(ttgir):
        tiles = [held[view][1] for view, shape, _ in COPY.findall(loop) if "x" in shape]
        worst["tile_copies"] = min(worst["tile_copies"], len(tiles))
        worst["buffers"] = min([worst["buffers"], *tiles] if tiles else [0])
        worst["waits"] = max(worst["waits"], loop.count("ttg.async_wait"))
        worst["waiting_loads"] = max(worst["waiting_loads"], loop.count(" tt.load "))
    threads = 32 * int(re.search(r'"ttg\.num-warps" = (\d+)', ttgir)[1])
    tiles = [math.prod(map(int, [*shape.split("x"), bits])) for _, shape, bits in COPY.findall(ttgir) if "x" in shape]
    return worst | {"wide_copies": sum(tiles) // (128 * threads)}


def faults(row: dict) -> list[str]:
    """What is wrong with the loops of a row of the report that has the columns of pipeline."""
    found = []
    if row["tile_copies"] < 2 or row["buffers"] < 2:
        found.append(f"{row['tile_copies']} tiles of {row['buffers']} buffers, wanted 2 of 2: keys and values")
    if row["waits"] != 1:
        found.append(f"{row['waits']} waits for copies in a turn of the loop, wanted 1")
    if row["waiting_loads"]:
        found.append(f"{row['waiting_loads']} loads in the loop wait for memory")
    if row["wide_loads"] < row["wide_copies"]:
        found.append(f"{row['wide_loads']} copies of 128 bits, wanted {row['wide_copies']}")
    return found
