import pytest
import torch
from model_helpers import one_request, relative_error, save_tiny

from ssd.model.batch import Batch
from ssd.model.llama import Llama

pytest.importorskip("transformers")
LLAMA3 = dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16)
VARIANTS = {
    "gqa 1": dict(num_attention_heads=2, num_key_value_heads=2),
    "gqa 3": dict(num_attention_heads=3, num_key_value_heads=1, hidden_size=48),
    "gqa 4, head_dim 80": dict(num_attention_heads=4, num_key_value_heads=1, head_dim=80),
    "head_dim 24": dict(head_dim=24),
    "head_dim 100, biases": dict(head_dim=100, attention_bias=True),
    "head_dim 2, one head": dict(head_dim=2, num_attention_heads=1, num_key_value_heads=1),
    "head_dim 8, llama3": dict(head_dim=8, rope_parameters={"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3}),
    "gqa 7": dict(num_attention_heads=7, num_key_value_heads=1, hidden_size=112),
    "tied": dict(tie_word_embeddings=True),
    "biases": dict(attention_bias=True, mlp_bias=True),
    "odd sizes": dict(intermediate_size=70, vocab_size=131),
    "linear": dict(rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}),
    "llama3": dict(rope_parameters={"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3}),
    "dynamic": dict(
        rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}, max_position_embeddings=16
    ),
}


def ids_for(model, n, seed=1):
    return torch.randint(0, model.config.vocab_size, (n,), generator=torch.Generator().manual_seed(seed))


def step_by_step(model, ids):
    """Logits of transformers, one token at a time, since dynamic scaling there depends on the call."""
    cache, rows = None, []
    for token in ids:
        out = model(token.view(1, 1), past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        rows.append(out.logits[0])
    return torch.cat(rows)


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
@torch.no_grad()
def test_logits_of_transformers(tmp_path, changes):
    theirs = save_tiny(tmp_path, **changes)
    ours = Llama.load(tmp_path, "fp32")
    ids = ids_for(theirs, 30)
    dynamic = theirs.config.rope_parameters["rope_type"] == "dynamic"
    wanted = step_by_step(theirs, ids) if dynamic else theirs(ids[None]).logits[0]
    whole = ours.forward(one_request(ids), ours.new_kv_cache(2))
    kv = ours.new_kv_cache(4)
    parts = [ours.forward(one_request(ids[a:b], prefix=a, first_page=1), kv) for a, b in ((0, 7), (7, 8), (8, 30))]
    for got in (whole, torch.cat(parts)):
        assert max(relative_error(got, wanted)) <= 1e-5


@torch.no_grad()
def test_old_rope_scaling_spelling_and_shards(tmp_path):
    import json

    theirs = save_tiny(tmp_path, **VARIANTS["llama3"])
    theirs.save_pretrained(tmp_path / "shards", max_shard_size="50KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    path = tmp_path / "shards" / "config.json"
    config = json.loads(path.read_text())
    config["rope_scaling"] = config.pop("rope_parameters")
    config["rope_theta"] = config["rope_scaling"].pop("rope_theta")
    path.write_text(json.dumps(config))
    ids = ids_for(theirs, 20)
    one, other = (Llama.load(folder, "fp32") for folder in (tmp_path, tmp_path / "shards"))
    assert torch.equal(*(m.forward(one_request(ids), m.new_kv_cache(2)) for m in (one, other)))


@pytest.mark.parametrize("dtype,tolerance", [("bf16", 0.02), ("int8", 0.05), ("q4", 0.3)])
@torch.no_grad()
def test_other_formats_are_near(tmp_path, dtype, tolerance):
    theirs = save_tiny(tmp_path)
    ours = Llama.load(tmp_path, dtype)
    kv = ours.new_kv_cache(2)
    assert kv.k.dtype == torch.bfloat16 and kv.k.shape == (2, 2, 16, 2, 64)
    ids = ids_for(theirs, 20)
    error, _ = relative_error(ours.forward(one_request(ids), kv), theirs(ids[None]).logits[0])
    assert 0 < error <= tolerance


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "int8", "q4"])
@torch.no_grad()
def test_a_batch_equals_its_members(tmp_path, dtype):
    """Two requests of unequal length have the same bits in one call with shuffled pages, each alone, and token by
    token."""
    theirs = save_tiny(tmp_path)
    model = Llama.load(tmp_path, dtype)
    a, b = ids_for(theirs, 21, seed=2), ids_for(theirs, 5, seed=3)
    alone = [model.forward(one_request(x), model.new_kv_cache(2)) for x in (a, b)]
    kv = model.new_kv_cache(6)
    kv.k.fill_(float("nan")), kv.v.fill_(float("nan"))
    first, second = one_request(a), one_request(b)
    pages = torch.tensor([[4, 2], [1, 99]], dtype=torch.int32)  # 99: unused
    slots = [pages[i][x // 16].long() * 16 + x % 16 for i, x in enumerate((torch.arange(21), torch.arange(5)))]
    together = Batch(
        ids=torch.cat([first.ids, second.ids]),
        positions=torch.cat([first.positions, second.positions]),
        slots=torch.cat(slots),
        row_offsets=torch.tensor([0, 21, 26], dtype=torch.int32),
        prefix_lens=torch.zeros(2, dtype=torch.int32),
        page_table=pages,
        logit_rows=torch.arange(26),
    )
    assert torch.equal(model.forward(together, kv), torch.cat(alone))
    kv = model.new_kv_cache(2)
    steps = [model.forward(one_request(a[i : i + 1], prefix=i), kv) for i in range(21)]
    assert torch.equal(torch.cat(steps), alone[0])


@torch.no_grad()
def test_logit_rows_and_chain_mask(tmp_path):
    save_tiny(tmp_path)
    model = Llama.load(tmp_path, "fp32")
    batch = one_request(range(9))
    every = model.forward(batch, model.new_kv_cache(1))
    batch.logit_rows = torch.tensor([8, 2])
    assert torch.equal(model.forward(batch, model.new_kv_cache(1)), every[[8, 2]])
    batch.mask = torch.tensor([[(2 << row) - 1] for row in range(9)])
    assert torch.equal(model.forward(batch, model.new_kv_cache(1)), every[[8, 2]])


def test_heads_that_the_kernels_lack_are_refused_in_one_sentence(tmp_path):
    for family, changes, message in (
        ("Llama", dict(head_dim=288), "head_dim: got 288, wanted an even number, at most 256"),
        ("Qwen3", dict(head_dim=24), "head_dim: got 24, wanted a multiple of 16 beside a norm of each head"),
    ):
        save_tiny(tmp_path / family, family=family, **changes)
        with pytest.raises(ValueError, match=f"config.json: {message}"):
            Llama.load(tmp_path / family)


@pytest.mark.parametrize("dtype", ["bf16", "int8", "q4"])
def test_padded_heads_in_every_dtype(dtype, tmp_path):
    theirs = save_tiny(tmp_path, head_dim=24, hidden_size=64)
    ids = ids_for(theirs, 20)
    with torch.no_grad():
        wanted = theirs(ids[None]).logits[0]
    ours = Llama.load(tmp_path, dtype)
    got = ours.forward(one_request(ids), ours.new_kv_cache(2))
    assert torch.equal(got, ours.forward_composed(one_request(ids), ours.new_kv_cache(2)))
    assert relative_error(got, wanted)[0] < {"bf16": 0.03, "int8": 0.06, "q4": 0.5}[dtype]


def test_bad_dtype_is_named(tmp_path):
    with pytest.raises(ValueError, match="dtype: got 'fp8', wanted one of bf16, int8, q4, fp32"):
        Llama.load(tmp_path, "fp8")
    with pytest.raises(ValueError, match="no config.json"):
        Llama.load(tmp_path)


def test_opcheck_of_the_forward_pass(tmp_path):
    """The operator runs with and without hidden states, features and an output vocabulary of its own."""
    import tiny_checkpoint
    from draft_helpers import HIDDEN, write_draft

    from ssd.model.draft import Draft

    target = Llama.load(tiny_checkpoint.write(tmp_path / "t"), "fp32")
    draft = Draft.load(write_draft(tmp_path / "d", layers=[1], outputs=40), target, "fp32")
    for model, layers, hidden in ((target, (), None), (target, (0, 2), None), (draft, (1,), torch.ones(5, HIDDEN))):
        batch, kv, c, w = one_request(torch.arange(5)), model.new_kv_cache(1), model.config, model.weights
        kv.k.zero_(), kv.v.zero_()
        rows = (batch.ids, batch.positions, batch.slots, batch.row_offsets, batch.prefix_lens, batch.page_table)
        sizes = (c.num_heads, c.intermediate_size, c.rms_norm_eps, model.scale)
        args = (*rows, None, batch.logit_rows, kv.k, kv.v, w.embedding, model.flat, w.norm, w.lm_head, model.cos)
        extra = (model.vocab, hidden, model.hidden_norm if hidden is not None else None, list(layers))
        torch.library.opcheck(torch.ops.ssd.llama_forward.default, (*args, model.sin, *sizes, *extra))
