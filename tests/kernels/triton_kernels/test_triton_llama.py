from functools import partial

import model_helpers
import pytest
import torch

from ssd.kernels.linear.triton import pack_linear
from ssd.kernels.llama_forward.triton import llama_forward
from ssd.model import Llama, LlamaConfig
from ssd.model.checkpoint import Checkpoint
from ssd.model.kv_cache import KVCache
from ssd.model.ring import Ring
from ssd.model.rope import rope_tables
from ssd.model.weights import load_weights

SMALL = dict(head_dim=16, num_attention_heads=3, num_key_value_heads=1, hidden_size=48, attention_bias=True)
NORMED = SMALL | {"family": "Qwen3"}


def loaded(folder, device, dtype, format):
    """Llama.load on the device, even if the kernels run on CPU tensors."""
    config = LlamaConfig.from_folder(folder)
    checkpoint = Checkpoint(folder, ring=Ring(torch.device(device)))
    weights = load_weights(config, checkpoint, lambda w, n: pack_linear(w, format, n), dtype, norm_dtype=dtype)
    checkpoint.check_values()
    return Llama(config, weights, *(t.to(device) for t in rope_tables(config)), format)


def forward(model, batch, kv, layers=()):
    c, w, b = (
        model.config,
        model.weights,
        {name: None if t is None else t.to(kv.k.device) for name, t in vars(batch).items()},
    )
    rows = (b[name] for name in "ids positions slots row_offsets prefix_lens page_table mask logit_rows".split())
    rest = (w.embedding, model.flat, w.norm, w.lm_head, model.cos, model.sin, c.num_heads, c.intermediate_size)
    return llama_forward(*rows, kv.k, kv.v, *rest, c.rms_norm_eps, model.scale, feature_layers=layers)


def cache(model, dtype):
    c = model.config
    return KVCache(c.num_layers, 4, 16, c.num_kv_heads, c.head_dim, dtype, model.cos.device)


@pytest.fixture
def ids():
    return torch.randint(0, 99, (7,), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("changes", [SMALL, NORMED])
def test_logits_and_features_are_those_of_the_cpu(tmp_path, device, ids, changes):
    model_helpers.save_tiny(tmp_path, **changes)
    model, cpu = loaded(tmp_path, device, torch.float32, "fp32"), Llama.load(tmp_path, "fp32")
    got = forward(model, model_helpers.one_request(ids), cache(model, torch.float32), (0, 2, 1))
    wanted = cpu.forward_features(model_helpers.one_request(ids), cpu.new_kv_cache(4), (0, 2, 1))
    for ours, want in zip(got, wanted, strict=True):
        assert max(model_helpers.relative_error(ours.cpu(), want)) < 1e-5


def test_steps_and_a_chunk_have_the_same_bits(tmp_path, device, ids):
    model_helpers.save_tiny(tmp_path, **NORMED | {"num_hidden_layers": 1})
    model = loaded(tmp_path, device, torch.bfloat16, "bf16")
    make = partial(cache, model, torch.bfloat16)
    chunk = forward(model, model_helpers.one_request(ids), make())[0]
    kv = make()
    steps = [forward(model, model_helpers.one_request(ids[i : i + 1], prefix=i), kv)[0] for i in range(len(ids))]
    assert torch.equal(torch.cat(steps), chunk)
