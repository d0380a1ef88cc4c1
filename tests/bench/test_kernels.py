"""What `make bench` measures of the kernels: the sizes, the cases and the baselines."""

import json
import sys
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from attention_inputs import TINY, inputs

from bench import kernels, kernels_gpu, linear, plots
from bench.cases import attention, attention_peers, twice_torch
from bench.cases import linear as linear_cases
from bench.shapes import BATCHES, MODELS, PREFIXES, ROWS, sizes


def test_default_sizes_vary_one_thing_at_a_time_and_full_has_all():
    models = list(MODELS.values())
    chosen, rest = sizes(models, False)
    every, none = sizes(models, True)
    assert len(every) == len(set(every)) == len(models) * (len(BATCHES) * len(PREFIXES) * (len(ROWS) + 1)) and not none
    assert set(chosen) | set(rest) == set(every) and not set(chosen) & set(rest)
    for m in models:
        own = [s for s in chosen if s.model == m]
        assert {s.rows for s in own if (s.batch, s.prefix, s.depth) == (1, 4096, 0)} == set(ROWS)
        for rows in (1, 8):
            assert {s.prefix for s in own if (s.batch, s.rows) == (1, rows)} == set(PREFIXES)
            assert {s.batch for s in own if (s.prefix, s.rows) == (4096, rows)} == set(BATCHES)
        assert [s.depth for s in own if s.depth] == [4]
    assert {(s.batch, s.rows, s.prefix) for s in every[:8]} == {(1, 1, 4096), (1, 8, 4096)}  # the most telling ones


def test_sizes_that_do_not_fit_are_named():
    chosen, left_out = kernels.selection([MODELS["Llama-8B"]], True, 1 << 30)
    assert max(s.kv_bytes for s in chosen) <= 1 << 30
    (large,) = left_out.values()
    assert "Llama-8B B=32 T=64 L=32768" in large and not set(large) & set(map(str, chosen))
    assert list(kernels.selection([TINY], False, 1 << 40)[1]) == ["without --full"]


def test_rows_of_a_forest_see_their_own_branch():
    mask = attention.forest_mask(24, 4)
    assert mask.shape == (24, 2)
    for m, words in enumerate(mask.tolist()):
        bits = sum(w % 2**64 << 64 * i for i, w in enumerate(words))
        assert [s for s in range(128) if bits >> s & 1] == [m, 24 + m, 48 + m, 72 + m]


@pytest.mark.parametrize(
    "how", [{}, {"batch": 3}, {"rows": 1}, {"rows": 24, "depth": 4}, {"rows": 64, "prefix": 7}], ids=str
)
def test_attention_is_right_and_every_turn_has_inputs_of_its_own(how):
    x = inputs(**how)
    case = attention.case(x, "cpu")
    usable, refused = case.usable()
    assert case.check() and list(usable) == ["torch SDPA, contiguous"] and not refused
    assert not torch.equal(case.run(0), case.run(1)) and torch.equal(case.run(0), case.run(2))
    seen = sum(x.size.prefix + w.bit_count() for w in path_bits(x))
    assert case.flops == 4 * TINY.heads * TINY.head_dim * seen
    assert case.bytes == 4 * x.size.batch * x.size.length * 2 * 64 + 8 * len(x.q) * 4 * 64 + 8 * x.mask.numel()


def path_bits(x):
    return [sum(w % 2**64 << 64 * i for i, w in enumerate(words)) for words in x.mask.tolist()]


def test_peers_share_the_memory_of_their_copies():
    x = inputs(batch=2)
    own = [[c.clone() for c in pair] for pair in x.dense]
    y = inputs(batch=2)
    y.room = torch.empty(2 * y.k.numel(), dtype=y.k.dtype)
    assert all(torch.equal(a, b) for p, q in zip(own, y.dense, strict=True) for a, b in zip(p, q, strict=True))


def test_a_baseline_that_fails_or_computes_something_else_is_refused():
    def fail(turn):
        raise RuntimeError("no compiler")

    case = attention.case(inputs(), "cpu")
    case.baselines |= {"broken": fail, "wrong": lambda turn: 1.1 * case.run(turn)}
    usable, refused = case.usable()
    assert list(usable) == ["torch SDPA, contiguous"]
    assert refused == {"broken": "RuntimeError: no compiler", "wrong": "its result is another"}


@pytest.fixture
def flashinfer(monkeypatch):
    """A stand-in for the package: it computes with torch what its documentation says of the same arguments."""

    class Wrapper:
        def __init__(self, workspace, layout, use_tensor_cores=None):
            assert layout == "NHD" and workspace.dtype == torch.uint8
            self.decodes = use_tensor_cores is not None

        def run(self, q, kv):
            indptr, indices, last, heads, kv_heads, dim, page = self.pages
            out, at = torch.empty_like(q), 0
            for b in range(len(last)):
                pages = indices[indptr[b] : indptr[b + 1]].long()
                length = page * (len(pages) - 1) + int(last[b])
                k, v = (c[pages].flatten(0, 1)[:length].transpose(0, 1) for c in kv)
                rows = slice(self.rows[b], self.rows[b + 1])
                count = rows.stop - rows.start
                seen = self.mask[at : at + count * length].view(count, length) if self.mask is not None else None
                at += count * length
                y = F.scaled_dot_product_attention(
                    q[rows].transpose(0, 1), k, v, seen, scale=self.scale, enable_gqa=True
                )
                out[rows] = y.transpose(0, 1)
            assert q.shape[1:] == (heads, dim) and kv[0].shape[1:] == (page, kv_heads, dim)
            assert self.mask is None or at == len(self.mask)
            return out

    class Decode(Wrapper):
        def plan(self, indptr, indices, last, heads, kv_heads, dim, page, sm_scale, q_data_type, kv_data_type):
            assert self.decodes and q_data_type == kv_data_type == torch.bfloat16
            self.pages, self.scale, self.mask = (indptr, indices, last, heads, kv_heads, dim, page), sm_scale, None
            self.rows = list(range(len(last) + 1))

    class Prefill(Wrapper):
        def plan(self, rows, indptr, indices, last, heads, kv_heads, dim, page, custom_mask, sm_scale, q_data_type,
                 kv_data_type):  # fmt: skip
            assert rows.dtype == indptr.dtype == indices.dtype == last.dtype == torch.int32
            assert not self.decodes and custom_mask.dtype == torch.bool and q_data_type == kv_data_type
            self.pages, self.scale, self.mask = (
                (indptr, indices, last, heads, kv_heads, dim, page),
                sm_scale,
                custom_mask,
            )
            self.rows = rows.tolist()

    module = ModuleType("flashinfer")
    module.BatchDecodeWithPagedKVCacheWrapper, module.BatchPrefillWithPagedKVCacheWrapper = Decode, Prefill
    monkeypatch.setitem(sys.modules, "flashinfer", module)


@pytest.mark.parametrize(
    "how", [{"batch": 3}, {"batch": 3, "rows": 1}, {"rows": 24, "depth": 4}, {"prefix": 59}], ids=str
)
def test_flashinfer_is_given_the_same_pages_and_mask(flashinfer, how):
    case = attention.case(inputs(**how), "triton")  # computes with the CPU kernel here
    usable, refused = case.usable()
    assert "FlashInfer" in usable and not refused
    for turn in range(3):
        got = usable["FlashInfer"](turn).reshape(case.run(turn).shape)
        torch.testing.assert_close(got.float(), case.run(turn), rtol=0, atol=0.02)


def test_packages_that_are_not_installed_are_no_baselines(monkeypatch):
    for package in ("flash_attn", "flashinfer"):
        monkeypatch.setitem(sys.modules, package, None)
        assert not attention_peers.installed(package)
    assert list(attention.case(inputs(rows=1), "triton").baselines) == ["torch SDPA, contiguous"]


@pytest.mark.parametrize("format", ["bf16", "int8"])
def test_linear_cases_of_a_gpu_are_right(format):
    case = linear_cases.case("a layer", 128, 64, 5, format, "cpu")
    assert case.check() and list(case.usable()[0]) == ["torch bfloat16"]
    assert case.flops == 2 * 5 * 128 * 64 and case.bytes > 128 * 64 * (2 if format == "bf16" else 1)


def test_a_pass_over_the_linear_layers():
    whole, rank = (linear.shapes_of(MODELS[name]) for name in ("SmolLM2-135M", "Llama-70B/4"))
    assert whole[:4] == [(960, 576), (576, 576), (3072, 576), (576, 1536)]
    assert len(whole) == 121 and whole[-1] == (49152, 576)
    assert rank == [(2560, 8192), (8192, 2048), (14336, 8192), (8192, 7168)]


@pytest.fixture
def measured(monkeypatch):
    """bench.kernels on a case of a few kilobytes runs in this process."""
    monkeypatch.setattr(kernels, "bind", lambda cores: None)
    monkeypatch.setattr(kernels, "cold_bytes", lambda: 1 << 20)
    return kernels.Kernels([0])


def test_a_row_has_times_a_share_of_the_roofline_and_ratios(measured):
    case = attention.case(inputs(), "cpu")
    case.baselines["slow"] = lambda turn: [case.run(turn) for _ in range(50)][0]
    row = measured.row(case, 0.0)
    assert row["check"] and row["microseconds"] > 0 and row["roofline_fraction"] > 0 and row["refused"] == {}
    assert row["gb_per_s"] == pytest.approx(case.bytes / row["microseconds"] / 1e3)
    assert row["gflop_per_s"] == pytest.approx(case.flops / row["microseconds"] / 1e3)
    assert row["baselines"]["slow"] > 10 and row["baselines"]["torch SDPA, contiguous"] > 0
    case.check = lambda: False
    assert measured.row(case, 0.0)["baselines"] == {}


def test_rows_of_a_gpu_have_ratios_or_say_why_not(monkeypatch):
    """Everything of kernels_gpu but the clock runs on the CPU; a call takes a microsecond for each letter of its
    name."""

    def clock(calls, rounds, flush, device):
        assert rounds == 5 and flush() is not None and device == "cpu"
        assert all(call(turn) is not None for call in calls.values() for turn in (0, 1))
        return {name: [len(name) * 1e-6] * rounds for name in calls}

    monkeypatch.setattr(kernels_gpu, "seconds_of", clock)

    small = {"device": "cpu", "cold": 1 << 20, "square": 64}

    def fail(turn):
        raise RuntimeError("no such kernel")

    right, wrong, broken = (attention.case(inputs(), "triton") for _ in range(3))
    right.baselines["none"] = fail
    wrong.check, broken.run = (lambda: False), fail
    rows = list(kernels_gpu.rows(iter([right, wrong, broken]), 0.01, **small))
    assert rows[0]["microseconds"] == pytest.approx(14) and rows[0]["gb_per_s"] == pytest.approx(right.bytes / 14e3)
    assert rows[0]["baselines"] == {"torch SDPA, contiguous": pytest.approx(22 / 14)}
    assert rows[0]["refused"] == {"none": "RuntimeError: no such kernel"}
    bound = max(right.bytes / ((1 << 20) / 4), right.flops / (2 * 64**3 / 7)) / 14
    assert rows[0]["roofline_fraction"] == pytest.approx(bound)
    assert not rows[1]["check"] and rows[1]["baselines"] == {}
    assert rows[2] == {"op": "tree_attention", "backend": "triton", "shape": right.shape, "error": "no such kernel"}
    assert len(list(kernels_gpu.rows(iter([right, right]), 0.01, limit=1e-9, **small))) == 1


def test_what_is_measured_and_what_is_left_out_is_written(monkeypatch, tmp_path, capsys):
    calls = []

    class Fake:
        def __init__(self, factory, cores, args):
            self.cores = len(cores)

        __enter__ = lambda self: self  # noqa: E731
        __exit__ = lambda self, *_: None  # noqa: E731

        def call(self, method, **args):
            calls.append(args)
            return [
                {"op": args["module"], "backend": "cpu", "cores": self.cores, "shape": "s", "roofline_fraction": 1.0}
            ]

    file = tmp_path / "rows.json"
    monkeypatch.setattr(kernels, "Worker", Fake)
    command = ["kernels", "--device", "cpu", "--cores", "1", "--ops", "attention,norm", "--json", str(file)]
    monkeypatch.setattr(sys, "argv", [*command, "--models", "SmolLM2-135M,Llama-1B"])
    kernels.main()
    assert [(c["module"], c["models"]) for c in calls] == [
        ("attention", "SmolLM2-135M"), ("attention", "Llama-1B"), ("norm", "SmolLM2-135M,Llama-1B")
    ]  # fmt: skip
    written = json.loads(file.read_text())
    assert len(written["rows"]) == 3 and len(written["left_out"]["cpu"]["without --full"]) == 2 * (84 - 17)
    assert "134 sizes of tree attention left out, without --full" in capsys.readouterr().err


def test_bad_selections_are_named():
    with pytest.raises(ValueError, match="ops: got 'attentoin', wanted some of attention"):
        kernels.modules("attentoin")
    with pytest.raises(ValueError, match="models: got 'Llama-9B', wanted some of SmolLM2-135M"):
        kernels.shapes.models("Llama-9B")


def test_rows_of_the_gpu_can_be_drawn():
    row = {"op": "linear", "backend": "triton", "shape": "a", "roofline_fraction": 0.5}
    assert len(plots.kernels([row, row | {"backend": "cpu", "cores": 2}, {"op": "linear", "error": "none"}]).axes) == 1


def test_torch_may_be_exact_by_chance():
    exact = torch.ones(8, dtype=torch.float64)
    rounded = torch.full((8,), 1 + torch.finfo(torch.float32).eps)
    assert twice_torch(rounded, exact.float(), exact)
    assert not twice_torch(exact.float() * 1.00001, exact.float(), exact)
    assert not twice_torch(rounded * float("nan"), exact.float(), exact)
