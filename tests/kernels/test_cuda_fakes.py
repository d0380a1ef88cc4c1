"""The fake of the operator that only CUDA C++ has, which traces and exports without a GPU."""

import torch
from attention_cases import make_case
from torch._subclasses import FakeTensorMode

from ssd.kernels import Swapped, verify_swap


def swap_inputs(requests=3, nodes=4):
    def full(value, dtype, *shape):
        return torch.full(shape, value, dtype=dtype)

    wide = (requests, nodes + 1)
    rows = [full(0, torch.int64, *wide), full(-1, torch.int32, *wide), full(0, torch.int32, *wide)]
    rows += [full(-1, torch.int64, *wide), full(0, torch.int64, *wide), full(0, torch.int32, requests)]
    table, capacity = full(0, torch.int32, requests, 6), full(96, torch.int32, requests)
    sizes, slots = [requests, 8, nodes, 1, 99, 60, 2, 0, 0], torch.arange(requests)
    return torch.zeros(4096, dtype=torch.uint8), sizes, slots, full(1, torch.int64, *wide), *rows, table, 16, capacity


def test_verify_swap_gives_what_its_result_says():
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        args = [mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in swap_inputs()]
        got = verify_swap(*args)
    narrow, wide = ((3,), torch.int32), ((3, 5), torch.int64)
    wanted = Swapped(narrow, wide, narrow, narrow, narrow, narrow, wide, wide)
    assert [(tuple(t.shape), t.dtype) for t in got] == list(wanted)


class Round(torch.nn.Module):
    """The end of a round and the attention after it, traced together as an engine would."""

    def forward(self, q, k, v, table, prefix, offsets, *swap):
        done = torch.ops.ssd.verify_swap(*swap, None)
        torch.ops.ssd.kv_copy(k[None], v[None], done[6].flatten(), done[7].flatten())
        return torch.ops.ssd.tree_attention(q, k, v, table, prefix, offsets, swap[8], 0.1, 0.0, True), done[0]


def test_a_round_exports():
    case = make_case([20, 5, 0], [5, 5, 5], 4, 2, 64, torch.bfloat16)
    program = torch.export.export(Round(), (*case.args()[:6], *swap_inputs()))
    names = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert {f"ssd.{op}.default" for op in ("verify_swap", "kv_copy", "tree_attention")} <= names
