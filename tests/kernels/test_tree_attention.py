import backends
import pytest
import torch
from attention_cases import NOISE, ancestors, make_case, torch_error, tree_mask, words
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ssd.kernels import tree_attention
from ssd.kernels.tree_attention import reference

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


ops = backends.fixture("cpu", "triton")


def check(ops, case, softcap=0.0):
    scale = case.q.shape[2] ** -0.5
    out, lse = ops.tree_attention(*case.args(), scale=scale, softcap=softcap, return_lse=True)
    wanted, wanted_lse = reference.tree_attention(*case.args(), scale=scale, softcap=softcap)
    error = (out.float() - wanted).abs().max().item() if len(out) else 0.0
    assert error <= 2 * torch_error(case, wanted, scale, softcap) + NOISE[case.q.dtype]
    torch.testing.assert_close(lse, wanted_lse, rtol=1e-5, atol=ops.lse_error(case.k.dtype))
    return out


@pytest.mark.parametrize("dtype", backends.affordable(DTYPES, DTYPES[:2]))
@pytest.mark.parametrize("d", backends.affordable([64, 80, 96, 128, 256], [80]))
@pytest.mark.parametrize("heads,kv_heads", backends.affordable([(9, 3), (7, 1)], [(7, 1)]))
def test_trees_of_every_type_and_size(ops, d, heads, kv_heads, dtype):
    check(ops, make_case([0, ops.count(257, 40), 30], [5, ops.count(9, 4), 0], heads, kv_heads, d, dtype, tree=1))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_random_batches(data):
    rows = data.draw(st.lists(st.integers(0, 20), min_size=1, max_size=4).filter(any))
    prefixes = [data.draw(st.sampled_from([0, 1, 15, 16, 100, 255, 256, 300])) for _ in rows]
    heads, kv_heads = data.draw(st.sampled_from([(1, 1), (3, 1), (8, 2), (14, 2), (71, 1)]))
    check(
        backends.Operators("cpu"),
        make_case(
            prefixes,
            rows,
            heads,
            kv_heads,
            data.draw(st.sampled_from([16, 64, 112])),
            data.draw(st.sampled_from(DTYPES)),
            page_size=data.draw(st.sampled_from([16, 17, 64])),
            tree=data.draw(st.sampled_from([None, 1, 2, 8])),
            seed=data.draw(st.integers(0, 1000)),
        ),
        softcap=data.draw(st.sampled_from([0.0, 5.0])),
    )


@pytest.mark.parametrize("num_words", backends.affordable([2, 4, 8], [2]))
def test_forest_rows_see_their_own_branch(ops, num_words):
    """The rows are the newest depth of M branches by K steps: slot i * M + m is step i of branch m."""
    m, steps = ops.count(8, 2) * num_words, ops.count(8, 20)
    seen = torch.zeros(m, 64 * num_words, dtype=torch.bool)
    for branch in range(m):
        seen[branch, branch : m * steps : m] = True
    check(ops, make_case([ops.count(70, 20)], [m], 6, 2, 64, torch.bfloat16, mask=words(seen), slots=[m * steps]))


def test_chain_equals_causal_and_a_row_is_itself_everywhere(isas):
    """A row is bitwise the same as a chain and as causal rows, alone and among others, with any threads and
    instructions."""
    for prefixes, rows in (([0, 250, 513], [40, 17, 1]), ([700], [64])):
        case = make_case(prefixes, rows, 9, 3, 64, torch.bfloat16)
        case.q = case.q.float()
        causal, lse = tree_attention(*case.args(), scale=0.125, return_lse=True)
        chain = tree_mask([range(-1, n - 1) for n in rows], 1)
        for isa in isas:
            torch.ops.ssd.set_isa(isa)
            for mask in (None, chain):
                out, out_lse = tree_attention(*case.args(mask), scale=0.125, return_lse=True)
                assert torch.equal(out, causal) and torch.equal(out_lse, lse), isa
        torch.ops.ssd.set_isa("auto")
        for threads in (1, 2, 3):
            torch.ops.ssd.bind_threads([-1] * threads)
            for mask in (None, chain):
                assert torch.equal(tree_attention(*case.args(mask), scale=0.125)[0], causal), threads
        torch.ops.ssd.bind_threads([-1, -1])
        for b in range(len(rows)):
            for r in range(int(case.row_offsets[b]), int(case.row_offsets[b + 1]), 5):
                length = case.prefix_lens[b : b + 1] + r - case.row_offsets[b]  # plain decoding of this row
                alone = tree_attention(
                    case.q[r : r + 1],
                    case.k,
                    case.v,
                    case.page_table[b : b + 1],
                    length.int(),
                    torch.tensor([0, 1]).int(),
                    scale=0.125,
                )
                assert torch.equal(alone[0][0], causal[r])


@pytest.mark.parametrize("prefix", backends.affordable([0, 1, 61, 250, 300], [61]))
def test_a_tree_row_equals_the_decoded_row(ops, prefix):
    """Every path of a branching tree has the same bits as a chain in its own cache."""
    g, rows = torch.Generator().manual_seed(3), ops.count(24, 9)
    parents = [-1] + [int(torch.randint(0, i, (1,), generator=g)) for i in range(1, rows)]
    case = make_case([prefix], [rows], 6, 2, 64, torch.bfloat16, mask=tree_mask([parents], 1))
    out = ops.tree_attention(*case.args(), scale=0.125)[0]
    seen, flat_k, flat_v = ancestors(parents), case.k.flatten(0, 1), case.v.flatten(0, 1)
    for row in range(0, rows, ops.count(1, 4)):
        index = torch.cat([torch.arange(prefix), prefix + seen[row].nonzero()[:, 0]])
        slots = case.page_table[0, index // 16].long() * 16 + index % 16
        pages = -(-len(index) // 16)
        k, v = (torch.full((pages * 16, 2, 64), float("nan"), dtype=torch.bfloat16) for _ in range(2))
        k[: len(index)], v[: len(index)] = flat_k[slots], flat_v[slots]
        alone = ops.tree_attention(
            case.q[row : row + 1],
            k.view(pages, 16, 2, 64),
            v.view(pages, 16, 2, 64),
            torch.arange(pages, dtype=torch.int32)[None],
            torch.tensor([len(index) - 1], dtype=torch.int32),
            torch.tensor([0, 1], dtype=torch.int32),
            scale=0.125,
        )[0]
        assert torch.equal(alone[0], out[row])


def test_strided_and_sliced_inputs(ops):
    case = make_case([ops.count(50, 20), 3], [4, 2], 6, 2, 64, torch.float16, tree=1)
    wanted = ops.tree_attention(*case.args(), scale=0.125)[0]
    wide = [torch.full((*t.shape[:2], 5, 80), float("nan"), dtype=t.dtype) for t in (case.k, case.v)]
    views = [w[:, :, 2:4, 8:72].copy_(t) for w, t in zip(wide, (case.k, case.v), strict=True)]
    q = torch.stack([case.q, case.q.flip(0)], 2)[:, :, 0]
    table = torch.cat([case.page_table, case.page_table], 1)[:, : case.page_table.shape[1]]
    got = ops.tree_attention(q, *views, table, case.prefix_lens, case.row_offsets, case.mask, scale=0.125)[0]
    assert torch.equal(got, wanted)


def test_offsets_beyond_two_to_the_31():
    """The pages of the cache are 2^31 elements apart, in memory that is never touched in between."""
    stride, shape = 2**31 + 64, (3, 16, 1, 64)
    base = torch.empty(2 * stride + 16 * 64, dtype=torch.float16)  # reserved, but not resident
    cache = base.as_strided(shape, (stride, 64, 64, 1))
    case = make_case([20], [3], 2, 1, 64, torch.float16, seed=1)
    case.page_table[0, :2] = torch.tensor([0, 2])
    small = [torch.randn(shape, dtype=torch.float16) for _ in range(2)]
    wanted = tree_attention(case.q, *small, *case.args()[3:], scale=0.125)[0]
    for page in (0, 2):
        cache[page] = small[0][page]
    got = tree_attention(case.q, cache, small[1], *case.args()[3:], scale=0.125)[0]
    assert torch.equal(got, wanted)


def test_nothing_visible_and_nan_in_what_is_invisible(ops):
    dtype = torch.bfloat16 if ops.tensor_cores else torch.float32
    case = make_case([0, 40], [2, 3], 4, 2, 64, dtype, mask=torch.tensor([[0], [2], [1], [3], [5]]))
    where = case.page_table[1, 41 // 16].long(), 41 % 16  # slot 1 of the second request, which only its row 1 sees
    case.k[where], case.v[where] = float("nan"), float("nan")
    out, lse = ops.tree_attention(*case.args(), scale=0.125, return_lse=True)
    assert (out[0] == 0).all() and (lse[0] == float("-inf")).all()
    assert out[[1, 2, 4]].isfinite().all() and out[3].isnan().all()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_a_row_of_a_chain_does_not_see_never_reaches_it(ops, value):
    case = make_case([40], [3], 4, 2, 64, torch.bfloat16)
    before = ops.tree_attention(*case.args(), scale=0.125, return_lse=True)
    where = case.page_table[0, 42 // 16].long(), 42 % 16  # the key of the last row
    case.v[where][:, 5:8] = value
    after = ops.tree_attention(*case.args(), scale=0.125, return_lse=True)
    assert all(torch.equal(a[:2], b[:2]) for a, b in zip(after, before, strict=True))
    assert not after[0][2].isfinite().all(1).any()


def test_opcheck():
    case = make_case([20, 5], [3, 2], 4, 2, 64, torch.float32, tree=1)
    torch.library.opcheck(torch.ops.ssd.tree_attention.default, (*case.args(), 0.125, 0.0, True))
    torch.library.opcheck(torch.ops.ssd.tree_attention.default, (*case.args(None), 0.125))


def test_bad_arguments_are_named():
    case = make_case([20, 5], [3, 2], 4, 2, 64, torch.float32, tree=1)
    q, k, v, table, prefix, offsets, mask = case.args()
    junk = table.clone().fill_(10**6)
    bad = [
        (ValueError, "q: got head_dim 32", (q[..., :32].contiguous(), k, v, table, prefix, offsets, mask)),
        (ValueError, "q: got 3 heads", (q[:, :3], k, v, table, prefix, offsets, mask)),
        (
            ValueError,
            "q: got strides",
            (q.transpose(1, 2).contiguous().transpose(1, 2), k, v, table, prefix, offsets, mask),
        ),
        (ValueError, "v_cache: got shape", (q, k, v[1:], table, prefix, offsets, mask)),
        (TypeError, "v_cache: got dtype", (q, k, v.half(), table, prefix, offsets, mask)),
        (TypeError, "q: got dtype", (q.half(), k, v, table, prefix, offsets, mask)),
        (TypeError, "prefix_lens: got dtype", (q, k, v, table, prefix.long(), offsets, mask)),
        (ValueError, "page_table: got page 1000000", (q, k, v, junk, prefix, offsets, mask)),
        (ValueError, "row_offsets: got 0 to 5, wanted 0 to 4", (q[:4], k, v, table, prefix, offsets, mask[:4])),
        (ValueError, "mask: got shape", (q, k, v, table, prefix, offsets, mask.expand(-1, 9).contiguous())),
        (ValueError, "mask: request 0 needs", (q, k, v, table, prefix, offsets, mask | 1 << 62)),
        (ValueError, "prefix_lens: got -1", (q, k, v, table, prefix - 21, offsets, mask)),
        (ValueError, "k_cache: got page_size 8", (q, k[:, :8], v[:, :8], table, prefix, offsets, mask)),
    ]
    for kind, message, args in bad:
        with pytest.raises(kind, match=message):
            tree_attention(*args, scale=0.125)
