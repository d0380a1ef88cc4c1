"""Calls of the operators in all their forms, by the runtime and by users: what must compile beside passes of models.

Floats and integers are on the meta device. Every optional argument is given and None at least once.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product

import torch

from ssd import kernels
from ssd.model.batch import Batch

from ..kernel_report.triton import floats, ints, longs, meta
from ..shapes import PAGE, Model
from .passes import llama

ROWS = (1, 2, 5, 8, 16, 24, 33, 64, 192, 512)
WORDS = range(1, 9)
VOCAB = 49152
SMALL = Model("small", 576, 9, 3, 64, 1536, 1, VOCAB)
PADDED = Model("padded", 320, 4, 2, 80, 512, 1, VOCAB)
Calls = Iterator[tuple[str, Callable[[], object]]]


def filters(rows: int) -> tuple:
    return floats(rows), ints(rows), floats(rows), floats(rows), longs(rows), longs(rows)


def draws() -> Calls:
    for rows, vocab, logprobs in product(ROWS, (300, VOCAB, 128256), (False, True)):
        yield f"sample, {rows} rows", partial(kernels.sample, floats(rows, vocab), *filters(rows), logprobs)
    for rows, f, excluded, ids in product((1, 8, 192), (1, 4, 17), (None, 1, 3), (False, True)):
        exclude, target_ids = excluded and longs(rows, excluded), longs(VOCAB) if ids else None
        call = partial(kernels.top_f, floats(rows, VOCAB), *filters(rows), f, exclude, target_ids)
        for purpose in (0, 1, 3):
            yield f"top_f, {rows} rows", partial(call, purpose)
    for batch, nodes, logprobs in product((1, 3, 8, 64), (0, 1, 7, 63), (False, True)):
        tree = ints(batch + 1), ints(batch, nodes), meta(batch, nodes, dtype=torch.int8)
        call = partial(kernels.verify_coupled, floats(batch * (nodes + 1), VOCAB), *tree, *filters(batch), logprobs)
        yield f"verify_coupled, {batch} x {nodes}", call
    for rows in (1, 16):
        yield "noise_words", partial(kernels.noise_words, longs(rows), longs(rows), VOCAB)


def moves() -> Calls:
    """kv_copy after a verification and in a draft, of few tokens and of many."""
    for count, dtype in product((1, 2, 7, 64, 896), (torch.bfloat16, torch.float32)):
        cache = meta(2, 99, PAGE, 3, 64, dtype=dtype)
        yield f"kv_copy, {count} moves", partial(kernels.kv_copy, cache, cache, longs(count), longs(count))


def attentions() -> Calls:
    def call(rows, batch, pages, words, dtype, **options):
        m, q = SMALL, options.pop("q", dtype)
        cache = meta(99, PAGE, m.kv_heads, m.head_dim, dtype=dtype)
        tables = ints(batch, pages), ints(batch), ints(batch + 1)
        mask = longs(rows * batch, words) if words else None
        arguments = (meta(rows * batch, m.heads, m.head_dim, dtype=q), cache, cache, *tables, mask)
        name = f"tree_attention, {batch} x {rows} rows of {words} words and {pages} pages"
        return name, partial(kernels.tree_attention, *arguments, scale=0.1, **options)

    half = torch.bfloat16
    for rows, batch, pages, words in product(ROWS, (1, 8), (4, 513), (0, *WORDS)):
        if rows <= 64 * words or words == 0:
            yield call(rows, batch, pages, words, half)
    for dtype, words, lse, cap in product((half, torch.float16, torch.float32), (0, 1), (False, True), (0.0, 30.0)):
        yield call(8, 1, 513, words, dtype, return_lse=lse, softcap=cap)
        yield call(8, 1, 513, words, dtype, q=torch.float32)


def dense() -> Calls:
    for rows, format, bias, residual in product(ROWS, ("bf16", "int8", "fp32", "fp16"), (False, True), (False, True)):
        x, n, k = (floats if format == "fp32" else meta)(rows, 576), 960, 576
        packed = kernels.pack_linear(floats(n, k), format)
        given = floats(n) if bias else None
        added = floats(rows, n) if residual else None
        yield f"linear, {rows} rows of {format}", partial(kernels.linear, x, packed, n, given, added)
        if not residual:
            yield f"linear_swiglu, {rows} rows of {format}", partial(kernels.linear_swiglu, x, packed, n, given)
    for rows, dtype in product((1, 8), (torch.bfloat16, torch.float32)):
        x, weight = floats(rows, 576), meta(576, dtype=dtype)
        yield "rms_norm", partial(kernels.rms_norm, x, weight, 1e-5)
        yield "add_rms_norm", partial(kernels.add_rms_norm, x, x, weight, 1e-5)
        yield "embedding", partial(kernels.embedding, longs(rows), meta(VOCAB, 576, dtype=dtype))
    for rows, dtype, q, k in product((1, 8), (torch.bfloat16, torch.float32), (False, True), (False, True)):
        cache, table, weight = meta(99, PAGE, 3, 64, dtype=dtype), floats(70, 32), meta(64, dtype=dtype)
        norms = (weight if q else None, weight if k else None)
        arguments = (floats(rows, 960), table, table, ints(rows), longs(rows), cache, cache, *norms)
        yield "rope_append", partial(kernels.rope_append, *arguments, 1e-5)


def forwards() -> Calls:
    """Whole passes of one layer: every format of weights, with and without biases and norms of heads."""
    for m, format, extra in product((SMALL, PADDED), ("bf16", "int8", "fp32"), (False, True)):
        model = llama(m, format, 8192, qk_norm=extra, biases=extra)
        kv = model.new_kv_cache(99, PAGE)
        for rows, words in product((1, 8, 24, 512), (0, 2)):
            mask = longs(rows, words) if words and rows <= 64 * words else None
            batch = Batch(longs(rows), ints(rows), longs(rows), ints(2), ints(1), ints(1, 513), longs(rows), mask)
            yield f"forward, {m.name} {format}, {rows} rows", partial(model.forward, batch, kv)


def calls() -> Calls:
    """Names of calls, and the calls."""
    for some in (draws, moves, attentions, dense, forwards):
        yield from some()
