"""flash-attn as an option for prompts, with a stand-in for the package that computes with torch and records
arguments."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
import tiny_checkpoint
import torch
import torch.nn.functional as F
from attention_cases import make_case
from attention_inputs import inputs
from model_helpers import one_request, relative_error, save_tiny

from bench.cases import attention
from ssd import LLM, SamplingParams, run
from ssd.kernels import tree_attention
from ssd.kernels.tree_attention import flash
from ssd.model.batch import Batch
from ssd.model.llama import Llama
from ssd.model.tokenizer import Tokenizer

CUDA = torch.device("cuda")


def sdpa(q, k, v, scale):
    """Attention of q [T, Hq, D] over k and v [L, Hkv, D], where row t of T sees the first L - T + t + 1 keys."""
    seen = torch.arange(len(k)) <= torch.arange(len(k) - len(q), len(k))[:, None]
    q, k, v = (x.transpose(0, 1) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, seen, scale=scale, enable_gqa=True).transpose(0, 1)


@pytest.fixture
def package(monkeypatch):
    """A stand-in for flash_attn; package.calls has the arguments of its calls."""
    calls = []

    def flash_attn_varlen_func(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None, causal=False
    ):  # fmt: skip
        calls.append(SimpleNamespace(**locals()))
        out, rows, keys = torch.empty_like(q), cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
        for b in range(len(rows) - 1):
            own = slice(rows[b], rows[b + 1]), slice(keys[b], keys[b + 1])
            out[own[0]] = sdpa(q[own[0]], k[own[1]], v[own[1]], softmax_scale)
        return out

    def flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens, block_table, softmax_scale, causal):
        assert k_cache.shape[1] % 256 == 0 and causal
        out = torch.empty_like(q)
        for b, n in enumerate(cache_seqlens.tolist()):
            k, v = (c[block_table[b].long()].flatten(0, 1)[:n] for c in (k_cache, v_cache))
            out[b] = sdpa(q[b], k, v, softmax_scale)
        return out

    module = ModuleType("flash_attn")
    module.flash_attn_varlen_func, module.flash_attn_with_kvcache = flash_attn_varlen_func, flash_attn_with_kvcache
    module.calls = calls
    monkeypatch.setitem(sys.modules, "flash_attn", module)
    return module


def prompts(case, call):
    return flash.prompts(call, *case.args()[3:6], len(case.q), case.k.shape[1])


@pytest.mark.parametrize("heads,kv_heads", [(9, 3), (7, 1), (2, 2)])
@pytest.mark.parametrize("prefixes,rows", [([0], [65]), ([40, 300, 0, 7, 1], [70, 1, 90, 0, 64])])
def test_prompts_agree_with_tree_attention_and_other_rows_equal_it(package, prefixes, rows, heads, kv_heads):
    case, scale = make_case(prefixes, rows, heads, kv_heads, 64, torch.bfloat16), 0.11
    case.q = case.q.float()
    got = prompts(case, flash.function(CUDA)).attend(case.q, case.k, case.v, scale)
    wanted = tree_attention(*case.args(), scale=scale)[0]
    torch.testing.assert_close(got, wanted, rtol=0, atol=0.03)  # q and the result have 16 bits here
    (call,) = package.calls
    long = [b for b, n in enumerate(rows) if n > 64]
    counts, keys = [rows[b] for b in long], [prefixes[b] + rows[b] for b in long]
    assert call.causal and call.softmax_scale == scale and call.dropout_p == 0
    assert call.cu_seqlens_q.dtype == call.cu_seqlens_k.dtype == torch.int32
    assert call.cu_seqlens_q.diff().tolist() == counts and call.cu_seqlens_k.diff().tolist() == keys
    assert (call.max_seqlen_q, call.max_seqlen_k) == (max(counts), max(keys))
    assert call.q.shape == (sum(counts), heads, 64) and call.k.shape == call.v.shape == (sum(keys), kv_heads, 64)
    assert call.q.dtype == call.k.dtype == call.v.dtype == torch.bfloat16
    for b, n in enumerate(rows):
        if n <= 64:
            own = slice(*case.row_offsets[b : b + 2].tolist())
            assert torch.equal(got[own], wanted[own])


def test_verifications_and_steps_are_no_prompts():
    for rows in ([64], [1] * 200, [5] * 40, [64, 64]):
        assert prompts(make_case([3] * len(rows), rows, 1, 1, 16, torch.bfloat16), None) is None


def mixed(model, ids):
    """A prompt of 80 tokens shares a pass with a step of another request."""
    one, two = one_request(ids[:80]), one_request(ids[30:31], prefix=30, first_page=5)
    table = F.pad(two.page_table, (0, one.page_table.shape[1] - two.page_table.shape[1]))
    joined = {name: torch.cat([getattr(one, name), getattr(two, name)]) for name in ("ids", "positions", "slots")}
    return Batch(
        **joined, row_offsets=torch.tensor([0, 80, 81], dtype=torch.int32), logit_rows=torch.tensor([3, 79, 80]),
        prefix_lens=torch.tensor([0, 30], dtype=torch.int32), page_table=torch.cat([one.page_table, table]),
    )  # fmt: skip


@pytest.fixture
def checkpoint(tmp_path):
    pytest.importorskip("transformers")
    save_tiny(tmp_path, num_attention_heads=6, num_key_value_heads=2, hidden_size=96, max_position_embeddings=128)
    return tmp_path


def test_a_model_takes_it_for_prompts_only_where_asked(checkpoint, package):
    model, ids = Llama.load(checkpoint), torch.randint(0, 99, (90,), generator=torch.Generator().manual_seed(0))
    results = []
    for call in (None, flash.function(CUDA)):
        model.flash_attn, kv = call, model.new_kv_cache(8)
        model.forward(one_request(ids[:30], first_page=5), kv)
        logits, features = model.forward_features(mixed(model, ids), kv, (0, 2))
        steps = [model.forward(one_request(ids[i : i + 1], prefix=i), kv) for i in (80, 81)]
        results.append((logits, features, torch.cat(steps)))
        assert len(package.calls) == (0 if call is None else model.config.num_layers)
    (plain, features, steps), (got, got_features, got_steps) = results
    assert torch.equal(got[2], plain[2]) and torch.equal(got_features[80], features[80])  # the other step
    assert not torch.equal(got, plain)
    for ours, wanted in ((got, plain), (got_features, features), (got_steps, steps)):
        assert max(relative_error(ours, wanted)) < 0.03


def test_what_cannot_be_is_one_sentence(tmp_path, monkeypatch, package):
    with pytest.raises(ValueError, match="^prompt_attention: flash needs a model on a GPU .*; this one is on cpu$"):
        Llama.load(tmp_path, prompt_attention="flash")
    with pytest.raises(ValueError, match="^prompt_attention: flash needs dtype bf16 or int8, .* got fp32$"):
        Llama.load(tmp_path, "fp32", device="cuda", prompt_attention="flash")
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    with pytest.raises(ValueError, match="^prompt_attention: flash needs the package flash-attn"):
        Llama.load(tmp_path, device="cuda", prompt_attention="flash")


@pytest.mark.parametrize("asked", ["tree", "flash"])
def test_llm_and_the_command_can_ask_for_it(tmp_path, monkeypatch, package, asked, capsys):
    folder = str(tiny_checkpoint.write(tmp_path))
    monkeypatch.setattr(flash, "function", lambda device: package.flash_attn_varlen_func)
    run.main(["x" * 100, "--target", folder, "--mode", "ar", "--max-tokens", "4", "--prompt-attention", asked])
    wanted = 2 if asked == "flash" else 0  # a call for each layer, and none for the steps
    assert len(package.calls) == wanted and capsys.readouterr().out
    llm = LLM(folder, prompt_attention=asked, threads=1)
    llm.generate("x" * 100, SamplingParams(max_tokens=4))
    assert len(package.calls) == 2 * wanted


def test_a_model_that_was_loaded_without_it_is_refused(tiny_target, tiny_folder):
    with pytest.raises(ValueError, match="^prompt_attention: got flash for a model that was loaded without it"):
        LLM.from_model(tiny_target, Tokenizer(tiny_folder), prompt_attention="flash")


def test_paged_decoding_is_a_baseline_where_it_is_the_same_work(package):
    name = "flash-attn, pages of 256"
    case = attention.case(inputs(prefix=300, batch=3, rows=1), "triton")
    usable, refused = case.usable()
    assert name in usable and not refused
    for turn in range(2):
        got = usable[name](turn).flatten(0, 1)
        torch.testing.assert_close(got.float(), case.run(turn), rtol=0, atol=0.02)
    assert name not in attention.case(inputs(prefix=300, batch=3), "triton").baselines  # a tree
