"""Small inputs of the attention benchmark."""

import torch

from bench import shapes
from bench.cases import attention
from bench.shapes import Size

TINY = shapes.TINY["tiny"]


def inputs(prefix=40, batch=1, rows=5, depth=0, turns=2):
    size = Size(TINY, batch, rows, prefix, depth)
    pages = batch * -(-size.length // attention.PAGE)
    torch.manual_seed(0)
    return attention.Inputs(size, *attention.kv_cache(TINY, turns * pages, "cpu"), turns * size.kv_bytes)
