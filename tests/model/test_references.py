"""The references, against which the model and the C++ kernels are tested, are themselves tested against torch."""

import torch
import torch.nn.functional as F

from ssd.kernels.linear import reference as linear
from ssd.kernels.rope_append.reference import rope_append
from ssd.kernels.tree_attention.reference import tree_attention


def paged(keys, values, page_size, page_table):
    """Caches with keys [n, Hkv, D] in the pages of one request, and NaN elsewhere."""
    cache = torch.full((2, 8, page_size, *keys.shape[1:]), float("nan"))
    index = torch.arange(len(keys))
    for c, x in zip(cache, (keys, values), strict=True):
        c[page_table[index // page_size].long(), index % page_size] = x
    return cache.unbind(0)


def test_tree_attention_is_causal_attention_and_honours_bits():
    torch.manual_seed(0)
    n, rows, table = 21, 5, torch.tensor([5, 2, 7], dtype=torch.int32)
    q, k, v = torch.randn(rows, 6, 16), torch.randn(n, 2, 16), torch.randn(n, 2, 16)
    caches = paged(k, v, 8, table)
    args = (q, *caches, table[None], torch.tensor([n - rows]), torch.tensor([0, rows]))
    out, lse = tree_attention(*args, scale=0.3)
    visible = torch.ones(rows, n, dtype=torch.bool).tril(n - rows)

    def dense(visible):
        heads = [x.repeat_interleave(3, 1).transpose(0, 1) for x in (k, v)]
        return F.scaled_dot_product_attention(q.transpose(0, 1), *heads, attn_mask=visible, scale=0.3).transpose(0, 1)

    torch.testing.assert_close(out, dense(visible))
    scores = torch.einsum("rhd,khd->rhk", q, k.repeat_interleave(3, 1)) * 0.3
    torch.testing.assert_close(lse, scores.masked_fill(~visible[:, None], float("-inf")).logsumexp(-1))
    mask = torch.tensor([[1, 0], [3, 0], [5, 0], [9, 0], [16, 0]])
    for r, word in enumerate(mask[:, 0].tolist()):
        visible[r, n - rows :] = torch.tensor([bool(word >> s & 1) for s in range(rows)])
    torch.testing.assert_close(tree_attention(*args, mask, 0.3)[0], dense(visible))


def test_tree_attention_row_without_keys():
    caches = paged(torch.randn(2, 1, 4), torch.randn(2, 1, 4), 8, torch.tensor([0]))
    zero, offsets = torch.tensor([0]), torch.tensor([0, 1])
    out, lse = tree_attention(torch.randn(1, 1, 4), *caches, zero[None], zero, offsets, torch.tensor([[0]]))
    assert torch.equal(out, torch.zeros(1, 1, 4)) and torch.equal(lse, torch.tensor([[-torch.inf]]))


def test_linear_swiglu_pairs_gate_and_up():
    torch.manual_seed(0)
    x, gate, up = torch.randn(3, 8), torch.randn(32, 8), torch.randn(32, 8)
    got = linear.linear_swiglu(x, linear.interleave(gate, up))
    torch.testing.assert_close(got, F.silu(x @ gate.T) * (x @ up.T))


def test_rope_append_rotates_and_stores():
    torch.manual_seed(0)
    angle = torch.outer(torch.arange(9.0), torch.tensor([1.0, 0.1]))
    k_cache, v_cache = torch.zeros(2, 4, 1, 4), torch.zeros(2, 4, 1, 4)
    qkv, positions, slots = torch.randn(3, 16), torch.tensor([0, 8, 3]), torch.tensor([6, -1, 1])
    q = rope_append(qkv, angle.cos(), angle.sin(), positions, slots, k_cache, v_cache)
    turned = torch.view_as_complex(
        torch.stack([qkv[:, :12].view(3, 3, 4)[..., :2], qkv[:, :12].view(3, 3, 4)[..., 2:]], -1)
    )
    turned = turned * torch.polar(torch.ones(3, 1, 2), angle[positions][:, None])
    heads = torch.cat([turned.real, turned.imag], -1)
    torch.testing.assert_close(q, heads[:, :2])
    torch.testing.assert_close(k_cache.view(8, 4)[[6, 1]], heads[[0, 2], 2])
    assert torch.equal(v_cache.view(8, 4)[[6, 1]], qkv[[0, 2], 12:])
    assert k_cache.count_nonzero() == 8 and v_cache.count_nonzero() == 8
