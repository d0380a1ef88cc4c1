"""Tree attention and linear layers on a GPU, for bench.kernels: forms of Triton and CUDA C++ against torch.

A measurement is a CUDA graph of a few calls, each on inputs of its own so that no cache holds them, replayed in turn
with those of the other candidates and with a plain copy, whose bandwidth is the roofline's; so the time to launch from
Python is in none of them.
"""

import itertools
import statistics
import time

import torch
import torch.nn.functional as F

from ssd.kernels import linear, pack_linear, tree_attention
from ssd.kernels.tree_attention.cuda import tree_attention as cuda_tree_attention

from .cases import Case, twice_torch
from .cases.attention import tree_mask
from .kernel_report_shapes import MODELS

ROWS, PREFIXES, BATCHES, PAGE = (1, 5, 8, 16, 32, 64), (128, 4096, 32768), (1, 8, 32), 16
COLD, MOST = 512 << 20, 8 << 30  # bytes that no cache holds; of one case at most


def seconds_of(calls: dict, rounds: int, turns: int = 8) -> dict[str, list[float]]:
    """Of each name the seconds of a call in each round; calls take the number of the turn."""
    graphs, events = {}, [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    for name, call in calls.items():
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for turn in range(2):
                call(turn)
        torch.cuda.synchronize()
        graphs[name] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graphs[name], stream=stream):
            for turn in range(turns):
                call(turn)
    times = {name: [] for name in calls}
    for counted in range(-1, rounds):
        for name, graph in graphs.items():
            events[0].record()
            graph.replay()
            events[1].record()
            torch.cuda.synchronize()
            if counted >= 0:
                times[name].append(events[0].elapsed_time(events[1]) / 1e3 / turns)
    return times


def row(case: Case, rounds: int, copied: torch.Tensor, square: torch.Tensor) -> dict:
    """As the rows of bench.kernels; the roofline is the longer of a plain copy's and a large product's."""
    right = bool(case.check())
    roof = {"copy": lambda _: copied[0].copy_(copied[1]), "product": lambda _: square @ square}
    times = seconds_of({case.op: case.run, **(case.baselines if right else {}), **roof}, rounds)
    median = {name: statistics.median(t) for name, t in times.items()}
    bandwidth, peak = copied.nbytes / median["copy"], 2 * len(square) ** 3 / median["product"]
    taken = median[case.op]
    return {
        "op": case.op,
        "backend": case.backend,
        "shape": case.shape,
        "microseconds": taken * 1e6,
        "gb_per_s": case.bytes / taken / 1e9,
        "gflop_per_s": case.flops / taken / 1e9,
        "roofline_fraction": max(case.bytes / bandwidth, case.flops / peak) / taken,
        "baselines": {name: median[name] / taken for name in case.baselines if right},
        "check": right,
    }


def attention_cases(device: str = "cuda", models=None):
    """The most telling first, since time may run out."""
    sizes = itertools.product(PREFIXES, BATCHES, ROWS)
    for prefix, batch, rows in sorted(sizes, key=lambda s: (s[2] not in (1, 8), s[1] > 1, s[0] != 4096, s)):
        for m in models or MODELS.values():
            fits = 4 * m.kv_heads * m.head_dim * batch * (prefix + rows) <= MOST
            for backend in ("triton", "cuda") if fits and (batch == 1 or rows in (1, 8)) else ():
                yield attention_case(m, prefix, batch, rows, backend, device)


def flash_decode():
    """flash_attn_with_kvcache, None where the package is not installed."""
    try:
        from flash_attn import flash_attn_with_kvcache
    except ImportError:
        return None
    return flash_attn_with_kvcache


def attention_case(m, prefix: int, batch: int, rows: int, backend: str, device: str = "cuda") -> Case:
    length, scale, group = prefix + rows, m.head_dim**-0.5, m.heads // m.kv_heads
    pages = -(-length // PAGE)
    moved = 4 * batch * length * m.kv_heads * m.head_dim
    copies = max(1, min(8, COLD // moved)) if device != "cpu" else 2
    shape = (copies * batch * pages, PAGE, m.kv_heads, m.head_dim)
    k, v = (torch.randn(shape, device=device, dtype=torch.bfloat16) for _ in range(2))
    tables = torch.randperm(shape[0], device=device).int().view(copies, batch, pages)
    q = torch.randn(batch * rows, m.heads, m.head_dim, device=device).bfloat16()
    tree = tree_mask(rows)
    mask = tree.repeat(batch, 1).to(device)
    prefix_lens = torch.full((batch,), prefix, dtype=torch.int32, device=device)
    row_offsets = torch.arange(0, (batch + 1) * rows, rows, dtype=torch.int32, device=device)
    seen = torch.ones(rows, length, dtype=torch.bool)
    seen[:, prefix:] = tree >> torch.arange(rows) & 1 > 0
    seen = seen.to(device)
    form = cuda_tree_attention if backend == "cuda" else tree_attention

    def run(turn):
        return form(q, k, v, tables[turn % copies], prefix_lens, row_offsets, mask, scale=scale)[0]

    def gathered(turn):  # [B, Hkv, length, D] of K and V, which the baselines are given for nothing
        return [c[tables[turn].long()].flatten(1, 2)[:, :length].transpose(1, 2).contiguous() for c in (k, v)]

    dense, query = [gathered(turn) for turn in range(copies)], q.unflatten(0, (batch, rows)).transpose(1, 2)

    def sdpa(turn):
        return F.scaled_dot_product_attention(query, *dense[turn % copies], seen, scale=scale, enable_gqa=True)

    baselines = {"torch SDPA, contiguous": sdpa}
    if device != "cpu" and (rows, batch, prefix) == (8, 1, 4096):  # each shape is compiled for some seconds
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        block_mask = create_block_mask(lambda b, h, i, j: seen[i, j], None, None, rows, length, device=device)
        flex = torch.compile(flex_attention)

        def flexed(turn):
            return flex(query, *dense[turn % copies], block_mask=block_mask, scale=scale, enable_gqa=True)

        baselines["flex_attention, contiguous"] = flexed

    if rows == 1 and (decode := flash_decode()):  # flash-attn has no trees; one row is a tree and a chain
        size = -(-length // 256) * 256
        own_pages = torch.arange(batch * size // 256, dtype=torch.int32, device=device).view(batch, -1)
        lengths = torch.full((batch,), length, dtype=torch.int32, device=device)
        paged = [
            [F.pad(c.transpose(1, 2), (0, 0, 0, 0, 0, size - length)).reshape(-1, 256, *c.shape[1::2]) for c in kv]
            for kv in dense
        ]

        def flash(turn):
            tables = {"cache_seqlens": lengths, "block_table": own_pages}
            return decode(q.unflatten(0, (batch, 1)), *paged[turn % copies], **tables, softmax_scale=scale, causal=True)

        baselines["flash-attn, pages of 256"] = flash

    def check():
        keys, values = (x[:1].double().repeat_interleave(group, 1) for x in dense[0])
        scores = query[:1].double() @ keys.transpose(-1, -2) * scale
        exact = scores.masked_fill(~seen, -torch.inf).softmax(-1) @ values
        return twice_torch(run(0)[:rows], sdpa(0)[:1].transpose(1, 2)[0], exact.transpose(1, 2)[0])

    return Case(
        op="tree_attention",
        shape=f"{m.name} B={batch} T={rows} L={prefix}",
        run=run,
        bytes=moved + 4 * batch * rows * m.heads * m.head_dim + mask.nbytes,
        flops=4 * batch * rows * m.heads * m.head_dim * length,
        check=check,
        baselines=baselines,
        backend=backend,
    )


def linear_cases(device: str = "cuda", models=None):
    for rows, m in itertools.product(sorted(ROWS, key=lambda r: r not in (1, 8)), models or MODELS.values()):
        for layer, (n, k) in m.layers.items():
            yield linear_case(f"{m.name} {layer} {n} x {k} T={rows}", n, k, rows, device)


def linear_case(shape: str, n: int, k: int, rows: int, device: str = "cuda") -> Case:
    copies = max(1, min(8, COLD // (2 * n * k))) if device != "cpu" else 2
    weight = torch.randn(n, k, device=device) * k**-0.5
    packed = [pack_linear(weight, "bf16") for _ in range(copies)]
    plain = [weight.bfloat16() for _ in range(copies)]
    x = torch.randn(rows, k, device=device)
    rounded = x.bfloat16()

    def torchs(turn):
        return F.linear(rounded, plain[turn % copies])

    def check():
        return twice_torch(run(0), torchs(0), x.double() @ plain[0].double().T)

    def run(turn):
        return linear(x, packed[turn % copies], n)

    return Case(
        op="linear",
        shape=shape,
        run=run,
        bytes=2 * n * k + 4 * rows * (n + k),
        flops=2 * rows * n * k,
        check=check,
        baselines={"torch bfloat16": torchs},
        backend="triton",
    )


MODULES = {"attention": attention_cases, "linear": linear_cases}


def measure(modules: list[str], seconds: float, limit: float | None = None) -> list[dict]:
    """Rows of the cases of these modules, of as many as `limit` seconds allow; one that cannot run has `error`."""
    torch.manual_seed(0)
    copied = torch.zeros(2, COLD // 2, dtype=torch.uint8, device="cuda")
    square = torch.randn(8192, 8192, device="cuda").bfloat16()
    rows = []
    for name in modules:
        begin = time.monotonic()
        for case in MODULES[name]():
            try:
                rows.append(row(case, max(5, int(100 * seconds)), copied, square))
            except RuntimeError as e:
                rows.append({"op": case.op, "backend": case.backend, "shape": case.shape, "error": str(e)[:300]})
            if limit and time.monotonic() - begin > limit / len(modules):
                break
    return rows
