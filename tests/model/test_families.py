"""Models of Llama's family against transformers, with the same bits in every form of a pass."""

import json

import pytest
import torch
from model_helpers import one_request, one_tree, relative_error, save_tiny

from ssd.model.config import LlamaConfig
from ssd.model.llama import Llama
from ssd.model.source import DTYPES

pytest.importorskip("transformers")
SHARED = dict(num_attention_heads=14, num_key_value_heads=2, hidden_size=224, head_dim=16)
APART = dict(num_attention_heads=6, num_key_value_heads=2, head_dim=32, hidden_size=48)
YARN = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 16}
FAMILIES = {
    "TinyLlama": dict(num_attention_heads=8, num_key_value_heads=1, head_dim=16),
    "Mistral": dict(family="Mistral", num_attention_heads=8, head_dim=32, sliding_window=None),
    "Mistral, short": dict(family="Mistral", sliding_window=64),
    "Qwen2": dict(family="Qwen2", **SHARED, tie_word_embeddings=True),
    "Qwen2, untied": dict(family="Qwen2", **SHARED | {"num_key_value_heads": 14}, rope_parameters=YARN),
    "Qwen3": dict(family="Qwen3", **APART, tie_word_embeddings=True),
    "Qwen3, untied": dict(family="Qwen3", **APART | {"num_key_value_heads": 1}, attention_bias=True),
    "Qwen3, yarn": dict(family="Qwen3", rope_parameters=YARN, intermediate_size=70, vocab_size=131),
}
SOME = ("Mistral", "Qwen2", "Qwen3, untied")
PARENTS = (-1, 0, 0, 1, 1, 2, 4)  # rows of a tree


def tokens(n):
    return torch.randint(0, 99, (n,), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("changes", FAMILIES.values(), ids=FAMILIES)
@torch.no_grad()
def test_logits_and_greedy_tokens_of_transformers(tmp_path, changes):
    theirs, ids = save_tiny(tmp_path, **changes), tokens(30)
    ours = Llama.load(tmp_path, "fp32")
    kv = ours.new_kv_cache(4)
    got = torch.cat([ours.forward(one_request(ids[a:b], prefix=a), kv) for a, b in ((0, 7), (7, 8), (8, 30))])
    assert max(relative_error(got, theirs(ids[None]).logits[0])) <= 1e-5
    answer = [int(got[-1].argmax())]
    for n in range(30, 49):
        answer.append(int(ours.forward(one_request(answer[-1:], prefix=n), kv)[0].argmax()))
    whole = torch.tensor([*ids, *answer[:-1]])
    assert answer == theirs(whole[None]).logits[0, 29:].argmax(-1).tolist()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", SOME)
@torch.no_grad()
def test_a_tree_equals_its_single_steps_and_the_composition_one_call(tmp_path, family, dtype):
    theirs, ids = save_tiny(tmp_path, **FAMILIES[family]), tokens(20 + len(PARENTS))
    model = Llama.load(tmp_path, dtype)
    prompt, nodes = ids[:20], ids[20:]
    kv, other = model.new_kv_cache(4), model.new_kv_cache(4)
    first = model.forward(one_request(prompt), kv)
    error, _ = relative_error(first, theirs(prompt[None]).logits[0])
    assert error <= {"fp32": 1e-5, "bf16": 0.03, "int8": 0.1, "q4": 0.6}[dtype]
    assert torch.equal(model.forward_composed(one_request(prompt), other), first)
    tree = one_tree(nodes, PARENTS, 20)
    got = model.forward(tree, kv)
    assert torch.equal(model.forward_composed(tree, other), got)
    assert torch.equal(kv.k[:, 0], other.k[:, 0]) and torch.equal(kv.v[:, 0], other.v[:, 0])
    for row, parent in enumerate(PARENTS):
        path = [row]
        while parent >= 0:
            path, parent = [parent, *path], PARENTS[parent]
        for n, node in enumerate(path):
            step = model.forward(one_request(nodes[node : node + 1], prefix=20 + n), kv)
        assert torch.equal(step[0], got[row])


def config_of(tmp_path, **changes):
    save_tiny(tmp_path, **changes)
    return json.loads((tmp_path / "config.json").read_text())


def test_what_a_family_has_and_leaves_out(tmp_path):
    qwen2 = LlamaConfig.from_dict(config_of(tmp_path, **FAMILIES["Qwen2"]))
    assert (qwen2.attention_bias, qwen2.output_bias, qwen2.mlp_bias, qwen2.qk_norm) == (True, False, False, False)
    raw = config_of(tmp_path, **FAMILIES["Qwen3"])
    qwen3 = LlamaConfig.from_dict(raw)
    assert (qwen3.attention_bias, qwen3.output_bias, qwen3.qk_norm, qwen3.head_dim) == (False, False, True, 32)
    assert LlamaConfig.from_dict({k: v for k, v in raw.items() if k != "head_dim"}).head_dim == 128
    biased = LlamaConfig.from_dict(raw | {"attention_bias": True})
    assert biased.attention_bias and biased.output_bias
    mistral = config_of(tmp_path, **FAMILIES["Mistral"])
    assert mistral["sliding_window"] is None and LlamaConfig.from_dict(mistral | {"architectures": None}).head_dim == 32


WINDOWED = {"layer_types": None, "use_sliding_window": True, "sliding_window": 32}
REFUSED = [
    ("Mistral", {"sliding_window": 63}, r"not supported \(sliding_window 63, context 64\): wanted full attention"),
    ("Mistral", {"max_position_embeddings": 4097, "sliding_window": ...}, r"\(sliding_window 4096, context 4097\)"),
    ("Qwen2", WINDOWED | {"max_window_layers": 1}, r"\(sliding_window 32, context 64\)"),
    ("Qwen3", {"layer_types": ["full_attention", "sliding_attention"]}, "a sliding window is not supported"),
    ("TinyLlama", {"layer_types": ["full_attention", "sliding_attention"]}, "a sliding window is not supported"),
    ("Qwen3", {"layer_types": ["linear_attention"]}, "'linear_attention' is not supported, wanted 'full_attention'"),
    ("Mistral", {"num_local_experts": 8}, r"mixture-of-experts .* not supported \(num_local_experts 8\): wanted dense"),
    ("Qwen3", {"architectures": ["Qwen3MoeForCausalLM"], "num_experts": 128}, "mixture-of-experts"),
    ("Qwen2", {"architectures": ["Qwen2VLForConditionalGeneration"]}, "'Qwen2VLForConditionalGeneration' is not"),
]


@pytest.mark.parametrize("family, changes, message", REFUSED)
def test_what_is_refused(tmp_path, family, changes, message):
    raw = config_of(tmp_path, **FAMILIES[family]) | changes
    with pytest.raises(ValueError, match=message) as e:
        LlamaConfig.from_dict({k: v for k, v in raw.items() if v is not ...})
    assert "\n" not in str(e.value)


def test_windows_that_are_none(tmp_path):
    raw = config_of(tmp_path, **FAMILIES["Qwen2"])
    plain = LlamaConfig.from_dict(raw)
    assert LlamaConfig.from_dict(raw | WINDOWED | {"use_sliding_window": False}) == plain
    assert LlamaConfig.from_dict(raw | WINDOWED) == plain  # from layer 28 on
    assert LlamaConfig.from_dict(raw | {"layer_types": ["full_attention"] * 2, "sliding_window": 32}) == plain
