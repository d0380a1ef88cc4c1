"""How the compiler pipelined the loops of attention, read from Triton's GPU code."""

import re

LOOP = re.compile(r"^( *)(?:%\S+ = )?scf\.for .*?^\1}", re.M | re.S)
COPY = re.compile(r"async_copy_global_to_local %\S+, (%\w+).*? : tensor<([0-9x]+)x!tt\.ptr<")
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
    of these tiles), waits (for copies, in a turn), waiting_loads (loads that do wait for memory). table_copies: copies
    of entries of the page table, in loops and before them."""
    held = {view: (base, int(count)) for view, base, count in INDEX.findall(ttgir)}
    worst = {"tile_copies": 9, "buffers": 9, "waits": 0, "waiting_loads": 0}
    for loop in loops(ttgir):
        tiles = [held[view][1] for view, shape in COPY.findall(loop) if "x" in shape]
        worst["tile_copies"] = min(worst["tile_copies"], len(tiles))
        worst["buffers"] = min([worst["buffers"], *tiles] if tiles else [0])
        worst["waits"] = max(worst["waits"], loop.count("ttg.async_wait"))
        worst["waiting_loads"] = max(worst["waiting_loads"], loop.count(" tt.load "))
    return worst | {"table_copies": sum("x" not in shape for _, shape in COPY.findall(ttgir))}


def faults(row: dict) -> list[str]:
    """What is wrong with the loops of a row of the report that has the columns of pipeline."""
    found = []
    if row["tile_copies"] < 2 or row["buffers"] < 2:
        found.append(f"{row['tile_copies']} tiles of {row['buffers']} buffers, wanted 2 of 2: keys and values")
    if row["waits"] != 1:
        found.append(f"{row['waits']} waits for copies in a turn of the loop, wanted 1")
    if row["waiting_loads"]:
        found.append(f"{row['waiting_loads']} loads in the loop wait for memory")
    return found
