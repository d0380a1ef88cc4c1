"""Paths of the Triton kernel that the shapes of tests/kernels/test_tree_attention.py do not reach."""

import pytest
import torch

from ssd.kernels.tree_attention import reference, triton_plan
from ssd.kernels.tree_attention import triton as form

PAGE = 8


@pytest.fixture(autouse=True)
def short_spans(monkeypatch):
    """Spans of 32 keys in tiles of 16, two a node, reach all paths at lengths that the interpreter can afford."""
    monkeypatch.setattr(form, "SPAN", 32)
    monkeypatch.setattr(form, "TILE", 16)
    monkeypatch.setattr(form, "FAN", 2)


class Case:
    """Ragged requests in shuffled pages, with NaN where no token is, and junk in unused page-table entries."""

    def __init__(self, device, prefixes, rows, heads=(6, 2), dim=16, dtype=torch.float16, slots=None):
        torch.manual_seed(0)
        self.prefixes, self.rows, self.offsets = prefixes, rows, [sum(rows[:b]) for b in range(len(rows) + 1)]
        tokens = [p + (slots or r) for p, r in zip(prefixes, rows, strict=True)]
        width = -(-max(tokens) // PAGE) + 2
        table = torch.randperm(len(rows) * width).view(len(rows), width).int()
        shape = (len(rows) * width, PAGE, heads[1], dim)
        k, v = (torch.full(shape, float("nan"), dtype=dtype) for _ in range(2))
        for b, n in enumerate(tokens):
            at = self.at(table[b], torch.arange(n))
            k[at], v[at] = torch.randn(2, n, heads[1], dim).to(dtype)
            table[b, -(-n // PAGE) :] = 2**30
        self.q = torch.randn(sum(rows), heads[0], dim).to(dtype).to(device)
        self.k, self.v, self.table = k.to(device), v.to(device), table.to(device)

    @staticmethod
    def at(table, index):
        return table[index // PAGE].long(), index % PAGE

    def ints(self, values):
        return torch.tensor(values, dtype=torch.int32, device=self.q.device)

    def args(self):
        return self.q, self.k, self.v, self.table, self.ints(self.prefixes), self.ints(self.offsets)

    def decode(self, b, row, path, **options):
        """The row alone as a step of plain decoding, with its path moved to the end of the prefix."""
        k, v, prefix = self.k.clone(), self.v.clone(), self.prefixes[b]
        to, source = (
            self.at(self.table[b], prefix + torch.tensor(x, device=k.device)) for x in (range(len(path)), path)
        )
        k[to], v[to] = self.k[source], self.v[source]
        end = self.ints([prefix + len(path) - 1])
        return form.tree_attention(
            self.q[row : row + 1], k, v, self.table[b : b + 1], end, self.ints([0, 1]), None, **options
        )


def random_trees(case, words=1, stride=1):
    """(mask int64 [R, words], the path of each row), with slots `stride` apart."""
    generator = torch.Generator().manual_seed(1)
    mask, paths = torch.zeros(sum(case.rows), words, dtype=torch.int64), []
    for b, rows in enumerate(case.rows):
        for t in range(rows):
            parent = int(torch.randint(-1, t, (1,), generator=generator)) if t else -1
            paths.append((paths[case.offsets[b] + parent] if parent >= 0 else []) + [t * stride])
            for slot in paths[-1]:
                word = int(mask[len(paths) - 1, slot // 64]) | 1 << slot % 64
                mask[len(paths) - 1, slot // 64] = word - 2**64 if word >= 2**63 else word
    return mask.to(case.q.device), paths


def test_softcap_and_padded_head_dim(device):
    case = Case(device, [37], [3], heads=(3, 1), dim=24, dtype=torch.float32)
    got = form.tree_attention(*case.args(), scale=2.0, softcap=4.0, return_lse=True)
    for x, y in zip(got, reference.tree_attention(*case.args(), None, 2.0, 4.0), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("heads", [(6, 2), (7, 1)])
def test_chain_rows_equal_decoded_rows(device, heads):
    """Rows are before, on and past the end of a span, and more than a tile of 16 or 32 takes."""
    case = Case(device, [29, 64], [12, 1], heads)
    out, lse = form.tree_attention(*case.args(), scale=0.3, return_lse=True)
    for b, t in ((0, 0), (0, 2), (0, 3), (0, 11), (1, 0)):
        alone = case.decode(b, case.offsets[b] + t, list(range(t + 1)), scale=0.3, return_lse=True)
        assert torch.equal(alone[0][0], out[case.offsets[b] + t])
        assert torch.equal(alone[1][0], lse[case.offsets[b] + t])


def test_rows_of_a_forest_equal_decoded_rows(device):
    """Slots are far apart, in several words."""
    case = Case(device, [61, 3], [6, 2], (3, 1), slots=6 * 60)
    mask, paths = random_trees(case, words=6, stride=60)
    out, lse = form.tree_attention(*case.args(), mask, scale=0.3, return_lse=True)
    assert max(len(path) for path in paths) > 3  # deep enough to go beyond the span
    for b, rows in ((0, (1, 3, 4, 5)), (1, (7,))):
        for row in rows:
            alone = case.decode(b, row, paths[row], scale=0.3, return_lse=True)
            assert torch.equal(alone[0][0], out[row]) and torch.equal(alone[1][0], lse[row])


def test_a_chain_as_a_mask_is_the_chain(device):
    case = Case(device, [30], [5], (3, 1))
    mask = torch.tensor([[2 ** (t + 1) - 1] for t in range(5)], device=device)
    assert torch.equal(
        form.tree_attention(*case.args(), mask, scale=0.3)[0], form.tree_attention(*case.args(), scale=0.3)[0]
    )


def test_spans_folded_in_place_equal_spans_merged(device, monkeypatch):
    case = Case(device, [290, 5], [4, 6], (3, 1), dtype=torch.float32)  # more spans than the merge loads at once
    merged = form.tree_attention(*case.args(), scale=0.3, return_lse=True)
    monkeypatch.setattr(triton_plan, "multiprocessors", lambda device: 1)
    folded = form.tree_attention(*case.args(), scale=0.3, return_lse=True)
    assert all(torch.equal(x, y) for x, y in zip(merged, folded, strict=True))


def test_requests_of_one_span(device):
    case = Case(device, [5], [4], (3, 1))
    mask, paths = random_trees(case)
    chain, tree = (form.tree_attention(*case.args(), bits, scale=0.3)[0] for bits in (None, mask))
    for row in range(4):
        assert torch.equal(case.decode(0, row, list(range(row + 1)), scale=0.3)[0][0], chain[row])
        assert torch.equal(case.decode(0, row, paths[row], scale=0.3)[0][0], tree[row])


def test_no_rows(device):
    case = Case(device, [0, 33], [1, 1])
    q, k, v, table, prefix, _ = case.args()
    out, lse = form.tree_attention(q[:0], k, v, table, prefix, case.ints([0, 0, 0]), scale=1.0)
    assert out.shape == (0, 6, 16) and lse.shape == (0, 6)


def test_bad_arguments_are_named(device):
    case = Case(device, [9], [1])
    q, k, v, table, prefix, offsets = case.args()
    with pytest.raises(TypeError, match="prefix_lens: got dtype"):
        form.tree_attention(q, k, v, table, prefix.long(), offsets)
    with pytest.raises(ValueError, match="mask: got shape"):
        form.tree_attention(q, k, v, table, prefix, offsets, torch.zeros(1, 9, dtype=torch.int64, device=device))
    with pytest.raises(TypeError, match="q: got"):
        form.tree_attention(q.bfloat16(), k, v, table, prefix, offsets)
